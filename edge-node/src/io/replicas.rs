//! Tells the agent what its engines hold, as they change.

use super::driver::Handle;
use super::execute::Engines;
use crate::logic::AgentEvent;
use shared::fleet::ReplicaReport;
use shared_net::host::Tasks;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A profile changes with each request; the agent hears of it this often. No decision is better for hearing it sooner.
const PROFILE_EVERY: Duration = Duration::from_millis(500);

/// Tells the agent what the engines hold, at once and at each change.
pub(super) fn watch_engines(engines: &Engines, handle: &Handle, tasks: &Tasks) {
    for (variant, engine) in engines.iter() {
        let (mut watch, all, handle, stop) = (engine.watch(), Arc::clone(engines), handle.clone(), tasks.cancelled());
        watch.mark_changed();
        tasks.spawn(format!("watch of {variant}"), async move {
            let (mut told, mut quiet_until): (Option<ReplicaReport>, _) = (None, Instant::now());
            loop {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    changed = watch.changed() => if changed.is_err() { return },
                }
                let only_profile = |now: &ReplicaReport| told.as_ref().is_some_and(|told| differ_in_profile_only(told, now));
                if only_profile(&watch.borrow()) && Instant::now() < quiet_until {
                    // Another change meanwhile ends the wait, and is looked at in turn.
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        changed = watch.wait_for(|now| !only_profile(now)) => if changed.is_err() { return },
                        () = sleep_until(quiet_until) => {}
                    }
                }
                told = Some(watch.borrow_and_update().clone());
                quiet_until = Instant::now() + PROFILE_EVERY;
                let reports: Vec<ReplicaReport> = all.values().map(|engine| engine.report()).collect();
                if handle.tell(AgentEvent::Replicas(reports)).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// Whether nothing changed but the rates of a profile that was known before. Asked at each request, so nothing is copied.
fn differ_in_profile_only(a: &ReplicaReport, b: &ReplicaReport) -> bool {
    // All fields by name: a new one must not be forgotten here.
    let ReplicaReport { variant, engine, device, state, load, memory, context, weights_sha256, layers, capabilities, profile } =
        a;
    (variant, engine, device, state, load, memory) == (&b.variant, &b.engine, &b.device, &b.state, &b.load, &b.memory)
        && (context, weights_sha256, layers, capabilities) == (&b.context, &b.weights_sha256, &b.layers, &b.capabilities)
        && profile.is_some() == b.profile.is_some()
}
