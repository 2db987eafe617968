//! Stateless resets: how the peers of a program that was killed notice at once, rather than after the idle timeout.
//!
//! After a restart, packets of old connections arrive that nobody knows. Answered with the token that was agreed on then, they
//! end the peer's connection, and it dials again. The token must be computable without memory of the connection, hence the
//! persisted secret.

use quinn::crypto::HmacKey;
use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const FILE: &str = "reset-secret";
/// Block of SHA-256, in bytes.
const BLOCK: usize = 64;

/// At most a thousand resets a second: a fleet of 2,000 nodes hears of a restart within two keep-alives, and a flood of garbage
/// is not answered one for one.
const RESET_INTERVAL: Duration = Duration::from_millis(1);

/// The secret from which reset tokens are computed. Whoever knows it can end connections, but not read them.
#[derive(Clone)]
pub struct ResetSecret([u8; 32]);

/// The secret could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("keeping the reset secret in `{path}`")]
pub struct ResetSecretError {
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

impl ResetSecret {
    /// A secret for this life only.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The secret of a state folder; drawn and kept there where there is none, or a damaged one.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub fn load(folder: &Path) -> Result<Self, ResetSecretError> {
        let path = folder.join(FILE);
        let failed = |source| ResetSecretError { path: path.clone(), source };
        match std::fs::read(&path) {
            Ok(bytes) => {
                if let Ok(secret) = bytes.try_into() {
                    return Ok(Self(secret));
                }
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
            Err(_) => {}
        }
        let secret = Self::random();
        crate::host::write_private(&path, &secret.0).map_err(failed)?;
        Ok(secret)
    }

    /// quinn's settings with tokens that the next life computes again.
    pub(super) fn endpoint_config(&self) -> EndpointConfig {
        let mut config = EndpointConfig::new(Arc::new(TokenKey(self.0)));
        // The default ids carry a check of this life's own key, and packets without it are not answered at all.
        config.cid_generator(|| Box::new(RandomIds)).min_reset_interval(RESET_INTERVAL);
        config
    }
}

impl std::fmt::Debug for ResetSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ResetSecret(…)")
    }
}

/// Length of our connection ids, in bytes: too many to guess, and few in every packet.
const ID_BYTES: usize = 8;

/// Connection ids without meaning.
struct RandomIds;

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        ConnectionId::new(&rand::random::<[u8; ID_BYTES]>())
    }

    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// HMAC-SHA-256 (RFC 2104) of a key that is no longer than a block.
fn hmac(key: &[u8; 32], data: &[u8]) -> [u8; 32] {
    let pad = |byte: u8| {
        let mut block = [byte; BLOCK];
        block.iter_mut().zip(key).for_each(|(pad, key)| *pad ^= key);
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(data).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}

struct TokenKey([u8; 32]);

impl HmacKey for TokenKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.iter_mut().zip(hmac(&self.0, data)).for_each(|(out, byte)| *out = byte);
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), quinn::crypto::CryptoError> {
        let expected = hmac(&self.0, data);
        let differing = expected.iter().zip(signature).fold(0, |all, (a, b)| all | (a ^ b));
        if differing == 0 && signature.len() == expected.len() { Ok(()) } else { Err(quinn::crypto::CryptoError) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hmac_agrees_with_its_standard() {
        // RFC 4231, test case 1, its 20-byte key padded with zeros, which HMAC does anyway.
        let mut key = [0; 32];
        key[..20].fill(0x0b);
        let expected = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7";
        assert_eq!(hex::encode(hmac(&key, b"Hi There")), expected);
    }

    #[test]
    fn the_secret_is_kept_and_a_damaged_one_replaced() {
        let folder = tempfile::tempdir().expect("folder");
        let first = ResetSecret::load(folder.path()).expect("drawn");
        assert_eq!(ResetSecret::load(folder.path()).expect("kept").0, first.0);
        std::fs::write(folder.path().join(FILE), "short").expect("damaged");
        assert_ne!(ResetSecret::load(folder.path()).expect("drawn again").0, first.0);
    }
}
