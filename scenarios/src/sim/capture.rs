//! A capture is a core's snapshot with the ordered events after it. Replayed, it must give the same effects.

use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::units::Moment;

/// What one host was and what it was told, with what it wanted done.
#[derive(Clone, Debug)]
pub struct Capture<E, F> {
    /// The host's logic before the first event, as JSON: what cannot be written down cannot be replayed.
    snapshot: String,
    /// Each event with its moment and its effects.
    steps: Vec<(Moment, E, Vec<F>)>,
}

impl<E: Clone, F: PartialEq + std::fmt::Debug> Capture<E, F> {
    /// Starts with the host as it is.
    ///
    /// # Panics
    /// When the host cannot be written as JSON, which is a fault of its types.
    #[must_use]
    pub fn start<L: Serialize>(logic: &L) -> Self {
        #[expect(clippy::expect_used, reason = "a fault of the types, not of the input")]
        let snapshot = serde_json::to_string(logic).expect("a logic value is JSON");
        Self { snapshot, steps: Vec::new() }
    }

    /// One event was handled.
    pub fn note(&mut self, now: Moment, event: E, effects: Vec<F>) {
        self.steps.push((now, event, effects));
    }

    /// How many events were noted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether nothing was noted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Runs the events again on the restored host.
    ///
    /// # Errors
    /// Says at which step the effects differ, and how.
    pub fn replay<L: DeserializeOwned>(&self, mut handle: impl FnMut(&mut L, Moment, E) -> Vec<F>) -> Result<usize, String> {
        let mut logic: L = serde_json::from_str(&self.snapshot).map_err(|error| format!("the snapshot: {error}"))?;
        for (at, (now, event, effects)) in self.steps.iter().enumerate() {
            let again = handle(&mut logic, *now, event.clone());
            if again != *effects {
                return Err(format!("step {at} at {}: {effects:?}, but replayed {again:?}", now.0));
            }
        }
        Ok(self.steps.len())
    }
}
