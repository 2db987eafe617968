//! The certificate, key and authority of one member, in memory and in its state folder.

use super::names::{begin_secs_of, expiry_secs_of, node_of, serial_of};
use super::{CertClock, TlsError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::sign::CertifiedKey;
use shared::ids::NodeId;
use shared::units::Micros;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// One file holds all three parts, so that a crash in the middle of a renewal never leaves a key with another's certificate.
const FILE: &str = "identity.pem";

/// Who this program is: certificate chain, private key, and the fleet's authority.
#[derive(Clone)]
pub struct Identity {
    node: NodeId,
    serial: String,
    /// The member's own certificate first, the authority last: so servers send it, and a joining node can check the authority
    /// against its token.
    chain: Vec<CertificateDer<'static>>,
    authority: CertificateDer<'static>,
    key: Arc<PrivateKeyDer<'static>>,
    pem: String,
}

impl Identity {
    /// From PEM texts: the member's certificate (with intermediates, if there are any), its private key, the authority's
    /// certificate.
    ///
    /// # Errors
    /// [`TlsError`] when a part is missing, the certificate names no node, or the key is not the certificate's.
    pub fn new(certificate: &str, key: &str, authority: &str) -> Result<Self, TlsError> {
        Self::from_pem(format!("{}\n{}\n{}\n", key.trim(), certificate.trim(), authority.trim()))
    }

    fn from_pem(pem: String) -> Result<Self, TlsError> {
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| TlsError::Pem { what: "certificate" })?;
        let [own, .., authority] = chain.as_slice() else {
            return Err(TlsError::Pem { what: "certificate and authority" });
        };
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| TlsError::Pem { what: "private key" })?;
        CertifiedKey::from_der(chain.clone(), key.clone_key(), &super::configs::provider())?.keys_match()?;
        let (node, serial, authority) = (node_of(own)?, serial_of(own)?, authority.clone());
        Ok(Self { node, serial, chain, authority, key: Arc::new(key), pem })
    }

    /// The identity in a state folder, if there is one.
    ///
    /// # Errors
    /// [`TlsError`] when there is one that cannot be used.
    pub fn load(folder: &Path) -> Result<Option<Self>, TlsError> {
        let path = folder.join(FILE);
        match std::fs::read_to_string(&path) {
            Ok(pem) => Self::from_pem(pem).map(Some),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(TlsError::File { doing: "reading the identity from", path, source }),
        }
    }

    /// Writes it to a state folder: readable by its owner only, and whole or not at all.
    ///
    /// # Errors
    /// [`TlsError::File`] when the folder cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), TlsError> {
        let path = folder.join(FILE);
        crate::host::write_private(&path, self.pem.as_bytes()).map_err(|source| TlsError::File {
            doing: "writing the identity to",
            path,
            source,
        })
    }

    /// Removes the identity from a state folder, if there is one.
    ///
    /// # Errors
    /// [`TlsError::File`] when it cannot be removed.
    pub fn forget(folder: &Path) -> Result<(), TlsError> {
        let path = folder.join(FILE);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(TlsError::File { doing: "removing the identity from", path, source })
            }
            _ => Ok(()),
        }
    }

    /// The member's name.
    #[must_use]
    pub const fn node(&self) -> &NodeId {
        &self.node
    }

    /// Serial number of the certificate, as [`serial_of`] gives it.
    #[must_use]
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// How long the certificate is still valid.
    #[must_use]
    pub fn expires_in(&self, clock: &CertClock) -> Micros {
        let until = self.chain.first().and_then(|own| expiry_secs_of(own).ok()).unwrap_or(0);
        Micros::from_secs(until.saturating_sub(clock.secs()))
    }

    /// From when on the certificate is valid, in seconds since the Unix epoch, by the clock of whoever issued it.
    #[must_use]
    pub fn begins_secs(&self) -> u64 {
        self.chain.first().and_then(|own| begin_secs_of(own).ok()).unwrap_or(0)
    }

    /// Whether others of the fleet would accept it: signed by the authority beside it, and valid by this clock.
    ///
    /// # Errors
    /// [`TlsError::Rustls`] says what they would say.
    pub fn check(&self, clock: &CertClock) -> Result<(), TlsError> {
        let now = UnixTime::since_unix_epoch(Duration::from_secs(clock.secs()));
        super::configs::check_chain(&self.chain, &self.authority, now)
    }

    /// The fleet authority's certificate.
    #[must_use]
    pub const fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    pub(super) fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.chain.clone()
    }

    pub(super) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}

/// Never shows the key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("node", &self.node).field("serial", &self.serial).finish_non_exhaustive()
    }
}

/// A fresh ECDSA P-256 key as PEM, and a certificate request (DER) for it. The authority decides every name in the certificate;
/// `name` is only what the node would like to be called.
///
/// # Errors
/// [`TlsError::Request`] when the system gives no random numbers.
pub fn new_key_and_request(name: &str) -> Result<(String, Vec<u8>), TlsError> {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let request = params.serialize_request(&key)?;
    Ok((key.serialize_pem(), request.der().to_vec()))
}
