//! What was done: sums over the records of all ingresses. The records themselves are the store's.

use super::HubEffect;
use super::rows::{TotalRow, Totals};
use serde::{Deserialize, Serialize};
use shared::ids::{NodeId, RequestId};
use shared::plan::{Outcome, Record};
use shared::units::Joules;
use std::collections::{BTreeSet, VecDeque};

/// Rows of sums. A thousand services on ten nodes each; what exceeds it is counted in all but not apart.
const ROWS_MAX: usize = 10_000;
/// Requests that are remembered, so that a record that is sent again is summed once. Agents send again what was not
/// acknowledged, at most a few messages of 64; beyond that a repeated record would be summed twice. The store keeps it once.
const RECENT_MAX: usize = 8_192;

/// The sums.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Ledger {
    /// Sorted by service, node and outcome.
    rows: Vec<TotalRow>,
    /// Requests without a row of their own.
    beyond: u64,
    recent: VecDeque<(NodeId, RequestId)>,
    known: BTreeSet<(NodeId, RequestId)>,
}

impl Ledger {
    /// Takes in a record, once.
    pub(super) fn add(&mut self, record: Record, effects: &mut Vec<HubEffect>) {
        let key = (record.ingress.clone(), record.request);
        if !self.known.insert(key.clone()) {
            return;
        }
        self.recent.push_back(key);
        if self.recent.len() > RECENT_MAX
            && let Some(oldest) = self.recent.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.sum(&record);
        effects.push(HubEffect::StoreRecord(Box::new(record)));
    }

    /// The sums, by service, node and outcome.
    pub(super) fn rows(&self) -> &[TotalRow] {
        &self.rows
    }

    /// Requests that were counted in no row.
    pub(super) const fn beyond(&self) -> u64 {
        self.beyond
    }

    fn sum(&mut self, record: &Record) {
        let outcome = match &record.outcome {
            Outcome::Answered(_) => "answered",
            Outcome::Failed(failure) => failure.code(),
        };
        let node = record.served_by.as_ref().map(|(node, _)| node);
        let key = (&record.service, node, outcome);
        let place = self.rows.binary_search_by(|row| (&row.service, row.node.as_ref(), row.outcome.as_str()).cmp(&key));
        let row = match place {
            Ok(place) => self.rows.get_mut(place),
            Err(_) if self.rows.len() >= ROWS_MAX => None,
            Err(place) => {
                let (service, node, outcome) = (record.service.clone(), node.cloned(), outcome.to_owned());
                self.rows.insert(place, TotalRow { service, node, outcome, totals: Totals::default() });
                self.rows.get_mut(place)
            }
        };
        match row {
            Some(row) => add_to(&mut row.totals, record),
            None => self.beyond += 1,
        }
    }
}

fn add_to(totals: &mut Totals, record: &Record) {
    let actual = &record.actual;
    totals.requests += 1;
    totals.prompt_tokens += u64::from(actual.usage.prompt.0);
    totals.output_tokens += u64::from(actual.usage.output.0);
    if let Some(energy) = actual.energy {
        // A sum beyond what is believed stays where it is.
        let sum = totals.energy.map_or(energy, |before| Joules::new(before.get() + energy.get()).unwrap_or(before));
        totals.energy = Some(sum);
    }
    if let Some(money) = actual.money {
        *totals.money.get_or_insert_default() += money;
    }
    totals.wished += u64::from(record.attained.is_some());
    totals.attained += u64::from(record.attained == Some(true));
}
