//! Settings of the front, with the reason of each number.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shared::wire::body::BODY_BYTES_MAX;
use std::time::Duration;

/// Settings of the HTTP front. The defaults work on loopback; on any other address at least one key is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FrontConfig {
    /// SHA-256 of each accepted API key, in hex (`printf %s "$KEY" | sha256sum`). The keys themselves are kept nowhere.
    pub api_keys_sha256: Vec<String>,
    /// Whether clients on this machine need a key too, as behind a proxy that stands on it. Beyond loopback everybody does.
    pub key_required: bool,
    /// Largest request body. Above: 413, and the connection closes. At most what an executor accepts.
    pub body_bytes_max: usize,
    /// Time for a whole request body to arrive. Above: 408. Thirty seconds carry 4 MiB over 1.2 Mbit/s.
    pub body_read_ms: u64,
    /// Largest request head. Above: 431. 16 KiB hold any sane set of headers; hyper wants at least 8 KiB.
    pub header_bytes_max: usize,
    /// Time for a request head to arrive, from its first byte. Above: 408. A head is one packet, or two.
    pub header_read_ms: u64,
    /// Time for the next request on an open connection. Above: the connection closes. Longer than clients pool idle connections
    /// (5 s in Python's httpx, 90 s in Go and many Rust programs), so that few meet a closing one.
    pub idle_ms: u64,
    /// Most connections at once. Above: 503 at once, and the connection closes. One costs a descriptor and about 20 KiB.
    pub connections_max: usize,
    /// Most connections at once from one address (for IPv6, from one /64). Above: as above. Half of all, so that one client that went
    /// wild leaves the others room.
    pub connections_per_peer_max: usize,
    /// A comment is sent on a stream that was silent for this long, below the 15 s to 60 s idle limits of common proxies.
    pub keep_alive_ms: u64,
    /// How long the head of a stream is held back for a real status code. Refusals and early failures are known within two
    /// dispatch rounds; a client that waits longer should rather see that it is served. After it, errors come as events.
    pub head_hold_ms: u64,
    /// A client that takes nothing from its full socket for this long is dropped, and its request cancelled.
    pub client_stall_ms: u64,
    /// Time for open requests to end when the front stops. Above: they are cut off.
    pub drain_ms: u64,
}

impl Default for FrontConfig {
    fn default() -> Self {
        Self {
            api_keys_sha256: Vec::new(),
            key_required: false,
            body_bytes_max: BODY_BYTES_MAX,
            body_read_ms: 30_000,
            header_bytes_max: 16 * 1024,
            header_read_ms: 10_000,
            idle_ms: 100_000,
            connections_max: 1_024,
            connections_per_peer_max: 512,
            keep_alive_ms: 5_000,
            head_hold_ms: 3_000,
            client_stall_ms: 30_000,
            drain_ms: 10_000,
        }
    }
}

/// What [`serve`](super::serve()) keeps to on its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most connections at once.
    pub connections_max: usize,
    /// Most of them from one address.
    pub connections_per_peer_max: usize,
    /// Largest request head.
    pub header_bytes_max: usize,
    /// Time for a request head to arrive.
    pub header_read: Duration,
    /// Time for the next request on an open connection.
    pub idle: Duration,
    /// Time without progress after which a client that does not read is dropped.
    pub client_stall: Duration,
    /// Time for open requests to end at a stop.
    pub drain: Duration,
}

/// Settings with which the front cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFront {
    /// Anybody could use it.
    #[error(
        "the HTTP front wants API keys (it listens beyond loopback, or `key_required` is set) and there is none: make one with `cloud-hub key add` or `edge-node key add`, set `api_keys_sha256` (printf %s \"$KEY\" | sha256sum), or bind it to 127.0.0.1"
    )]
    NoKeys,
    /// Not a hash.
    #[error("`api_keys_sha256`, entry {0}: want 64 hexadecimal digits, the SHA-256 of the key and not the key itself")]
    Key(usize),
    /// A number that cannot work.
    #[error("`{field}`: want {min} to {max}")]
    Range {
        /// Which setting.
        field: &'static str,
        /// Least that works.
        min: u64,
        /// Most that works.
        max: u64,
    },
}

/// Longest time that any of the settings may name: a day. Longer is a slip of units.
const DAY_MS: u64 = 24 * 3_600 * 1_000;

impl FrontConfig {
    /// Checks what the types cannot.
    ///
    /// # Errors
    /// [`BadFront`] names the setting.
    pub fn validate(&self) -> Result<(), BadFront> {
        let sizes = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        for (field, value, min, max) in [
            ("body_bytes_max", sizes(self.body_bytes_max), 1, sizes(BODY_BYTES_MAX)),
            ("header_bytes_max", sizes(self.header_bytes_max), 8 * 1024, 1024 * 1024),
            ("connections_max", sizes(self.connections_max), 1, 1_000_000),
            ("connections_per_peer_max", sizes(self.connections_per_peer_max), 1, 1_000_000),
            ("body_read_ms", self.body_read_ms, 1, DAY_MS),
            ("header_read_ms", self.header_read_ms, 1, DAY_MS),
            ("idle_ms", self.idle_ms, 1, DAY_MS),
            ("keep_alive_ms", self.keep_alive_ms, 1, DAY_MS),
            ("head_hold_ms", self.head_hold_ms, 0, DAY_MS),
            ("client_stall_ms", self.client_stall_ms, 1, DAY_MS),
            ("drain_ms", self.drain_ms, 0, DAY_MS),
        ] {
            if !(min..=max).contains(&value) {
                return Err(BadFront::Range { field, min, max });
            }
        }
        Ok(())
    }

    /// The part of the settings that concerns sockets.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            connections_max: self.connections_max,
            header_bytes_max: self.header_bytes_max,
            connections_per_peer_max: self.connections_per_peer_max,
            header_read: Duration::from_millis(self.header_read_ms),
            idle: Duration::from_millis(self.idle_ms),
            client_stall: Duration::from_millis(self.client_stall_ms),
            drain: Duration::from_millis(self.drain_ms),
        }
    }
}

/// The hash of an API key as [`FrontConfig::api_keys_sha256`] wants it.
#[must_use]
pub fn key_sha256(key: &str) -> String {
    hex::encode(Sha256::digest(key.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_good_and_absurd_numbers_are_named() {
        assert_eq!(FrontConfig::default().validate(), Ok(()));
        let bad = FrontConfig { connections_max: 0, ..FrontConfig::default() };
        assert!(bad.validate().expect_err("zero").to_string().contains("connections_max"));
        let bad = FrontConfig { header_bytes_max: 100, ..FrontConfig::default() };
        assert!(bad.validate().expect_err("hyper would panic").to_string().contains("header_bytes_max"));
    }

    #[test]
    fn unknown_settings_are_errors() {
        assert!(serde_json::from_str::<FrontConfig>(r#"{"api_keys": []}"#).is_err());
        assert_eq!(serde_json::from_str::<FrontConfig>("{}").ok(), Some(FrontConfig::default()));
    }
}
