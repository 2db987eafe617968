//! The connection to the broker: what the agent publishes goes out, plans and views come in.

use super::driver::Handle;
use crate::logic::{AgentEvent, BrokerEvent, Publication};
use serde::Serialize;
use shared::ids::NodeId;
use shared::plan::Layer;
use shared::units::Micros;
use shared::wire::mqtt::{PlanMessage, Records, Session, Signed, Status, Topic, ViewMessage};
use shared_net::host::Tasks;
use shared_net::mqtt::{Mqtt, MqttEvent, MqttSettings, Note, start};
use shared_net::tls::{CertClock, Identity};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long the last messages may take to leave when a connection is given up.
const FAREWELL_MAX: Duration = Duration::from_secs(2);
/// A host of this name in the hub's word on its broker means the hub's own address.
const SAME_HOST: &str = "hub";

/// Who we are on the broker; shared with whoever renews the certificate.
#[derive(Clone, Debug)]
pub(super) struct Membership {
    pub(super) identity: Arc<RwLock<Identity>>,
    pub(super) clock: CertClock,
    pub(super) hub: NodeId,
}

impl Membership {
    /// How long the certificate is still good.
    pub(super) fn expires_in(&self) -> Micros {
        self.identity.read().unwrap_or_else(PoisonError::into_inner).expires_in(&self.clock)
    }
}

/// The connection to the broker, or none.
pub(super) struct Broker {
    node: NodeId,
    membership: Option<Membership>,
    present: Option<Present>,
}

struct Present {
    client: Mqtt,
    /// The client's own tasks, so that one connection can end without the others.
    tasks: Tasks,
    owner: Tasks,
}

impl Broker {
    /// No connection yet; `membership` is absent for a node that never joined.
    pub(super) const fn new(node: NodeId, membership: Option<Membership>) -> Self {
        Self { node, membership, present: None }
    }

    /// Connects, in place of an older connection, and reports to the agent under `number`.
    pub(super) fn connect(
        &mut self,
        owner: &Tasks,
        handle: &Handle,
        number: u64,
        address: &str,
        hub_host: Option<IpAddr>,
        session: Session,
    ) {
        self.disconnect();
        let begun = self.begin(&resolved(address, hub_host), session);
        match begun {
            Ok((client, events, tasks)) => {
                let (handle, stop, node) = (handle.clone(), tasks.cancelled(), self.node.clone());
                owner.spawn("broker events", async move {
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => {}
                        () = listen(&handle, &node, number, events) => {}
                    }
                });
                self.present = Some(Present { client, tasks, owner: owner.clone() });
            }
            Err(why) => {
                let handle = handle.clone();
                owner.spawn("report", async move {
                    drop(handle.tell(AgentEvent::Broker(number, BrokerEvent::Down(why))).await);
                });
            }
        }
    }

    fn begin(&self, address: &str, session: Session) -> Result<(Mqtt, mpsc::Receiver<MqttEvent>, Tasks), String> {
        let member = self.membership.as_ref().ok_or("this node has not joined a fleet")?;
        let identity = member.identity.read().unwrap_or_else(PoisonError::into_inner).clone();
        let will =
            Note::state(Topic::Status(self.node.clone()).name(), json(&Signed { session, message: Status { online: false } }));
        let plans = Layer::ALL.into_iter().map(|layer| Topic::Plan(self.node.clone(), layer).name());
        let settings = MqttSettings {
            address: address.to_owned(),
            expected: member.hub.clone(),
            client_id: self.node.topic_level(),
            will: Some(will),
            subscriptions: plans.chain([Topic::View(self.node.clone()).name()]).collect(),
        };
        let tasks = Tasks::new();
        let (client, events) = start(settings, &identity, &member.clock, &tasks).map_err(|error| error.to_string())?;
        Ok((client, events, tasks))
    }

    /// Publishes; says whether it was taken.
    pub(super) fn publish(&self, session: Session, publication: &Publication) -> bool {
        let Some(present) = &self.present else { return false };
        let note = note(&self.node, session, publication);
        present.client.publish(note).inspect_err(|error| tracing::debug!(%error, "not published")).is_ok()
    }

    /// Ends the connection after what was published has left.
    pub(super) fn disconnect(&mut self) {
        if let Some(Present { client, tasks, owner }) = self.present.take() {
            owner.spawn("broker farewell", async move {
                if let Err(error) = tasks.stop(FAREWELL_MAX).await {
                    tracing::debug!(%error, "the broker connection did not end in time");
                }
                drop(client);
            });
        }
    }
}

