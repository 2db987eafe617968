//! The end: what ran where and why, what was promised and what was kept.

use super::script::{Ask, Promise};
use super::stage::Stage;
use crate::emulate::client::{AskError, Reply, Served, Times};
use crate::emulate::relay::{Passed, Relay, Way};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{ContentArrangement, Table, TableComponent};
use shared::ids::NodeId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Width of the table where there is no terminal to ask.
const PLAIN_WIDTH: u16 = 170;
/// Characters of an answer that a line shows.
const SHOWN_CHARS: usize = 56;

/// One request and what came of it.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) ask: Ask,
    pub(super) reply: Reply,
    /// What was promised and not kept.
    pub(super) faults: Vec<String>,
}

/// What passed an uplink.
#[derive(Debug)]
pub(super) struct Uplink {
    node: NodeId,
    up: Passed,
    down: Passed,
}

impl Uplink {
    pub(super) fn of(node: NodeId, relay: &Relay) -> Self {
        Self { node, up: relay.passed(Way::Up), down: relay.passed(Way::Down) }
    }
}

impl Told {
    pub(super) fn new(ask: Ask, outcome: Result<Reply, AskError>) -> Self {
        match outcome {
            Ok(reply) => {
                let faults = faults(&ask, &reply);
                Self { ask, reply, faults }
            }
            Err(error) => Self { faults: vec![error.to_string()], ask, reply: Reply::default() },
        }
    }

    fn served(&self) -> Served {
        self.reply.served.clone().unwrap_or_default()
    }

    /// Where it ran.
    fn place(&self) -> String {
        match (self.served().node, &self.reply.error) {
            (Some(node), None) if node == self.ask.at => "here".to_owned(),
            (Some(node), None) => node.to_string(),
            (_, Some(_)) => "refused".to_owned(),
            (None, None) => "nobody".to_owned(),
        }
    }

    /// One line for the moment.
    pub(super) fn line(&self) -> String {
        let mark = if self.faults.is_empty() { '✓' } else { '✗' };
        let text = match &self.reply.error {
            Some(error) => error.message.clone(),
            None => format!("“{}”", self.reply.text.0.split_whitespace().collect::<Vec<_>>().join(" ")),
        };
        let shown: String = text.chars().take(SHOWN_CHARS).collect();
        let more = if text.chars().count() > SHOWN_CHARS { "…" } else { "" };
        let first = self.reply.first_token.map_or_else(String::new, |first| format!("{:>5} ms  ", first.as_millis()));
        let degraded = if self.served().degraded { " (cut off)" } else { "" };
        format!("{mark} {:<27} {:>10} → {:<11}{degraded} {first}{shown}{more}", self.ask.label, self.ask.at, self.place())
    }

    fn row(&self) -> Vec<String> {
        let served = self.served();
        let predicted = served.predicted.unwrap_or_default();
        let beside = |of: fn(&Times) -> Option<f64>| format!("{} / {}", number(of(&predicted)), number(of(&served.actual)));
        vec![
            self.ask.label.clone(),
            self.ask.at.to_string(),
            served.node.as_ref().map_or_else(|| self.place(), ToString::to_string),
            self.why(),
            beside(|times| times.first_token_ms),
            beside(|times| times.per_token_ms),
            served.quality.map_or_else(|| "–".to_owned(), |quality| format!("{quality:.3}")),
            served.attempts.map_or_else(|| "–".to_owned(), |attempts| attempts.to_string()),
            if self.faults.is_empty() { "kept".to_owned() } else { self.faults.join("; ") },
        ]
    }

    /// Why there: how it was reached, and what ruled others out.
    fn why(&self) -> String {
        if let Some(error) = &self.reply.error {
            return error.code.clone().unwrap_or_else(|| error.message.clone());
        }
        let served = self.served();
        let chosen = match served.hop.as_deref() {
            Some("local") => "here is best",
            Some("direct") => "best directly",
            Some("relay") => "best through the hub",
            _ => "chosen",
        };
        let ruled_out: Vec<String> = served.rejected.iter().map(|(code, count)| format!("{code} {count}")).collect();
        let ruled_out = if ruled_out.is_empty() { String::new() } else { format!("; ruled out: {}", ruled_out.join(", ")) };
        let degraded = if served.degraded { "cut off, " } else { "" };
        format!("{degraded}{chosen}{ruled_out}")
    }
}

