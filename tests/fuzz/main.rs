//! What comes from outside is damaged by chance and handed to whoever parses it: HTTP, JSON, model files, server-sent events,
//! certificates, tokens and configurations. Wire messages are damaged beside their golden samples, in `shared`.
//!
//! Each target runs for [`budget`]: two seconds in a test run, longer with `make fuzz SECONDS=…`. The seed is printed. Memory is
//! capped, so that a length that lies ends the run; panics of any thread are counted and fail it.

mod certificates;
mod configurations;
mod dice;
mod events;
mod http;
mod models;

use cap::Cap;
use std::alloc::System;

/// Everything together stays far below this on good input, so whoever reaches it believed a length.
const MEMORY_MAX: usize = 3 << 30;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, MEMORY_MAX);
