//! Who takes part: a hub and a cloud agent, and two edges at one site behind cables.

use super::DemoError;
use crate::emulate::fleet::{AgentPlan, Broker, FleetError, HubPlan};
use crate::emulate::relay::Delays;
use shared::ids::{NodeId, ScopeId, ServiceId, VariantId};
use shared::units::{Bytes, Quality, Tokens};
use shared::work::{Service, Variant};
use std::path::Path;
use std::time::Duration;

/// What clients ask for.
pub(super) const SERVICE: &str = "assistant";
/// Held by the edges.
pub(super) const SMALL: &str = "smollm2-135m-q4";
/// Held by the cloud agent.
pub(super) const EXACT: &str = "smollm2-135m-q8";
/// A floor that only the cloud's variant meets.
pub(super) const FLOOR: f64 = 0.295;
/// Length of each uplink, each way: a good DSL line to a data centre in the same country.
const UPLINK: Duration = Duration::from_millis(10);
const MODEL_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
/// The prompts and answers here are short; a longer context would only reserve memory.
const CONTEXT: u32 = 1_024;

/// The names of the play.
#[derive(Clone, Debug)]
pub(super) struct Cast {
    pub(super) hub: NodeId,
    pub(super) cloud: NodeId,
    pub(super) edge_1: NodeId,
    pub(super) edge_2: NodeId,
    pub(super) site: ScopeId,
}

impl Cast {
    pub(super) fn new() -> Result<Self, DemoError> {
        let node = |name| NodeId::new(name).map_err(FleetError::Name);
        let edge_1 = node("bay/edge-1")?;
        Ok(Self {
            hub: node("cloud/hub")?,
            cloud: node("cloud/gpu-1")?,
            edge_2: node("bay/edge-2")?,
            site: edge_1.site(),
            edge_1,
        })
    }

    pub(super) fn hub_plan(&self) -> Result<HubPlan, DemoError> {
        Ok(HubPlan {
            name: self.hub.clone(),
            heartbeat: Duration::from_secs(1),
            services: vec![service()?],
            broker: Broker::Embedded,
            config: String::new(),
        })
    }

    pub(super) fn cloud_plan(&self, model: &Path) -> AgentPlan {
        AgentPlan {
            site: self.cloud.site(),
            name: "gpu-1".to_owned(),
            uplink: None,
            udp_blocked: false,
            config: format!("tier = \"cloud\"\n\n{}", engine(EXACT, model, ("q8_0", "f32"), 4)),
        }
    }

    pub(super) fn edge_plan(&self, node: &NodeId, model: &Path) -> AgentPlan {
        AgentPlan {
            site: self.site.clone(),
            name: node.as_str().rsplit('/').next().unwrap_or_default().to_owned(),
            uplink: Some(Delays { up: UPLINK, down: UPLINK }),
            udp_blocked: false,
            config: format!("tier = \"device\"\n\n{}", engine(SMALL, model, ("q4_0", "f16"), 2)),
        }
    }
}

/// One thread an engine: three of them share this machine with the demo itself.
fn engine(variant: &str, model: &Path, (weights, cache): (&str, &str), slots: u32) -> String {
    format!(
        "[[engines]]\nengine = \"llm\"\nvariant = \"{variant}\"\npath = {model:?}\nsha256 = \"{MODEL_SHA256}\"\n\
         hint = \"make model\"\ncontext = {CONTEXT}\nslots = {slots}\nthreads = 1\nweights = \"{weights}\"\ncache = \"{cache}\"\n"
    )
}

/// There is one real model here. Its two forms differ in the bits of their weights and of the attention cache, and their quality
/// figures say openly that the difference is an estimate.
fn service() -> Result<Service, DemoError> {
    let names = |text| VariantId::new(text).map_err(FleetError::Name);
    let variant = |id, form: &str, quality, source: &str| -> Result<Variant, DemoError> {
        Ok(Variant {
            id: names(id)?,
            weights_sha256: Some(MODEL_SHA256.to_owned()),
            quantisation: form.to_owned(),
            context: Tokens(CONTEXT),
            memory: Bytes(400_000_000),
            quality: Quality::new(quality).unwrap_or_default(),
            quality_source: source.to_owned(),
        })
    };
    Ok(Service {
        id: ServiceId::new(SERVICE).map_err(FleetError::Name)?,
        aliases: Vec::new(),
        variants: vec![
            variant(
                SMALL,
                "q4_0",
                0.28,
                "IFEval 0.299 of the model card, less an estimated 0.019 for 4-bit weights and a 16-bit cache",
            )?,
            variant(EXACT, "q8_0", 0.299, "IFEval 0.299 of the model card; 8-bit weights, not measured again")?,
        ],
    })
}
