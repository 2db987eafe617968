//! Who the node is: its name, its certificate, its clock, and when it last heard of its hub.

use super::Patient;
use crate::config::Config;
use crate::io::store::{self, AGENT_FILE, Member, StoreError};
use shared::units::Micros;
use shared_net::host::{Finding, checks};
use shared_net::tls::{CertClock, Identity, TlsError};
use std::time::SystemTime;

/// Those that hold a key or a secret, and what tells of other nodes.
pub(super) const PRIVATE_FILES: [&str; 4] = ["identity.pem", "reset-secret", "member.json", AGENT_FILE];
/// A node that heard nothing for so long has a problem that nobody noticed.
const SILENCE_S_MAX: u64 = 24 * 3_600;
const JOIN: &str = "edge-node join TOKEN, with the line that `cloud-hub token --site SITE` prints";
const REPLACE: &str = "edge-node join --replace TOKEN, with a fresh line of `cloud-hub token --site SITE`";

pub(super) fn identity(
    config: &Config,
    identity: &Result<Option<Identity>, TlsError>,
    member: &Result<Option<Member>, StoreError>,
) -> Finding {
    let state = config.state.display();
    match (identity, member) {
        (Err(error), _) => Finding::fail("identity", store::chain(error), REPLACE),
        (_, Err(error)) => Finding::fail("identity", store::chain(error), REPLACE),
        (Ok(None), Ok(None)) => Finding::warn("identity", format!("{state} belongs to no fleet: the agent serves alone"), JOIN),
        (Ok(Some(_)), Ok(None)) | (Ok(None), Ok(Some(_))) => {
            Finding::fail("identity", format!("{state} holds half a membership: the agent does not start"), REPLACE)
        }
        (Ok(Some(identity)), Ok(Some(member))) => {
            let (node, hub) = (identity.node(), &member.hub);
            if config.node != Config::default().node && config.node != node.as_str() {
                let seen = format!("the certificate says `{node}`, the configuration `{}`: the certificate counts", config.node);
                return Finding::warn("identity", seen, format!("set `node` to \"{node}\", or join again under the other name"));
            }
            Finding::ok("identity", format!("{node}, of the fleet of {hub}"))
        }
    }
}

impl Patient<'_> {
    /// The latest time of which this folder knows: the one it kept, and the one at which the hub signed the certificate.
    pub(super) fn latest_secs(&self) -> u64 {
        let signed = self.identity.as_ref().map_or(0, Identity::begins_secs);
        CertClock::load(&self.config.state).kept_secs().max(signed)
    }

    pub(super) fn certificate(&self) -> Option<Finding> {
        let (identity, member) = (self.identity.as_ref()?, self.member.as_ref()?);
        let clock = CertClock::load(&self.config.state);
        let left = identity.expires_in(&clock);
        let revoked = self.persisted.revoked.iter().any(|serial| serial == identity.serial())
            || self.status.as_ref().is_some_and(|status| status.uplink.revoked);
        if revoked {
            let seen = "the hub has revoked it: this node was thrown out";
            return Some(Finding::fail("certificate", seen, format!("if that was a mistake: stop the agent, {REPLACE}")));
        }
        if left == Micros::ZERO {
            let remedy = format!("if the clock is right: {REPLACE}");
            return Some(Finding::fail("certificate", "it has run out", remedy));
        }
        if let Err(error) = identity.check(&clock) {
            let seen = format!("others would refuse it: {}", store::chain(&error));
            return Some(Finding::fail("certificate", seen, REPLACE));
        }
        let seen = format!("good for {}", checks::span(left.0 / 1_000_000));
        // Renewed at two thirds; an hour later it should have worked.
        if left < Micros((member.lifetime.0 / 3).saturating_sub(3_600_000_000)) {
            let remedy = "renewal needs the hub: see the check `hub`; without it the node must join again when this time is over";
            return Some(Finding::warn("certificate", format!("{seen}, and was not renewed in time"), remedy));
        }
        Some(Finding::ok("certificate", seen))
    }

    /// When the hub's last word came. A running agent knows; else the file tells that holds it.
    pub(super) fn contact(&self) -> Option<Finding> {
        self.member.as_ref()?;
        if let Some(status) = &self.status {
            let loss = status.uplink.last_loss.as_deref().unwrap_or("never connected");
            let remedy = "see the checks `hub` and `certificate`";
            return Some(match status.uplink.up_for {
                Some(up) => Finding::ok("contact", format!("connected with the hub for {}", checks::span(up.0 / 1_000_000))),
                None if status.uplink.revoked => return None,
                None => Finding::fail("contact", format!("no connection with the hub: {loss}"), remedy),
            });
        }
        let changed = std::fs::metadata(self.config.state.join(AGENT_FILE)).and_then(|about| about.modified());
        let Ok(changed) = changed else {
            let remedy = "start the agent: edge-node run";
            return Some(Finding::warn("contact", "this node has not spoken with its hub yet", remedy));
        };
        let ago = SystemTime::now().duration_since(changed).unwrap_or_default().as_secs();
        let seen = format!("the hub's last word came {} ago", checks::span(ago));
        let remedy = "see the check `hub`, and start the agent: edge-node run";
        Some(if ago > SILENCE_S_MAX { Finding::warn("contact", seen, remedy) } else { Finding::ok("contact", seen) })
    }
}
