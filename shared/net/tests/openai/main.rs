//! The OpenAI front on real sockets: a scripted host behind it, raw bytes before it.

mod client;
mod errors;
mod fake;
mod keys;
mod limits;
mod python;
mod smuggling;
mod streams;
mod whole;
