//! What was foretold, as people read it.

use super::{optional, table};
use crate::logic::NodeStatus;
use shared::estimate::Estimate;
use shared::fleet::Profile;

/// Cells of a predicted row.
pub(super) fn predicted(estimate: &Estimate) -> [String; 5] {
    let until = if estimate.output.is_some() { "likely" } else { "most" };
    [
        estimate.first_token.to_string(),
        estimate.per_token.to_string(),
        format!("{} ({until})", estimate.total),
        optional(estimate.energy),
        optional(estimate.money),
    ]
}

/// Cells of the row beneath: what nine in ten should keep within.
pub(super) fn nine_in_ten(estimate: &Estimate) -> Option<Vec<String>> {
    let high = estimate.high?;
    let times = [high.first_token, high.per_token, high.total].map(|time| time.to_string());
    Some(std::iter::once("nine in ten below".to_owned()).chain(times).chain([String::new(), String::new()]).collect())
}

/// A rate of a profile, with how sure it is.
pub(super) fn rate(profile: Option<&Profile>, of_prompts: bool) -> String {
    let Some(profile) = profile else { return "not measured".to_owned() };
    let (rate, spread) = match (&profile.pace, of_prompts) {
        (Some(pace), true) => (profile.prompt, pace.prompt_spread),
        (Some(pace), false) => (profile.decode, pace.decode_spread),
        (None, true) => (profile.prompt, profile.spread),
        (None, false) => (profile.decode, profile.spread),
    };
    format!("{:.0} tok/s ± {:.0} %", rate.get(), spread.get() * 100.0)
}

/// How long answers become, and how well that is foretold.
pub(super) fn lengths(status: &NodeStatus) -> Option<String> {
    let mut table =
        table(["answers of", "seen", "half within", "nine in ten within", "foretold", "kept to half", "kept to nine in ten"]);
    for (service, learnt) in &status.learnt {
        let share = |share: Option<shared::units::Fraction>| {
            share.map(|share| format!("{:.0} %", share.get() * 100.0)).unwrap_or_default()
        };
        table.add_row([
            service.to_string(),
            learnt.report.answers.to_string(),
            optional(learnt.half),
            optional(learnt.most),
            learnt.report.foretold.to_string(),
            share(learnt.report.share_half()),
            share(learnt.report.share_most()),
        ]);
    }
    (!status.learnt.is_empty()).then(|| table.to_string())
}
