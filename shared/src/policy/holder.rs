//! A policy of whichever kind, as one value that can be written down and read back.

use super::parts::{part, written};
use super::{BadPolicy, Budget, Claim, Parts, Snapshot};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// A layer as far as holding its policies goes: what they are asked, what they answer, and which there are.
pub trait Kind: Sized + 'static {
    /// The layer's name.
    const LAYER: &'static str;
    /// What a policy is told.
    type Call<'a>;
    /// What it returns.
    type Answer;
    /// Every policy of the layer.
    fn table() -> &'static [Row<Self>];
}

/// A policy that answers calls of this kind. Each layer implements it for all policies with the layer's own trait.
pub trait Answers<K: Kind>: Parts {
    /// One call.
    fn answer(config: &Self::Config, state: &mut Self::State, call: K::Call<'_>) -> K::Answer;
}

/// What a policy of a round layer is told.
#[derive(Debug)]
pub struct Round<'a, S, R> {
    /// What may be known.
    pub scene: &'a S,
    /// The rows in force, for this scope only.
    pub held: &'a [R],
    /// How much work may be done.
    pub budget: &'a mut Budget,
}

/// One row of a table.
pub struct Row<K: Kind> {
    /// The policy's name.
    pub name: &'static str,
    /// Its idea in one sentence.
    pub summary: &'static str,
    /// What it claims over others.
    pub claims: &'static [Claim],
    make: Make<K>,
}

/// Makes the policy from its configuration and state.
type Make<K> = fn(Value, Value) -> Result<Box<dyn Held<K>>, BadPolicy>;

impl<K: Kind> Row<K> {
    /// The row of policy `P`.
    #[must_use]
    pub const fn of<P: Answers<K>>() -> Self {
        Self {
            name: P::NAME,
            summary: P::SUMMARY,
            claims: P::CLAIMS,
            make: |config, state| {
                let (config, state) = (part(P::NAME, "config", config)?, part(P::NAME, "state", state)?);
                Ok(Box::new(Kept::<P> { config, state }))
            },
        }
    }
}

impl<K: Kind> fmt::Debug for Row<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", K::LAYER, self.name)
    }
}

/// A running policy with its configuration and state.
#[derive(Serialize, Deserialize)]
#[serde(try_from = "Snapshot", into = "Snapshot", bound = "")]
pub struct Holder<K: Kind>(Box<dyn Held<K>>);

impl<K: Kind> Holder<K> {
    /// The policy of this name in its initial state; a `null` configuration is its default.
    ///
    /// # Errors
    /// [`BadPolicy`] lists the known names, or says what is wrong with the configuration.
    pub fn named(policy: &str, config: Value) -> Result<Self, BadPolicy> {
        Self::try_from(Snapshot { policy: policy.to_owned(), config, state: Value::Null })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// What it is, written down.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }

    /// Asks it. Layers wrap this in a method with the layer's own words.
    pub(super) fn ask(&mut self, call: K::Call<'_>) -> K::Answer {
        self.0.answer(call)
    }
}

impl<K: Kind> TryFrom<Snapshot> for Holder<K> {
    type Error = BadPolicy;
    fn try_from(snapshot: Snapshot) -> Result<Self, BadPolicy> {
        let Some(row) = K::table().iter().find(|row| row.name == snapshot.policy) else {
            let known: Vec<_> = K::table().iter().map(|row| row.name).collect();
            return Err(BadPolicy::Unknown { layer: K::LAYER, name: snapshot.policy, known: known.join(", ") });
        };
        (row.make)(snapshot.config, snapshot.state).map(Self)
    }
}

impl<K: Kind> From<Holder<K>> for Snapshot {
    fn from(holder: Holder<K>) -> Self {
        holder.snapshot()
    }
}

impl<K: Kind> Clone for Holder<K> {
    fn clone(&self) -> Self {
        Self(self.0.boxed_clone())
    }
}

impl<K: Kind> PartialEq for Holder<K> {
    fn eq(&self, other: &Self) -> bool {
        self.snapshot() == other.snapshot()
    }
}

impl<K: Kind> fmt::Debug for Holder<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

trait Held<K: Kind>: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;
    fn answer(&mut self, call: K::Call<'_>) -> K::Answer;
    fn snapshot(&self) -> Snapshot;
    fn boxed_clone(&self) -> Box<dyn Held<K>>;
}

struct Kept<P: Parts> {
    config: P::Config,
    state: P::State,
}

impl<P: Parts> fmt::Debug for Kept<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(P::NAME).field("config", &self.config).field("state", &self.state).finish()
    }
}

impl<K: Kind, P: Answers<K>> Held<K> for Kept<P> {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn answer(&mut self, call: K::Call<'_>) -> K::Answer {
        P::answer(&self.config, &mut self.state, call)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot { policy: P::NAME.to_owned(), config: written(&self.config), state: written(&self.state) }
    }

    fn boxed_clone(&self) -> Box<dyn Held<K>> {
        Box::new(Self { config: self.config.clone(), state: self.state.clone() })
    }
}
