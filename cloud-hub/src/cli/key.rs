//! `cloud-hub key`.

use super::CliError;
use super::reach::Reach;
use crate::config::Config;
use crate::io::api::{KeyOrder, KeyRow};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use shared::ids::{KeyName, ServiceId};
use shared::work::KeyScope;
use shared_net::host::parse_span;
use shared_net::say;
use shared_net::tls::CertClock;

#[derive(Debug, Subcommand)]
pub(super) enum KeyAction {
    /// Makes a key, and prints its secret: once, for only its hash is kept.
    Add(AddArguments),
    /// Lists the keys.
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Makes a key worthless, here at once and at the agents that are connected within a heartbeat.
    Revoke {
        /// Which.
        name: KeyName,
    },
}

/// What the key shall allow.
#[derive(Debug, Args)]
pub(super) struct AddArguments {
    /// Its name, in logs, metrics and errors.
    name: KeyName,
    /// Services that it may ask for, with commas between them; all unless given.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    services: Vec<ServiceId>,
    /// Requests a minute, at each agent and at the hub.
    #[arg(long, value_name = "COUNT")]
    rate: Option<u32>,
    /// Tokens of prompts and answers a day (UTC), at each agent and at the hub.
    #[arg(long, value_name = "COUNT")]
    tokens_per_day: Option<u64>,
    /// For how long: a number with `s`, `m`, `h` or `d`; for ever unless given.
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    expires: Option<u64>,
    /// What it is for: `inference`, or `admin`: that, the agents' own pages, and the hub's admin API.
    #[arg(long, default_value = "inference", value_parser = parse_scope)]
    scope: KeyScope,
}

fn parse_scope(text: &str) -> Result<KeyScope, String> {
    match text {
        "inference" => Ok(KeyScope::Inference),
        "admin" => Ok(KeyScope::Admin),
        _ => Err("want `inference` or `admin`".to_owned()),
    }
}

impl KeyAction {
    pub(super) async fn run(self, config: &Config) -> Result<(), CliError> {
        let mut reach = Reach::find(config)?;
        match self {
            Self::Add(add) => say!("{}", reach.add_key(add.order()).await?),
            Self::List { json: true } => say!("{}", serde_json::to_string_pretty(&reach.keys().await?).unwrap_or_default()),
            Self::List { json: false } => say!("{}", table(&reach.keys().await?)),
            Self::Revoke { name } => {
                reach.revoke_key(&name).await?;
                say!("`{name}` is worthless from now on.");
            }
        }
        Ok(())
    }
}

impl AddArguments {
    fn order(self) -> KeyOrder {
        KeyOrder {
            name: self.name,
            scope: self.scope,
            services: self.services,
            rate_per_minute: self.rate,
            tokens_per_day: self.tokens_per_day,
            lifetime_s: self.expires,
        }
    }
}

fn table(keys: &[KeyRow]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(["key", "scope", "services", "requests/min", "tokens/day", "left"]);
    let now = CertClock::new(0).secs();
    for key in keys {
        let services: Vec<&str> = key.services.iter().map(ServiceId::as_str).collect();
        let or_none = |limit: Option<u64>| limit.map_or_else(|| "–".to_owned(), |limit| limit.to_string());
        let left = match key.expires {
            None => "–".to_owned(),
            Some(end) if end <= now => "ended".to_owned(),
            Some(end) if end - now < 2 * 86_400 => format!("{} h", (end - now) / 3_600),
            Some(end) => format!("{} d", (end - now) / 86_400),
        };
        table.add_row([
            key.name.to_string(),
            format!("{:?}", key.scope).to_lowercase(),
            if services.is_empty() { "all".to_owned() } else { services.join("\n") },
            or_none(key.rate_per_minute.map(u64::from)),
            or_none(key.tokens_per_day),
            left,
        ]);
    }
    table
}
