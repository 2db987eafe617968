//! Quantities with their unit in the type, so that no number travels without one.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A point on the host's own monotonic clock, in microseconds since the host started.
///
/// Moments of two hosts are never compared, and none crosses the wire: there, only remaining durations and ages travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

/// A length of time in microseconds. Arithmetic saturates: a duration is never negative and never wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Micros(pub u64);

impl Moment {
    /// How long ago `earlier` was, zero if it lies ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Micros {
        Micros(self.0.saturating_sub(earlier.0))
    }

    /// The moment `ago` before this one; the clock's start if that lies before it.
    #[must_use]
    pub fn before(self, ago: Micros) -> Self {
        Self(self.0.saturating_sub(ago.0))
    }
}

impl Add<Micros> for Moment {
    type Output = Self;
    fn add(self, span: Micros) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Micros {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// Longer than anything that is waited for.
    pub const MAX: Self = Self(u64::MAX);

    /// `ms` milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000))
    }

    /// `s` seconds.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000))
    }

    /// `s` seconds with a fraction; what is not a finite positive number becomes zero, what is too long becomes `MAX`.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate, and NaN becomes zero")]
    pub fn from_secs_f64(s: f64) -> Self {
        Self((s * 1e6) as u64)
    }

    /// As seconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "exact for 285 years")]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// As milliseconds with a fraction.
    #[must_use]
    pub fn as_millis_f64(self) -> f64 {
        self.as_secs_f64() * 1e3
    }

    /// This span `factor` times; negative and NaN factors give zero.
    #[must_use]
    pub fn scale(self, factor: f64) -> Self {
        Self::from_secs_f64(self.as_secs_f64() * factor)
    }
}

impl Add for Micros {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Micros {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Micros {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_millis_f64() {
            ms if ms >= 10_000.0 => write!(f, "{:.1} s", ms / 1e3),
            ms if ms >= 10.0 => write!(f, "{ms:.0} ms"),
            ms => write!(f, "{ms:.1} ms"),
        }
    }
}

macro_rules! count {
    ($(#[$doc:meta])* $name:ident($inner:ty), $unit:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{} ", $unit), self.0)
            }
        }
    };
}

count!(
    /// A size in bytes.
    Bytes(u64), "B"
);
count!(
    /// A number of model tokens.
    Tokens(u32), "tokens"
);
count!(
    /// Money in millionths of a US dollar.
    MicroDollars(u64), "µ$"
);

impl Tokens {
    /// As a float, exactly.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0)
    }
}

impl Bytes {
    /// As a float, for rates.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "sizes and rates, not identities")]
    pub fn as_f64(self) -> f64 {
        self.0 as f64
    }
}

