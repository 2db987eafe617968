//! Whether the release that runs works, for the script that would take it back otherwise.

use super::driver::Handle;
use crate::release;
use shared_net::host::StateFolder;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// How often it is looked whether the hub is there, until it was once.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// An agent that has served for so long without its hub works: the hub may be away. A release that crashes does so sooner.
const HEALTHY_AFTER: Duration = Duration::from_secs(120);

/// Notes that this release works, once it has its hub, or has served for a while without one: then no later start takes it back.
pub(super) async fn confirm_health(handle: Handle, folder: Arc<StateFolder>, stop: CancellationToken) {
    if let Some(hash) = release::rolled_back() {
        tracing::warn!(release = %hash, "that release did not become healthy and was taken back; this is the one before");
    }
    let begun = Instant::now();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        match handle.look(|agent, now| agent.status(now)).await {
            Ok(status) if status.uplink.up_for.is_some() || begun.elapsed() >= HEALTHY_AFTER => break,
            Ok(_) => {}
            Err(_) => return,
        }
    }
    let noted = tokio::task::spawn_blocking(move || release::confirm(&folder)).await;
    if let Ok(Err(error)) = noted {
        tracing::warn!(%error, "that this release works was not noted");
    }
}
