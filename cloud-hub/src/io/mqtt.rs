//! Between the broker and the driver: payloads become events, plans and views become payloads.

use super::broker::Broker;
use super::input::{Inbox, Input};
use super::metrics::Metrics;
use crate::logic::{HubEvent, NodeMessage};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::ids::NodeId;
use shared::plan::{Layer, Plan};
use shared::wire::mqtt::{PREFIX, Session, Signed, Topic, ViewMessage};
use shared_net::mqtt::{Mqtt, MqttEvent, MqttSettings, Note};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// What a decoder said is cut to this: it is shown in the log and in the list of nodes.
const WHY_BYTES_MAX: usize = 200;

/// How the hub connects to the broker, whosever it is.
pub(crate) fn settings(address: String, hub: &NodeId) -> MqttSettings {
    MqttSettings {
        address,
        expected: hub.clone(),
        client_id: hub.topic_level(),
        will: None,
        subscriptions: vec![format!("{PREFIX}/nodes/+/+")],
    }
}

/// Turns messages of nodes into events, until the connection's owner ends.
pub(crate) async fn pump(mut events: mpsc::Receiver<MqttEvent>, inbox: Inbox, metrics: Arc<Metrics>) {
    let mut connected = false;
    while let Some(event) = events.recv().await {
        let input = match event {
            MqttEvent::Connected => {
                tracing::info!("connected to the MQTT broker");
                connected = true;
                metrics.mqtt_connected(true);
                Some(Input::MqttConnected)
            }
            MqttEvent::Disconnected { why } => {
                // Each failed attempt to come back says so again; the first is news.
                if connected {
                    tracing::warn!(why, "lost the MQTT broker");
                }
                connected = false;
                metrics.mqtt_connected(false);
                None
            }
            MqttEvent::Message { topic, payload } => {
                metrics.mqtt_received();
                decode(&topic, &payload).map(Input::Event)
            }
        };
        if let Some(input) = input
            && inbox.send(input).await.is_err()
        {
            return;
        }
    }
}

/// The event of a message; nothing for topics that are none of the nodes', and for a retained message that was cleared.
fn decode(topic: &str, payload: &[u8]) -> Option<HubEvent> {
    let topic = Topic::parse(topic).filter(Topic::from_node)?;
    if payload.is_empty() {
        return None;
    }
    let (kind, read) = match &topic {
        Topic::Status(_) => ("status", read(payload, NodeMessage::Status)),
        Topic::Inventory(_) => ("inventory", read(payload, |inventory| NodeMessage::Inventory(Box::new(inventory)))),
        Topic::Telemetry(_) => ("telemetry", read(payload, NodeMessage::Telemetry)),
        Topic::PlanAck(_) => ("plan-ack", read(payload, NodeMessage::PlanAck)),
        Topic::Records(_) => ("records", read(payload, NodeMessage::Records)),
        Topic::Plan(..) | Topic::View(_) => return None,
    };
    let node = topic.node().clone();
    Some(match read {
        Ok((session, message)) => HubEvent::Mqtt { node, session, message },
        Err(why) => HubEvent::BadPayload { node, topic: kind.to_owned(), why },
    })
}

fn read<T: DeserializeOwned>(payload: &[u8], wrap: impl FnOnce(T) -> NodeMessage) -> Result<(Session, NodeMessage), String> {
    let signed: Signed<T> = serde_json::from_slice(payload).map_err(|error| {
        let mut why = error.to_string();
        let mut end = why.len().min(WHY_BYTES_MAX);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        why.truncate(end);
        why
    })?;
    Ok((signed.session, wrap(signed.message)))
}

/// Publishes what the core wants published.
pub(crate) struct Publisher {
    mqtt: Mqtt,
    metrics: Arc<Metrics>,
    /// The newest plans, published again when the broker comes back: it may have lost what it retained.
    plans: BTreeMap<(NodeId, Layer), Plan>,
    broker: Broker,
}

impl Publisher {
    pub(crate) fn new(mqtt: Mqtt, metrics: Arc<Metrics>, broker: Broker) -> Self {
        Self { mqtt, metrics, plans: BTreeMap::new(), broker }
    }

    pub(crate) fn plan(&mut self, node: NodeId, plan: Plan) {
        let layer = plan.rows.layer();
        self.metrics.plan(layer, plan.epoch);
        self.publish_plan(&node, &plan);
        self.plans.insert((node, layer), plan);
    }

    pub(crate) fn clear_plan(&mut self, node: NodeId, layer: Layer) {
        self.plans.remove(&(node.clone(), layer));
        self.publish(Note::state(Topic::Plan(node, layer).name(), Vec::new()));
    }

    pub(crate) fn view(&self, node: &NodeId, view: &ViewMessage) {
        if let Some(payload) = written(view) {
            self.publish(Note::reading(Topic::View(node.clone()).name(), payload));
        }
    }

    pub(crate) fn publish_all(&self) {
        for ((node, _), plan) in &self.plans {
            self.publish_plan(node, plan);
        }
    }

    /// Brings the broker's own counters up to date: somebody is about to read them.
    pub(crate) fn count(&self) {
        if let Some((connections, forbidden)) = self.broker.turned_away() {
            self.metrics.mqtt_turned_away(connections, forbidden);
        }
    }

    pub(crate) fn kick(&self, node: &NodeId) {
        self.broker.disconnect(node);
    }

    fn publish_plan(&self, node: &NodeId, plan: &Plan) {
        if let Some(payload) = written(plan) {
            self.publish(Note::state(Topic::Plan(node.clone(), plan.rows.layer()).name(), payload));
        }
    }

    /// What cannot be published now is published when the broker is back (plans), or is out of date by then (views).
    fn publish(&self, note: Note) {
        let result = self.mqtt.publish(note);
        self.metrics.mqtt_published(result.is_ok());
        if let Err(error) = result {
            tracing::debug!(%error, "a message was not published");
        }
    }
}

fn written(message: &impl Serialize) -> Option<Vec<u8>> {
    serde_json::to_vec(message).inspect_err(|error| tracing::error!(%error, "a message could not be written as JSON")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::ids::{Instance, SessionEpoch};
    use shared::wire::mqtt::Status;

    #[test]
    fn messages_of_nodes_are_read_and_others_are_not() {
        let node = NodeId::new("eu/site-7/node-1").expect("good");
        let session = Session { epoch: SessionEpoch(3), instance: Instance(7) };
        let status = &serde_json::to_vec(&Signed { session, message: Status { online: true } }).expect("JSON");
        let event = decode("tidegate/v1/nodes/eu.site-7.node-1/status", status).expect("an event");
        assert_eq!(event, HubEvent::Mqtt { node, session, message: NodeMessage::Status(Status { online: true }) });
        let negative = br#"{"session": {"epoch": -1, "instance": 1}, "online": true}"#;
        for bad in [b"garbage".as_slice(), br#"{"online": "yes"}"#, &[0xff, 0xfe], negative] {
            let event = decode("tidegate/v1/nodes/eu.site-7.node-1/status", bad).expect("an event");
            assert!(
                matches!(event, HubEvent::BadPayload { ref topic, ref why, .. } if topic == "status" && why.len() <= WHY_BYTES_MAX)
            );
        }
        assert_eq!(decode("tidegate/v1/nodes/eu.site-7.node-1/status", b""), None, "cleared");
        assert_eq!(decode("tidegate/v1/views/eu.site-7.node-1", status), None, "the hub's own");
        assert_eq!(decode("elsewhere", status), None);
    }
}
