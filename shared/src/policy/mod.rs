//! How it is decided: one folder a layer, one file a policy, one table a folder.
//!
//! A policy is a pair of plain data, a configuration and a state, with functions over them. It is told everything it may know and
//! returns what shall be done.
//!
//! # How to add a policy
//!
//! 1. **Write the file** `policy/LAYER/NAME.rs`. Its module doc says the idea, when it wins, when it loses, and where it comes
//!    from (a paper, with section). It has four parts: a `Config` (its `Default` works, unknown keys are errors), a `State` (`()` if
//!    it remembers nothing), [`Parts`], and the layer's trait. Half of the file are tests that read like stories.
//! 2. **Register it**: its `mod` and `use` lines and one [`Row`] in the `TABLE` of the folder's `mod.rs`. There is no second place:
//!    hub, agent, simulator, conformance suite and documentation read the table.
//! 3. **Run** `cargo test -p shared`. The conformance suite now holds it to what every policy owes, and, by [`Parts::CLAIMS`], to what
//!    it claims over others.
//!
//! What a policy must never do: read a clock, the environment or unseeded chance; depend on the order of a hash map; keep anything
//! outside its state; take a handle instead of a value; ask whether it is simulated. Chance comes from the scene's seed, mixed with
//! the id of what is drawn for, so that one more draw does not shift the others.
//!
//! A whole dispatch policy, for an ingress that likes good answers:
//!
//! ```
//! use serde::{Deserialize, Serialize};
//! use shared::policy::dispatch::{Action, DispatchEvent, DispatchPolicy, Dispatching, Scene, anyone, best_by};
//! use shared::policy::{Parts, Row};
//! use shared::units::Quality;
//!
//! /// What may be tuned.
//! #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
//! #[serde(default, deny_unknown_fields)]
//! struct Config {
//!     /// Answers above this quality are all the same to us.
//!     enough: Quality,
//! }
//!
//! impl Default for Config {
//!     fn default() -> Self {
//!         Self { enough: Quality::new(0.9).expect("from 0 to 1") }
//!     }
//! }
//!
//! struct BestQuality;
//!
//! impl Parts for BestQuality {
//!     type Config = Config;
//!     type State = ();
//!     const NAME: &'static str = "best-quality";
//!     const SUMMARY: &'static str = "the candidate with the best variant";
//! }
//!
//! impl DispatchPolicy for BestQuality {
//!     fn on_event(config: &Config, (): &mut (), scene: &Scene<'_>, event: &DispatchEvent<'_>, actions: &mut Vec<Action>) {
//!         let lacks = |quality: Quality| config.enough.get() - quality.get().min(config.enough.get());
//!         best_by(event, scene, actions, anyone, |_, choice| (lacks(choice.estimate.quality), choice.estimate.total));
//!     }
//! }
//!
//! static ROW: Row<Dispatching> = Row::of::<BestQuality>();
//! assert_eq!(ROW.name, "best-quality");
//! ```
//!
//! # How to add a layer
//!
//! A folder with a scene, a trait, a [`Kind`] that names what is asked and answered, an [`Answers`] for all policies of the trait, and a
//! table: `policy/placement/mod.rs` shows all of it. [`Holder`] then serialises, restores and clones its policies.

pub mod allocation;
mod budget;
pub mod dispatch;
mod holder;
pub mod offload;
mod parts;
pub mod placement;
pub mod timescale;

pub use budget::Budget;
pub use holder::{Answers, Holder, Kind, Round, Row};
pub use parts::{BadPolicy, Claim, Parts, Snapshot};
