//! Pages for people: how the agent is, and why a request ran where it ran.

mod foresight;

use crate::logic::NodeStatus;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{ContentArrangement, Table};
use foresight::{lengths, nine_in_ten, predicted, rate};
use shared::fleet::{Hop, ProbeState, ReplicaState, Transport};
use shared::plan::{Actual, AttemptRecord, Candidate, Decision, Finish, Outcome, Record, Verdict};
use shared::units::{Joules, Micros};
use shared::work::{Needs, Residency};

/// What a node that was thrown out can do.
pub(crate) const REVOKED: &str =
    "this node's certificate is no longer good; stop it, and join again with a fresh token: edge-node join --replace TOKEN";

/// The status page.
#[must_use]
pub fn status(status: &NodeStatus) -> String {
    let mut lines = vec![format!("{} ({}), version {}", status.node, lower(&status.tier), status.version)];
    let hub = status.hub.as_ref().map_or_else(|| "none joined".to_owned(), ToString::to_string);
    lines.push(format!("hub       {hub}: {}", uplink(status)));
    lines.extend(status.certificate_expires_in.filter(|_| !status.uplink.revoked).map(certificate));
    if status.uplink.revoked {
        lines.push(format!("degraded  revoked: {REVOKED}"));
    } else if status.degraded && status.hub.is_none() {
        lines.push("alone     not joined: only what this node holds is served".to_owned());
    } else if status.degraded {
        lines.push("degraded  the hub is out of reach; requests are served with the last grants".to_owned());
    }
    if status.draining {
        lines.push("draining  nothing new is executed here".to_owned());
    }
    lines.push(format!("dispatch  {}; {} requests open", status.dispatch, status.requests_open));
    lines.push(format!("services  {}", joined(status.services.iter())));
    let spool = &status.spool;
    let oldest = spool.oldest.map(|age| format!(", the oldest for {age}")).unwrap_or_default();
    lines.push(format!(
        "records   {} wait for the hub ({} of at most {} bytes{oldest}), {} dropped",
        spool.records, spool.bytes, spool.bytes_max, spool.dropped
    ));
    lines.extend(accelerators(status));
    lines.extend(replicas(status));
    lines.extend(lengths(status));
    lines.extend(plans(status));
    lines.extend(peers(status));
    lines.join("\n")
}

fn accelerators(status: &NodeStatus) -> Vec<String> {
    let survey = &status.survey;
    let state = match &survey.state {
        ProbeState::Pending => return Vec::new(),
        ProbeState::Off => "not looked for (`probe.enabled`)".to_owned(),
        ProbeState::Done => format!("{}; {} listed and none", survey.accelerators.len(), survey.dropped.len()),
        ProbeState::Failed(why) => format!("{} known; {why}", survey.accelerators.len()),
    };
    let head = format!("accelerators  {state}");
    std::iter::once(head).chain(survey.accelerators.iter().map(crate::probe::page::described)).collect()
}

fn certificate(left: Micros) -> String {
    let hours = left.0 / Micros::from_secs(3_600).0;
    match (left, hours) {
        (Micros::ZERO, _) => "certificate has expired: join again with a fresh token (edge-node join --replace TOKEN)".to_owned(),
        (_, 48..) => format!("certificate good for {} days; renewed by itself while the hub is in reach", hours / 24),
        _ => format!("certificate good for {left}; renewed by itself while the hub is in reach"),
    }
}

fn uplink(status: &NodeStatus) -> String {
    let uplink = &status.uplink;
    let mut text = uplink.state.clone();
    if let Some(up) = uplink.up_for {
        text += &format!(" for {up}");
    }
    if let Some(session) = uplink.session {
        text += &format!(", session {}", session.0);
    }
    if let Some(rtt) = uplink.rtt {
        text += &format!(", round trip {rtt}");
    }
    if let Some(transport) = uplink.transport {
        text += &format!(", over {}", transport.name());
    }
    if let Some(why) = &uplink.avoids_quic {
        text += &format!(" (QUIC is not taken: {why})");
    }
    if uplink.state == "up" {
        text += if uplink.broker { ", broker connected" } else { ", broker not connected" };
    }
    if !uplink.quarantined.is_empty() {
        let kinds: Vec<_> = uplink.quarantined.iter().map(|kind| kind.name()).collect();
        text += &format!("; not published, because the broker closes the connection for it: {}", kinds.join(", "));
    }
    if let Some(why) = uplink.last_loss.as_ref().filter(|_| uplink.state != "up") {
        text += &format!(" (last loss: {why})");
    }
    text
}

