//! A linear law learned from a stream of measurements, some of which are nonsense and all of which may change.
//!
//! `seconds = drift · Σ coefficient · quantity`. The coefficients are followed by recursive least squares on relative errors (a
//! Kalman filter whose state wanders a little), each error bounded as Huber does, so that one stalled step counts for next to
//! nothing. `drift` is one common factor that moves much faster: a throttled processor or a busy neighbour slows everything alike,
//! and what was seen while decoding then holds for prompts too. When errors stay far on one side, the factor jumps to where they are.

use serde::{Deserialize, Serialize};

/// Errors beyond so many of the usual ones count as if they were that large: Huber's constant, which keeps 95 % of the efficiency of
/// plain least squares where errors are normal.
const HUBER: f64 = 1.345;
/// How far coefficients wander at each measurement, relative to themselves: after ten thousand steps (some minutes of work) nothing
/// of what was known is certain within a fifth.
const WANDER: f64 = 2e-3;
/// Least certainty about a coefficient, as a relative deviation: one that is never exercised must not become arbitrary.
const UNSURE_MAX: f64 = 0.5;
/// Weight of a measurement in the common factor: what happened in the last fifty counts.
const DRIFT_WEIGHT: f64 = 0.02;
/// How fast the common factor returns to one, so that a lasting change ends up in the coefficients.
const DRIFT_RETURN: f64 = 1e-3;
/// The common factor stays within this, either way: more is another device, and its measurement another profile.
const DRIFT_MAX: f64 = 20.0;
/// Weight of a measurement in the usual size of errors.
const NOISE_WEIGHT: f64 = 0.02;
/// The usual relative error is taken to be within these: none would make each measurement an outlier, and more says nothing.
const NOISE: (f64, f64) = (0.01, 0.5);
/// A mean absolute error times this is a standard deviation, where errors are normal.
const MEAN_TO_DEVIATION: f64 = 1.2533;
/// So many errors in a row on one side, each beyond [`CHANGE_BEYOND`] of the usual, are a change and no chance: half of them would
/// come by chance once in 10^7.
const CHANGE_RUN: usize = 8;
/// See [`CHANGE_RUN`].
const CHANGE_BEYOND: f64 = 1.5;

/// Quantities of the law: those of [`crate::fleet::Pace`].
pub(super) const TERMS: usize = 4;
type Row = [f64; TERMS];

/// The law, as far as it is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Fit {
    coefficients: Row,
    covariance: [Row; TERMS],
    drift: f64,
    noise: f64,
    /// Newest errors that lie far off on one side, as logarithms.
    off: Vec<f64>,
    samples: u32,
    changes: u32,
}

impl Fit {
    /// Begins with a guess, each coefficient of which may be off by about itself.
    pub(super) fn guess(coefficients: Row) -> Self {
        let mut covariance = [Row::default(); TERMS];
        for (index, (row, coefficient)) in covariance.iter_mut().zip(coefficients).enumerate() {
            if let Some(variance) = row.get_mut(index) {
                *variance = coefficient * coefficient;
            }
        }
        Self { coefficients, covariance, drift: 1.0, noise: 0.1, off: Vec::new(), samples: 0, changes: 0 }
    }

    /// Whether it holds numbers that can be reckoned with: one that was read from a disk may not.
    pub(super) fn sound(&self) -> bool {
        let good = |number: &f64| number.is_finite() && *number >= 0.0;
        let known = self.coefficients.iter().all(good) && self.coefficients.iter().any(|number| *number > 0.0);
        let sure = self.covariance.iter().flatten().all(|number| number.is_finite());
        let near = (1.0 / DRIFT_MAX..=DRIFT_MAX).contains(&self.drift) && (NOISE.0..=NOISE.1).contains(&self.noise);
        known && sure && near && self.off.len() <= CHANGE_RUN && self.off.iter().all(|number| number.is_finite())
    }

    /// What so much of everything takes, as far as is known.
    pub(super) fn seconds(&self, quantities: &Row) -> f64 {
        self.drift * dot(&self.coefficients, quantities)
    }

    /// The coefficients as they hold now.
    pub(super) fn coefficients(&self) -> Row {
        self.coefficients.map(|coefficient| coefficient * self.drift)
    }

    /// The usual relative error of one measurement.
    pub(super) const fn noise(&self) -> f64 {
        self.noise
    }

    /// How uncertain the law itself is at these quantities: one standard deviation, relative.
    pub(super) fn unsure(&self, quantities: &Row) -> f64 {
        let base = dot(&self.coefficients, quantities);
        let scaled = quantities.map(|quantity| quantity / base);
        dot(&scaled, &self.spread(&scaled)).max(0.0).sqrt()
    }

