//! `edge-node doctor`: looks at everything that an agent stands on, and says what to do about what is wrong.
//!
//! It changes nothing, and does not disturb an agent that runs on the same state folder: what only that one can tell is asked of
//! it. Never here: a mend. Whoever reads decides.

mod engines;
mod member;
mod network;

use crate::config::Config;
use crate::io::store::{self, Member};
use crate::logic::{NodeStatus, Persisted};
use crate::release;
use shared_net::host::{Checkup, Finding, StateFolder, checks};
use shared_net::tls::Identity;
use std::error::Error;

/// What is known before the first check.
struct Patient<'a> {
    config: &'a Config,
    identity: Option<Identity>,
    member: Option<Member>,
    persisted: Persisted,
    /// Whether an agent holds the state folder now.
    runs: bool,
    /// What that one says of itself.
    status: Option<NodeStatus>,
}

/// Makes all checks. `status` is what a running agent said of itself; `origin` tells which configuration it was.
pub(crate) async fn examine(config: &Config, status: Option<NodeStatus>, origin: &str) -> Checkup {
    let mut checkup = Checkup::default();
    checkup.add(configuration(config, origin));
    let folder = &config.state;
    let runs = StateFolder::is_held(folder);
    let (identity, member) = (Identity::load(folder), Member::load(folder));
    checkup.add([member::identity(config, &identity, &member)]);
    let persisted = store::load_agent(folder).ok().flatten().unwrap_or_default();
    let patient = Patient { config, identity: identity.ok().flatten(), member: member.ok().flatten(), persisted, runs, status };
    if folder.exists() {
        checkup.add([checks::private_files(folder, &member::PRIVATE_FILES), checks::disk(folder).await]);
        checkup.add([checks::clock(patient.latest_secs(), &folder.join("last-time").display().to_string())]);
    }
    checkup.add(patient.certificate());
    checkup.add(patient.ports());
    checkup.add(patient.hub().await);
    checkup.add(patient.broker().await);
    checkup.add(patient.contact());
    checkup.add(patient.engines().await);
    checkup.add(release::rolled_back().map(|hash| {
        let seen = format!("release {hash} did not become healthy and was taken back");
        Finding::warn(
            "release",
            seen,
            "read why (`journalctl -u tidegate-agent`), and install one that is mended: edge-node upgrade FILE",
        )
    }));
    checkup
}

/// A configuration that cannot even be read: then nothing else can be looked at.
pub(crate) fn unreadable(error: &dyn Error) -> Checkup {
    let remedy = "correct that key, variable or flag; `edge-node config show` tells what there is";
    Checkup { checks: vec![Finding::fail("configuration", store::chain(error), remedy)] }
}

fn configuration(config: &Config, origin: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    match config.validate() {
        Ok(()) => findings.push(Finding::ok("configuration", format!("{origin} can work"))),
        Err(bad) => {
            let remedy = "correct it there; `edge-node config show` tells each value with its origin";
            findings.push(Finding::fail("configuration", store::chain(&bad), remedy));
        }
    }
    if config.engines.is_empty() {
        let remedy = "give it `[[engines]]`, unless it shall only pass requests on";
        findings.push(Finding::warn("engines", "none: this node executes nothing itself", remedy));
    }
    findings
}
