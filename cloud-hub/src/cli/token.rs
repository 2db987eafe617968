//! `cloud-hub token`.

use super::CliError;
use super::reach::Reach;
use crate::config::Config;
use crate::join::TokenOrder;
use clap::Args;
use shared::ids::ScopeId;
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

/// Seconds of a text such as `90s`, `15m`, `1h` or `7d`.
fn parse_span(text: &str) -> Result<u64, String> {
    let want = || "want a number with `s`, `m`, `h` or `d`, such as `1h`".to_owned();
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(want)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(want()),
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds)).ok_or_else(want)? {
        0 => Err("want at least one second, or nobody could join with it".to_owned()),
        seconds => Ok(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_labels() {
        assert_eq!(parse_span("90s"), Ok(90));
        assert_eq!(parse_span("7d"), Ok(604_800));
        for bad in ["", "h", "1", "-1h", "1w", "1é", "99999999999999999999d", "9999999999999999d", "0s", "0d"] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
        assert!(parse_label("=x").is_err() && parse_label("gpu").is_err());
        assert_eq!(parse_label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
    }
}
