//! Every task has an owner, a name and an end.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// The tasks of one owner. Clones are the same group. Dropping the last clone aborts what still runs; a task that holds a clone
/// itself therefore ends only when the group is cancelled.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    cancel: CancellationToken,
    group: Arc<Mutex<Group>>,
}

#[derive(Debug, Default)]
struct Group {
    running: JoinSet<()>,
    names: HashMap<Id, Cow<'static, str>>,
    failed: Vec<String>,
}

/// Tasks that did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tasks that hung and were aborted: [{}]; tasks that failed: [{}]", .hung.join(", "), .failed.join(", "))]
pub struct NotStopped {
    /// They did not end within the deadline, and were aborted.
    pub hung: Vec<String>,
    /// They panicked, or ended although the program cannot do without them.
    pub failed: Vec<String>,
}

impl Group {
    fn reap(&mut self) {
        while let Some(ended) = self.running.try_join_next_with_id() {
            self.note(ended);
        }
    }

    fn note(&mut self, ended: Result<(Id, ()), JoinError>) {
        let (id, panicked) = match &ended {
            Ok((id, ())) => (*id, false),
            Err(error) => (error.id(), error.is_panic()),
        };
        let name = self.names.remove(&id).unwrap_or_default();
        if panicked {
            tracing::error!(task = %name, "task panicked");
            self.failed.push(name.into_owned());
        }
    }
}

impl Tasks {
    /// An owner without tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when the group shall end. Every task watches it first.
    #[must_use]
    pub fn cancelled(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Asks all tasks to end, without waiting.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Runs a task that ends when the group is cancelled, or before.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(&self, name: impl Into<Cow<'static, str>>, task: F) {
        let mut group = self.lock();
        group.reap();
        let id = group.running.spawn(task).id();
        group.names.insert(id, name.into());
    }

    /// Runs a task that the program cannot do without: when it ends or panics before the group is cancelled, the group is
    /// cancelled, and [`Self::stop`] names it.
    pub fn spawn_vital<F: Future<Output = ()> + Send + 'static>(&self, name: impl Into<Cow<'static, str>>, task: F) {
        let name = name.into();
        let guard = Vital { cancel: self.cancel.clone(), group: Arc::downgrade(&self.group), name: name.clone() };
        self.spawn(name, async move {
            task.await;
            drop(guard);
        });
    }

    /// How many tasks run.
    #[must_use]
    pub fn len(&self) -> usize {
        let mut group = self.lock();
        group.reap();
        group.running.len()
    }

    /// Whether no task runs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cancels all tasks, waits for them at most `deadline`, and aborts the rest.
    ///
    /// # Errors
    /// [`NotStopped`] names the tasks that hung or failed.
    pub async fn stop(&self, deadline: Duration) -> Result<(), NotStopped> {
        self.cancel.cancel();
        // The set is taken out, so that no lock is held while waiting.
        let mut running = std::mem::take(&mut self.lock().running);
        let joined = tokio::time::timeout(deadline, async {
            while let Some(ended) = running.join_next_with_id().await {
                self.lock().note(ended);
            }
        });
        let in_time = joined.await.is_ok();
        running.shutdown().await;
        let mut group = self.lock();
        let mut hung: Vec<String> = group.names.drain().map(|(_, name)| name.into_owned()).collect();
        hung.sort();
        let failed = std::mem::take(&mut group.failed);
        if in_time && failed.is_empty() { Ok(()) } else { Err(NotStopped { hung, failed }) }
    }

    fn lock(&self) -> MutexGuard<'_, Group> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Vital {
    cancel: CancellationToken,
    group: std::sync::Weak<Mutex<Group>>,
    name: Cow<'static, str>,
}

impl Drop for Vital {
    fn drop(&mut self) {
        if self.cancel.is_cancelled() {
            return;
        }
        tracing::error!(task = %self.name, "a task ended that the program cannot do without");
        // A panic is noted when the task is joined.
        if !std::thread::panicking()
            && let Some(group) = self.group.upgrade()
        {
            group.lock().unwrap_or_else(PoisonError::into_inner).failed.push(self.name.clone().into_owned());
        }
        self.cancel.cancel();
    }
}

/// Waits until the user or the service manager asks the program to end, and says how.
///
/// # Errors
/// The system does not let signals be watched.
pub async fn shutdown_signal() -> std::io::Result<&'static str> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            _ = interrupt.recv() => Ok("SIGINT"),
            _ = terminate.recv() => Ok("SIGTERM"),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await.map(|()| "Ctrl-C")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_end_when_they_are_asked_to() {
        let tasks = Tasks::new();
        let cancelled = tasks.cancelled();
        tasks.spawn("polite", async move { cancelled.cancelled().await });
        tasks.spawn("quick", async {});
        assert_eq!(tasks.stop(Duration::from_secs(5)).await, Ok(()));
        assert!(tasks.is_empty());
    }

    #[tokio::test]
    async fn a_task_that_hangs_is_named() {
        let tasks = Tasks::new();
        tasks.spawn("stubborn", std::future::pending());
        let stopped = tasks.stop(Duration::from_millis(1)).await;
        assert_eq!(stopped, Err(NotStopped { hung: vec!["stubborn".to_owned()], failed: Vec::new() }));
    }

    #[tokio::test]
    async fn the_end_of_a_vital_task_ends_the_group() {
        for panics in [false, true] {
            let tasks = Tasks::new();
            tasks.spawn_vital("heart", async move { assert!(!panics, "on purpose") });
            tasks.cancelled().cancelled().await;
            let stopped = tasks.stop(Duration::from_secs(5)).await;
            assert_eq!(stopped, Err(NotStopped { hung: Vec::new(), failed: vec!["heart".to_owned()] }));
        }
    }
}
