//! What this machine really is, and how it is. Nothing here is declared: what cannot be measured is absent.

pub mod hardware;
pub mod machine;