fn number(of: Option<f64>) -> String {
    of.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.0}"))
}

/// What was promised and not kept.
fn faults(ask: &Ask, reply: &Reply) -> Vec<String> {
    let mut faults = Vec::new();
    let served = reply.served.clone().unwrap_or_default();
    match (&ask.promise, reply.answered()) {
        (Promise::Refusal, true) => faults.push("answered, although nobody in reach may".to_owned()),
        (Promise::Refusal, false) => {
            if reply.error.as_ref().is_none_or(|error| error.code.is_none()) {
                faults.push("ended without a typed refusal".to_owned());
            }
        }
        (_, false) => {
            let why = reply.error.as_ref().map_or("the stream ended early", |error| error.message.as_str());
            faults.push(format!("no answer: {why}"));
        }
        (Promise::Within(scope), true) => {
            if !served.node.as_ref().is_some_and(|node| scope.contains(node)) {
                faults.push(format!("did not stay within {scope}"));
            }
        }
        (Promise::Quality(floor), true) => {
            if served.quality.is_none_or(|quality| quality < *floor) {
                faults.push(format!("quality below {floor}"));
            }
        }
        (Promise::Answer, true) => {}
    }
    let cut_off = reply.headers.get("x-tidegate-degraded").map(|told| told == "true");
    if ask.degraded.is_some() && cut_off != ask.degraded {
        faults.push("does not know whether it is cut off".to_owned());
    }
    faults
}

/// Everything.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) told: Vec<Told>,
    pub(super) uplinks: Vec<Uplink>,
    /// A command and what it printed.
    pub(super) explained: Option<(String, String)>,
    pub(super) killed: Vec<String>,
    pub(super) took: Duration,
}

impl Report {
    /// Shows it; true when every promise was kept.
    pub(super) fn show(&self, stage: &Stage) -> bool {
        stage.act("Where each request ran, and why");
        stage.say(&self.table(stage).to_string());
        if let Some((command, explained)) = &self.explained {
            stage.act(&format!("One of them in full: {command}"));
            stage.say(explained.trim_end());
        }
        stage.act("The fleet");
        self.totals().iter().for_each(|line| stage.say(line));
        let faults = self.told.iter().map(|told| told.faults.len()).sum::<usize>() + self.killed.len();
        let verdict = if faults == 0 {
            format!("\nEvery promise was kept: {} requests in {:.0} s.", self.told.len(), self.took.as_secs_f64())
        } else {
            format!("\n{faults} promises were not kept; the last column says which.")
        };
        stage.say(&verdict);
        faults == 0
    }

    fn table(&self, stage: &Stage) -> Table {
        let mut table = Table::new();
        table.load_preset(UTF8_HORIZONTAL_ONLY);
        for between_rows in [TableComponent::HorizontalLines, TableComponent::MiddleIntersections] {
            table.remove_style(between_rows);
        }
        table.set_content_arrangement(ContentArrangement::Dynamic);
        if !stage.is_terminal() {
            table.set_width(PLAIN_WIDTH);
        }
        table.set_header([
            "request",
            "asked at",
            "ran at",
            "why",
            "first token, ms\npredicted / actual",
            "per token, ms\npredicted / actual",
            "quality",
            "tries",
            "promise",
        ]);
        table.add_rows(self.told.iter().map(Told::row));
        table
    }

