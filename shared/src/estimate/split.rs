//! From the profiles, loads and paths of several nodes to an estimate of a request that they serve one after the other.

use super::Estimate;
use super::predict::{price, shared_pace, waiting};
use crate::fleet::{Costs, Load, PathReport, Profile};
use crate::units::{Fraction, Joules, MicroDollars, Micros, Quality, Tokens};
use crate::work::{HeldLayers, LayerRange, LlmRequest, Precision};

/// Prompt tokens that a stage passes on at once: what engines compute in one step, so that a long prompt stalls nobody.
const CHUNK: f64 = 16.0;

/// What each token pays at each cut beyond round trip and bytes: writing, reading and waking up on both sides. Beside each other on
/// one machine (`make bench-split`, 3.64 ms a token whole and 4.11 ms split, in the median of three runs) the cut cost 0.47 ms with
/// its round trip over loopback. All of it is counted here and the round trip besides, so that a fast network does not make a split
/// look better than any that was seen.
const HOP: Micros = Micros(500);

/// One stage of a split as an estimate sees it.
#[derive(Clone, Copy, Debug)]
pub struct StageFacts<'a> {
    /// Rates of its replica, through all layers that that holds.
    pub profile: &'a Profile,
    /// How busy the replica is.
    pub load: &'a Load,
    /// The path from the stage before it; the first one's from the ingress.
    pub path: &'a PathReport,
    /// What work on its node costs.
    pub costs: &'a Costs,
    /// The layers that it would compute.
    pub layers: LayerRange,
    /// What its replica holds.
    pub held: HeldLayers,
}

/// Seconds of one token.
struct Pace {
    prompt: f64,
    decode: f64,
    carry: f64,
}

/// Predicts `request` on stages that follow each other.
///
/// Times: each token goes through all stages, and what was drawn comes back: the sum of the stages' times and of the round trips
/// between them, and of the bytes of a hidden state at the rate of each path. A prompt flows in chunks, so that the stages compute
/// at once: after the first chunk has gone through all, the slowest stage or path sets the pace. A stage asks the next one when it
/// has a slot itself (one that was held for a stage that still waits would serve nobody), so that the waits follow each other.
/// Energy and money are sums: a node that computes a third of the layers is paid a third of its price. Errors of several profiles
/// may go the same way, so the sum is as uncertain as its least certain part.
#[must_use]
pub fn predict_split(request: &LlmRequest, stages: &[StageFacts<'_>], precision: Precision, quality: Quality) -> Estimate {
    let paces: Vec<_> = stages.iter().enumerate().map(|(number, stage)| pace(number, request, stage, precision)).collect();
    let hops: Micros = stages.iter().skip(1).map(|stage| stage.path.rtt.unwrap_or_default() + HOP).fold(Micros::ZERO, sum);
    let per_token: f64 = paces.iter().map(|pace| pace.decode + pace.carry).sum();
    let per_token = Micros::from_secs_f64(per_token) + hops;

    let first = stages.first().map_or(Micros::ZERO, |stage| {
        let rtt = stage.path.rtt.unwrap_or_default();
        rtt + rtt + stage.path.carry(request.body)
    });
    // Header and acceptance at each cut too, one after the other; then half a round trip for states and half for the token.
    let travel = first + stages.iter().skip(1).map(|stage| stage.path.rtt.unwrap_or_default()).fold(Micros::ZERO, sum) + hops;
    let alone = |stage: &StageFacts<'_>| part(stage) / rate(stage.profile.decode.get());
    let wait = stages.iter().map(|stage| Micros::from_secs_f64(waiting(stage.load, alone(stage)))).fold(Micros::ZERO, sum);
    let overhead = stages.iter().map(|stage| stage.profile.overhead).fold(Micros::ZERO, sum);
    let first_token = travel + wait + overhead + prefill(request.prompt, &paces);
    let output = request.output_likely();
    Estimate {
        first_token,
        wait,
        per_token,
        total: first_token + per_token.scale(f64::from(output.0.saturating_sub(1))),
        spread: stages.iter().map(|stage| stage.profile.spread).fold(Fraction::default(), |a, b| if b > a { b } else { a }),
        output: Some(output).filter(|output| *output != request.output_max),
        high: None,
        energy: stages.iter().map(|stage| energy(stage, request)).sum::<Option<f64>>().and_then(|sum| Joules::new(sum).ok()),
        money: price_parts(stages.iter().map(|stage| (stage.costs, stage.layers.share())), request.prompt, output),
        quality,
    }
}

/// What so many tokens cost at nodes that each compute a share of the layers; absent where a price is not known.
#[must_use]
pub fn price_parts<'a>(
    parts: impl IntoIterator<Item = (&'a Costs, f64)>,
    prompt: Tokens,
    output: Tokens,
) -> Option<MicroDollars> {
    let mut total = MicroDollars(0);
    for (costs, share) in parts {
        total += scaled(price(costs, prompt, output)?, share);
    }
    Some(total)
}

/// A share of a price, rounded up; a share of all of it exactly.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "prices far below 2^53")]
fn scaled(price: MicroDollars, share: f64) -> MicroDollars {
    if share >= 1.0 { price } else { MicroDollars((price.0 as f64 * share).ceil() as u64) }
}

fn sum(a: Micros, b: Micros) -> Micros {
    a + b
}

const fn rate(given: f64) -> f64 {
    given.max(1e-9)
}

/// Which part of what its replica holds a stage computes: so much of the profile's time it takes.
fn part(stage: &StageFacts<'_>) -> f64 {
    f64::from(stage.layers.count()) / f64::from(stage.held.range.count().max(1))
}

fn pace(number: usize, request: &LlmRequest, stage: &StageFacts<'_>, precision: Precision) -> Pace {
    let (prompt, decode) = shared_pace(request, stage.profile, stage.load);
    let states = precision.carries(stage.held.hidden);
    Pace {
        prompt: part(stage) * prompt,
        decode: part(stage) * decode,
        carry: if number == 0 { 0.0 } else { stage.path.carry(states).as_secs_f64() },
    }
}

fn prefill(prompt: Tokens, paces: &[Pace]) -> Micros {
    let chunk = prompt.as_f64().min(CHUNK);
    let through: f64 = paces.iter().map(|pace| pace.prompt + pace.carry).sum();
    let slowest = paces.iter().map(|pace| pace.prompt.max(pace.carry)).fold(0.0, f64::max);
    Micros::from_secs_f64(through * chunk + slowest * (prompt.as_f64() - chunk))
}

fn energy(stage: &StageFacts<'_>, request: &LlmRequest) -> Option<f64> {
    let prompt = request.prompt.as_f64() / rate(stage.profile.prompt.get());
    let decode = request.output_likely().as_f64() / rate(stage.profile.decode.get());
    Some(stage.costs.busy?.get() * part(stage) * (prompt + decode))
}
