//! When another attempt is allowed: the retry budget, suspicion of replicas that failed, and whether a stream may be continued.

use super::limits::{RETRY_CONSTANT_MILLI, RETRY_EARNED_MILLI, SUSPECT_FIRST, SUSPECT_LONGEST};
use crate::ids::{NodeId, VariantId};
use crate::units::Moment;
use crate::work::{Features, Precision};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A bucket of thousandths of retries that requests fill and retries empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RetryBudget(u32);

impl Default for RetryBudget {
    fn default() -> Self {
        Self(RETRY_CONSTANT_MILLI)
    }
}

impl RetryBudget {
    /// A request came.
    pub(super) fn earn(&mut self) {
        // The bucket holds twice the constant: a long quiet time does not earn a storm.
        self.0 = (self.0 + RETRY_EARNED_MILLI).min(2 * RETRY_CONSTANT_MILLI);
    }

    /// Takes one retry out, if there is one.
    pub(super) fn spend(&mut self) -> bool {
        let allowed = self.0 >= 1_000;
        if allowed {
            self.0 -= 1_000;
        }
        allowed
    }
}

/// Replicas that failed attempts of this ingress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Suspects {
    /// Until when each gets nothing; this is what dispatch sees.
    #[serde(with = "crate::pairs")]
    pub(super) until: BTreeMap<(NodeId, VariantId), Moment>,
    #[serde(with = "crate::pairs")]
    failures: BTreeMap<(NodeId, VariantId), u32>,
}

impl Suspects {
    /// It failed.
    pub(super) fn accuse(&mut self, now: Moment, node: &NodeId, variant: &VariantId) {
        let key = (node.clone(), variant.clone());
        let failures = self.failures.entry(key.clone()).or_default();
        let factor = f64::from(1_u32 << (*failures).min(10));
        *failures = failures.saturating_add(1);
        self.until.insert(key, now + SUSPECT_FIRST.scale(factor).min(SUSPECT_LONGEST));
    }

    /// It answered.
    pub(super) fn acquit(&mut self, node: &NodeId, variant: &VariantId) {
        let key = (node.clone(), variant.clone());
        self.until.remove(&key);
        self.failures.remove(&key);
    }

    /// The node came back as a new instance, or left.
    pub(super) fn forgive(&mut self, node: &NodeId) {
        self.until.retain(|(suspect, _), _| suspect != node);
        self.failures.retain(|(suspect, _), _| suspect != node);
    }
}

/// Why a stream with these features, of whose tokens some were written in this precision, cannot be continued by another replica of
/// the same variant; `None` when it can.
///
/// The same variant means the same weights, quantisation and template. What is excluded would need state that does not travel:
/// the position in a grammar, several interleaved answers, log-probabilities already computed, the counts of penalties, the tail
/// of a stop text. In f32 a split computes exactly what the whole model does, wherever it is cut, so that whole and split
/// continue each other. In f16 each cut writes another text: no other place goes on as that one would have, and the stream ends with
/// its error.
#[must_use]
pub fn not_resumable(features: Features, written_in: Precision) -> Option<&'static str> {
    [
        (written_in != Precision::F32, "its hidden states were rounded on their way"),
        (features.constrained, "its output is constrained"),
        (features.many, "it asks for several answers"),
        (features.logprobs, "it asks for log-probabilities"),
        (features.penalties, "it uses penalties"),
        (features.stop, "it uses stop texts"),
        (features.tools, "it offers tools"),
        (features.vision, "it shows images"),
        (features.embeddings, "it asks for vectors"),
    ]
    .into_iter()
    .find_map(|(has, why)| has.then_some(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_gives_a_fifth_and_a_constant() {
        let mut budget = RetryBudget::default();
        let spent = (0..100).filter(|_| budget.spend()).count();
        assert_eq!(spent, 10);
        for _ in 0..50 {
            budget.earn();
        }
        assert_eq!((0..100).filter(|_| budget.spend()).count(), 10);
    }

    #[test]
    fn row_28_suspicion_doubles_and_ends() {
        let (node, variant) = (NodeId::new("s/n").expect("name"), VariantId::new("v").expect("name"));
        let mut suspects = Suspects::default();
        suspects.accuse(Moment(0), &node, &variant);
        suspects.accuse(Moment(0), &node, &variant);
        assert_eq!(suspects.until.values().next(), Some(&(Moment(0) + SUSPECT_FIRST.scale(2.0))));
        for _ in 0..20 {
            suspects.accuse(Moment(0), &node, &variant);
        }
        assert_eq!(suspects.until.values().next(), Some(&(Moment(0) + SUSPECT_LONGEST)));
        suspects.acquit(&node, &variant);
        assert!(suspects.until.is_empty());
    }

    #[test]
    fn row_25_eligibility_table() {
        let unseeded = Features { unseeded: true, ..Features::default() };
        assert_eq!(not_resumable(unseeded, Precision::F32), None, "whole or split");
        assert!(not_resumable(unseeded, Precision::F16).is_some(), "rounded on the way");
        for excluded in [
            Features { constrained: true, ..Features::default() },
            Features { many: true, ..Features::default() },
            Features { logprobs: true, ..Features::default() },
            Features { penalties: true, ..Features::default() },
            Features { stop: true, ..Features::default() },
            Features { tools: true, ..Features::default() },
            Features { vision: true, ..Features::default() },
            Features { embeddings: true, ..Features::default() },
        ] {
            assert!(not_resumable(excluded, Precision::F32).is_some(), "{excluded:?}");
        }
    }
}
