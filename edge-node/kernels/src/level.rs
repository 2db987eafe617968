//! Which vector instructions there are.

use std::sync::OnceLock;

/// A set of instructions for which there is a kernel. All give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// None: what the compiler makes of plain loops. On x86 without fused multiplication it is very slow.
    Plain,
    /// AVX2 with fused multiplication and half floats: CPUs since about 2014.
    Avx2,
    /// AVX-512 with products of bytes.
    Avx512,
}

/// The best one on this CPU.
#[must_use]
pub fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni");
    match (avx2, avx512) {
        (true, true) => Level::Avx512,
        (true, false) => Level::Avx2,
        _ => Level::Plain,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Plain
}

/// Calls one of three compilations of an inlined function, by level. The features named here are those that [`level`] checks.
macro_rules! by_level {
    ($level:expr, $inner:ident, ($($arg:ident: $type:ty),*) $(-> $out:ty)?) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
            fn wide($($arg: $type),*) $(-> $out)? {
                $inner($($arg),*)
            }
            #[target_feature(enable = "avx2,fma,f16c")]
            fn middle($($arg: $type),*) $(-> $out)? {
                $inner($($arg),*)
            }
            match $level {
                $crate::level::Level::Plain => $inner($($arg),*),
                // SAFETY: the level says that this CPU has the features.
                #[expect(unsafe_code, reason = "vector instructions, whose presence was checked")]
                $crate::level::Level::Avx2 => unsafe { middle($($arg),*) },
                // SAFETY: as above.
                #[expect(unsafe_code, reason = "vector instructions, whose presence was checked")]
                $crate::level::Level::Avx512 => unsafe { wide($($arg),*) },
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = $level;
            $inner($($arg),*)
        }
    }};
}
pub(crate) use by_level;