/// The address with the hub's own host put in where it says so.
pub(crate) fn resolved(address: &str, hub_host: Option<IpAddr>) -> String {
    match (address.rsplit_once(':'), hub_host) {
        (Some((SAME_HOST, port)), Some(IpAddr::V6(host))) => format!("[{host}]:{port}"),
        (Some((SAME_HOST, port)), Some(host)) => format!("{host}:{port}"),
        _ => address.to_owned(),
    }
}

async fn listen(handle: &Handle, node: &NodeId, number: u64, mut events: mpsc::Receiver<MqttEvent>) {
    while let Some(event) = events.recv().await {
        let news = match event {
            MqttEvent::Connected => BrokerEvent::Up,
            MqttEvent::Disconnected { why } => BrokerEvent::Down(why),
            MqttEvent::Message { topic, payload } => match understood(node, &topic, &payload) {
                Some(news) => news,
                None => {
                    tracing::warn!(topic, bytes = payload.len(), "a message that is none of ours, or unreadable: ignored");
                    continue;
                }
            },
        };
        let down = matches!(news, BrokerEvent::Down(_));
        if handle.tell(AgentEvent::Broker(number, news)).await.is_err() || down {
            // The agent decides when the next connection is tried.
            return;
        }
    }
}

fn understood(node: &NodeId, topic: &str, payload: &[u8]) -> Option<BrokerEvent> {
    match Topic::parse(topic)? {
        Topic::Plan(to, layer) if to == *node => {
            let plan: PlanMessage = serde_json::from_slice(payload).ok()?;
            (plan.rows.layer() == layer).then(|| BrokerEvent::Plan(Box::new(plan)))
        }
        Topic::View(to) if to == *node => {
            let view: ViewMessage = serde_json::from_slice(payload).ok()?;
            Some(BrokerEvent::View(Box::new(view)))
        }
        _ => None,
    }
}

fn note(node: &NodeId, session: Session, publication: &Publication) -> Note {
    let node = node.clone();
    match publication {
        Publication::Status(message) => Note::state(Topic::Status(node).name(), signed(session, message)),
        Publication::Inventory(message) => Note::state(Topic::Inventory(node).name(), signed(session, message)),
        Publication::Telemetry(message) => Note::reading(Topic::Telemetry(node).name(), signed(session, message)),
        Publication::PlanAck(message) => Note::answer(Topic::PlanAck(node).name(), signed(session, message)),
        Publication::Records(records) => {
            let message = Records { records: records.clone() };
            Note::answer(Topic::Records(node).name(), signed(session, &message))
        }
    }
}

fn signed<T: Serialize>(session: Session, message: &T) -> Vec<u8> {
    json(&Signed { session, message })
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    // Values of our own types always serialise; an empty payload would be refused by the other side, and counted there.
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hubs_own_host_is_put_in() {
        let four = "10.0.0.7".parse().ok();
        assert_eq!(resolved("hub:8883", four), "10.0.0.7:8883");
        assert_eq!(resolved("hub:8883", "::1".parse().ok()), "[::1]:8883");
        assert_eq!(resolved("broker.example:8883", four), "broker.example:8883");
        assert_eq!(resolved("nonsense", four), "nonsense");
    }

    #[test]
    fn messages_for_others_and_garbage_are_not_understood() {
        let me = NodeId::new("lab/a").expect("good");
        let other = NodeId::new("lab/b").expect("good");
        let view = br#"{"epoch":{"incarnation":1,"sequence":1},"nodes":[]}"#;
        assert!(understood(&me, &Topic::View(me.clone()).name(), view).is_some());
        assert!(understood(&me, &Topic::View(other).name(), view).is_none());
        assert!(understood(&me, &Topic::View(me.clone()).name(), b"{").is_none());
        assert!(understood(&me, "tidegate/v1/strange", view).is_none());
    }
}
