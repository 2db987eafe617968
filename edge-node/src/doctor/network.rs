//! Ports, the way to the hub, and the broker.

use super::Patient;
use crate::io::joined::hub_address;
use crate::io::mqtt::resolved;
use crate::io::store::chain;
use shared::fleet::Transport;
use shared::ids::NodeId;
use shared::plan::Layer;
use shared::wire::mqtt::Topic;
use shared_net::host::checks::{Port, port};
use shared_net::host::{Finding, Tasks};
use shared_net::link::{Code, Endpoint, LinkError, ResetSecret, resolve};
use shared_net::mqtt::{MqttEvent, MqttSettings};
use shared_net::tls::{Admit, CertClock, Identity};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a TCP connection may take to come about.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long the broker may take to take us in.
const BROKER_MAX: Duration = Duration::from_secs(8);
/// How long a connection may take to end.
const CLOSE_MAX: Duration = Duration::from_millis(500);

impl Patient<'_> {
    /// Our own ports. Those of an agent that runs are its own.
    pub(super) fn ports(&self) -> Vec<Finding> {
        let http = self.config.http.listen;
        if !self.runs {
            let mut findings = vec![port(Port::Tcp, "http.listen", http)];
            if self.identity.is_some() {
                findings.extend([Port::Udp, Port::Tcp].map(|kind| port(kind, "quic.listen", self.config.quic.listen)));
            }
            return findings;
        }
        if let Some(status) = &self.status {
            return vec![Finding::ok("http.listen", format!("the agent {} runs and answers", status.node))];
        }
        let seen = "an agent holds the state folder, but does not answer";
        let remedy =
            "read its log (`journalctl -u tidegate-agent`); where it wants a key, give it in TIDEGATE_API_KEY; else restart it";
        vec![Finding::fail("http.listen", seen, remedy)]
    }

    pub(super) async fn hub(&self) -> Option<Finding> {
        let (identity, member) = (self.identity.as_ref()?, self.member.as_ref()?);
        let address = hub_address(self.config, member);
        let addresses = match resolve(address).await {
            Ok(addresses) => addresses,
            Err(error) => {
                let remedy = "give the name an address (DNS, /etc/hosts), or set `hub.address` to one that has";
                return Some(Finding::fail("hub", chain(&error), remedy));
            }
        };
        let mut failure = None;
        for at in &addresses {
            match self.dial(identity, &member.hub, *at, Transport::Quic).await {
                Ok(()) => return Some(Finding::ok("hub", format!("{} answers at {at} (UDP)", member.hub))),
                Err(error) => failure = Some(error),
            }
        }
        let why = failure.map_or_else(|| "no address".to_owned(), |error| error.to_string());
        for at in &addresses {
            if self.dial(identity, &member.hub, *at, Transport::Tcp).await.is_ok() {
                let seen =
                    format!("UDP blocked: {} answers at {at} over TCP only ({why}); the agent goes on, slower", member.hub);
                let remedy = format!("let UDP {} out to the hub and its answers back in, at every firewall between", at.port());
                return Some(Finding::warn("hub", seen, remedy));
            }
        }
        Some(no_way_to_hub(address, &addresses, &why).await)
    }

    /// Connects as this node, and leaves again: without a hello, the hub does not take it for the node's session.
    async fn dial(&self, identity: &Identity, hub: &NodeId, at: SocketAddr, by: Transport) -> Result<(), LinkError> {
        let any = if at.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
        let clock = CertClock::load(&self.config.state);
        let endpoint = Endpoint::bind((any, 0).into(), identity, Admit::Members, &clock, &ResetSecret::random())?;
        let link = endpoint.connect(at, hub, by).await?;
        link.close(Code::DONE, "only looking");
        endpoint.close(Code::DONE, "only looking", CLOSE_MAX).await;
        Ok(())
    }

    /// A running agent is asked: a second connection under its name would end the first one on some brokers.
    pub(super) async fn broker(&self) -> Option<Finding> {
        let (identity, member) = (self.identity.as_ref()?, self.member.as_ref()?);
        if self.runs {
            let uplink = &self.status.as_ref()?.uplink;
            return match (uplink.state.as_str(), uplink.broker) {
                (_, true) => Some(Finding::ok("broker", "connected")),
                ("up", false) => Some(no_broker(&self.persisted.broker, "the agent has no connection to it")),
                _ => None,
            };
        }
        if self.persisted.broker.is_empty() {
            let remedy = "run the agent once with the hub in reach: the hub names the broker";
            return Some(Finding::warn("broker", "not known yet", remedy));
        }
        let hub_host = resolve(hub_address(self.config, member)).await.ok().and_then(|all| all.first().map(SocketAddr::ip));
        let address = resolved(&self.persisted.broker, hub_host);
        Some(match self.meet(identity, &member.hub, &address).await {
            Ok(()) => Finding::ok("broker", format!("{address} takes this node in and lets it read its plans")),
            Err(why) => no_broker(&address, &why),
        })
    }

    /// Connects beside the agent's own client id and subscribes to what the agent needs.
    async fn meet(&self, identity: &Identity, hub: &NodeId, address: &str) -> Result<(), String> {
        let node = identity.node();
        let settings = MqttSettings {
            address: address.to_owned(),
            expected: hub.clone(),
            client_id: format!("{}~doctor", node.topic_level()),
            will: None,
            subscriptions: vec![Topic::View(node.clone()).name(), Topic::Plan(node.clone(), Layer::Offload).name()],
        };
        let (tasks, clock) = (Tasks::new(), CertClock::load(&self.config.state));
        let started = shared_net::mqtt::start(settings, identity, &clock, &tasks);
        let (client, mut events) = started.map_err(|error| error.to_string())?;
        let met = timeout(BROKER_MAX, async {
            loop {
                match events.recv().await {
                    Some(MqttEvent::Connected) => break Ok(()),
                    Some(MqttEvent::Disconnected { why }) => break Err(why),
                    Some(MqttEvent::Message { .. }) => {}
                    None => break Err("the connection ended".to_owned()),
                }
            }
        });
        let met = met.await.unwrap_or_else(|_| Err(format!("no answer within {} s", BROKER_MAX.as_secs())));
        drop(client);
        // It ends by itself with the process at the latest.
        drop(tasks.stop(CLOSE_MAX).await);
        met
    }
}

fn no_broker(address: &str, why: &str) -> Finding {
    let port = address.rsplit_once(':').map_or("8883", |(_, port)| port);
    Finding::fail(
        "broker",
        format!("MQTT at {address}: {why}"),
        format!(
            "let TCP {port} through to the hub's broker; on the hub: `cloud-hub doctor`, and `cloud-hub nodes` for a node that was revoked"
        ),
    )
}

/// Neither got there: does anybody answer?
async fn no_way_to_hub(address: &str, addresses: &[SocketAddr], why: &str) -> Finding {
    let port = address.rsplit_once(':').map_or("7443", |(_, port)| port);
    for at in addresses {
        if matches!(timeout(CONNECT_MAX, TcpStream::connect(at)).await, Ok(Ok(_))) {
            let remedy = format!("is `{address}` the address of the hub (`hub.address`), and not of a proxy or another program?");
            return Finding::fail("hub", format!("{address} takes connections, and does not answer as the hub ({why})"), remedy);
        }
    }
    let remedy = format!(
        "is the hub up (`cloud-hub doctor` there), is `{address}` its address (`hub.address`), is there a route, and is UDP or TCP {port} let through?"
    );
    Finding::fail("hub", format!("no way to {address}: {why}"), remedy)
}
