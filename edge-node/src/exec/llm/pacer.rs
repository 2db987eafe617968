//! What the computing thread knows of its own speed, and when it is told and kept.

use crate::exec::kept::Shelf;
use shared::estimate::PaceLearner;
use shared::fleet::{Pace, Profile, ProfileSource, Step};
use shared::units::Micros;
use std::time::{Duration, Instant};

/// What requests taught is written at most this often: a file system syncs for some milliseconds, which a request might wait for.
const KEEP_EVERY: Duration = Duration::from_secs(60);
/// So many steps are learned from before the pace that others see is taken anew.
const REFRESH_EVERY: u32 = 32;

/// The learned pace of this engine.
pub(super) struct Pacer {
    learner: PaceLearner,
    shelf: Shelf,
    load: Micros,
    now: Pace,
    fresh: u32,
    kept: Instant,
    learned: bool,
}

/// What was predicted of a request's passes, and what they took, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Judged {
    predicted: f64,
    actual: f64,
}

impl Judged {
    /// Another pass.
    pub(super) fn add(&mut self, predicted: f64, actual: f64) {
        self.predicted += predicted;
        self.actual += actual;
    }

    fn known(self) -> Option<(f64, f64)> {
        (self.actual > 0.0).then_some((self.predicted, self.actual))
    }
}

impl Pacer {
    pub(super) fn new(learner: PaceLearner, shelf: Shelf, load: Duration) -> Self {
        let load = Micros::from_secs_f64(load.as_secs_f64());
        Self { now: learner.pace(), learner, shelf, load, fresh: 0, kept: Instant::now(), learned: false }
    }

    /// The pace as it was a moment ago.
    pub(super) const fn pace(&self) -> &Pace {
        &self.now
    }

    /// A step took so long.
    pub(super) fn step(&mut self, step: &Step, took: Duration) {
        self.learner.step(step, took.as_secs_f64());
        self.learned = true;
        self.fresh += 1;
        if self.fresh >= REFRESH_EVERY {
            self.refresh();
        }
    }

    /// A request waited so long for its first step, although nobody else was there.
    pub(super) fn overhead(&mut self, took: Duration) {
        self.learner.overhead(took.as_secs_f64());
    }

    /// A request is over.
    pub(super) fn judge(&mut self, prompt: Judged, answer: Judged) {
        if prompt.known().is_some() || answer.known().is_some() {
            self.learner.judge(prompt.known(), answer.known());
            self.refresh();
        }
    }

    /// What is reported.
    pub(super) fn profile(&self) -> Option<Profile> {
        let source = if self.learner.requests() > 0 { ProfileSource::Requests } else { ProfileSource::WarmUp };
        Some(Profile { load: Some(self.load), ..self.learner.profile(source)? })
    }

    /// Writes what was learned, if that is due.
    pub(super) fn keep(&mut self, at_once: bool) {
        if self.learned && (at_once || self.kept.elapsed() >= KEEP_EVERY) {
            self.shelf.write(&self.learner);
            (self.kept, self.learned) = (Instant::now(), false);
        }
    }

    fn refresh(&mut self) {
        (self.now, self.fresh) = (self.learner.pace(), 0);
    }
}
