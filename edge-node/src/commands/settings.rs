//! What every command takes: where the configuration is, and what of it is another.

use super::CommandError;
use crate::config::{Config, ENVIRONMENT_PREFIX};
use clap::Args;
use shared_net::host::{Loaded, Sources, load};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where the configuration comes from: defaults, then the file, then `TIDEGATE_EDGE__…` variables, then flags.
#[derive(Debug, Args)]
pub(super) struct Settings {
    /// A TOML file
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// State folder (key `state`)
    #[arg(long, global = true, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Address of the HTTP API (key `http.listen`)
    #[arg(long, global = true, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Any other key, such as `--set tier=cloud`
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Settings {
    pub(super) fn load(&self) -> Result<Loaded<Config>, CommandError> {
        let mut flags = Vec::new();
        if let Some(state) = &self.state {
            flags.push(("state".to_owned(), state.display().to_string()));
        }
        if let Some(listen) = &self.listen {
            flags.push(("http.listen".to_owned(), listen.to_string()));
        }
        for pair in &self.set {
            let (key, value) = pair.split_once('=').ok_or_else(|| CommandError::Set(pair.clone()))?;
            flags.push((key.to_owned(), value.to_owned()));
        }
        let sources = Sources { file: self.config.clone(), prefix: ENVIRONMENT_PREFIX.to_owned(), flags, ..Sources::default() };
        Ok(load(&sources.with_process_environment())?)
    }

    /// The same again, as arguments of another command: each with a space before it, quoted for a shell where need be.
    pub(super) fn arguments(&self) -> String {
        let mut pairs = Vec::new();
        pairs.extend(self.config.as_ref().map(|file| ("config", file.display().to_string())));
        pairs.extend(self.state.as_ref().map(|folder| ("state", folder.display().to_string())));
        pairs.extend(self.listen.map(|address| ("listen", address.to_string())));
        pairs.extend(self.set.iter().map(|pair| ("set", pair.clone())));
        pairs.into_iter().map(|(flag, value)| format!(" --{flag} {}", quoted(&value))).collect()
    }
}

fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_would_take_apart_is_quoted() {
        assert_eq!((quoted("it's").as_str(), quoted("a/b=c").as_str(), quoted("").as_str()), ("'it'\\''s'", "a/b=c", "''"));
    }
}
