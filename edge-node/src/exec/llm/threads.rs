//! How many threads compute. The kernels share one pool a process, whose size is read from the environment at its first use.

/// Why the number of threads cannot be set any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot set the number of computing threads {why}; set CANDLE_NUM_THREADS and RAYON_NUM_THREADS={threads} before starting"
)]
pub struct TooLate {
    /// Wanted.
    pub threads: u32,
    /// What is in the way.
    pub why: &'static str,
}

/// Names that the two thread pools under the kernels look up.
const VARIABLES: [&str; 2] = ["CANDLE_NUM_THREADS", "RAYON_NUM_THREADS"];

/// Sets the number of threads that compute, for all models of this process. To be called first thing in `main`, before any
/// other thread runs. A number already in the environment is the operator's, and stays.
///
/// # Errors
/// [`TooLate`] when other threads run already, or where that cannot be known.
pub fn set_threads(threads: u32) -> Result<(), TooLate> {
    if VARIABLES.iter().all(|name| std::env::var_os(name).is_some()) {
        return Ok(());
    }
    match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
        Ok(1) => {}
        Ok(_) => return Err(TooLate { threads, why: "once other threads run" }),
        Err(_) => return Err(TooLate { threads, why: "on this system" }),
    }
    for name in VARIABLES {
        if std::env::var_os(name).is_none() {
            // SAFETY: the environment must not be written while another thread reads it; there is no other thread.
            #[expect(unsafe_code, reason = "the pools can be sized in no other way; no other thread runs, as was just checked")]
            unsafe {
                std::env::set_var(name, threads.max(1).to_string());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_beside_other_threads() {
        // The test runner has threads of its own.
        if VARIABLES.iter().any(|name| std::env::var_os(name).is_none()) {
            assert!(set_threads(1).is_err());
        }
    }
}
