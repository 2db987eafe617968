//! A stream of telemetry: nodes that publish reports at a given rate, and one who listens to all.

use shared::fleet::{Hop, Load, PathReport, Profile, ProfileSource, ReplicaReport, ReplicaState, Telemetry};
use shared::ids::{Instance, NodeId, SessionEpoch, VariantId};
use shared::units::{Bytes, Fraction, Micros, TokenRate, Tokens};
use shared::wire::JoinToken;
use shared::wire::mqtt::{PREFIX, Session, Signed, Topic};
use shared::work::EngineKind;
use shared_net::host::Tasks;
use shared_net::join::Joined;
use shared_net::mqtt::{Mqtt, MqttEvent, MqttSettings, Note, start};
use shared_net::tls::{CertClock, Identity};
use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::mpsc::Receiver;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

/// How long a client may take to be connected.
const CONNECTED_WITHIN: Duration = Duration::from_secs(20);
/// Messages are handed out so often: a rate is that of a fleet whose nodes do not wait for each other.
const HANDED_OUT_EVERY: Duration = Duration::from_millis(5);
/// How long what was sent may take to arrive before it is counted.
const ARRIVED_WITHIN: Duration = Duration::from_millis(700);

/// Nodes that publish.
pub(crate) struct Publishers {
    nodes: Vec<(Mqtt, Note)>,
    tasks: Tasks,
}

impl Publishers {
    /// Connects them all.
    pub(crate) async fn connect(address: &str, members: &[(JoinToken, Joined)]) -> Result<Self, Box<dyn Error>> {
        let (tasks, mut nodes) = (Tasks::new(), Vec::new());
        for (_, joined) in members {
            let node = joined.identity.node().clone();
            let payload = serde_json::to_vec(&Signed { session: session(), message: report(&node)? })?;
            let (client, mut events) = connect(address, &joined.hub, &joined.identity, Vec::new(), &tasks).await?;
            tasks.spawn("news of the broker", async move { while events.recv().await.is_some() {} });
            nodes.push((client, Note::reading(Topic::Telemetry(node).name(), payload)));
        }
        Ok(Self { nodes, tasks })
    }

    /// Bytes of one report.
    pub(crate) fn bytes(&self) -> usize {
        self.nodes.first().map_or(0, |(_, note)| note.payload.len())
    }

    /// Publishes at `rate` a second, and says how many were sent: one that finds its queue full is not.
    pub(crate) async fn publish(&self, rate: usize, within: Duration) -> f64 {
        let ticks = within.as_millis() / HANDED_OUT_EVERY.as_millis();
        let per_tick = rate * usize::try_from(HANDED_OUT_EVERY.as_millis()).unwrap_or(1) / 1_000;
        let mut clock = interval(HANDED_OUT_EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let (mut sent, mut nodes) = (0_u32, self.nodes.iter().cycle());
        for _ in 0..ticks {
            clock.tick().await;
            for (client, note) in nodes.by_ref().take(per_tick) {
                sent += u32::from(client.publish(note.clone()).is_ok());
            }
        }
        sleep(ARRIVED_WITHIN).await;
        f64::from(sent)
    }
}

impl Drop for Publishers {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

/// One who listens to everything, as the hub does at a broker of others.
pub(crate) struct Listener {
    heard: Arc<AtomicU32>,
    tasks: Tasks,
}

impl Listener {
    pub(crate) async fn connect(address: &str, hub: &Identity) -> Result<Self, Box<dyn Error>> {
        let (tasks, heard) = (Tasks::new(), Arc::new(AtomicU32::new(0)));
        let all = vec![format!("{PREFIX}/nodes/+/+")];
        let (client, mut events) = connect(address, hub.node(), hub, all, &tasks).await?;
        let counter = Arc::clone(&heard);
        tasks.spawn("listener", async move {
            while let Some(event) = events.recv().await {
                if matches!(event, MqttEvent::Message { .. }) {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }
            drop(client);
        });
        Ok(Self { heard, tasks })
    }

    pub(crate) fn heard(&self) -> f64 {
        f64::from(self.heard.load(Ordering::Relaxed))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.tasks.cancel();
    }
}

async fn connect(
    address: &str,
    hub: &NodeId,
    identity: &Identity,
    subscriptions: Vec<String>,
    tasks: &Tasks,
) -> Result<(Mqtt, Receiver<MqttEvent>), Box<dyn Error>> {
    let client_id = identity.node().topic_level();
    let settings = MqttSettings { address: address.to_owned(), expected: hub.clone(), client_id, will: None, subscriptions };
    let (client, mut events) = start(settings, identity, &CertClock::new(0), tasks)?;
    let connected = async {
        loop {
            match events.recv().await {
                Some(MqttEvent::Connected) => return Ok(()),
                Some(_) => {}
                None => return Err("the client ended"),
            }
        }
    };
    timeout(CONNECTED_WITHIN, connected).await??;
    Ok((client, events))
}

/// Before a node's first hello the hub has no session to compare with, and believes its messages.
fn session() -> Session {
    Session { epoch: SessionEpoch(1), instance: Instance(1) }
}

/// The report of a node with three replicas and a path to its hub.
fn report(node: &NodeId) -> Result<Telemetry, Box<dyn Error>> {
    let mut replicas = Vec::new();
    for name in ["assistant-q4", "assistant-q8", "coder-q4"] {
        replicas.push(ReplicaReport {
            variant: VariantId::new(name)?,
            engine: EngineKind::Llm,
            state: ReplicaState::Ready,
            load: Load { slots: 4, active: 1, queue_max: 16, ..Load::default() },
            memory: Bytes(800 << 20),
            context: Tokens(8_192),
            weights_sha256: Some("5e".repeat(32)),
            device: "cpu".to_owned(),
            layers: None,
            capabilities: Vec::new(),
            profile: Some(Profile {
                prompt: TokenRate::new(812.5)?,
                decode: TokenRate::new(24.75)?,
                overhead: Micros(1_250),
                spread: Fraction::new(0.08)?,
                source: ProfileSource::Requests,
                samples: 312,
                pace: None,
                load: None,
            }),
        });
    }
    Ok(Telemetry {
        cpu: Some(Fraction::new(0.37)?),
        memory_available: Some(Bytes(3 << 30)),
        load_1m: Some(1.25),
        received: Some(Bytes(123_456_789)),
        sent: Some(Bytes(98_765_432)),
        replicas,
        uplink: Some(PathReport::with_rtt(Hop::Relay, Micros(24_500))),
        ..Telemetry::of(node.clone())
    })
}
