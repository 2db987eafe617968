//! `cloud-hub token`.

use super::CliError;
use super::reach::Reach;
use crate::config::Config;
use crate::join::TokenOrder;
use clap::Args;
use shared::ids::ScopeId;
use shared_net::host::parse_span;
use shared_net::say;
use std::collections::BTreeMap;

/// What the token shall allow.
#[derive(Debug, Args)]
pub(super) struct TokenArguments {
    /// Where nodes that join with it stand, such as `eu/site-7`.
    #[arg(long)]
    site: ScopeId,
    /// How many nodes may join with it.
    #[arg(long, default_value_t = 1)]
    count: u32,
    /// A label for those nodes. May be given more than once.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = parse_label)]
    labels: Vec<(String, String)>,
    /// For how long: a number with `s`, `m`, `h` or `d`.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = parse_span)]
    expires: u64,
    /// Address at which these nodes reach the hub, where it is not the one of `init`.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
}

impl TokenArguments {
    pub(super) async fn run(self, config: &Config) -> Result<(), CliError> {
        let labels = self.labels.into_iter().collect::<BTreeMap<_, _>>();
        let order = TokenOrder { site: self.site, labels, count: self.count, lifetime_s: self.expires, address: self.address };
        say!("{}", Reach::find(config)?.token(order).await?);
        Ok(())
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("want KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        assert!(parse_label("=x").is_err() && parse_label("gpu").is_err());
        assert_eq!(parse_label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
    }
}
