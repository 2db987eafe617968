//! Files with which Mosquitto serves as the fleet's broker, with the same rights as the embedded one.
//!
//! Mosquitto takes a client's user name from the common name of its certificate, which is the node's topic level. The hub and
//! the broker itself carry the hub's name: a client then knows the broker by the same certificate check as the embedded one.

use crate::ca::Authority;
use crate::clock::UnixTime;
use shared::ids::NodeId;
use shared::wire::mqtt::{PAYLOAD_BYTES_MAX, PREFIX};
use shared_net::host::write_private;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

/// Messages that wait for one client; beyond it the oldest go. A plan is at most one of few, and views are renewed each second.
const QUEUED_MESSAGES_MAX: u32 = 1_000;

/// What an operator decides about the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where it listens.
    pub listen: SocketAddr,
    /// The user that it becomes when root starts it; its own default (`mosquitto`) unless given. The files are readable by
    /// whoever ran the command only, and must be given to that user.
    pub user: Option<String>,
}

/// Writes `mosquitto.conf`, `acl`, the authority's certificate and the broker's own identity to `dir`. The broker serves
/// nothing to `revoked` nodes; of one that is revoked later it knows when the files are written and read again.
///
/// # Errors
/// A file could not be written, or no identity could be made.
pub fn write(
    dir: &Path,
    authority: &Authority,
    (hub, revoked): (&NodeId, &[NodeId]),
    settings: &Settings,
    now: UnixTime,
) -> io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let dir = dir.canonicalize()?;
    let own = Some(settings.listen.ip()).filter(|ip| !ip.is_unspecified());
    let names = own.iter().map(ToString::to_string).collect::<Vec<_>>();
    let identity = authority.issue_hub(hub, &names, now).map_err(io::Error::other)?;
    write_private(&dir.join("ca.pem"), authority.certificate_pem().as_bytes())?;
    write_private(&dir.join("broker.pem"), identity.certificate.pem.as_bytes())?;
    write_private(&dir.join("broker.key"), identity.key_pem.as_bytes())?;
    write_private(&dir.join("acl"), acl(hub, revoked).as_bytes())?;
    write_private(&dir.join("mosquitto.conf"), configuration(&dir, settings).as_bytes())
}

/// A broker's rules: each node its own topics, the hub everything of ours, revoked nodes nothing.
fn acl(hub: &NodeId, revoked: &[NodeId]) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{line}");
    };
    line(format!("user {}", hub.topic_level()));
    line(format!("topic readwrite {PREFIX}/#"));
    for node in revoked {
        line(format!("user {}", node.topic_level()));
        line(format!("topic deny {PREFIX}/#"));
    }
    line(String::new());
    for kind in ["status", "inventory", "telemetry", "plan-ack", "records"] {
        line(format!("pattern write {PREFIX}/nodes/%u/{kind}"));
    }
    line(format!("pattern read {PREFIX}/plans/%u/+"));
    line(format!("pattern read {PREFIX}/views/%u"));
    text
}

fn configuration(dir: &Path, settings: &Settings) -> String {
    let file = |name: &str| dir.join(name).display().to_string();
    let user = settings.user.as_ref().map(|user| format!("user {user}\n")).unwrap_or_default();
    format!(
        "# Written by `cloud-hub mosquitto-conf`: the broker of a Tidegate fleet.\n\
         {user}\
         per_listener_settings false\n\
         listener {port} {address}\n\
         cafile {ca}\n\
         certfile {certificate}\n\
         keyfile {key}\n\
         tls_version tlsv1.3\n\
         require_certificate true\n\
         use_identity_as_username true\n\
         # Without it, one node could take over the session of another by its client id.\n\
         use_username_as_clientid true\n\
         allow_anonymous false\n\
         acl_file {acl}\n\
         # Nothing is kept on disk: after a restart, hub and nodes publish again what matters.\n\
         persistence false\n\
         max_packet_size {packet}\n\
         max_queued_messages {queued}\n\
         max_keepalive 60\n",
        port = settings.listen.port(),
        address = settings.listen.ip(),
        ca = file("ca.pem"),
        certificate = file("broker.pem"),
        key = file("broker.key"),
        acl = file("acl"),
        packet = PAYLOAD_BYTES_MAX + 16 * 1024,
        queued = QUEUED_MESSAGES_MAX,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_topic_of_a_node_has_its_rule() {
        use shared::plan::Layer;
        use shared::wire::mqtt::Topic;
        let hub = NodeId::new("cloud/hub").expect("good");
        let thrown_out = NodeId::new("eu/out").expect("good");
        let rules = acl(&hub, &[thrown_out]);
        assert!(rules.contains("user eu.out\ntopic deny tidegate/v1/#\n"), "{rules}");
        let node = NodeId::new("eu/n").expect("good");
        let own = [
            Topic::Status(node.clone()),
            Topic::Inventory(node.clone()),
            Topic::Telemetry(node.clone()),
            Topic::PlanAck(node.clone()),
            Topic::Records(node.clone()),
        ];
        for topic in own {
            assert!(topic.from_node());
            assert!(rules.contains(&format!("pattern write {}", topic.name().replace("eu.n", "%u"))), "{topic:?}");
        }
        assert!(!rules.contains("pattern readwrite") && !rules.contains("pattern write tidegate/v1/plans"));
        assert!(Topic::Plan(node, Layer::Offload).name().starts_with("tidegate/v1/plans/eu.n/"));
    }
}
