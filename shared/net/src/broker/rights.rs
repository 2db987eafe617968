//! Who may connect, publish and subscribe: decided by the certificate, and by nothing that a client says.

use super::Inner;
use mqtt5::broker::{AuthProvider, AuthResult};
use mqtt5::packet::connect::ConnectPacket;
use mqtt5::protocol::v5::reason_codes::ReasonCode;
use shared::ids::NodeId;
use shared::wire::mqtt::{PREFIX, Topic};
use std::future::ready;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Divides the node's name from a word, in the client id of a second connection of the same node.
const SUFFIX: char = '~';
/// MQTT 5. Older clients would get an acknowledgement for a publish that was refused.
const PROTOCOL: u8 = 5;

/// Says at each CONNECT whether a certificate that the authority signed is still good.
pub trait Admission: Send + Sync {
    /// Whether this node may connect with the certificate of this serial number.
    fn admits(&self, node: &NodeId, serial: &str) -> bool;
}

/// The rights of one connection.
pub(super) struct Rights {
    pub(super) inner: Arc<Inner>,
    pub(super) node: NodeId,
    pub(super) serial: String,
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl Rights {
    fn may_connect(&self, connect: &ConnectPacket) -> AuthResult {
        let own = self.node.topic_level();
        let client_id = connect.client_id.split_once(SUFFIX).map_or(connect.client_id.as_str(), |(name, _)| name);
        if connect.protocol_version != PROTOCOL {
            return AuthResult::fail(ReasonCode::UnsupportedProtocolVersion);
        }
        if client_id != own {
            return AuthResult::fail_with_reason(ReasonCode::ClientIdentifierNotValid, format!("want client id `{own}`"));
        }
        if !self.inner.admission.admits(&self.node, &self.serial) {
            return AuthResult::fail(ReasonCode::NotAuthorized);
        }
        AuthResult::success_with_user(own)
    }

    fn may_publish(&self, topic: &str) -> bool {
        !self.inner.stopping.load(Ordering::Acquire)
            && (self.is_hub(topic) || own_topic(&self.node, topic).is_some_and(|topic| topic.from_node()))
    }

    fn may_subscribe(&self, filter: &str) -> bool {
        self.is_hub(filter) || own_topic(&self.node, filter).is_some_and(|topic| !topic.from_node())
    }

    /// Notes a refusal, unless the broker is stopping: then nobody did anything wrong.
    fn counted(&self, allowed: bool) -> bool {
        if !allowed && !self.inner.stopping.load(Ordering::Acquire) {
            self.inner.refusals.note("mqtt", super::TOPIC, self.node.as_str());
        }
        allowed
    }

    /// The hub may do everything, below our prefix.
    fn is_hub(&self, topic: &str) -> bool {
        self.node == self.inner.hub && topic.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with('/'))
    }
}

/// The topic of this very name, if it is one of the node's own. Wildcards are in no name, so a filter with one is none.
fn own_topic(node: &NodeId, name: &str) -> Option<Topic> {
    Topic::parse(name).filter(|topic| topic.node() == node && topic.name() == name)
}

impl AuthProvider for Rights {
    fn authenticate<'a>(&'a self, connect: &'a ConnectPacket, _: SocketAddr) -> Answer<'a, mqtt5::Result<AuthResult>> {
        let answer = self.may_connect(connect);
        if !answer.authenticated {
            self.inner.refusals.note("mqtt", "not_allowed", self.node.as_str());
        }
        Box::pin(ready(Ok(answer)))
    }

    fn authorize_publish<'a>(&'a self, _: &str, _: Option<&'a str>, topic: &'a str) -> Answer<'a, bool> {
        Box::pin(ready(self.counted(self.may_publish(topic))))
    }

    fn authorize_subscribe<'a>(&'a self, _: &str, _: Option<&'a str>, filter: &'a str) -> Answer<'a, bool> {
        Box::pin(ready(self.counted(self.may_subscribe(filter))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_names_of_its_own_are_a_nodes_topics() {
        let node = NodeId::new("site/a").expect("good");
        for own in ["nodes/site.a/status", "nodes/site.a/telemetry", "plans/site.a/offload", "views/site.a"] {
            assert!(own_topic(&node, &format!("{PREFIX}/{own}")).is_some(), "{own}");
        }
        for foreign in [
            "nodes/site.b/status",
            "nodes/+/status",
            "nodes/site.a/#",
            "plans/site.a/+",
            "plans/site.a/#",
            "plans/#",
            "views/+",
            "views/site.a/",
            "views/site/a",
            "#",
        ] {
            assert!(own_topic(&node, &format!("{PREFIX}/{foreign}")).is_none(), "{foreign}");
        }
        assert!(own_topic(&node, "$share/x/tidegate/v1/views/site.a").is_none());
    }
}
