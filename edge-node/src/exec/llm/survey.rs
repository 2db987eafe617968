//! Measuring a model at several batch sizes and contexts, while nobody wants anything of it.
//!
//! One pass at a time, each no longer than a request's own: whoever comes waits for one pass at most, and then the survey gives way,
//! memory and all, until the engine is idle again. It is a matter of seconds and happens once: what it finds is kept on disk.

use super::cache::Cache;
use super::config::CacheForm;
use super::model::{Model, Run, States};
use super::warm::enter;
use shared::fleet::Step;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time that all passes together may take: enough for a board to see some of everything, and over before anybody asks where it is.
const COMPUTE_MAX: Duration = Duration::from_secs(3);
/// Most requests at once that are looked at: more are batched no otherwise, and would take memory.
const REQUESTS_MAX: usize = 8;
/// Contexts at which one request alone is measured, in tokens.
const ALONE: [usize; 3] = [64, 256, 512];
/// The same for several at once.
const TOGETHER: [usize; 2] = [48, 160];
/// Passes for one token of each, at each context.
const DECODES: usize = 6;
/// Tokens of a prompt's pieces, in turn: different ones tell what a piece costs from what its tokens cost.
const PIECES: [usize; 6] = [32, 32, 16, 32, 8, 24];

/// One pass: which of the sequences get how many rows, and whether a token is drawn after them.
type Pass = Vec<(usize, usize, bool)>;

/// What is still to be measured.
pub(super) struct Survey {
    rounds: VecDeque<Round>,
    under_way: Option<(VecDeque<Pass>, Vec<Cache>, Vec<usize>)>,
    left: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Round {
    requests: usize,
    contexts: &'static [usize],
}

impl Survey {
    /// For an engine with so many slots.
    pub(super) fn new(slots: u32) -> Self {
        let most = (slots as usize).min(REQUESTS_MAX);
        let round = |requests, contexts| Round { requests, contexts };
        let mut rounds = VecDeque::from([round(1, &ALONE[..1])]);
        if most > 1 {
            rounds.push_back(round(most, &TOGETHER));
        }
        rounds.push_back(round(1, &ALONE));
        if most > 2 {
            rounds.push_back(round(2, &TOGETHER));
        }
        Self { rounds, under_way: None, left: COMPUTE_MAX }
    }

    /// Somebody wants something: the memory is theirs. The round that was under way begins anew later.
    pub(super) fn give_way(&mut self) {
        self.under_way = None;
    }

    /// One pass of at most `rows_max` rows of a prompt: what was in it, and how long it took. Nothing once all is measured.
    pub(super) fn pass(
        &mut self,
        model: &Model,
        form: CacheForm,
        rows_max: usize,
    ) -> candle_core::Result<Option<(Step, Duration)>> {
        loop {
            let Some(round) = self.rounds.front().filter(|_| !self.left.is_zero()) else { return Ok(None) };
            let (passes, caches, lengths) = self.under_way.get_or_insert_with(|| {
                let caches = (0..round.requests).map(|_| model.cache(form)).collect();
                (round.passes(model.shape().context, rows_max), caches, vec![0; round.requests])
            });
            let Some(pass) = passes.pop_front() else {
                self.under_way = None;
                self.rounds.pop_front();
                continue;
            };
            let began = Instant::now();
            let step = run(model, &pass, caches, lengths)?;
            let took = began.elapsed();
            self.left = self.left.saturating_sub(took);
            return Ok(Some((step, took)));
        }
    }
}

impl Round {
    fn passes(self, context: usize, rows_max: usize) -> VecDeque<Pass> {
        let mut passes = VecDeque::new();
        let (mut length, mut pieces) = (0, PIECES.iter().cycle());
        for wanted in self.contexts.iter().filter(|wanted| **wanted + DECODES + 2 <= context) {
            let mut rest = wanted.saturating_sub(length);
            while rest > 0 {
                let rows = pieces.next().copied().unwrap_or(1).min(rest).min(rows_max.max(1));
                rest -= rows;
                // Each prompt ends with a token that is drawn.
                (0..self.requests).for_each(|sequence| passes.push_back(vec![(sequence, rows, rest == 0)]));
            }
            // Every other one beside a piece of a prompt would be real too; attention then differs little from both apart.
            (0..DECODES).for_each(|_| passes.push_back((0..self.requests).map(|sequence| (sequence, 1, true)).collect()));
            length = wanted + DECODES;
        }
        passes
    }
}

fn run(model: &Model, pass: &Pass, caches: &mut [Cache], lengths: &mut [usize]) -> candle_core::Result<Step> {
    let width = model.shape().hidden;
    let mut states = States::new(Vec::new(), width);
    let mut step = Step::default();
    let mut runs = Vec::new();
    let mut wanted = pass.iter().peekable();
    for (sequence, (cache, length)) in caches.iter_mut().zip(lengths).enumerate() {
        let Some((_, rows, draws)) = wanted.next_if(|(wanted, ..)| *wanted == sequence) else { continue };
        let ids: Vec<u32> = (*length..*length + rows).map(|position| some_id(model, position)).collect();
        states.extend(&enter(model, &ids)?);
        step = step.and(Step::of(*length as f64, *rows as f64, *draws));
        runs.push(Run { cache, start: *length, rows: *rows });
        *length += rows;
    }
    let states = model.forward_all(model.layers(), states, &mut runs)?;
    if model.held().is_last() {
        let mut last = States::new(Vec::new(), width);
        let mut row = 0;
        for (_, rows, draws) in pass {
            row += rows;
            if *draws {
                last.extend(&states.part(row - 1..row));
            }
        }
        if last.rows() > 0 {
            model.logits_all(&last)?;
        }
    }
    Ok(step)
}

/// Ids that are unlike each other: speed does not depend on them.
fn some_id(model: &Model, position: usize) -> u32 {
    u32::try_from(position * 7_919 % model.shape().vocabulary.max(1)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_fill_contexts_and_draw_for_all() {
        let round = Round { requests: 2, contexts: &TOGETHER };
        let passes = round.passes(2_048, 32);
        let rows =
            |of: usize| passes.iter().flatten().filter(|(sequence, ..)| *sequence == of).map(|(_, rows, _)| rows).sum::<usize>();
        assert_eq!((rows(0), rows(1)), (160 + DECODES, 160 + DECODES));
        assert_eq!(passes.iter().filter(|pass| pass.len() == 2).count(), 2 * DECODES);
        assert!(passes.iter().flatten().all(|(_, rows, _)| (1..=32).contains(rows)));
        assert!(Round { requests: 1, contexts: &ALONE }.passes(40, 32).is_empty(), "no context for it");
        assert!(round.passes(2_048, 4).iter().flatten().all(|(_, rows, _)| *rows <= 4), "a slow machine gets small pieces");
    }

    #[test]
    fn an_engine_of_one_slot_is_measured_alone() {
        let requests: Vec<_> = Survey::new(1).rounds.iter().map(|round| round.requests).collect();
        assert_eq!(requests, [1, 1]);
        let requests: Vec<_> = Survey::new(64).rounds.iter().map(|round| round.requests).collect();
        assert_eq!(requests, [1, REQUESTS_MAX, 1, 2]);
    }
}
