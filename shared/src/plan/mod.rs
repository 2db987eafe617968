//! What was decided, as inert data: plans of the round layers, grants, decisions with their reasons, records.

mod check;
mod decision;
mod reason;
mod record;
mod rows;

pub use check::{Fault, check};
pub use decision::{Candidate, Choice, Decision, Rejected, Split, Stage, Verdict};
pub use reason::{Failure, Reason};
pub use record::{Actual, AttemptRecord, Finish, Outcome, Record, Usage};
pub use rows::{AllocationRow, DispatchSetting, Grant, Layer, OffloadRow, PlacementRow, Plan, PlanRows, StageGrant, Target};
