//! From a profile, a load and a path to an estimate.

use super::Estimate;
use crate::fleet::{Costs, Load, PathReport, Profile};
use crate::units::{Joules, MicroDollars, Micros, Quality, Tokens};
use crate::work::LlmRequest;

/// Predicts `request` on a replica with this profile and load, reached by this path.
///
/// Times: one round trip for header and acceptance and half of one each for body and first token; requests that run at once
/// share the engine equally; a request without a slot waits for its share of the backlog.
#[must_use]
pub fn predict(
    request: &LlmRequest,
    profile: &Profile,
    load: &Load,
    path: &PathReport,
    costs: &Costs,
    quality: Quality,
) -> Estimate {
    let (prompt_rate, decode_rate) = (profile.prompt.get().max(1e-9), profile.decode.get().max(1e-9));
    let sharers = shared_by(load);
    let seconds = |tokens: Tokens, rate: f64| Micros::from_secs_f64(tokens.as_f64() / rate);

    let wait = waiting(load, 1.0 / decode_rate);
    let travel = path.rtt.unwrap_or_default() + path.rtt.unwrap_or_default() + path.carry(request.body);
    let per_token = Micros::from_secs_f64(sharers / decode_rate);
    let prompt_alone = seconds(request.prompt, prompt_rate);
    let first_token = travel + wait + profile.overhead + prompt_alone.scale(sharers);
    let total = first_token + per_token.scale(f64::from(request.output_max.0.saturating_sub(1)));

    let busy = prompt_alone + seconds(request.output_max, decode_rate);
    let energy = costs.busy.and_then(|watts| Joules::new(watts.get() * busy.as_secs_f64()).ok());
    Estimate {
        first_token,
        wait,
        per_token,
        total,
        spread: profile.spread,
        energy,
        money: price(costs, request.prompt, request.output_max),
        quality,
    }
}

/// By how many requests the engine would be shared, this one included.
pub(super) fn shared_by(load: &Load) -> f64 {
    f64::from(load.active.min(load.slots.saturating_sub(1))) + 1.0
}

/// Time until a slot is free, where one token of one request alone takes so many seconds.
pub(super) fn waiting(load: &Load, token_s: f64) -> Micros {
    if load.active < load.slots && load.queued == 0 {
        Micros::ZERO
    } else {
        let backlog = load.backlog.as_f64() / f64::from(load.slots.max(1));
        Micros::from_secs_f64(backlog * shared_by(load) * token_s)
    }
}

/// What so many tokens cost at these prices, rounded up; absent where a price is not known.
#[must_use]
pub fn price(costs: &Costs, prompt: Tokens, output: Tokens) -> Option<MicroDollars> {
    let (per_prompt, per_output) = (costs.prompt_per_million?, costs.output_per_million?);
    let micro_micro =
        u64::from(prompt.0).saturating_mul(per_prompt.0).saturating_add(u64::from(output.0).saturating_mul(per_output.0));
    Some(MicroDollars(micro_micro.div_ceil(1_000_000)))
}
