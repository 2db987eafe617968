//! What an estimate depends on, and in which direction.

use shared::estimate::{Estimate, predict, price};
use shared::fleet::{Costs, Hop, Load, PathReport, Profile, ProfileSource};
use shared::ids::{RequestId, ServiceId};
use shared::units::*;
use shared::work::{Features, Likely, LlmRequest, Needs, PromptKind};

/// Everything that an estimate is made from.
#[derive(Clone)]
pub(crate) struct Inputs {
    pub(crate) request: LlmRequest,
    pub(crate) profile: Profile,
    pub(crate) load: Load,
    pub(crate) path: PathReport,
    costs: Costs,
}

impl Inputs {
    /// An idle replica of 500 and 50 tokens a second, 40 ms away; a request of 100 and 50 tokens.
    pub(crate) fn new() -> Self {
        let rate = |rate| TokenRate::new(rate).expect("good");
        Self {
            request: LlmRequest {
                id: RequestId(1),
                service: ServiceId::new("s").expect("good"),
                pinned: None,
                kind: PromptKind::Chat,
                prompt: Tokens(100),
                output_max: Tokens(50),
                features: Features::default(),
                stream: true,
                body: Bytes(1_000),
                needs: Needs::default(),
                likely: Likely::default(),
            },
            profile: Profile {
                prompt: rate(500.0),
                decode: rate(50.0),
                overhead: Micros::from_millis(3),
                spread: Fraction::new(0.1).expect("good"),
                source: ProfileSource::WarmUp,
                samples: 5,
                pace: None,
                load: None,
            },
            load: Load { slots: 4, queue_max: 8, ..Load::default() },
            path: PathReport::with_rtt(Hop::Direct, Micros::from_millis(40)),
            costs: Costs::default(),
        }
    }

    pub(crate) fn with(&self, change: impl FnOnce(&mut Self)) -> Self {
        let mut changed = self.clone();
        change(&mut changed);
        changed
    }

    pub(crate) fn predict(&self) -> Estimate {
        let quality = Quality::new(0.5).expect("good");
        predict(&self.request, &self.profile, &self.load, &self.path, &self.costs, quality)
    }
}

#[test]
fn an_idle_replica_by_hand() {
    let estimate = Inputs::new().predict();
    // Two round trips, overhead, 100 tokens at 500 a second; then 49 more at 50 a second.
    assert_eq!(estimate.first_token, Micros::from_millis(80 + 3 + 200));
    assert_eq!(estimate.wait, Micros::ZERO);
    assert_eq!(estimate.per_token, Micros::from_millis(20));
    assert_eq!(estimate.total, Micros::from_millis(283 + 49 * 20));
    assert_eq!((estimate.energy, estimate.money), (None, None), "unknown is not zero");
}

#[test]
fn more_of_anything_is_never_sooner() {
    for slots in [1, 2, 4] {
        let base = Inputs::new().with(|inputs| inputs.load.slots = slots);
        for step in 0..40_u32 {
            let grown = |grow: fn(&mut Inputs, u32)| {
                let (less, more) = (base.with(|inputs| grow(inputs, step)), base.with(|inputs| grow(inputs, step + 1)));
                let (less, more) = (less.predict(), more.predict());
                assert!(less.first_token <= more.first_token && less.total <= more.total, "slots {slots}, step {step}");
            };
            grown(|inputs, n| inputs.request.prompt = Tokens(n * 50));
            grown(|inputs, n| inputs.request.output_max = Tokens(1 + n * 10));
            grown(|inputs, n| inputs.path.rtt = Some(Micros::from_millis(u64::from(n) * 10)));
            grown(|inputs, n| inputs.profile.overhead = Micros::from_millis(u64::from(n)));
            grown(|inputs, n| inputs.load.backlog = Tokens(n * 100));
            grown(|inputs, n| {
                inputs.path.rate_out = ByteRate::new(1e6).ok();
                inputs.request.body = Bytes(u64::from(n) * 10_000);
            });
            grown(|inputs, n| {
                let slots = inputs.load.slots;
                inputs.load =
                    Load { active: n.min(slots), queued: n.saturating_sub(slots), backlog: Tokens(n * 150), ..inputs.load };
            });
        }
    }
}

#[test]
fn faster_machines_are_never_later() {
    for step in 1..40_u32 {
        let rate = |n: u32| TokenRate::new(f64::from(n) * 7.0).expect("good");
        let (slow, fast) = (rate(step), rate(step + 1));
        let decode = |rate| Inputs::new().with(|inputs| inputs.profile.decode = rate).predict();
        let prompt = |rate| Inputs::new().with(|inputs| inputs.profile.prompt = rate).predict();
        assert!(decode(fast).total < decode(slow).total);
        assert!(prompt(fast).first_token < prompt(slow).first_token);
    }
}

#[test]
fn only_a_full_replica_makes_wait() {
    let at =
        |active, queued| Inputs::new().with(|inputs| inputs.load = Load { active, queued, backlog: Tokens(400), ..inputs.load });
    assert_eq!(at(3, 0).predict().wait, Micros::ZERO);
    assert!(at(4, 0).predict().wait > Micros::ZERO);
    assert!(at(3, 1).predict().wait > Micros::ZERO, "whoever waits already goes first");
}

#[test]
fn extremes_saturate() {
    let extreme = Inputs::new().with(|inputs| {
        inputs.request.prompt = Tokens(u32::MAX);
        inputs.request.output_max = Tokens(u32::MAX);
        inputs.request.body = Bytes(u64::MAX);
        inputs.path.rtt = Some(Micros::MAX);
        inputs.path.rate_out = ByteRate::new(1e-300).ok();
        inputs.load =
            Load { slots: 0, active: u32::MAX, queued: u32::MAX, queue_max: 0, backlog: Tokens(u32::MAX), ..Load::default() };
        inputs.profile.decode = TokenRate::default();
        inputs.costs.busy = Watts::new(Watts::MAX).ok();
    });
    let estimate = extreme.predict();
    assert_eq!(estimate.total, Micros::MAX);
    assert!(estimate.energy.is_none_or(|energy| energy.get().is_finite()));
}

#[test]
fn money_is_rounded_up_and_needs_both_prices() {
    let costs = |prompt, output| Costs { prompt_per_million: prompt, output_per_million: output, ..Costs::default() };
    let both = costs(Some(MicroDollars(1)), Some(MicroDollars(3_000_000)));
    assert_eq!(price(&both, Tokens(1), Tokens(0)), Some(MicroDollars(1)));
    assert_eq!(price(&both, Tokens(0), Tokens(10)), Some(MicroDollars(30)));
    assert_eq!(price(&both, Tokens(0), Tokens(0)), Some(MicroDollars(0)));
    assert_eq!(price(&costs(Some(MicroDollars(1)), None), Tokens(1), Tokens(1)), None);
}

#[test]
fn energy_is_busy_power_for_busy_time() {
    let estimate = Inputs::new().with(|inputs| inputs.costs.busy = Watts::new(10.0).ok()).predict();
    // 0.2 s of prompt and 1 s of decoding, whatever the way there took.
    assert!((estimate.energy.expect("known").get() - 12.0).abs() < 1e-9);
}
