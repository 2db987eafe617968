//! The OpenAI front on real sockets: a scripted host behind it, raw bytes before it.

mod client;
mod errors;
mod fake;
mod limits;
mod python;
mod streams;
mod whole;
