//! `cloud-hub records` and `cloud-hub explain`.

use super::CliError;
use super::reach::{Reach, ReachError};
use crate::config::Config;
use crate::store::StoredRecord;
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use shared::fleet::Hop;
use shared::ids::RequestId;
use shared::plan::{AttemptRecord, Choice, Outcome, Record, Rejected, Stage, Verdict};
use shared::units::Micros;
use shared_net::say;
use std::fmt::Write;

pub(super) async fn records(config: &Config, last: usize, json: bool) -> Result<(), CliError> {
    let records = Reach::find(config)?.records(last).await?;
    if json {
        say!("{}", serde_json::to_string_pretty(&records).unwrap_or_default());
    } else {
        say!("{}", table(&records));
    }
    Ok(())
}

pub(super) async fn explain(config: &Config, request: RequestId, json: bool) -> Result<(), CliError> {
    let records = Reach::find(config)?.record(request).await?;
    if records.is_empty() {
        let why = format!(
            "no record of `{request}` here: it is too old, still runs, its ingress has not sent it yet, or it was turned away \
             before it was taken in, as by a wrong key, an unknown model or a bad body; its answer then says why"
        );
        return Err(ReachError::Refused(why).into());
    }
    if json {
        say!("{}", serde_json::to_string_pretty(&records).unwrap_or_default());
    } else {
        records.iter().for_each(|stored| say!("{}", story(&stored.record).trim_end()));
    }
    Ok(())
}

fn table(records: &[StoredRecord]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header(["request", "ingress", "service", "served by", "quality", "outcome", "first token", "total", "tokens"]);
    for StoredRecord { record, .. } in records {
        table.add_row([
            record.request.to_string(),
            record.ingress.to_string(),
            record.service.to_string(),
            record.served_by.as_ref().map_or_else(String::new, |(node, variant)| format!("{node} {variant}")),
            record.quality.map_or_else(|| "-".to_owned(), |quality| format!("{:.3}", quality.get())),
            outcome(&record.outcome),
            time(record.actual.first_token),
            record.actual.total.to_string(),
            record.actual.usage.output.0.to_string(),
        ]);
    }
    table
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answered(_) => "answered".to_owned(),
        Outcome::Failed(failure) => failure.code().to_owned(),
    }
}

fn time(time: Option<Micros>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| time.to_string())
}

/// The record as a text for people. Writing to a string cannot fail, hence the ignored results.
fn story(record: &Record) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "Request {} for `{}` came in at {}.", record.request, record.service, record.ingress);
    if record.waited > Micros::ZERO {
        let _ = writeln!(text, "It waited {} without an attempt.", record.waited);
    }
    for attempt in &record.attempts {
        tell_attempt(&mut text, attempt);
    }
    let mut served =
        record.served_by.as_ref().map_or_else(|| "nobody".to_owned(), |(node, variant)| format!("{node} with {variant}"));
    if let Some(quality) = record.quality {
        let _ = write!(served, ", quality {:.3}", quality.get());
    }
    let _ = writeln!(
        text,
        "In the end: {} by {served}; first token {}, per token {}, total {}, {} tokens.",
        outcome(&record.outcome),
        time(record.actual.first_token),
        time(record.actual.per_token),
        record.actual.total,
        record.actual.usage.output.0
    );
    if let Outcome::Failed(failure) = &record.outcome {
        let _ = writeln!(text, "Because: {failure}.");
    }
    text
}

fn tell_attempt(text: &mut String, attempt: &AttemptRecord) {
    let decision = &attempt.decision;
    let mode = if decision.degraded { ", without the hub" } else { "" };
    let _ = writeln!(
        text,
        "\nDecision {} by `{}`{mode}, newest fact {} old:",
        decision.attempt.number, decision.policy, decision.age
    );
    match &decision.verdict {
        Verdict::Assign(choice) => {
            let _ = writeln!(text, "  chosen    {}", option(choice));
        }
        Verdict::Wait(reason) => {
            let _ = writeln!(text, "  wait      {reason}");
        }
        Verdict::Refuse(reason) => {
            let _ = writeln!(text, "  refused   {reason}");
        }
    }
    for other in &decision.others {
        let _ = writeln!(text, "  possible  {}", option(other));
    }
    for rejected in &decision.rejected {
        let _ = writeln!(text, "  rejected  {}: {}", turned_down(rejected), rejected.reason);
    }
    for (code, count) in &decision.counts {
        let _ = writeln!(text, "  counted   {code}: {count}");
    }
    if let Some(ended) = &attempt.outcome {
        let actual = &attempt.actual;
        let _ =
            writeln!(text, "  actual    {}: first token {}, total {}", outcome(ended), time(actual.first_token), actual.total);
    }
}

fn option(choice: &Choice) -> String {
    let candidate = &choice.candidate;
    let estimate = &choice.estimate;
    format!(
        "{} {} ({}){}: predicted first token {}, total {}, quality {:.3}",
        candidate.node,
        candidate.variant,
        way(candidate.hop),
        stages(candidate.stages()),
        estimate.first_token,
        estimate.total,
        estimate.quality.get()
    )
}

const fn way(hop: Hop) -> &'static str {
    match hop {
        Hop::Local => "here",
        Hop::Direct => "directly",
        Hop::Relay => "through the hub",
    }
}

