//! A client of the fleet's broker with a certificate of the fleet: what stands in a node's folder, in somebody's hands.

use crate::{SOON, World};
use bytes::Bytes;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Filter, Packet};
use rumqttc::v5::{AsyncClient, Event, EventLoop, MqttOptions};
use rumqttc::{TlsConfiguration, Transport};
use shared::ids::NodeId;
use shared_net::tls::{CertClock, Identity, client_config};
use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::sync::Arc;
use tokio::time::timeout;

/// Told apart from the program's own connection, which it must not push out.
const SUFFIX: &str = "~story";
/// Requests that wait for the network: more than any story makes.
const REQUESTS_MAX: usize = 64;
/// As the programs' own limit, with room for a topic.
const PACKET_BYTES_MAX: u32 = 540_672;

/// A connected client. Unlike the programs' own it goes on when a subscription is refused, since what counts is what is
/// delivered. Its connection ends with it.
pub struct BrokerClient {
    client: AsyncClient,
    events: EventLoop,
    /// Came while something else was waited for.
    heard: VecDeque<(String, Bytes)>,
}

impl fmt::Debug for BrokerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerClient").finish_non_exhaustive()
    }
}

impl BrokerClient {
    /// With the certificate in the state folder of `node`.
    ///
    /// # Panics
    /// When there is none, or the broker does not let it in.
    pub async fn as_node(world: &World, node: &NodeId, subscriptions: &[String]) -> Self {
        let state = world.fleet.agent(node).expect("there").folder().join("state");
        let identity = Identity::load(&state).expect("readable").expect("it has joined");
        Self::connect(world, &identity, subscriptions).await
    }

    /// With a certificate of the hub, which may read everything.
    ///
    /// # Panics
    /// When the hub's command gives none, or the broker does not let it in.
    pub async fn as_hub(world: &World, subscriptions: &[String]) -> Self {
        let folder = world.folder().join("observer");
        let (hub, path) = (world.fleet.hub(), folder.to_string_lossy());
        hub.command(&["mosquitto-conf", "--dir", &path, "--listen", "127.0.0.1:1"]).expect("the hub's certificate");
        let read = |name: &str| fs::read_to_string(folder.join(name)).expect(name);
        let identity = Identity::new(&read("broker.pem"), &read("broker.key"), &read("ca.pem")).expect("an identity");
        Self::connect(world, &identity, subscriptions).await
    }

    /// With a certificate that is at hand.
    ///
    /// # Panics
    /// When the broker does not let it in.
    pub async fn with(world: &World, identity: &Identity, subscriptions: &[String]) -> Self {
        Self::connect(world, identity, subscriptions).await
    }

    /// Tries to come in under the client id `name`, and wants to be refused.
    ///
    /// # Panics
    /// When it is let in, or nobody says anything.
    pub async fn refused(world: &World, identity: &Identity, name: &str) {
        let (client, mut events) = Self::dial(world, identity, name.to_owned());
        let told = async {
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Packet::ConnAck(answer))) => {
                        panic!("{} was let in as {name}: {answer:?}", identity.node())
                    }
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        };
        timeout(SOON, told).await.unwrap_or_else(|_| panic!("nobody refuses {} as {name}", identity.node()));
        drop(client);
    }

    fn dial(world: &World, identity: &Identity, name: String) -> (AsyncClient, EventLoop) {
        let hub = world.fleet.hub();
        let tls = client_config(identity, &CertClock::new(0), hub.name(), b"").expect("TLS");
        let mut options = MqttOptions::new(name, hub.mqtt().ip().to_string(), hub.mqtt().port());
        options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(Arc::new(tls))));
        let mut properties = rumqttc::v5::mqttbytes::v5::ConnectProperties::new();
        properties.max_packet_size = Some(PACKET_BYTES_MAX);
        options.set_connect_properties(properties);
        AsyncClient::new(options, REQUESTS_MAX)
    }

    async fn connect(world: &World, identity: &Identity, subscriptions: &[String]) -> Self {
        let (client, events) = Self::dial(world, identity, format!("{}{SUFFIX}", identity.node().topic_level()));
        let mut connected = Self { client, events, heard: VecDeque::new() };
        connected.until(|packet| matches!(packet, Packet::ConnAck(_)).then_some(()), "a connection").await;
        for subscription in subscriptions {
            connected.client.try_subscribe_many([Filter::new(subscription.clone(), QoS::AtLeastOnce)]).expect("asked");
            connected.until(|packet| matches!(packet, Packet::SubAck(_)).then_some(()), "an answer to a subscription").await;
        }
        connected
    }

    /// Publishes, so that the broker must acknowledge it. It leaves with the next [`Self::next`] or [`Self::acknowledged`].
    ///
    /// # Panics
    /// When too much waits.
    pub fn publish(&self, topic: String, payload: Vec<u8>, retain: bool) {
        self.client.try_publish(topic, QoS::AtLeastOnce, retain, payload).expect("room for a message");
    }

    /// Waits until the broker has answered to `count` messages, taken or not.
    pub async fn acknowledged(&mut self, count: usize) {
        for _ in 0..count {
            self.until(|packet| matches!(packet, Packet::PubAck(_)).then_some(()), "acknowledgements").await;
        }
    }

    /// The next message.
    ///
    /// # Panics
    /// When none comes in time; `what` was waited for.
    pub async fn next(&mut self, what: &str) -> (String, Bytes) {
        loop {
            if let Some(message) = self.heard.pop_front() {
                return message;
            }
            self.until(|packet| matches!(packet, Packet::Publish(_)).then_some(()), what).await;
        }
    }

    async fn until<T>(&mut self, mut wanted: impl FnMut(&Packet) -> Option<T>, what: &str) -> T {
        let found = async {
            loop {
                match self.events.poll().await {
                    Ok(Event::Incoming(packet)) => {
                        let found = wanted(&packet);
                        if let Packet::Publish(message) = packet {
                            self.heard.push_back((String::from_utf8_lossy(&message.topic).into_owned(), message.payload));
                        }
                        if let Some(found) = found {
                            return found;
                        }
                    }
                    Ok(Event::Outgoing(_)) => {}
                    Err(error) => panic!("waiting for {what}: {error}"),
                }
            }
        };
        timeout(SOON, found).await.unwrap_or_else(|_| panic!("waiting for {what}: nothing came"))
    }
}
