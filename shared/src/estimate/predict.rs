//! From a profile, a load and a path to an estimate.
//!
//! In the way of each decision: plain arithmetic, no allocation.

use super::{Estimate, High};
use crate::fleet::{Beside, Costs, Load, Pace, PathReport, Profile};
use crate::units::{Fraction, Joules, MicroDollars, Micros, Quality, Tokens};
use crate::work::LlmRequest;

/// So many standard deviations above the mean lie nine in ten.
const NINE_IN_TEN: f64 = 1.2816;
/// Relative uncertainty of a wait for a slot: it ends when some answer ends, and nobody knows how long answers become.
const WAIT_SPREAD: f64 = 0.5;

/// Seconds of the parts of a request at its executor.
struct Times {
    /// For a slot.
    wait: f64,
    /// From the slot to the first token.
    prompt: f64,
    /// Each further token.
    token: f64,
    /// What it would take alone, all together.
    alone: f64,
    prompt_spread: Fraction,
    token_spread: Fraction,
}

/// Predicts `request` on a replica with this profile and load, reached by this path.
///
/// Times: one round trip for header and acceptance and half of one each for body and first token; then what the profile's pace says
/// of steps that are shared with those who run here already, after their prompts; without a pace, requests that run at once share
/// the engine equally. A request without a slot waits for its share of the backlog. The answer is taken to become as long as is
/// likely.
#[must_use]
pub fn predict(
    request: &LlmRequest,
    profile: &Profile,
    load: &Load,
    path: &PathReport,
    costs: &Costs,
    quality: Quality,
) -> Estimate {
    let times = match &profile.pace {
        Some(pace) if pace.is_some_time() => paced(request, pace, load),
        _ => equally(request, profile, load),
    };
    let travel = path.rtt.unwrap_or_default() + path.rtt.unwrap_or_default() + path.carry(request.body);
    let wait = Micros::from_secs_f64(times.wait);
    let first_token = travel + wait + profile.overhead + Micros::from_secs_f64(times.prompt);
    let per_token = Micros::from_secs_f64(times.token);
    let further = |output: Tokens| f64::from(output.0.saturating_sub(1));
    let output = request.output_likely();
    let energy = costs.busy.and_then(|watts| Joules::new(watts.get() * times.alone).ok());
    Estimate {
        first_token,
        wait,
        per_token,
        total: first_token + per_token.scale(further(output)),
        spread: profile.spread,
        output: Some(output).filter(|output| *output != request.output_max),
        high: Some(high(&times, first_token, path, further(request.output_most()))),
        energy,
        money: price(costs, request.prompt, output),
        quality,
    }
}

fn high(times: &Times, first_token: Micros, path: &PathReport, further: f64) -> High {
    let jitter = path.jitter.unwrap_or_default().as_secs_f64();
    let unsure = (times.prompt * times.prompt_spread.get()).hypot(times.wait * WAIT_SPREAD).hypot(2.0 * jitter);
    let first_token = first_token + Micros::from_secs_f64(NINE_IN_TEN * unsure);
    let per_token = Micros::from_secs_f64(times.token * (1.0 + NINE_IN_TEN * times.token_spread.get()));
    High { first_token, per_token, total: first_token + per_token.scale(further) }
}

/// By a profile that knows of nothing but one request alone.
fn equally(request: &LlmRequest, profile: &Profile, load: &Load) -> Times {
    let (prompt_rate, decode_rate) = (profile.prompt.get().max(1e-9), profile.decode.get().max(1e-9));
    let sharers = shared_by(load);
    let prompt = request.prompt_new().as_f64() / prompt_rate;
    Times {
        wait: waiting(load, 1.0 / decode_rate),
        prompt: prompt * sharers,
        token: sharers / decode_rate,
        alone: prompt + request.output_likely().as_f64() / decode_rate,
        prompt_spread: profile.spread,
        token_spread: profile.spread,
    }
}

