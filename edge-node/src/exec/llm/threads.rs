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
/// The threads wait for each other by spinning at every product. On a machine that others keep busy as well, each wait
/// lasts until the scheduler is kind: two threads on two busy cores were measured at a twentieth of the speed of one. So the
/// default leaves a core to the rest of the world.
///
/// # Errors
/// [`TooLate`] when other threads run already, or where that cannot be known.
pub fn set_threads(threads: Option<u32>) -> Result<(), TooLate> {
    let threads = threads.unwrap_or_else(threads_default).max(1);
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
                std::env::set_var(name, threads.to_string());
            }
        }
    }
    Ok(())
}

/// How many threads compute in this process.
pub(super) fn computing() -> u32 {
    let [_, pool] = VARIABLES.map(|name| std::env::var(name).ok().and_then(|number| number.parse().ok()));
    // The pool's own rule where nobody said otherwise.
    pool.unwrap_or_else(|| threads_default() + 1)
}

/// All cores but one.
fn threads_default() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cores).unwrap_or(1).saturating_sub(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_beside_other_threads() {
        // The test runner has threads of its own.
        if VARIABLES.iter().any(|name| std::env::var_os(name).is_none()) {
            assert!(set_threads(Some(1)).is_err());
        }
    }
}
