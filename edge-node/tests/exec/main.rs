//! The engines, each asked as the request core would ask it.
#![cfg(feature = "llm")]

#[path = "../canned/mod.rs"]
mod canned;
mod chain;
mod desk;
#[cfg(feature = "llama-cpp")]
mod llamacpp;
mod llm;
mod prefixes;
mod profiled;
mod reference;
mod smollm2;
mod stages;
mod tiny;
mod upstream;
