//! A dispatch policy of whichever kind, as one value that can be written down and read back.

use super::{Action, DispatchEvent, DispatchPolicy, Scene, TABLE};
use crate::plan::DispatchSetting;
use crate::policy::parts::{part, written};
use crate::policy::{BadPolicy, Snapshot};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The policy's name.
    pub name: &'static str,
    /// Its idea in one sentence.
    pub summary: &'static str,
    make: fn(serde_json::Value, serde_json::Value) -> Result<Box<dyn Held>, BadPolicy>,
}

/// The row of policy `P`.
#[must_use]
pub const fn row<P: DispatchPolicy>() -> Row {
    Row {
        name: P::NAME,
        summary: P::SUMMARY,
        make: |config, state| {
            Ok(Box::new(Kept::<P> { config: part(P::NAME, "config", config)?, state: part(P::NAME, "state", state)? }))
        },
    }
}

/// A running dispatch policy with its configuration and state.
#[derive(Serialize, Deserialize)]
#[serde(try_from = "Snapshot", into = "Snapshot")]
pub struct Dispatcher(Box<dyn Held>);

impl Dispatcher {
    /// The policy that a setting names, in its initial state.
    ///
    /// # Errors
    /// [`BadPolicy`] lists the known names, or says what is wrong with the configuration.
    pub fn new(setting: &DispatchSetting) -> Result<Self, BadPolicy> {
        Self::try_from(Snapshot {
            policy: setting.policy.clone(),
            config: setting.config.clone(),
            state: serde_json::Value::Null,
        })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Takes in one event and says what shall be done.
    pub fn on_event(&mut self, scene: &Scene<'_>, event: &DispatchEvent<'_>, actions: &mut Vec<Action>) {
        self.0.on_event(scene, event, actions);
    }
}

impl TryFrom<Snapshot> for Dispatcher {
    type Error = BadPolicy;
    fn try_from(snapshot: Snapshot) -> Result<Self, BadPolicy> {
        let Some(row) = TABLE.iter().find(|row| row.name == snapshot.policy) else {
            let known: Vec<_> = TABLE.iter().map(|row| row.name).collect();
            return Err(BadPolicy::Unknown { layer: "dispatch", name: snapshot.policy, known: known.join(", ") });
        };
        (row.make)(snapshot.config, snapshot.state).map(Self)
    }
}

impl From<Dispatcher> for Snapshot {
    fn from(dispatcher: Dispatcher) -> Self {
        dispatcher.0.snapshot()
    }
}

impl Clone for Dispatcher {
    fn clone(&self) -> Self {
        Self(self.0.boxed_clone())
    }
}

impl PartialEq for Dispatcher {
    fn eq(&self, other: &Self) -> bool {
        self.0.snapshot() == other.0.snapshot()
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

trait Held: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;
    fn on_event(&mut self, scene: &Scene<'_>, event: &DispatchEvent<'_>, actions: &mut Vec<Action>);
    fn snapshot(&self) -> Snapshot;
    fn boxed_clone(&self) -> Box<dyn Held>;
}

struct Kept<P: DispatchPolicy> {
    config: P::Config,
    state: P::State,
}

impl<P: DispatchPolicy> fmt::Debug for Kept<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(P::NAME).field("config", &self.config).field("state", &self.state).finish()
    }
}

impl<P: DispatchPolicy> Held for Kept<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn on_event(&mut self, scene: &Scene<'_>, event: &DispatchEvent<'_>, actions: &mut Vec<Action>) {
        P::on_event(&self.config, &mut self.state, scene, event, actions);
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot { policy: P::NAME.to_owned(), config: written(&self.config), state: written(&self.state) }
    }

    fn boxed_clone(&self) -> Box<dyn Held> {
        Box::new(Self { config: self.config.clone(), state: self.state.clone() })
    }
}