    /// Measurements taken in.
    pub(super) const fn samples(&self) -> u32 {
        self.samples
    }

    /// How often everything changed at once.
    pub(super) const fn changes(&self) -> u32 {
        self.changes
    }

    /// Takes in a measurement. What is no time is ignored.
    pub(super) fn observe(&mut self, quantities: &Row, seconds: f64) {
        let base = dot(&self.coefficients, quantities);
        if !(seconds.is_finite() && seconds > 0.0 && base.is_finite() && base > 0.0) {
            return;
        }
        self.samples = self.samples.saturating_add(1);
        let error = seconds / (base * self.drift) - 1.0;
        // The size of errors is learned from bounded ones too, else one stalled step would excuse all that follow.
        let bounded = error.abs().min(5.0 * self.noise);
        self.noise = (self.noise + NOISE_WEIGHT * (MEAN_TO_DEVIATION * bounded - self.noise)).clamp(NOISE.0, NOISE.1);
        let usual = HUBER * self.noise;
        let bounded = error.clamp(-usual, usual);
        self.correct(&quantities.map(|quantity| quantity / base), bounded);
        self.drift *= 1.0 + DRIFT_WEIGHT * bounded - DRIFT_RETURN * self.drift.ln();
        self.look_for_change(error);
        self.drift = self.drift.clamp(1.0 / DRIFT_MAX, DRIFT_MAX);
    }

    /// Moves the coefficients by a relative error at quantities that are scaled so that the law gives one.
    fn correct(&mut self, scaled: &Row, error: f64) {
        let spread = self.spread(scaled);
        let doubt = dot(scaled, &spread) + self.noise * self.noise;
        for (coefficient, spread) in self.coefficients.iter_mut().zip(spread) {
            // No thing in a step makes it shorter.
            *coefficient = (*coefficient + spread / doubt * error).max(0.0);
        }
        for (row, first) in self.covariance.iter_mut().zip(spread) {
            for (value, second) in row.iter_mut().zip(spread) {
                *value -= first * second / doubt;
            }
        }
        self.wander();
    }

    /// Lets what is known age, within bounds.
    fn wander(&mut self) {
        let mean = self.coefficients.iter().sum::<f64>() / 4.0;
        let mut shrink = Row::default();
        for (index, (row, coefficient)) in self.covariance.iter_mut().zip(self.coefficients).enumerate() {
            let (Some(variance), Some(shrink)) = (row.get_mut(index), shrink.get_mut(index)) else { continue };
            // A coefficient at zero must still be able to leave it.
            let size = coefficient.max(mean * 1e-6);
            *variance = variance.max(0.0) + (WANDER * size).powi(2);
            *shrink = (UNSURE_MAX * size / variance.sqrt()).min(1.0);
        }
        for (row, first) in self.covariance.iter_mut().zip(shrink) {
            for (value, second) in row.iter_mut().zip(shrink) {
                *value *= first * second;
            }
        }
    }

    fn look_for_change(&mut self, error: f64) {
        let off = (1.0 + error).ln();
        let far = error.abs() > CHANGE_BEYOND * self.noise;
        let same = self.off.first().is_none_or(|first| (*first > 0.0) == (off > 0.0));
        if !far || !same {
            self.off.clear();
        }
        if far {
            self.off.push(off);
        }
        if self.off.len() >= CHANGE_RUN {
            self.off.sort_by(f64::total_cmp);
            self.drift *= self.off.get(CHANGE_RUN / 2).copied().unwrap_or_default().exp();
            self.changes = self.changes.saturating_add(1);
            self.off.clear();
        }
    }

    fn spread(&self, scaled: &Row) -> Row {
        let mut spread = Row::default();
        for (out, row) in spread.iter_mut().zip(&self.covariance) {
            *out = dot(row, scaled);
        }
        spread
    }
}

