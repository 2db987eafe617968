//! What the request core is told, and what it wants done. Payload bodies stay with the driver; only their sizes come inside.

use crate::fleet::{FleetDelta, Load, ReplicaReport};
use crate::ids::{AttemptId, NodeId, RequestId, VariantId};
use crate::plan::{AllocationRow, Candidate, Decision, DispatchSetting, Failure, Finish, Grant, Reason, Record, Usage};
use crate::units::Tokens;
use crate::work::{Catalogue, ExecHeader, LlmRequest};
use serde::{Deserialize, Serialize};

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "such a value lives for a moment, in one place: a box would cost more than its room"
)]
pub enum Event {
    /// As ingress: a client asks.
    Arrived(LlmRequest),
    /// As ingress: the client went away.
    ClientGone(RequestId),
    /// As ingress: the client has not read for too long.
    ClientStalled(RequestId),
    /// As ingress: news of a remote attempt.
    Remote(AttemptId, AttemptEvent),
    /// As executor: another ingress offers a request.
    Offered {
        /// Who offers: the peer at the other end, or whoever is behind the relay. The ingress, or of a later stage the node of the
        /// stage before it.
        from: NodeId,
        /// What.
        header: ExecHeader,
    },
    /// As executor: the offering side reset its stream.
    Withdrawn(AttemptId),
    /// As executor: news of an engine of this node.
    Engine(AttemptId, AttemptEvent),
    /// The fleet changed.
    Fleet(FleetDelta),
    /// The replicas of this node, as their engines are now. Loads in it are ignored: the core counts itself.
    Replicas(Vec<ReplicaReport>),
    /// The slower layers grant this.
    Granted(Grant),
    /// How this node divides itself.
    Allocated(Vec<AllocationRow>),
    /// What there is to serve.
    Catalogue(Catalogue),
    /// Another dispatch policy shall run; known to the table (checked by whoever sends it).
    Policy(DispatchSetting),
    /// Whether the hub is out of reach.
    Degraded(bool),
    /// The node shall become empty: nothing new is executed here.
    Drain(bool),
    /// A deadline has come.
    Tick,
}

/// News of an attempt, from the stream to a remote executor or from a local engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEvent {
    /// The executor has taken it, and wants the body.
    Accepted(Load),
    /// The executor will not take it.
    Refused(Reason, Option<Load>),
    /// It lives: it waits, or its prompt is being computed.
    Progress,
    /// This many tokens came. The payload travels beside the event.
    Content(Tokens),
    /// A whole answer.
    Ended(Finish, Usage),
    /// No whole answer.
    Failed(Failure),
}

/// What shall be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// To the client's handler: this was decided. The newest decision is what response headers show.
    Decided(Box<Decision>),
    /// To the client: the payload that came with this event. Content without this effect must not reach the client.
    Deliver(AttemptId),
    /// To the client: the answer is whole.
    Finish(RequestId, Finish, Usage),
    /// To the client: a typed error. After content it ends the stream, before it is the whole response.
    Fail(RequestId, Failure),
    /// Open a stream to the executor and send the header; the body follows acceptance.
    Send {
        /// How it is reached.
        candidate: Candidate,
        /// What to send.
        header: ExecHeader,
    },
    /// Send the body of an accepted remote attempt.
    SendBody(AttemptId),
    /// Cancel a remote attempt: reset its stream.
    Reset(AttemptId),
    /// Execute on an engine of this node. Where the header has a next stage, that one is asked first, by this node. The body is there for local attempts, and must be awaited for forwarded ones.
    Run(ExecHeader),
    /// Cancel an execution on an engine of this node.
    Abort(AttemptId),
    /// To the offering ingress: taken.
    Accept(AttemptId, Load),
    /// To the offering ingress: not taken.
    Refuse(AttemptId, Reason, Option<Load>),
    /// To the offering ingress: this execution will not go on; close its stream with the failure.
    Drop(AttemptId, Failure),
    /// The request is over: keep its record.
    Record(Box<Record>),
    /// The load of a replica of this node changed.
    LoadChanged(VariantId, Load),
}
