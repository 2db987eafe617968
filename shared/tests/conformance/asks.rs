//! Random requests to a random fleet.

use crate::fleets::{Flavour, Maker, NOW};
use shared::ids::*;
use shared::policy::dispatch::Pending;
use shared::units::*;
use shared::work::*;

/// A request with all that a decision about it needs.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) request: LlmRequest,
    pub(crate) arrived: Moment,
    pub(crate) tried: Vec<(NodeId, VariantId)>,
    pub(crate) resume: Option<VariantId>,
}

impl Ask {
    pub(crate) fn pending(&self) -> Pending<'_> {
        Pending {
            request: &self.request,
            arrived: self.arrived,
            attempt: u16::try_from(self.tried.len()).expect("few"),
            tried: &self.tried,
            resume: self.resume.as_ref(),
            delivered: Tokens(u32::from(self.resume.is_some())),
        }
    }
}

impl Maker {
    pub(crate) fn ask(&mut self, number: u32, catalogue: &Catalogue) -> Ask {
        let services: Vec<_> = catalogue.iter().map(|service| service.id.clone()).collect();
        let unknown = ServiceId::new("unknown").expect("good");
        let known = self.dice.pick(&services);
        let service = if self.unwell(3) { unknown } else { known };
        let (pinned, resume) = (self.some_variant(catalogue, 10), self.some_variant(catalogue, 5));
        let pairs = self.pairs(catalogue);
        let tried = self.dice.pick(&pairs);
        let tried = if self.unwell(20) { vec![tried] } else { Vec::new() };
        let needs = self.needs();
        let waited = if self.flavour == Flavour::Expired { Micros::from_secs(100) } else { self.dice.span(500) };
        let request = LlmRequest {
            id: RequestId(u128::from(number) + 1),
            service,
            pinned,
            kind: PromptKind::Chat,
            prompt: Tokens(1 + self.dice.small(3_000)),
            output_max: Tokens(1 + self.dice.small(500)),
            features: self.features(),
            stream: true,
            body: Bytes(self.dice.below(20_000)),
            needs,
            likely: Likely::default(),
        };
        Ask { request, arrived: NOW.before(waited), tried, resume }
    }

    fn some_variant(&mut self, catalogue: &Catalogue, percent: u64) -> Option<VariantId> {
        let all: Vec<_> = catalogue.iter().flat_map(|service| &service.variants).map(|variant| variant.id.clone()).collect();
        let one = self.dice.pick(&all);
        self.unwell(percent).then_some(one)
    }

    fn features(&mut self) -> Features {
        let mut odd = || self.unwell(5);
        let (constrained, many, logprobs, tools) = (odd(), odd(), odd(), odd());
        Features { constrained, many, logprobs, tools, vision: odd(), embeddings: odd(), ..Features::default() }
    }

    fn needs(&mut self) -> Needs {
        let dice = &mut self.dice;
        let slo = Slo {
            first_token: dice.maybe(30, |dice| dice.span(2_000)),
            per_token: dice.maybe(30, |dice| dice.span(100)),
            end_to_end: dice.maybe(40, |dice| dice.span(10_000)),
            priority: Priority::default(),
            energy: dice.maybe(10, |dice| Joules::new(f64::from(dice.small(500))).expect("few")),
            money: dice.maybe(10, |dice| MicroDollars(dice.below(2_000))),
            min_quality: Quality::new(f64::from(dice.small(8)) / 10.0).expect("below 1"),
        };
        let residency = dice.pick(&[Residency::Anywhere, Residency::Anywhere, Residency::Site, Residency::Node]);
        match self.flavour {
            Flavour::Healthy | Flavour::Crowded => Needs::default(),
            Flavour::Expired => Needs { slo: Slo { end_to_end: Some(Micros::from_secs(5)), ..slo }, residency, session: None },
            _ => Needs { slo, residency, session: None },
        }
    }
}
