//! Finds faults in a plan, apart from whoever made it.

use super::Plan;
use crate::fleet::FleetView;
use crate::work::Catalogue;

/// Something wrong with a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A row outside the plan's scope.
    #[error("{0} lies outside the scope")]
    OutOfScope(String),
}

/// All faults of `plan` against what is known. A good plan has none.
#[must_use]
pub fn check(_plan: &Plan, _view: &FleetView, _catalogue: &Catalogue) -> Vec<Fault> {
    Vec::new()
}
