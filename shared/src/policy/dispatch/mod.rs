//! Dispatch: for each request, here, a peer, the cloud, wait, or refuse. Called for each event at an ingress.

pub mod cloud_only;
mod dispatcher;
pub mod edge_only;
pub mod least_loaded;
pub mod min_latency;
mod scene;
mod split;

#[cfg(test)]
mod assess_tests;
#[cfg(test)]
mod split_tests;
#[cfg(test)]
pub(in crate::policy) mod story;

pub use cloud_only::CloudOnly;
pub use dispatcher::{Dispatcher, Dispatching};
pub use edge_only::EdgeOnly;
pub use least_loaded::LeastLoaded;
pub use min_latency::MinLatency;
pub use scene::{Assessment, Pending, Scene};
pub use split::SplitRules;

use crate::ids::{NodeId, RequestId, VariantId};
use crate::plan::{Actual, Candidate, Choice, Outcome, Reason};
use crate::policy::{Parts, Row};

/// Every dispatch policy there is.
pub static TABLE: &[Row<Dispatching>] =
    &[Row::of::<EdgeOnly>(), Row::of::<CloudOnly>(), Row::of::<LeastLoaded>(), Row::of::<MinLatency>()];

/// What happened at the ingress.
#[derive(Clone, Debug)]
pub enum DispatchEvent<'a> {
    /// A request came, or came back for another attempt. Exactly one action for it is owed.
    Arrival(&'a Pending<'a>, &'a Assessment),
    /// Something freed up or became known; these requests wait, most urgent first. Actions for any of them are welcome.
    SlotIdle(&'a [Pending<'a>]),
    /// An attempt ended.
    Outcome {
        /// Of which request.
        request: RequestId,
        /// Where.
        node: &'a NodeId,
        /// With what.
        variant: &'a VariantId,
        /// As predicted.
        choice: &'a Choice,
        /// As measured.
        actual: &'a Actual,
        /// How it ended.
        outcome: &'a Outcome,
    },
    /// Time has passed; these requests wait.
    Tick(&'a [Pending<'a>]),
}

/// What shall be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Execute the request so. The candidate must be a feasible one of its assessment.
    Assign {
        /// Which request.
        request: RequestId,
        /// How.
        candidate: Candidate,
    },
    /// Keep it at the ingress.
    Wait {
        /// Which request.
        request: RequestId,
        /// What it waits for.
        reason: Reason,
    },
    /// Nobody can or may serve it.
    Refuse {
        /// Which request.
        request: RequestId,
        /// Why.
        reason: Reason,
    },
}

impl Action {
    /// The request that it is about.
    #[must_use]
    pub const fn request(&self) -> RequestId {
        match self {
            Self::Assign { request, .. } | Self::Wait { request, .. } | Self::Refuse { request, .. } => *request,
        }
    }
}

/// A dispatch policy: functions over its configuration and state.
pub trait DispatchPolicy: Parts {
    /// Takes in one event and says what shall be done. Must not read a clock, draw unseeded chance, or depend on hash order.
    fn on_event(
        config: &Self::Config,
        state: &mut Self::State,
        scene: &Scene<'_>,
        event: &DispatchEvent<'_>,
        actions: &mut Vec<Action>,
    );
}

/// The whole of a policy that looks at each request on its own: of the feasible candidates all of whose nodes it `may_use`, the best by
/// `cost`, smallest first, ties by order of candidates; wait when time alone may help; else refuse.
pub fn best_by<K: PartialOrd>(
    event: &DispatchEvent<'_>,
    scene: &Scene<'_>,
    actions: &mut Vec<Action>,
    may_use: impl Fn(&NodeId) -> Result<(), Reason>,
    mut cost: impl FnMut(&Pending<'_>, &Choice) -> K,
) {
    let mut decide = |pending: &Pending<'_>, assessment: &Assessment| {
        let mut best: Option<(K, &Choice)> = None;
        for choice in assessment.feasible.iter().filter(|choice| choice.candidate.nodes().all(|node| may_use(node).is_ok())) {
            let key = cost(pending, choice);
            if best.as_ref().is_none_or(|(least, _)| key < *least) {
                best = Some((key, choice));
            }
        }
        let request = pending.request.id;
        match best {
            Some((_, choice)) => Action::Assign { request, candidate: choice.candidate.clone() },
            None => assessment.without_candidate(request, &may_use),
        }
    };
    match event {
        DispatchEvent::Arrival(pending, assessment) => actions.push(decide(pending, assessment)),
        DispatchEvent::SlotIdle(waiting) | DispatchEvent::Tick(waiting) => {
            for pending in *waiting {
                actions.push(decide(pending, &scene.assess(pending)));
            }
        }
        DispatchEvent::Outcome { .. } => {}
    }
}

/// Any node may be used.
///
/// # Errors
/// Never.
pub const fn anyone(_: &NodeId) -> Result<(), Reason> {
    Ok(())
}