fn dot(a: &Row, b: &Row) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as from a die, the same each time.
    struct Dice(u64);

    impl Dice {
        fn unit(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from(u32::try_from(self.0 >> 33).unwrap_or_default()) / f64::from(1_u32 << 31)
        }

        /// About normal, with a deviation of one.
        fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
        }

        /// Quantities of a step as a busy engine has them.
        fn step(&mut self) -> Row {
            let pick = (self.unit() * 3.0).floor();
            let context = (self.unit() * 800.0).floor();
            let decode = (self.unit() * 4.0).floor() + 1.0;
            if pick < 1.0 { [1.0, 31.0, 1.0, 32.0 * context] } else { [1.0, 0.0, decode, decode * context] }
        }
    }

    const TRUTH: Row = [2e-3, 8e-4, 1.5e-3, 2e-6];

    fn wrong() -> Fit {
        Fit::guess([1e-3, 1.6e-3, 3e-3, 1e-6])
    }

    fn learn(fit: &mut Fit, dice: &mut Dice, truth: &Row, steps: usize, mut spoil: impl FnMut(usize, f64) -> f64) {
        for step in 0..steps {
            let quantities = dice.step();
            let seconds = dot(truth, &quantities) * (1.0 + 0.05 * dice.normal());
            fit.observe(&quantities, spoil(step, seconds));
        }
    }

    #[track_caller]
    fn near(fit: &Fit, truth: &Row, within: f64) {
        for quantities in [[1.0, 0.0, 1.0, 100.0], [1.0, 0.0, 4.0, 2_000.0], [1.0, 31.0, 1.0, 500.0], [1.0, 31.0, 1.0, 12_000.0]]
        {
            let ratio = fit.seconds(&quantities) / dot(truth, &quantities);
            assert!((ratio - 1.0).abs() < within, "{ratio} at {quantities:?} of {fit:?}");
        }
    }

    #[test]
    fn the_truth_is_recovered_from_noisy_steps() {
        let (mut fit, mut dice) = (wrong(), Dice(7));
        learn(&mut fit, &mut dice, &TRUTH, 600, |_, seconds| seconds);
        near(&fit, &TRUTH, 0.05);
        for (own, truth) in fit.coefficients().iter().zip(TRUTH) {
            assert!((own / truth - 1.0).abs() < 0.35, "{own} for {truth}");
        }
        assert!((0.02..0.1).contains(&fit.noise()), "{}", fit.noise());
        assert!(fit.sound() && fit.changes() == 0);
    }

    #[test]
    fn one_step_in_ten_that_stalls_moves_little() {
        let (mut fit, mut dice) = (wrong(), Dice(11));
        learn(&mut fit, &mut dice, &TRUTH, 800, |step, seconds| if step % 10 == 3 { seconds * 20.0 } else { seconds });
        near(&fit, &TRUTH, 0.15);
    }

    #[test]
    fn a_throttled_machine_is_followed_within_some_steps_also_where_nothing_was_seen_of_it() {
        let (mut fit, mut dice) = (wrong(), Dice(13));
        learn(&mut fit, &mut dice, &TRUTH, 600, |_, seconds| seconds);
        let slow = TRUTH.map(|coefficient| coefficient * 2.0);
        // Only decoding is seen slow.
        for _ in 0..30 {
            fit.observe(&[1.0, 0.0, 1.0, 200.0], dot(&slow, &[1.0, 0.0, 1.0, 200.0]) * (1.0 + 0.05 * dice.normal()));
        }
        assert!(fit.changes() >= 1);
        near(&fit, &slow, 0.15);
        learn(&mut fit, &mut dice, &TRUTH, 200, |_, seconds| seconds);
        near(&fit, &TRUTH, 0.1);
    }

    #[test]
    fn slow_drift_is_followed_and_idle_coefficients_stay_believable() {
        let (mut fit, mut dice) = (wrong(), Dice(17));
        learn(&mut fit, &mut dice, &TRUTH, 600, |_, seconds| seconds);
        for step in 0..4_000 {
            let quantities = [1.0, 0.0, 1.0, 100.0];
            let factor = 1.0 + 0.3 * f64::from(step) / 4_000.0;
            fit.observe(&quantities, dot(&TRUTH, &quantities) * factor * (1.0 + 0.05 * dice.normal()));
        }
        let ratio = fit.seconds(&[1.0, 0.0, 1.0, 100.0]) / dot(&TRUTH, &[1.0, 0.0, 1.0, 100.0]);
        assert!((ratio - 1.3).abs() < 0.08, "{ratio}");
        let prompt = fit.seconds(&[1.0, 31.0, 1.0, 500.0]) / dot(&TRUTH, &[1.0, 31.0, 1.0, 500.0]);
        assert!((0.6..2.0).contains(&prompt), "{prompt}");
    }

    #[test]
    fn nonsense_is_ignored() {
        let mut fit = wrong();
        let before = fit.clone();
        for seconds in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            fit.observe(&[1.0, 0.0, 1.0, 1.0], seconds);
        }
        fit.observe(&[f64::NAN, 0.0, 1.0, 1.0], 1.0);
        fit.observe(&[0.0; TERMS], 1.0);
        assert_eq!(fit, before);
        let broken = Fit { drift: f64::INFINITY, ..wrong() };
        assert!(!broken.sound());
    }
}