/// The stages of a split, each with its layers and how it is reached from the one before.
fn stages(stages: &[Stage]) -> String {
    let Some((first, later)) = stages.split_first() else { return String::new() };
    let mut text = format!(" layers {}", first.layers);
    for stage in later {
        let _ = write!(text, ", then {} ({}) layers {}", stage.node, way(stage.hop), stage.layers);
    }
    text
}

/// Who was rejected; of a split, all of its nodes, with the one that stood in the way.
fn turned_down(rejected: &Rejected) -> String {
    let who = format!("{} {}", rejected.node, rejected.variant);
    if rejected.stages.is_empty() {
        return who;
    }
    let nodes: Vec<_> = rejected.stages.iter().map(ToString::to_string).collect();
    format!("{who} in the split {}", nodes.join(" + "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::estimate::Estimate;
    use shared::ids::{AttemptId, NodeId, PlanEpoch, ServiceId, VariantId};
    use shared::plan::{Actual, Candidate, Decision, Finish, Reason, Rejected, Split, Usage};
    use shared::units::{Fraction, Moment, Quality, Tokens};
    use shared::work::LayerRange;
    use shared::work::Needs;
    use std::collections::BTreeMap;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).expect("good")
    }

    fn decision(attempt: AttemptId) -> Decision {
        let variant = VariantId::new("tiny").expect("good");
        let candidate = Candidate { node: node("cloud/gpu"), hop: Hop::Relay, variant: variant.clone(), split: Split::Whole };
        let estimate = Estimate {
            first_token: Micros::from_millis(120),
            wait: Micros::ZERO,
            per_token: Micros::from_millis(10),
            total: Micros::from_millis(900),
            spread: Fraction::default(),
            output: None,
            high: None,
            energy: None,
            money: None,
            quality: Quality::new(0.6484).expect("good"),
        };
        Decision {
            attempt,
            at: Moment(0),
            policy: "min-latency".to_owned(),
            verdict: Verdict::Assign(Choice { candidate, estimate, transport: None }),
            others: Vec::new(),
            rejected: vec![Rejected { node: node("eu/n"), variant, stages: Vec::new(), reason: Reason::Busy }],
            counts: BTreeMap::from([("busy".to_owned(), 1)]),
            fingerprint: 1,
            grant: PlanEpoch::default(),
            age: Micros::from_millis(40),
            degraded: true,
        }
    }

    #[test]
    fn a_split_names_all_of_its_stages_and_the_margin_its_numbers() {
        let mut decision = decision(AttemptId::new(RequestId(7), 0));
        let layers = |from, to| LayerRange { from, to, of: 30 };
        let stage = |name, hop, layers| Stage { node: node(name), hop, layers };
        let Verdict::Assign(choice) = &mut decision.verdict else { panic!("assigned") };
        let split = vec![stage("cloud/gpu", Hop::Relay, layers(0, 15)), stage("eu/n", Hop::Direct, layers(15, 30))];
        choice.candidate.split = Split::Layers(split);
        let reason = Reason::SplitMargin { split: Micros::from_millis(950), whole: Micros::from_millis(900) };
        let variant = choice.candidate.variant.clone();
        decision.rejected = vec![Rejected { node: node("eu/n"), variant, stages: vec![node("eu/n"), node("eu/m")], reason }];
        let mut told = String::new();
        tell_attempt(&mut told, &AttemptRecord { decision, actual: Actual::default(), outcome: None });
        for part in [
            "cloud/gpu tiny (through the hub) layers 0..15 of 30, then eu/n (directly) layers 15..30 of 30: predicted",
            "rejected  eu/n tiny in the split eu/n + eu/m: split predicted 950 ms, whole 900 ms",
        ] {
            assert!(told.contains(part), "no `{part}` in:\n{told}");
        }
    }

    #[test]
    fn the_story_names_chosen_rejected_predicted_and_actual() {
        let request = RequestId(7);
        let usage = Usage { output: Tokens(9), ..Usage::default() };
        let actual =
            Actual { first_token: Some(Micros::from_millis(150)), total: Micros::from_millis(800), usage, ..Actual::default() };
        let outcome = Outcome::Answered(Finish::Stop);
        let attempt = AttemptRecord {
            decision: decision(AttemptId::new(request, 0)),
            actual: actual.clone(),
            outcome: Some(outcome.clone()),
        };
        let record = Record {
            request,
            ingress: node("eu/edge"),
            service: ServiceId::new("assistant").expect("good"),
            needs: Needs::default(),
            arrived: Moment(0),
            waited: Micros::from_millis(30),
            attempts: vec![attempt],
            served_by: Some((node("cloud/gpu"), VariantId::new("tiny").expect("good"))),
            quality: Quality::new(0.6484).ok(),
            actual,
            outcome,
            attained: None,
        };
        let told = story(&record);
        for part in [
            "came in at eu/edge",
            "waited 30 ms",
            "by `min-latency`, without the hub",
            "chosen    cloud/gpu tiny (through the hub): predicted first token 120 ms, total 900 ms, quality 0.648",
            "rejected  eu/n tiny: busy",
            "actual    answered: first token 150 ms, total 800 ms",
            "answered by cloud/gpu with tiny, quality 0.648;",
            "9 tokens",
        ] {
            assert!(told.contains(part), "no `{part}` in:\n{told}");
        }
    }
}
