//! What is done once an hour: the wall clock is written down, and the hub's own certificate is renewed in time.

use crate::ca::{Authority, HOST_LIFETIME};
use crate::clock::UnixTime;
use crate::io::broker::Broker;
use crate::store::Store;
use shared::ids::NodeId;
use shared::units::Micros;
use shared_net::link::Endpoint;
use shared_net::mqtt::Mqtt;
use shared_net::openai::KeyRing;
use shared_net::tls::{CertClock, Identity};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A dead clock battery then costs at most an hour of backward time.
const EVERY: Duration = Duration::from_secs(3600);

/// How often it is written down what API keys used of their day, where that changed. A crash forgets so much of it.
const USAGE_EVERY: Duration = Duration::from_secs(1);

/// Writes down what API keys used, until `stop` and once more then.
pub(crate) async fn keep_usage(ring: KeyRing, store: Store, stop: CancellationToken) {
    let mut kept = ring.usage();
    loop {
        let stopped = stop.run_until_cancelled(tokio::time::sleep(USAGE_EVERY)).await.is_none();
        let usage = ring.usage();
        if usage != kept {
            let written = usage.clone();
            match store.call(move |db| db.put_key_usage(&written)).await {
                Ok(()) => kept = usage,
                Err(error) => tracing::error!(error = &error as &dyn Error, "what API keys used was not written down"),
            }
        }
        if stopped {
            return;
        }
    }
}

/// What the chores work with.
pub(crate) struct Chores {
    pub(crate) hub: NodeId,
    pub(crate) authority: Arc<Authority>,
    pub(crate) wall: CertClock,
    pub(crate) identity: Identity,
    pub(crate) endpoint: Endpoint,
    pub(crate) broker: Broker,
    pub(crate) mqtt: Mqtt,
    pub(crate) store: Store,
}

impl Chores {
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            self.once().await;
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    async fn once(&mut self) {
        let now = UnixTime::now(&self.wall);
        if let Err(error) = self.store.call(move |db| db.update_meta(|meta| meta.clock = now).map(drop)).await {
            tracing::error!(error = &error as &dyn Error, "the time was not written down");
        }
        if self.identity.expires_in(&self.wall) < Micros::from_secs(HOST_LIFETIME.as_secs() / 3) {
            self.renew(now);
        }
    }

    /// On failure the present certificate goes on, and the next round tries again.
    fn renew(&mut self, now: UnixTime) {
        let renewed = match self.authority.issue_hub(&self.hub, &[], now) {
            Ok(renewed) => renewed.identity,
            Err(error) => return tracing::error!(error = &error as &dyn Error, "the hub's certificate was not renewed"),
        };
        if let Err(error) = self.endpoint.set_identity(&renewed) {
            return tracing::error!(error = &error as &dyn Error, "the endpoint does not take the renewed certificate");
        }
        self.broker.set_identity(&renewed);
        self.mqtt.set_identity(&renewed);
        tracing::info!(serial = renewed.serial(), "the hub's certificate was renewed");
        self.identity = renewed;
    }
}
