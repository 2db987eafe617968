//! The hub as a place where clients ask: the OpenAI front's host.

use super::input::{Inbox, Input};
use crate::logic::{AdminOperation, AdminReply};
use shared::ids::{NodeId, ServiceId, VariantId};
use shared::plan::Reason;
use shared::work::{Capability, Catalogue, Residency};
use shared_net::openai::{Answer, Ask, Ingress, Refusal};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// Answers that wait for a client. A batch of tokens comes about every 10 ms, so this is half a second of a slow reader; then
/// flow control holds the executor back.
const ANSWERS_MAX: usize = 64;

/// Hands requests to the driver.
#[derive(Clone, Debug)]
pub(crate) struct HubIngress {
    pub(crate) me: NodeId,
    pub(crate) catalogue: watch::Receiver<Arc<Catalogue>>,
    pub(crate) inbox: Inbox,
}

impl Ingress for HubIngress {
    fn node(&self) -> NodeId {
        self.me.clone()
    }

    fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.catalogue.borrow())
    }

    /// The core refuses what must stay at a site, and records that it did: the client can have it explained.
    fn residency_allowed(&self, _residency: Residency) -> Result<(), String> {
        Ok(())
    }

    async fn ask(&self, ask: Ask) -> Result<mpsc::Receiver<Answer>, Refusal> {
        let (answers, received) = mpsc::channel(ANSWERS_MAX);
        let (taken, was_taken) = oneshot::channel();
        let stopping = |()| Refusal(Reason::Draining);
        self.inbox.send(Input::Ask { ask: Box::new(ask), answers, taken }).await.map_err(|_| stopping(()))?;
        was_taken.await.map_err(|_| stopping(()))??;
        Ok(received)
    }

    fn degraded(&self) -> bool {
        false
    }

    async fn capable(&self, service: ServiceId, capability: Capability) -> Vec<VariantId> {
        match self.look(AdminOperation::Capable(service, capability.name().to_owned())).await {
            Some(AdminReply::Variants(variants)) => variants,
            _ => Vec::new(),
        }
    }

    async fn replicas_ready(&self) -> usize {
        match self.look(AdminOperation::Ready).await {
            Some(AdminReply::Count(count)) => count,
            _ => 0,
        }
    }
}

impl HubIngress {
    /// Asks the core; nothing when the hub is stopping.
    async fn look(&self, operation: AdminOperation) -> Option<AdminReply> {
        let (reply, replied) = oneshot::channel();
        self.inbox.send(Input::Admin(operation, reply)).await.ok()?;
        replied.await.ok()
    }
}