    fn totals(&self) -> Vec<String> {
        let mut answered: BTreeMap<String, (u32, u64)> = BTreeMap::new();
        let mut errors = Vec::new();
        for told in self.told.iter().filter(|told| told.reply.answered()) {
            let served = told.served();
            let (requests, tokens) =
                answered.entry(served.node.map_or_else(|| "?".to_owned(), |node| node.to_string())).or_default();
            *requests += 1;
            *tokens += told.reply.tokens;
            if let (Some(Times { total_ms: Some(predicted), .. }), Some(actual)) = (served.predicted, served.actual.total_ms)
                && actual > 0.0
            {
                errors.push((predicted - actual).abs() / actual);
            }
        }
        let mut lines: Vec<String> = answered
            .iter()
            .map(|(node, (requests, tokens))| format!("  {node:<12} {requests:>3} requests, {tokens:>4} tokens"))
            .collect();
        let refused = self.told.iter().filter(|told| told.ask.promise == Promise::Refusal && told.faults.is_empty()).count();
        lines.push(format!("  refused      {refused:>3} as it had to be"));
        for Uplink { node, up, down } in &self.uplinks {
            let dropped = up.dropped + down.dropped;
            lines.push(format!(
                "  uplink of {node}: {} kB up, {} kB down, {dropped} datagrams lost",
                up.bytes / 1_000,
                down.bytes / 1_000
            ));
        }
        errors.sort_by(f64::total_cmp);
        if let Some(median) = errors.get(errors.len() / 2) {
            lines.push(format!("  half of the total times were predicted within {:.0} %", median * 100.0));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::super::cast::Cast;
    use super::super::script;
    use super::*;
    use crate::emulate::client::ErrorBody;

    fn answered_by(node: &NodeId, quality: f64, degraded: bool) -> Reply {
        let served = Served { node: Some(node.clone()), quality: Some(quality), ..Served::default() };
        Reply {
            finish: Some("stop".to_owned()),
            headers: BTreeMap::from([("x-tidegate-degraded".to_owned(), degraded.to_string())]),
            served: Some(served),
            ..Reply::default()
        }
    }

    fn refused(code: Option<&str>) -> Reply {
        let error = ErrorBody { message: "no".to_owned(), kind: None, code: code.map(str::to_owned) };
        Reply {
            error: Some(error),
            headers: BTreeMap::from([("x-tidegate-degraded".to_owned(), "true".to_owned())]),
            ..Reply::default()
        }
    }

    #[test]
    fn a_broken_promise_is_seen_and_a_kept_one_is_not() {
        let cast = Cast::new().expect("good names");
        let needs = script::needs(&cast);
        let of = |label: &str| needs.iter().find(|ask| ask.label == label).expect("in the script");
        let (plain, floor, site) = (of("no needs"), of("quality floor"), of("stays at the site"));
        assert!(faults(plain, &answered_by(&cast.cloud, 0.3, false)).is_empty());
        assert_eq!(faults(plain, &refused(Some("busy"))).len(), 1, "an answer was promised");
        assert!(faults(floor, &answered_by(&cast.cloud, 0.299, false)).is_empty());
        assert_eq!(faults(floor, &answered_by(&cast.edge_1, 0.29, false)).len(), 1, "not good enough");
        assert!(faults(site, &answered_by(&cast.edge_2, 0.29, false)).is_empty());
        assert_eq!(faults(site, &answered_by(&cast.cloud, 0.299, false)).len(), 1, "left the site");
    }

    #[test]
    fn a_refusal_must_be_typed_and_the_cut_be_known() {
        let cast = Cast::new().expect("good names");
        let cut_off = script::cut_off(&cast);
        let floor = cut_off.iter().find(|ask| ask.promise == Promise::Refusal).expect("in the script");
        assert!(faults(floor, &refused(Some("deadline_exceeded"))).is_empty());
        assert_eq!(faults(floor, &refused(None)).len(), 1, "not typed");
        assert_eq!(faults(floor, &answered_by(&cast.cloud, 0.299, true)).len(), 1, "nobody may");
        let plain = cut_off.iter().find(|ask| ask.label == "cut off: no needs").expect("in the script");
        assert!(faults(plain, &answered_by(&cast.edge_1, 0.29, true)).is_empty());
        assert_eq!(faults(plain, &answered_by(&cast.edge_1, 0.29, false)).len(), 1, "it must know");
    }
}
