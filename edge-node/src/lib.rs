#[cfg(feature = "io")]
pub mod exec;
