//! A real hub in this process, and agents that are made of nothing but the wire: what a hub promises to both.

mod agent;
mod api;
mod joining;
mod rights;
mod serving;
mod world;