macro_rules! measured {
    ($(#[$doc:meta])* $name:ident, $unit:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
        #[serde(try_from = "f64", into = "f64")]
        pub struct $name(f64);

        impl $name {
            /// The largest value that is believed.
            pub const MAX: f64 = $max;

            /// A finite value from zero to [`Self::MAX`].
            ///
            /// # Errors
            /// [`NotAQuantity`] for NaN, infinite, negative and absurdly large values.
            pub fn new(value: f64) -> Result<Self, NotAQuantity> {
                if value.is_finite() && (0.0..=Self::MAX).contains(&value) {
                    Ok(Self(value))
                } else {
                    Err(NotAQuantity { what: stringify!($name), value, max: Self::MAX })
                }
            }

            /// The plain number, finite and not negative.
            #[must_use]
            pub const fn get(self) -> f64 {
                self.0
            }
        }

        impl TryFrom<f64> for $name {
            type Error = NotAQuantity;
            fn try_from(value: f64) -> Result<Self, NotAQuantity> {
                Self::new(value)
            }
        }

        impl From<$name> for f64 {
            fn from(value: $name) -> f64 {
                value.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{:.3}", $unit), self.0)
            }
        }
    };
}

/// A number that is no quantity of the named kind.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{value} is no {what}: want a finite number from 0 to {max}")]
pub struct NotAQuantity {
    /// The type that refused.
    pub what: &'static str,
    /// What was offered.
    pub value: f64,
    /// The largest acceptable value.
    pub max: f64,
}

measured!(
    /// Energy in joules.
    Joules, " J", 1e15
);
measured!(
    /// Power in watts. A rack draws 1e5; a megawatt in one node is a broken sensor.
    Watts, " W", 1e6
);
measured!(
    /// Quality of a variant's answers from 0 to 1, comparable within one service only.
    Quality, "", 1.0
);
measured!(
    /// A fraction from 0 to 1.
    Fraction, "", 1.0
);
measured!(
    /// Tokens per second of one stream.
    TokenRate, " tok/s", 1e7
);
measured!(
    /// A length of time in seconds that may be far below a microsecond: what one token of many adds to a step. A day is a broken
    /// measurement.
    Seconds, " s", 86_400.0
);
measured!(
    /// Bytes per second.
    ByteRate, " B/s", 1e13
);
measured!(
    /// Floating-point operations per second. A whole rack does less than a thousandth of the largest.
    FlopRate, " FLOP/s", 1e20
);
measured!(
    /// Operations on whole numbers per second, a multiplication and an addition being two.
    OpRate, " op/s", 1e20
);
measured!(
    /// Processors, with parts of one: a control group may allow half of one. More than the largest is a broken report.
    Cores, " cores", 65_536.0
);

/// A temperature in degrees Celsius, within what electronics survive: sensors that are not there answer −273, −256, −128 or 255.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Celsius(f64);

impl Celsius {
    /// Colder machines do not run.
    pub const MIN: f64 = -60.0;
    /// Hotter ones have shut down.
    pub const MAX: f64 = 150.0;

    /// A temperature that a running machine can have.
    ///
    /// # Errors
    /// [`NotAQuantity`] for NaN and what no running machine has.
    pub fn new(value: f64) -> Result<Self, NotAQuantity> {
        if (Self::MIN..=Self::MAX).contains(&value) {
            Ok(Self(value))
        } else {
            Err(NotAQuantity { what: "temperature", value, max: Self::MAX })
        }
    }

    /// The plain number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Celsius {
    type Error = NotAQuantity;
    fn try_from(value: f64) -> Result<Self, NotAQuantity> {
        Self::new(value)
    }
}

impl From<Celsius> for f64 {
    fn from(value: Celsius) -> Self {
        value.0
    }
}

impl fmt::Display for Celsius {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} °C", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_refuse_what_is_none() {
        for bad in [f64::NAN, f64::INFINITY, -1.0, 2e6] {
            assert!(Watts::new(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<Quality>("1.5").is_err());
        assert_eq!(serde_json::from_str::<Quality>("0.5").map(Quality::get).ok(), Some(0.5));
    }

    #[test]
    fn no_sensor_is_no_temperature() {
        for bad in [f64::NAN, f64::INFINITY, -273.15, -256.0, -128.0, 255.0, 65_535.0] {
            assert!(Celsius::new(bad).is_err(), "{bad}");
        }
        assert_eq!(serde_json::from_str::<Celsius>("-12.5").map(Celsius::get).ok(), Some(-12.5));
        assert!(serde_json::from_str::<Celsius>("-256").is_err());
    }

    #[test]
    fn time_saturates() {
        assert_eq!(Micros(3) - Micros(5), Micros::ZERO);
        assert_eq!(Moment(3).since(Moment(5)), Micros::ZERO);
        assert_eq!(Moment(5) + Micros::MAX, Moment(u64::MAX));
        assert_eq!(Micros::from_secs(2).scale(f64::NAN), Micros::ZERO);
        assert_eq!(Micros::from_secs(2).scale(0.5), Micros::from_secs(1));
    }
}
