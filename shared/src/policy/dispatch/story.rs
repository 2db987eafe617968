//! A little fleet around one ingress, for tests that read like stories.

use super::{Action, Assessment, DispatchEvent, DispatchPolicy, Pending, Scene, SplitRules};
use crate::fleet::{
    Costs, FleetDelta, FleetView, Hop, Load, NodeState, PathReport, Profile, ProfileSource, ReplicaReport, ReplicaState, Tier,
};
use crate::ids::{NodeId, PlanEpoch, RequestId, ServiceId, VariantId};
use crate::plan::{Grant, Target};
use crate::units::{Bytes, Fraction, Micros, Moment, Quality, TokenRate, Tokens};
use crate::work::{Catalogue, EngineKind, Features, Likely, LlmRequest, Needs, PromptKind, Service, Variant};
use std::collections::BTreeMap;

/// The ingress of every story.
pub(crate) const ME: &str = "site/me";
/// A variant of quality 0.3.
pub(crate) const SMALL: &str = "small";
/// A variant of quality 0.8.
pub(crate) const LARGE: &str = "large";

const START: Moment = Moment(60_000_000);

/// An ingress, what it knows, and a request. Each test changes what it is about.
pub(crate) struct Story {
    pub(crate) now: Moment,
    pub(crate) me: NodeId,
    hub: NodeId,
    pub(crate) view: FleetView,
    pub(crate) grant: Grant,
    pub(crate) catalogue: Catalogue,
    pub(crate) suspects: BTreeMap<(NodeId, VariantId), Moment>,
    pub(crate) open: BTreeMap<(NodeId, VariantId), u32>,
    pub(crate) request: LlmRequest,
    pub(crate) tried: Vec<(NodeId, VariantId)>,
    pub(crate) resume: Option<VariantId>,
}

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("good")
}

pub(crate) fn variant(name: &str) -> VariantId {
    VariantId::new(name).expect("good")
}

pub(crate) fn assistant() -> ServiceId {
    ServiceId::new("assistant").expect("good")
}

pub(crate) fn catalogue() -> Catalogue {
    let variant = |name: &str, quality: f64| Variant {
        id: variant(name),
        weights_sha256: None,
        quantisation: String::new(),
        context: Tokens(2048),
        memory: Bytes(1_000),
        quality: Quality::new(quality).expect("from 0 to 1"),
        quality_source: "for the story".to_owned(),
    };
    let variants = vec![variant(SMALL, 0.3), variant(LARGE, 0.8)];
    Catalogue::new([Service { id: assistant(), aliases: Vec::new(), variants }]).expect("no contradiction")
}

/// A ready replica with four slots that decodes so many tokens a second and reads prompts ten times as fast.
pub(crate) fn replica(with: &str, decode: f64) -> ReplicaReport {
    let rate = |rate| TokenRate::new(rate).expect("good");
    ReplicaReport {
        variant: variant(with),
        engine: EngineKind::Profiled,
        device: String::new(),
        state: ReplicaState::Ready,
        load: Load { slots: 4, queue_max: 8, ..Load::default() },
        memory: Bytes(1_000),
        context: Tokens(2048),
        weights_sha256: None,
        layers: None,
        capabilities: Vec::new(),
        profile: Some(Profile {
            prompt: rate(decode * 10.0),
            decode: rate(decode),
            overhead: Micros::ZERO,
            spread: Fraction::default(),
            source: ProfileSource::WarmUp,
            samples: 1,
            pace: None,
            load: None,
        }),
    }
}

impl Story {
    /// Nobody is there yet; a request for 100 tokens waits.
    pub(crate) fn new() -> Self {
        let request = LlmRequest {
            id: RequestId(7),
            service: assistant(),
            pinned: None,
            kind: PromptKind::Chat,
            prompt: Tokens(100),
            output_max: Tokens(100),
            features: Features::default(),
            stream: true,
            body: Bytes(400),
            needs: Needs::default(),
            likely: Likely::default(),
        };
        Self {
            now: START,
            me: node(ME),
            hub: node("core/hub"),
            view: FleetView::default(),
            grant: Grant { epoch: PlanEpoch::default(), targets: BTreeMap::new(), expires: None },
            catalogue: catalogue(),
            suspects: BTreeMap::new(),
            open: BTreeMap::new(),
            request,
            tried: Vec::new(),
            resume: None,
        }
    }