fn replicas(status: &NodeStatus) -> Option<String> {
    let mut table = table(["replica", "engine", "state", "running", "waiting", "prompt", "decode"]);
    for replica in &status.replicas {
        let state = match &replica.state {
            ReplicaState::Failed(why) => format!("failed: {why}"),
            other => lower(other),
        };
        let load = &replica.load;
        let part = replica.layers.filter(|held| !held.range.is_whole());
        table.add_row([
            part.map_or_else(|| replica.variant.to_string(), |held| format!("{}\nlayers {}", replica.variant, held.range)),
            lower(&replica.engine),
            state,
            format!("{}/{}", load.active, load.slots),
            format!("{}/{}", load.queued, load.queue_max),
            rate(replica.profile.as_ref(), true),
            rate(replica.profile.as_ref(), false),
        ]);
    }
    (!status.replicas.is_empty()).then(|| table.to_string())
}

fn plans(status: &NodeStatus) -> Option<String> {
    let mut table = table(["plan", "epoch", "age", "state"]);
    for plan in &status.plans {
        let state = match (plan.pending, plan.expired) {
            (true, _) => "waits for the slower layer",
            (false, true) => "in force, not renewed in time",
            (false, false) => "in force",
        };
        table.add_row([plan.layer.to_string(), plan.epoch.to_string(), plan.age.to_string(), state.to_owned()]);
    }
    (!status.plans.is_empty()).then(|| table.to_string())
}

fn peers(status: &NodeStatus) -> Option<String> {
    let mut table = table(["peer", "state", "round trip", "over", "last loss"]);
    for peer in &status.peers {
        let state = peer.up_for.map_or_else(|| "not connected".to_owned(), |up| format!("up for {up}"));
        let rtt = peer.rtt.map(|rtt| rtt.to_string()).unwrap_or_default();
        let over = peer.transport.map_or("", Transport::name).to_owned();
        table.add_row([peer.node.to_string(), state, rtt, over, peer.last_loss.clone().unwrap_or_default()]);
    }
    (!status.peers.is_empty()).then(|| table.to_string())
}

/// The story of one request.
#[must_use]
pub fn explain(record: &Record) -> String {
    let mut lines = vec![format!("request {} for `{}` at {}", record.request, record.service, record.ingress)];
    lines.push(format!("needs    {}", needs(&record.needs)));
    lines.push(format!("outcome  {}", outcome(record)));
    if record.waited > Micros::ZERO {
        lines.push(format!("waited   {} without an attempt", record.waited));
    }
    for attempt in &record.attempts {
        lines.push(String::new());
        lines.extend(decision(&attempt.decision));
        lines.extend(chosen(attempt));
        lines.extend(others(&attempt.decision));
        lines.extend(rejected(&attempt.decision));
    }
    lines.join("\n")
}

fn needs(needs: &Needs) -> String {
    let slo = &needs.slo;
    let residency = match needs.residency {
        Residency::Anywhere => "anywhere",
        Residency::Site => "this site only",
        Residency::Node => "this node only",
    };
    let mut parts = vec![residency.to_owned(), format!("priority {}", slo.priority.get())];
    for (what, time) in [("first token", slo.first_token), ("per token", slo.per_token), ("deadline", slo.end_to_end)] {
        parts.extend(time.map(|time| format!("{what} {time}")));
    }
    if slo.min_quality.get() > 0.0 {
        parts.push(format!("quality at least {:.3}", slo.min_quality.get()));
    }
    parts.extend(slo.energy.map(|most| format!("at most {most}")));
    parts.extend(slo.money.map(|most| format!("at most {most}")));
    parts.join(", ")
}

