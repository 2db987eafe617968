//! What every policy of every table owes, on small random fleets.
//!
//! The suites iterate the tables: a new policy is held to them by its row alone. Seeds are drawn anew in each run and printed;
//! `TIDEGATE_SEED=… cargo test -p shared --test conformance` repeats one.

mod asks;
mod boundary;
mod brute;
mod dispatch;
mod fleets;
mod offload;
mod rounds;
mod speed;
