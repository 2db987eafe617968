//! The inner loops of inference on CPUs: products with quantised matrices, attention, norms, rotations.
//!
//! Plain functions over slices: no threads, no allocation of weights besides packing, no knowledge of models or requests. The one
//! law is that each row of a result depends on that row alone, bit for bit: never on which rows were computed beside it, on how a
//! prompt was cut into pieces, or on the instructions that this CPU has. So a request gives the same tokens alone or among others,
//! whole or split, here or on the next machine. All sums therefore run in a fixed order, with fused multiplication and addition.
//!
//! `unsafe` is for vector instructions, after their presence was checked, and for writing disjoint columns from several threads.
//! It must not be used for anything else.

mod activations;
mod attention;
mod columns;
mod exercise;
mod float;
mod floats;
mod half;
mod level;
mod tiles;

pub use activations::Activations;
pub use attention::{BLOCK, Scratch, Span, attend};
pub use columns::TILE;
pub use exercise::{byte_products, multiply_adds, triad};
pub use float::{Pairing, add, gate, norm, rotate};
pub use floats::Floats;
pub use half::{narrow, widen};
pub use level::{Level, level};
pub use tiles::{Blocks, Malformed, Tiles};

/// Carries out pieces of work that do not depend on each other: `(count, piece)` calls `piece` with ranges that together are
/// `0..count`, from any threads. The caller's, because this crate has none.
pub type Spread<'a> = &'a (dyn Fn(usize, &(dyn Fn(std::ops::Range<usize>) + Sync)) + Sync);

/// Everything on the calling thread.
pub fn alone(count: usize, piece: &(dyn Fn(std::ops::Range<usize>) + Sync)) {
    piece(0..count);
}