fn outcome(record: &Record) -> String {
    let mut text = match &record.outcome {
        Outcome::Answered(finish) => format!("answered ({})", finish_word(*finish)),
        Outcome::Failed(failure) => format!("failed ({}): {failure}", failure.code()),
    };
    if let Some((node, variant)) = &record.served_by {
        text += &format!(" by {variant} on {node}");
    }
    if let Some(quality) = record.quality {
        text += &format!(", quality {:.3}", quality.get());
    }
    text += &format!(", {} in all", record.actual.total);
    match record.attained {
        Some(true) => text += ", wishes kept",
        Some(false) => text += ", wishes missed",
        None => {}
    }
    text
}

const fn finish_word(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ContentFilter => "content filter",
        Finish::ToolCalls => "tool calls",
    }
}

fn decision(decision: &Decision) -> Vec<String> {
    let said = match &decision.verdict {
        Verdict::Assign(choice) => format!("run {}{}", place(&choice.candidate), over(choice.transport)),
        Verdict::Wait(reason) => format!("wait: {reason}"),
        Verdict::Refuse(reason) => format!("refuse: {reason}"),
    };
    let degraded = if decision.degraded { ", the hub was out of reach" } else { "" };
    vec![
        format!("attempt {}: {said}", decision.attempt.number),
        format!(
            "  by `{}` within grant {}, facts at most {} old{degraded}, fingerprint {:016x}",
            decision.policy, decision.grant, decision.age, decision.fingerprint
        ),
    ]
}

fn place(candidate: &Candidate) -> String {
    let Some((first, later)) = candidate.stages().split_first() else {
        return format!("{} on {} ({})", candidate.variant, candidate.node, way(candidate.hop));
    };
    let mut text = format!("{} split: layers {} on {} ({})", candidate.variant, first.layers, first.node, way(first.hop));
    for stage in later {
        text += &format!(", then {} on {} ({})", stage.layers, stage.node, way(stage.hop));
    }
    text
}

/// QUIC is the rule, and not worth a word.
const fn over(transport: Option<Transport>) -> &'static str {
    match transport {
        Some(Transport::Tcp) => " over TCP",
        Some(Transport::Quic) | None => "",
    }
}

const fn way(hop: Hop) -> &'static str {
    match hop {
        Hop::Local => "here",
        Hop::Direct => "directly",
        Hop::Relay => "through the hub",
    }
}

fn chosen(attempt: &AttemptRecord) -> Vec<String> {
    let Verdict::Assign(choice) = &attempt.decision.verdict else { return Vec::new() };
    let mut table = table(["", "first token", "per token", "total", "energy", "money"]);
    table.add_row(std::iter::once("predicted".to_owned()).chain(predicted(&choice.estimate)).collect::<Vec<_>>());
    if let Some(row) = nine_in_ten(&choice.estimate) {
        table.add_row(row);
    }
    table.add_row(std::iter::once("actual".to_owned()).chain(actual(&attempt.actual)).collect::<Vec<_>>());
    let ended = match &attempt.outcome {
        Some(Outcome::Answered(_)) => "  answered".to_owned(),
        Some(Outcome::Failed(failure)) => format!("  failed: {failure}"),
        None => "  no outcome".to_owned(),
    };
    let usage = attempt.actual.usage;
    vec![table.to_string(), format!("{ended}; {} of prompt, {} generated", usage.prompt, usage.output)]
}

fn actual(actual: &Actual) -> [String; 5] {
    [
        optional(actual.first_token),
        optional(actual.per_token),
        actual.total.to_string(),
        actual.energy.map_or_else(|| optional(None::<Joules>), |energy| joules(energy, actual)),
        optional(actual.money),
    ]
}

/// With how it is known.
fn joules(energy: Joules, actual: &Actual) -> String {
    actual.energy_origin.map_or_else(|| energy.to_string(), |origin| format!("{energy} {}", origin.name()))
}

fn others(decision: &Decision) -> Option<String> {
    let mut table = table(["could have run", "first token", "per token", "total", "energy", "money"]);
    for choice in &decision.others {
        table.add_row(std::iter::once(place(&choice.candidate)).chain(predicted(&choice.estimate)).collect::<Vec<_>>());
    }
    (!decision.others.is_empty()).then(|| table.to_string())
}

