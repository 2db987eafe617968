//! Candidates that are split by layers over several nodes: each stage must be as fit as a whole candidate, and all together must
//! be worth it.

use super::Assessment;
use super::scene::{Pending, Scene, fit, wanted};
use crate::estimate::{Estimate, StageFacts, predict_split};
use crate::fleet::{Hop, PathReport, ReplicaReport};
use crate::ids::NodeId;
use crate::plan::{Candidate, Choice, Reason, Rejected, Split, Stage, StageGrant, Target};
use crate::units::Fraction;
use crate::work::{HeldLayers, Precision, ResidencyBound, Variant};
use serde::{Deserialize, Serialize};

/// Default of [`SplitRules::margin`]: more than the relative error of a fresh estimate, since a split has two of everything that
/// can go wrong, and people whose second machine made everything slower do not come back.
const MARGIN: f64 = 0.15;

/// What holds for all splits, whichever policy chooses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SplitRules {
    /// Where one node alone could serve a request, a split must be predicted to end earlier than the best such by this share of
    /// its time.
    pub margin: Fraction,
    /// How hidden states travel. In `f16` they take half the bytes, and the text is another than that of the whole model; such
    /// a stream cannot be continued elsewhere.
    pub precision: Precision,
}

impl Default for SplitRules {
    fn default() -> Self {
        Self { margin: Fraction::new(MARGIN).unwrap_or_default(), precision: Precision::default() }
    }
}

/// A granted split that is looked at.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) pending: &'a Pending<'a>,
    pub(super) residency: &'a ResidencyBound,
    pub(super) variant: &'a Variant,
    pub(super) target: &'a Target,
}

/// A stage that could serve.
struct Fit<'a> {
    grant: &'a StageGrant,
    path: PathReport,
    replica: &'a ReplicaReport,
    held: HeldLayers,
}

/// Who stands in the way, and how.
type Hindrance<'a> = (&'a NodeId, Reason);

