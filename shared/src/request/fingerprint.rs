//! One number for everything that went into a decision.

use crate::ids::PlanEpoch;
use crate::policy::dispatch::{Assessment, Pending};

/// FNV-1a: equal on every machine and release, which the standard hasher does not promise, and cheap beside a decision.
struct Fnv(u64);

impl Fnv {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(u64::try_from(text.len()).unwrap_or(u64::MAX));
        self.bytes(text.as_bytes());
    }
}

/// Equal inputs give equal fingerprints: policy, request, candidates with their estimates, rejections, grant and seed.
pub(super) fn fingerprint(policy: &str, pending: &Pending<'_>, assessment: &Assessment, grant: PlanEpoch, seed: u64) -> u64 {
    let mut hash = Fnv::new();
    hash.text(policy);
    hash.text(pending.request.service.as_str());
    for number in [
        u64::from(pending.request.prompt.0),
        u64::from(pending.request.output_max.0),
        pending.request.body.0,
        u64::from(pending.attempt),
        u64::from(pending.delivered.0),
        u64::from(pending.request.needs.slo.priority.get()),
        pending.request.needs.slo.end_to_end.map_or(u64::MAX, |span| span.0),
        pending.request.needs.slo.first_token.map_or(u64::MAX, |span| span.0),
        pending.request.needs.slo.per_token.map_or(u64::MAX, |span| span.0),
        grant.incarnation,
        grant.sequence,
        seed,
    ] {
        hash.number(number);
    }
    for choice in &assessment.feasible {
        hash.text(choice.candidate.node.as_str());
        hash.text(choice.candidate.variant.as_str());
        for stage in choice.candidate.stages() {
            hash.text(stage.node.as_str());
            hash.number(u64::from(stage.layers.from));
        }
        hash.number(choice.estimate.first_token.0);
        hash.number(choice.estimate.total.0);
    }
    for rejected in &assessment.rejected {
        hash.text(rejected.node.as_str());
        hash.text(rejected.variant.as_str());
        rejected.stages.iter().for_each(|node| hash.text(node.as_str()));
        hash.text(rejected.reason.code());
    }
    hash.0
}
