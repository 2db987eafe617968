//! The speed engine: a GGUF file computed by llama.cpp, for whoever has a C++ compiler at build time (feature `llama-cpp`).
//!
//! The same texts, the same draws and the same manners as its parent's engine; only the computation is another's. All requests that
//! decode share one pass over the weights, together with a piece of one prompt. It cannot compute a part of the layers.

#[cfg(feature = "llama-cpp")]
mod compute;
mod config;
#[cfg(feature = "llama-cpp")]
mod engine;
#[cfg(feature = "llama-cpp")]
mod seat;
#[cfg(feature = "llama-cpp")]
mod worker;

pub use config::LlamaCppConfig;
#[cfg(feature = "llama-cpp")]
pub use engine::LlamaCpp;
