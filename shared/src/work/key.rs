//! Who may ask over HTTP: API keys as they are kept and as they travel, never the secrets themselves.

use crate::ids::{KeyName, ServiceId};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// SHA-256 of an API key's secret.
///
/// A plain hash is right here, unlike for passwords: the secret is 256 bits of chance, so that nobody can try them all, and every
/// request must be checked within microseconds. Without the secret the hash is of no use, so it may travel and be kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KeyHash([u8; 32]);

/// A text that is no hash.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no SHA-256: want 64 hexadecimal digits")]
pub struct BadHash;

impl KeyHash {
    /// The hash of a secret.
    #[must_use]
    pub fn of(secret: &[u8]) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// From hexadecimal digits.
    ///
    /// # Errors
    /// [`BadHash`] unless there are 64 of them.
    pub fn parse(hex: &str) -> Result<Self, BadHash> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(hex, &mut bytes).map_err(|_| BadHash)?;
        Ok(Self(bytes))
    }

    /// The bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl TryFrom<String> for KeyHash {
    type Error = BadHash;
    fn try_from(text: String) -> Result<Self, BadHash> {
        Self::parse(&text)
    }
}

impl From<KeyHash> for String {
    fn from(hash: KeyHash) -> Self {
        hex::encode(hash.0)
    }
}

/// Logs and errors tell keys apart by their names.
impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(…)")
    }
}

/// What a key is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// The OpenAI API.
    #[default]
    Inference,
    /// That, an agent's own pages, and the hub's admin API.
    Admin,
}

/// An API key with its limits. What is absent is not limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientKey {
    /// Its name, in logs, metrics and errors.
    pub name: KeyName,
    /// Hash of its secret.
    pub sha256: KeyHash,
    /// What it is for.
    #[serde(default)]
    pub scope: KeyScope,
    /// Services that it may ask for, by name or alias; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceId>,
    /// Requests a minute at one ingress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_per_minute: Option<u32>,
    /// Tokens of prompts and answers a day (UTC) at one ingress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_day: Option<u64>,
    /// When it ends, in seconds since the Unix epoch. Absolute, as in a certificate and unlike everything else on the wire: it is
    /// compared with the same clock as certificates, and must hold on a node that has not heard of its hub for weeks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

impl ClientKey {
    /// Most keys of one fleet. They ride on views, and these must stay below the largest MQTT payload; further ones are not made.
    pub const KEYS_MAX: usize = 256;
    /// Most services that a key names: more is a key for all of them.
    pub const SERVICES_MAX: usize = 16;
    /// Most requests a minute that a limit may name: beyond it, it limits nothing.
    pub const RATE_PER_MINUTE_MAX: u32 = 1_000_000;

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// The sentence to show.
    pub fn validate(&self) -> Result<(), String> {
        if self.services.len() > Self::SERVICES_MAX {
            return Err(format!(
                "a key for {} services: want at most {}, or none named for all",
                self.services.len(),
                Self::SERVICES_MAX
            ));
        }
        if self.rate_per_minute.is_some_and(|rate| rate == 0 || rate > Self::RATE_PER_MINUTE_MAX) {
            return Err(format!("requests a minute: want 1 to {}, or no limit", Self::RATE_PER_MINUTE_MAX));
        }
        if self.tokens_per_day == Some(0) {
            return Err("tokens a day: want at least 1, or no limit".to_owned());
        }
        Ok(())
    }

    /// Whether it has ended at this time, in seconds since the Unix epoch.
    #[must_use]
    pub fn ended(&self, at: u64) -> bool {
        self.expires.is_some_and(|end| end <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ClientKey {
        ClientKey {
            name: KeyName::new("team/app").expect("a name"),
            sha256: KeyHash::of(b"tg-secret"),
            scope: KeyScope::default(),
            services: Vec::new(),
            rate_per_minute: Some(60),
            tokens_per_day: None,
            expires: Some(7),
        }
    }

    #[test]
    fn a_key_travels_as_its_hash() {
        let json = serde_json::to_string(&key()).expect("JSON");
        assert!(json.contains(&String::from(KeyHash::of(b"tg-secret"))) && !json.contains("tg-secret"), "{json}");
        assert_eq!(serde_json::from_str::<ClientKey>(&json).ok(), Some(key()));
        assert!(!format!("{:?}", key()).contains(&String::from(key().sha256)));
        assert_eq!(KeyHash::parse("00"), Err(BadHash));
    }

    #[test]
    fn limits_that_limit_nothing_are_named() {
        assert_eq!(key().validate(), Ok(()));
        assert!(ClientKey { rate_per_minute: Some(0), ..key() }.validate().is_err());
        assert!(ClientKey { tokens_per_day: Some(0), ..key() }.validate().is_err());
        assert!(key().ended(7) && !key().ended(6));
    }
}
