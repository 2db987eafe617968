//! Waiting for a condition, with a deadline and a name. Nothing here waits for time alone.

use std::future::Future;
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A condition that did not come.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: not so after {waited:?}{}", if last.is_empty() { String::new() } else { format!("; last seen: {last}") })]
pub struct Late {
    /// What was waited for.
    pub what: String,
    /// For how long.
    pub waited: Duration,
    /// What was there instead.
    pub last: String,
}

/// Waits until `look` gives a value; it gives what it sees instead until then. Returns the value and how long it took.
///
/// # Errors
/// [`Late`] after `within`.
pub async fn until<T, F>(what: impl Into<String>, within: Duration, mut look: impl FnMut() -> F) -> Result<(T, Duration), Late>
where
    F: Future<Output = Result<T, String>>,
{
    let begun = Instant::now();
    loop {
        let seen = look().await;
        let waited = begun.elapsed();
        match seen {
            Ok(value) => return Ok((value, waited)),
            Err(last) if waited >= within => return Err(Late { what: what.into(), waited, last }),
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_condition_comes_or_is_named() {
        let mut looks = 0;
        let come = until("third look", Duration::from_secs(10), || {
            looks += 1;
            let seen = if looks == 3 { Ok(looks) } else { Err(format!("look {looks}")) };
            async move { seen }
        });
        assert_eq!(come.await.expect("comes").0, 3);
        let late = until::<(), _>("never", Duration::ZERO, || async { Err("nothing".to_owned()) }).await.expect_err("late");
        assert_eq!((late.what.as_str(), late.last.as_str()), ("never", "nothing"));
    }
}
