//! How well this agent foretells what requests take, for Prometheus: of those that it took in itself, wherever they ran.

use crate::logic::NodeStatus;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use shared::plan::{Outcome, Record, Verdict};
use shared::units::{Micros, Tokens};
use std::sync::atomic::AtomicU64;

/// Upper bounds of relative errors: a tenth is good, a fifth what is aimed at, more than the double a mistake.
const ERRORS: [f64; 8] = [0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhatLabels {
    what: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LengthLabels {
    service: String,
    quantile: &'static str,
}

/// The meters.
#[derive(Debug)]
pub(super) struct Foresight {
    errors: Family<WhatLabels, Histogram, fn() -> Histogram>,
    exceeded: Family<WhatLabels, Counter>,
    lengths: Family<LengthLabels, Gauge<f64, AtomicU64>>,
    losses: Family<LengthLabels, Gauge<f64, AtomicU64>>,
    within: Family<LengthLabels, Gauge>,
    foretold: Family<LengthLabels, Gauge>,
}

impl Default for Foresight {
    fn default() -> Self {
        Self {
            errors: Family::new_with_constructor(|| Histogram::new(ERRORS)),
            exceeded: Family::default(),
            lengths: Family::default(),
            losses: Family::default(),
            within: Family::default(),
            foretold: Family::default(),
        }
    }
}

impl Foresight {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("estimate_error", "Relative error of predicted times of answered requests", self.errors.clone());
        registry.register("estimates_exceeded", "Times beyond what nine in ten should keep within", self.exceeded.clone());
        registry.register(
            "answer_tokens",
            "Length that this share of a service's answers should not exceed",
            self.lengths.clone(),
        );
        registry.register("answer_tokens_loss", "Mean pinball loss of that, in tokens", self.losses.clone());
        registry.register("answers_foretold", "Answers whose length had been foretold", self.foretold.clone());
        registry.register("answers_within", "Of these, the ones that were no longer", self.within.clone());
    }

    /// A request is over. One that was tried twice says little of either estimate.
    pub(super) fn record(&self, record: &Record) {
        let [attempt] = record.attempts.as_slice() else { return };
        let (Verdict::Assign(choice), Some(Outcome::Answered(_))) = (&attempt.decision.verdict, &attempt.outcome) else { return };
        let (estimate, actual) = (&choice.estimate, &attempt.actual);
        let high = |pick: fn(&shared::estimate::High) -> Micros| estimate.high.as_ref().map(pick);
        self.judge("first_token", estimate.first_token, actual.first_token, high(|high| high.first_token));
        self.judge("per_token", estimate.per_token, actual.per_token, high(|high| high.per_token));
    }

    fn judge(&self, what: &'static str, predicted: Micros, actual: Option<Micros>, high: Option<Micros>) {
        let Some(actual) = actual.filter(|_| predicted > Micros::ZERO) else { return };
        let labels = WhatLabels { what };
        let error = (actual.as_secs_f64() / predicted.as_secs_f64() - 1.0).abs();
        self.errors.get_or_create(&labels).observe(error);
        if high.is_some_and(|high| actual > high) {
            self.exceeded.get_or_create(&labels).inc();
        }
    }

    /// What the agent has learned of lengths.
    pub(super) fn read(&self, status: &NodeStatus) {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        for (service, learnt) in &status.learnt {
            let report = &learnt.report;
            let rows = [
                ("0.5", learnt.half, report.loss_half, report.within_half),
                ("0.9", learnt.most, report.loss_most, report.within_most),
            ];
            for (quantile, length, loss, within) in rows {
                let labels = LengthLabels { service: service.to_string(), quantile };
                if let Some(Tokens(length)) = length {
                    self.lengths.get_or_create(&labels).set(f64::from(length));
                }
                self.losses.get_or_create(&labels).set(loss);
                self.within.get_or_create(&labels).set(count(within));
                self.foretold.get_or_create(&labels).set(count(report.foretold));
            }
        }
    }
}