/// By a profile that knows of batches and contexts.
fn paced(request: &LlmRequest, pace: &Pace, load: &Load) -> Times {
    let (known, new) = (request.prompt - request.prompt_new(), request.prompt_new().as_f64());
    let output = request.output_likely().as_f64();
    let context = request.prompt.as_f64() + output / 2.0;
    let beside = beside(load, context);
    let alone = Beside::default();
    let ahead = load.prompts.filter(|tokens| tokens.0 > 0).map_or(0.0, |tokens| pace.prefill(0.0, tokens.as_f64(), beside));
    let own = pace.prefill(known.as_f64(), new, beside);
    let (shared, single) = (pace.token(context, beside), pace.token(context, alone));
    // Those who run beside end one day; while others wait, their places are taken at once.
    let beside_for = if load.queued > 0 || output <= 0.0 { 1.0 } else { (remaining(load) / output).min(1.0) };
    let slots = f64::from(load.slots.max(1));
    let wait = if load.active < load.slots && load.queued == 0 {
        0.0
    } else {
        // Of answers that run at once the first to end is not the mean one; the more wait ahead, the more it evens out.
        let queued = f64::from(load.queued);
        let share = (queued + 2.0 / (slots + 1.0)) / (queued + 1.0);
        decoding(load) / slots * share * shared + ahead
    };
    // Each step of a prompt that comes while this one decodes gives a token too, only later.
    let met = load.prompts_beside.map_or(0.0, |tokens| tokens.as_f64() / 100.0) * (pace.prefill(0.0, MET, alone) / MET);
    let token = beside_for * shared + (1.0 - beside_for) * single;
    Times {
        wait,
        // Who has waited has waited for the prompts ahead too.
        prompt: own + if wait > 0.0 { 0.0 } else { ahead },
        token: token + met,
        alone: pace.prefill(known.as_f64(), new, alone) + output * single,
        prompt_spread: pace.prompt_spread,
        // Whether anybody comes during this very answer is chance.
        token_spread: Fraction::new(pace.decode_spread.get().hypot(met / (token + met)).min(1.0)).unwrap_or_default(),
    }
}

/// Who gets tokens beside a request of this context. Where nobody told what they look back to, they are taken to be like it.
fn beside(load: &Load, context: f64) -> Beside {
    let requests = shared_by(load) - 1.0;
    let each = match load.context {
        Some(all) if load.active > 0 => all.as_f64() / f64::from(load.active),
        _ => context,
    };
    Beside { requests, seen: requests * each }
}

/// Tokens that those who run and wait may still get, without the part of the backlog that stands for their prompts.
fn decoding(load: &Load) -> f64 {
    (load.backlog.as_f64() - load.prompts.map_or(0.0, |tokens| tokens.as_f64() / PROMPT_IN_BACKLOG)).max(0.0)
}

/// The same, for one of them.
fn remaining(load: &Load) -> f64 {
    decoding(load) / f64::from((load.active + load.queued).max(1))
}

/// Tokens of a middling prompt, by which the pace of others' prompts is reckoned.
const MET: f64 = 128.0;
/// So many tokens of prompts count as one in a backlog, as executors count it.
const PROMPT_IN_BACKLOG: f64 = 10.0;

/// Seconds of a token of the prompt and of one of the answer, of one request among those that run.
pub(super) fn shared_pace(request: &LlmRequest, profile: &Profile, load: &Load) -> (f64, f64) {
    let times = match &profile.pace {
        Some(pace) if pace.is_some_time() => paced(request, pace, load),
        _ => equally(request, profile, load),
    };
    (times.prompt / request.prompt_new().as_f64().max(1.0), times.token)
}

/// By how many requests the engine would be shared, this one included.
pub(super) fn shared_by(load: &Load) -> f64 {
    f64::from(load.active.min(load.slots.saturating_sub(1))) + 1.0
}

/// Time until a slot is free, where one token of one request alone takes so many seconds.
pub(super) fn waiting(load: &Load, token_s: f64) -> f64 {
    if load.active < load.slots && load.queued == 0 {
        0.0
    } else {
        let backlog = load.backlog.as_f64() / f64::from(load.slots.max(1));
        backlog * shared_by(load) * token_s
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