impl Scene<'_> {
    /// Judges one granted split.
    pub(super) fn judge_split(&self, question: &Question<'_>, out: &mut Assessment) {
        let Question { variant, target, .. } = *question;
        match self.split_choice(question) {
            Ok(choice) => out.feasible.push(choice),
            Err((node, reason)) => {
                let stages = target.nodes().cloned().collect();
                out.rejected.push(Rejected { node: node.clone(), variant: variant.id.clone(), stages, reason });
            }
        }
    }

    /// Where somebody could serve the request alone, splits that do not beat that by the margin are rejected, and say so.
    pub(super) fn hold_to_margin(&self, assessment: &mut Assessment) {
        let whole = assessment.feasible.iter().filter(|choice| choice.candidate.split == Split::Whole);
        let Some(whole) = whole.map(|choice| choice.estimate.total).min() else { return };
        let most = whole.scale(1.0 - self.splits.margin.get());
        let slow = |choice: &Choice| choice.candidate.split != Split::Whole && choice.estimate.total > most;
        if !assessment.feasible.iter().any(slow) {
            return;
        }
        let (slow, kept) = std::mem::take(&mut assessment.feasible).into_iter().partition::<Vec<_>, _>(slow);
        assessment.feasible = kept;
        assessment.rejected.extend(slow.into_iter().map(|choice| Rejected {
            stages: choice.candidate.nodes().cloned().collect(),
            node: choice.candidate.node,
            variant: choice.candidate.variant,
            reason: Reason::SplitMargin { split: choice.estimate.total, whole },
        }));
    }

    fn split_choice<'v>(&'v self, question: &Question<'v>) -> Result<Choice, Hindrance<'v>> {
        let Question { pending, residency, variant, target } = *question;
        // What may not be is said before what cannot: hidden states are text.
        for stage in &target.stages {
            if !residency.permits(&stage.node) {
                return Err((&stage.node, Reason::Residency));
            }
        }
        let first = |reason| (&target.node, reason);
        target.check_stages().map_err(|_| first(Reason::NotGranted))?;
        wanted(pending, variant).map_err(first)?;
        if pending.resume.is_some() && self.splits.precision != Precision::F32 {
            return Err(first(Reason::NotResumable("hidden states in f16 would write another text".to_owned())));
        }
        let mut stages: Vec<Fit<'_>> = Vec::with_capacity(target.stages.len());
        for grant in &target.stages {
            let before = stages.last().map(|stage| &stage.grant.node);
            stages.push(self.fit_stage(question, grant, before).map_err(|reason| (&grant.node, reason))?);
        }
        let estimate = self.estimate_split(question, &stages).map_err(first)?;
        let hop = stages.first().map_or(Hop::Local, |stage| stage.path.hop);
        let split =
            stages.iter().map(|stage| Stage { node: stage.grant.node.clone(), hop: stage.path.hop, layers: stage.grant.layers });
        let split = Split::Layers(split.collect());
        let candidate = Candidate { node: target.node.clone(), hop, variant: variant.id.clone(), split };
        let transport = stages.first().and_then(|stage| stage.path.transport);
        Ok(Choice { candidate, estimate, transport })
    }

    fn fit_stage<'v>(
        &'v self,
        question: &Question<'v>,
        grant: &'v StageGrant,
        before: Option<&NodeId>,
    ) -> Result<Fit<'v>, Reason> {
        let Question { pending, residency, variant, target } = *question;
        let key = (grant.node.clone(), variant.id.clone());
        let entry = self.view.node(&grant.node).ok_or(Reason::Unknown)?;
        let replica = self.replica(entry, &key)?;
        fit(pending.request, variant, &replica.value)?;
        let held = replica.value.layers.ok_or_else(|| Reason::Capability("layers".to_owned()))?;
        if !held.range.holds(grant.layers) {
            return Err(Reason::Part(held.range));
        }
        let path = self.path_from(before, grant, residency)?;
        self.has_room(pending, &key, Some(target.open_max), &replica.value)?;
        Ok(Fit { grant, path, replica: &replica.value, held })
    }

    /// The way to a stage from the one before it. What this node has measured itself counts; a path between two others is known
    /// from the grant alone and is believed as long as that, but none through a hub that is out of reach from here.
    fn path_from(&self, before: Option<&NodeId>, grant: &StageGrant, residency: &ResidencyBound) -> Result<PathReport, Reason> {
        let own = |node: &NodeId| {
            let entry = self.view.node(node).ok_or(Reason::Unknown)?;
            self.path(entry, node, residency).cloned()
        };
        match before {
            None => own(&grant.node),
            Some(before) if before == self.me => own(&grant.node),
            Some(before) if grant.node == *self.me => own(before).map(PathReport::reversed),
            Some(_) => {
                let relayed = grant.path.hop == Hop::Relay;
                if relayed && !residency.permits_relay(self.hub.unwrap_or(self.me)) {
                    return Err(Reason::Residency);
                }
                let carries = grant.path.hop == Hop::Direct || (relayed && !self.degraded);
                if carries { Ok(grant.path.clone()) } else { Err(Reason::NoPath) }
            }
        }
    }

    fn estimate_split(&self, question: &Question<'_>, stages: &[Fit<'_>]) -> Result<Estimate, Reason> {
        let Question { pending, variant, .. } = *question;
        let facts: Result<Vec<_>, Reason> = stages
            .iter()
            .map(|stage| {
                let profile = stage.replica.profile.as_ref().ok_or(Reason::NoProfile)?;
                let costs = &self.view.node(&stage.grant.node).ok_or(Reason::Unknown)?.costs;
                let (load, path, layers, held) = (&stage.replica.load, &stage.path, stage.grant.layers, stage.held);
                Ok(StageFacts { profile, load, path, costs, layers, held })
            })
            .collect();
        let estimate = predict_split(pending.request, &facts?, self.splits.precision, variant.quality);
        self.within_budgets(pending, &estimate)?;
        Ok(estimate)
    }
}
