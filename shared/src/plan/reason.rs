//! Why something was not chosen, was refused, or failed. Every one has a stable code for records, headers and metrics.

use crate::ids::NodeId;
use crate::units::{Joules, MicroDollars, Micros, Quality, Tokens};
use crate::work::LayerRange;
use serde::{Deserialize, Serialize};

/// Why a candidate was rejected, or a request refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The fact is too old to act upon: stale is not idle.
    #[error("last heard of {age} ago")]
    Stale {
        /// Its age.
        age: Micros,
    },
    /// The node is not in the view.
    #[error("node not known here")]
    Unknown,
    /// Its lease ran out.
    #[error("node offline")]
    Offline,
    /// Silent for longer than it should be, or it failed a request a moment ago.
    #[error("node suspected dead")]
    Suspect,
    /// An operator wants it empty, or it is shutting down.
    #[error("node draining")]
    Draining,
    /// Two live instances of one identity.
    #[error("identity cloned: two live instances")]
    Cloned,
    /// Heard of, but no path carries data.
    #[error("no path carries data")]
    NoPath,
    /// Nobody granted this target.
    #[error("not granted by the offload plan")]
    NotGranted,
    /// The grant's bound on open requests is reached.
    #[error("bound of {open_max} open requests reached")]
    BoundReached {
        /// The bound.
        open_max: u32,
    },
    /// No such replica there.
    #[error("no replica of the variant")]
    NoReplica,
    /// The replica is still loading.
    #[error("replica loading")]
    Loading,
    /// The replica has failed.
    #[error("replica failed: {0}")]
    ReplicaFailed(String),
    /// The replica of this name has other weights than the catalogue says.
    #[error("its weights are not those of the catalogue")]
    Weights,
    /// No measured speed: unknown is not zero.
    #[error("speed not measured yet")]
    NoProfile,
    /// The request's text may not go there.
    #[error("residency forbids it")]
    Residency,
    /// The variant is not good enough.
    #[error("quality {has:.3} below {wanted:.3}")]
    Quality {
        /// The variant's.
        has: Quality,
        /// The request's least.
        wanted: Quality,
    },
    /// Prompt and output do not fit the context.
    #[error("about {wanted} do not fit a context of {context}")]
    Context {
        /// Prompt and output together.
        wanted: Tokens,
        /// What fits.
        context: Tokens,
    },
    /// The engine lacks something that the request asks for.
    #[error("engine lacks `{0}`")]
    Capability(String),
    /// The client named another variant.
    #[error("another variant was asked for")]
    NotPinned,
    /// No slot, and no room to wait.
    #[error("busy")]
    Busy,
    /// The answer would come too late.
    #[error("predicted {predicted}, but {remaining} remain")]
    Deadline {
        /// Predicted time to the end.
        predicted: Micros,
        /// Time that remains.
        remaining: Micros,
    },
    /// The answer would take too much energy.
    #[error("predicted energy above {0}")]
    Energy(Joules),
    /// The answer would cost too much.
    #[error("predicted cost above {0}")]
    Money(MicroDollars),
    /// It was already tried there for this request.
    #[error("already tried for this request")]
    Tried,
    /// Continuing there would not give the same stream.
    #[error("cannot continue the stream: {0}")]
    NotResumable(String),
    /// The policy prefers not to use such candidates at all.
    #[error("policy `{0}` does not use it")]
    Policy(String),
    /// The retry budget is spent.
    #[error("retry budget spent")]
    RetryBudget,
    /// Too many requests wait at this ingress.
    #[error("ingress queue full")]
    QueueFull,
    /// The replica holds only some layers, so that it serves nothing alone.
    #[error("holds only layers {0}")]
    Part(LayerRange),
    /// A split must beat the best whole candidate by a margin.
    #[error("split predicted {split}, whole {whole}")]
    SplitMargin {
        /// Predicted time to the end when split.
        split: Micros,
        /// The same of the best that is whole.
        whole: Micros,
    },
    /// Nobody is known who could serve it.
    #[error("no candidate")]
    NoCandidate,
}

