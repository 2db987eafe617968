//! Stories told in the tiny universe: the code of hub and agents, virtual time, links that are cut and processes that die.
//!
//! Every story ends with `over`, which replays each process' capture and demands equal effects. While a story runs, the universe
//! itself checks that no client gets two answers, a token twice, or a token too few.

mod broker_restart;
mod deaths;
mod fleet;
mod links;
mod rules;
mod splits;
mod troubled;
