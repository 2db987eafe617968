//! `edge-node key`: API keys of this node alone, for agents without a hub. Those of a fleet are made at its hub.

use super::CommandError;
use crate::io::keys::{load, save};
use crate::io::store::Member;
use clap::{Args, Subcommand};
use shared::ids::{KeyName, ServiceId};
use shared::work::{ClientKey, KeyHash, KeyScope};
use shared_net::host::parse_span;
use shared_net::say;
use shared_net::tls::CertClock;
use std::path::Path;

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Make a key, and print its secret, once
    Add(AddKey),
    /// List the keys of this node
    List,
    /// Make a key worthless
    Revoke {
        /// Which
        name: KeyName,
    },
}

#[derive(Debug, Args)]
pub(super) struct AddKey {
    /// Its name, in logs, metrics and errors
    name: KeyName,
    /// Services that it may ask for, with commas between them; all where it is left out
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    services: Vec<ServiceId>,
    /// Requests a minute
    #[arg(long, value_name = "COUNT")]
    rate: Option<u32>,
    /// Tokens of prompts and answers a day (UTC)
    #[arg(long, value_name = "COUNT")]
    tokens_per_day: Option<u64>,
    /// For how long: a number with `s`, `m`, `h` or `d`; for ever where it is left out
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    expires: Option<u64>,
    /// Open the agent's own pages too
    #[arg(long)]
    admin: bool,
}

/// Carries it out on the state folder; a running agent has the change within a second.
pub(super) fn run(folder: &Path, command: KeyCommand) -> Result<(), CommandError> {
    let refused = |why: String| Err(CommandError::Key(why));
    let mut keys = load(folder)?;
    match command {
        KeyCommand::Add(add) => {
            if keys.iter().any(|key| key.name == add.name) {
                return refused(format!("there is a key `{}` already: revoke it first, or choose another name", add.name));
            }
            if keys.len() >= ClientKey::KEYS_MAX {
                return refused(format!("there are {} keys, as many as there may be: revoke some", keys.len()));
            }
            let secret = shared_net::openai::new_secret();
            let key = add.key(&secret, CertClock::load(folder).secs());
            key.validate().map_err(CommandError::Key)?;
            keys.push(key);
            std::fs::create_dir_all(folder).map_err(|error| CommandError::Key(format!("making the state folder: {error}")))?;
            save(folder, &keys)?;
            say!("{secret}");
        }
        KeyCommand::List => keys.iter().for_each(|key| say!("{}", line(key))),
        KeyCommand::Revoke { name } => {
            let before = keys.len();
            keys.retain(|key| key.name != name);
            if keys.len() == before {
                return refused(format!("no key of this node is called `{name}`; those of the fleet are revoked at its hub"));
            }
            save(folder, &keys)?;
            say!("`{name}` is worthless from now on");
        }
    }
    Ok(())
}

/// Whether this node has keys beside its configuration, or may get some from its fleet.
pub(super) fn are_elsewhere(folder: &Path) -> Result<bool, CommandError> {
    Ok(!load(folder)?.is_empty() || Member::load(folder)?.is_some())
}

impl AddKey {
    fn key(self, secret: &str, now: u64) -> ClientKey {
        ClientKey {
            name: self.name,
            sha256: KeyHash::of(secret.as_bytes()),
            scope: if self.admin { KeyScope::Admin } else { KeyScope::Inference },
            services: self.services,
            rate_per_minute: self.rate,
            tokens_per_day: self.tokens_per_day,
            expires: self.expires.map(|span| now.saturating_add(span)),
        }
    }
}

fn line(key: &ClientKey) -> String {
    let services: Vec<&str> = key.services.iter().map(ServiceId::as_str).collect();
    let services = if services.is_empty() { "all".to_owned() } else { services.join(",") };
    let or_none = |limit: Option<u64>| limit.map_or_else(|| "–".to_owned(), |limit| limit.to_string());
    format!(
        "{:<24} scope {:?}  services {services}  rate {}/min  tokens {}/day  ends {}",
        key.name.as_str(),
        key.scope,
        or_none(key.rate_per_minute.map(u64::from)),
        or_none(key.tokens_per_day),
        or_none(key.expires),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_and_go_and_secrets_stay_nowhere() {
        let folder = tempfile::tempdir().expect("folder");
        let name = KeyName::new("kiosk").expect("a name");
        let add = || AddKey {
            name: name.clone(),
            services: Vec::new(),
            rate: Some(6),
            tokens_per_day: None,
            expires: Some(60),
            admin: false,
        };
        run(folder.path(), KeyCommand::Add(add())).expect("made");
        assert!(matches!(run(folder.path(), KeyCommand::Add(add())), Err(CommandError::Key(_))), "twice");
        let kept = std::fs::read_to_string(folder.path().join("keys.json")).expect("kept");
        assert!(kept.contains("kiosk") && !kept.contains("tg-"), "{kept}");
        run(folder.path(), KeyCommand::Revoke { name: name.clone() }).expect("gone");
        assert!(run(folder.path(), KeyCommand::Revoke { name }).is_err() && load(folder.path()).expect("read").is_empty());
    }
}