impl Reason {
    /// A short stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Stale { .. } => "stale",
            Self::Unknown => "unknown",
            Self::Offline => "offline",
            Self::Suspect => "suspect",
            Self::Draining => "draining",
            Self::Cloned => "cloned",
            Self::NoPath => "no_path",
            Self::NotGranted => "not_granted",
            Self::BoundReached { .. } => "bound_reached",
            Self::NoReplica => "no_replica",
            Self::Loading => "loading",
            Self::ReplicaFailed(_) => "replica_failed",
            Self::Weights => "weights",
            Self::NoProfile => "no_profile",
            Self::Residency => "residency",
            Self::Quality { .. } => "quality",
            Self::Context { .. } => "context",
            Self::Capability(_) => "capability",
            Self::NotPinned => "not_pinned",
            Self::Busy => "busy",
            Self::Deadline { .. } => "deadline",
            Self::Energy(_) => "energy",
            Self::Money(_) => "money",
            Self::Tried => "tried",
            Self::NotResumable(_) => "not_resumable",
            Self::Policy(_) => "policy",
            Self::RetryBudget => "retry_budget",
            Self::QueueFull => "queue_full",
            Self::Part(_) => "part",
            Self::SplitMargin { .. } => "split_margin",
            Self::NoCandidate => "no_candidate",
        }
    }

    /// Whether time alone may lift it, so that waiting can make sense.
    #[must_use]
    pub const fn passes(&self) -> bool {
        matches!(
            self,
            Self::Busy
                | Self::Loading
                | Self::BoundReached { .. }
                | Self::NoProfile
                | Self::Suspect
                | Self::Stale { .. }
                | Self::NoPath
        )
    }
}

/// Why an attempt or a request failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The link or the process at the other end went away.
    #[error("connection to {0} broke")]
    Broken(String),
    /// Nothing came for too long.
    #[error("no sign of life for {0}")]
    Stalled(Micros),
    /// The engine gave up; the text says why.
    #[error("engine: {0}")]
    Engine(String),
    /// The prompt, counted exactly, does not fit.
    #[error("the prompt has {prompt}, which with the answer exceed the context of {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: Tokens,
        /// Context of the variant.
        context: Tokens,
    },
    /// The request itself is wrong: no other place would do better.
    #[error("{message}")]
    BadRequest {
        /// Which parameter.
        param: Option<String>,
        /// What would be right.
        message: String,
    },
    /// The deadline passed.
    #[error("the deadline passed")]
    DeadlineExceeded,
    /// The client went away.
    #[error("the client went away")]
    ClientGone,
    /// The client did not read for too long.
    #[error("the client did not read for too long")]
    ClientStalled,
    /// Nobody could or would take it.
    #[error("refused: {0}")]
    Refused(Reason),
    /// A later stage of a split did not do its part.
    #[error("stage at {node}: {failure}")]
    Stage {
        /// Whose.
        node: NodeId,
        /// What happened there.
        failure: Box<Self>,
    },
}

impl Failure {
    /// A short stable code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Broken(_) => "broken",
            Self::Stalled(_) => "stalled",
            Self::Engine(_) => "engine",
            Self::PromptTooLong { .. } => "context_length_exceeded",
            Self::BadRequest { .. } => "bad_request",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::ClientGone => "client_gone",
            Self::ClientStalled => "client_stalled",
            Self::Refused(reason) => reason.code(),
            Self::Stage { failure, .. } => failure.code(),
        }
    }

    /// Whose failure it is and which: of a split, the stage's at the far end of what was passed on.
    #[must_use]
    pub fn origin(&self) -> (Option<&NodeId>, &Self) {
        let (mut node, mut failure) = (None, self);
        while let Self::Stage { node: of, failure: inner } = failure {
            (node, failure) = (Some(of), inner);
        }
        (node, failure)
    }

    /// Whether another place might succeed.
    #[must_use]
    pub const fn elsewhere(&self) -> bool {
        match self {
            Self::Broken(_) | Self::Stalled(_) | Self::Engine(_) | Self::Refused(_) => true,
            Self::Stage { failure, .. } => failure.elsewhere(),
            _ => false,
        }
    }
}
