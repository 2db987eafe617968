//! Joining a fleet: a state folder becomes a member, or stays as it was.

use super::CommandError;
use crate::config::Config;
use crate::io::store::{Member, forget};
use shared::wire::JoinToken;
use shared_net::host::StateFolder;
use shared_net::join::{Joined, join};
use shared_net::tls::{CertClock, Identity};
use std::path::Path;

/// Joins with the token. With `replace`, an earlier membership is forgotten as soon as the new one is there.
pub(super) async fn join_fleet(
    config: &Config,
    token: &JoinToken,
    name: Option<String>,
    replace: bool,
) -> Result<Joined, CommandError> {
    let was_there = config.state.exists();
    let folder = StateFolder::open(&config.state)?;
    let joined = become_member(folder.path(), token, name, replace).await;
    drop(folder);
    if joined.is_err() && !was_there {
        withdraw(&config.state);
    }
    joined
}

async fn become_member(folder: &Path, token: &JoinToken, name: Option<String>, replace: bool) -> Result<Joined, CommandError> {
    if !replace && let Some(identity) = Identity::load(folder)? {
        return Err(CommandError::Joined(identity.node().clone()));
    }
    let joined = join(token, &name.unwrap_or_else(host_name), &CertClock::load(folder)).await?;
    if replace {
        // The certificate first: without it, the folder counts as one that has not joined.
        Identity::forget(folder)?;
        forget(folder)?;
    }
    let member = Member {
        hub: joined.hub.clone(),
        address: token.address.clone(),
        labels: joined.labels.clone(),
        lifetime: joined.expires_in,
    };
    // And last.
    member.save(folder)?;
    joined.identity.save(folder)?;
    Ok(joined)
}

/// Takes back a folder that was made for nothing. One that holds more than our lock is not empty, and stays.
fn withdraw(folder: &Path) {
    drop(std::fs::remove_file(folder.join("lock")));
    drop(std::fs::remove_dir(folder));
}

/// The host's name as a part of a node's name: lower case, with dashes for what such names cannot hold.
fn host_name() -> String {
    let name = sysinfo::System::host_name().unwrap_or_default().to_lowercase();
    let first = name.split('.').next().unwrap_or_default();
    let clean: String = first.chars().map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' }).collect();
    let clean = clean.trim_matches('-');
    if clean.is_empty() { "node".to_owned() } else { clean.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::ids::ScopeId;

    #[tokio::test]
    async fn a_join_that_fails_leaves_no_folder_and_takes_none() {
        let outer = tempfile::tempdir().expect("folder");
        let site = ScopeId::new("lab").expect("good");
        let (authority_sha256, secret) = ("0".repeat(64), "00".to_owned());
        let token = JoinToken { address: "no-port".to_owned(), authority_sha256, secret, site };
        let config = Config { state: outer.path().join("state"), ..Config::default() };
        let failed = join_fleet(&config, &token, None, false).await;
        assert!(matches!(failed, Err(CommandError::Join(_))), "{failed:?}");
        assert!(!config.state.exists(), "made for nothing");

        std::fs::create_dir(&config.state).expect("made");
        std::fs::write(config.state.join("member.json"), "{}").expect("written");
        let failed = join_fleet(&config, &token, None, true).await;
        assert!(matches!(failed, Err(CommandError::Join(_))), "{failed:?}");
        assert!(config.state.join("member.json").exists(), "forgotten only for a new membership");

        let _running = StateFolder::open(&config.state).expect("free");
        let failed = join_fleet(&config, &token, None, true).await;
        assert!(matches!(failed, Err(CommandError::State(_))), "an agent runs: {failed:?}");
    }
}
