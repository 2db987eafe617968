//! What there is: nodes, replicas, paths, and the view that decisions read. Each fact carries its age.

mod accelerator;
mod fact;
mod hardware;
mod node;
mod pace;
mod path;
mod replica;
mod telemetry;
mod view;

pub use accelerator::{Accelerator, AcceleratorKind, Backend, DeviceRates, Dropped, MemoryBudget, NoBudget, ProbeState, Survey};
pub use fact::{Fact, Origin};
pub use hardware::Hardware;
pub use node::{Costs, Inventory, Machine, NodeState, Tier};
pub use pace::{Beside, Pace, Step};
pub use path::{Hop, PathReport, Transport, TransportOrder};
pub use replica::{Load, Profile, ProfileSource, ReplicaReport, ReplicaState};
pub use telemetry::{Gauge, Telemetry};
pub use view::{Aged, FleetDelta, FleetView, NodeView};

/// Why a node's report was not believed. The report is dropped whole; the node's older facts stay and age.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportFault {
    /// A number outside what is possible.
    #[error("{field}: {why}")]
    Value {
        /// Path of the field in the report.
        field: String,
        /// What would be right.
        why: &'static str,
    },
    /// More entries than a node may report.
    #[error("{field}: {count} entries, at most {max}")]
    TooMany {
        /// Path of the field in the report.
        field: &'static str,
        /// How many there were.
        count: usize,
        /// How many are accepted.
        max: usize,
    },
}