fn rejected(decision: &Decision) -> Option<String> {
    let mut table = table(["rejected", "reason"]);
    for candidate in &decision.rejected {
        let reason = format!("{}: {}", candidate.reason.code(), candidate.reason);
        let nodes: Vec<_> = candidate.stages.iter().map(ToString::to_string).collect();
        let split = if nodes.is_empty() { String::new() } else { format!(" in the split {}", nodes.join(" + ")) };
        table.add_row([format!("{} on {}{split}", candidate.variant, candidate.node), reason]);
    }
    let shown = decision.rejected.len();
    let all: usize = decision.counts.values().map(|count| usize::try_from(*count).unwrap_or(usize::MAX)).sum();
    if all > shown {
        let counts: Vec<_> = decision.counts.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        table.add_row([format!("{} in all", all), counts.join(", ")]);
    }
    (all > 0 || shown > 0).then(|| table.to_string())
}

fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic).set_header(header);
    table
}

fn optional<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "unknown".to_owned(), |value| value.to_string())
}

fn joined<T: ToString>(items: impl Iterator<Item = T>) -> String {
    let text = items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ");
    if text.is_empty() { "none".to_owned() } else { text }
}

/// The name of a unit variant in lower case.
fn lower<T: std::fmt::Debug>(value: &T) -> String {
    format!("{value:?}").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::estimate::Estimate;
    use shared::ids::{AttemptId, NodeId, PlanEpoch, RequestId, ServiceId, VariantId};
    use shared::plan::{Choice, Reason, Rejected, Split};
    use shared::units::{Fraction, Moment, Quality};

    fn node(name: &str) -> NodeId {
        NodeId::new(name).expect("good")
    }

    fn choice(name: &str, ms: u64) -> Choice {
        let variant = VariantId::new("small").expect("good");
        let candidate = Candidate { node: node(name), hop: Hop::Direct, variant, split: Split::Whole };
        let estimate = Estimate {
            first_token: Micros::from_millis(ms),
            wait: Micros::ZERO,
            per_token: Micros::from_millis(7),
            total: Micros::from_millis(3 * ms),
            spread: Fraction::default(),
            output: None,
            high: None,
            energy: None,
            money: None,
            quality: Quality::default(),
        };
        Choice { candidate, estimate, transport: None }
    }

    #[test]
    fn an_explanation_names_the_chosen_the_others_and_the_reasons() {
        let request = RequestId(7);
        let decision = Decision {
            attempt: AttemptId::new(request, 0),
            at: Moment(0),
            policy: "min-latency".to_owned(),
            verdict: Verdict::Assign(choice("lab/b", 120)),
            others: vec![choice("cloud/c", 450)],
            rejected: vec![Rejected {
                node: node("lab/d"),
                variant: VariantId::new("small").expect("good"),
                stages: Vec::new(),
                reason: Reason::Stale { age: Micros::from_secs(20) },
            }],
            counts: [("stale".to_owned(), 1)].into(),
            fingerprint: 0xabc,
            grant: PlanEpoch { incarnation: 2, sequence: 9 },
            age: Micros::from_millis(40),
            degraded: true,
        };
        let actual = Actual { first_token: Some(Micros::from_millis(133)), total: Micros::from_millis(400), ..Actual::default() };
        let record = Record {
            request,
            ingress: node("lab/a"),
            service: ServiceId::new("assistant").expect("good"),
            needs: Needs::default(),
            arrived: Moment(0),
            waited: Micros::ZERO,
            attempts: vec![AttemptRecord { decision, actual: actual.clone(), outcome: Some(Outcome::Answered(Finish::Stop)) }],
            served_by: Some((node("lab/b"), VariantId::new("small").expect("good"))),
            quality: None,
            actual,
            outcome: Outcome::Answered(Finish::Stop),
            attained: Some(true),
        };
        let page = explain(&record);
        for word in [
            "lab/b",
            "120 ms",
            "133 ms",
            "cloud/c",
            "450 ms",
            "lab/d",
            "stale",
            "min-latency",
            "2.9",
            "out of reach",
            "wishes kept",
        ] {
            assert!(page.contains(word), "`{word}` is missing in:\n{page}");
        }
    }
}