    /// The ingress holds a replica.
    pub(crate) fn here(self, with: &str, decode: f64) -> Self {
        self.add(ME, Tier::Device, PathReport::local(), replica(with, decode))
    }

    /// Another node holds one, is granted, and is reached through the hub.
    pub(crate) fn there(self, name: &str, tier: Tier, with: &str, decode: f64, rtt_ms: u64) -> Self {
        self.add(name, tier, PathReport::with_rtt(Hop::Relay, Micros::from_millis(rtt_ms)), replica(with, decode))
            .granted(name, with)
    }

    /// A node with one replica appears.
    pub(crate) fn add(mut self, name: &str, tier: Tier, path: PathReport, replica: ReplicaReport) -> Self {
        let id = node(name);
        self.tell(FleetDelta::Node { node: id.clone(), tier, costs: Costs::default(), addresses: Vec::new() });
        self.tell(FleetDelta::State { node: id.clone(), state: NodeState::Online });
        self.tell(FleetDelta::Replicas { node: id.clone(), replicas: vec![replica], age: Micros::ZERO });
        self.tell(FleetDelta::Path { node: id, path });
        self
    }

    /// The offload plan allows it.
    pub(crate) fn granted(mut self, name: &str, with: &str) -> Self {
        let target =
            Target { node: node(name), variant: variant(with), share: Fraction::default(), open_max: 4, stages: Vec::new() };
        self.grant.targets.entry(assistant()).or_default().push(target);
        self
    }

    /// A replica becomes so busy.
    pub(crate) fn busy(mut self, name: &str, with: &str, active: u32, queued: u32) -> Self {
        let load = Load { slots: 4, active, queued, queue_max: 8, backlog: Tokens(100 * (active + queued)), ..Load::default() };
        self.tell(FleetDelta::Load { node: node(name), variant: variant(with), load });
        self
    }

    /// Something changes in the fleet.
    pub(crate) fn tell(&mut self, delta: FleetDelta) {
        self.view.apply(self.now, delta);
    }

    pub(crate) fn scene(&self) -> Scene<'_> {
        Scene {
            now: self.now,
            me: &self.me,
            hub: Some(&self.hub),
            view: &self.view,
            grant: &self.grant,
            catalogue: &self.catalogue,
            suspects: &self.suspects,
            open: &self.open,
            stale_after: Micros::from_secs(15),
            splits: SplitRules::default(),
            degraded: false,
            seed: 0,
        }
    }

    pub(crate) fn pending(&self) -> Pending<'_> {
        Pending {
            request: &self.request,
            arrived: START,
            attempt: 0,
            tried: &self.tried,
            resume: self.resume.as_ref(),
            delivered: Tokens(0),
        }
    }

    pub(crate) fn assess(&self) -> Assessment {
        self.scene().assess(&self.pending())
    }

    /// What the policy in its default configuration does with the request.
    pub(crate) fn decide<P: DispatchPolicy>(&self) -> Action {
        let (pending, assessment) = (self.pending(), self.assess());
        let mut actions = Vec::new();
        let event = DispatchEvent::Arrival(&pending, &assessment);
        P::on_event(&P::Config::default(), &mut P::State::default(), &self.scene(), &event, &mut actions);
        assert_eq!(actions.len(), 1, "{actions:?}");
        actions.remove(0)
    }

    /// Where the policy sends the request, and with what.
    pub(crate) fn chosen<P: DispatchPolicy>(&self) -> String {
        match self.decide::<P>() {
            Action::Assign { candidate, .. } => format!("{} with {}", candidate.node, candidate.variant),
            other => panic!("nothing was assigned: {other:?}"),
        }
    }
}
