//! The fleet's certificate authority: who is who on QUIC and MQTT.
//!
//! A node proves that it holds a key (the signature of its signing request) and nothing else: names, uses and times in the
//! certificate are the hub's. Private keys of nodes never come here, and the authority's own key never leaves the state folder.

use crate::clock::UnixTime;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use sha2::{Digest, Sha256};
use shared::ids::NodeId;
use shared_net::host::write_private;
use shared_net::tls::{Identity, Role, TlsError, name_certificate};
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use x509_parser::prelude::{FromDer, X509CertificationRequest};

/// How long the authority lives. Replacing it means joining every node again, so it outlives the hardware.
pub const AUTHORITY_LIFETIME: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// How long the hub's own certificates live; made afresh at each start and renewed while it runs.
pub const HOST_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);
/// How far validity begins in the past, so that a node whose clock is a little behind accepts a fresh certificate.
pub const BACKDATE: Duration = Duration::from_secs(5 * 60);
/// Largest signing request that is read: one with a P-256 key has about 300 bytes. Larger ones are refused unread.
pub const REQUEST_BYTES_MAX: usize = 8 * 1024;
const CERTIFICATE_FILE: &str = "ca.pem";
const KEY_FILE: &str = "ca.key";

/// What went wrong with certificates.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// A file could not be read or written.
    #[error("{doing} {path}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The library refused.
    #[error("{doing}")]
    Crypto {
        /// What was being done.
        doing: &'static str,
        /// What the library said.
        #[source]
        source: rcgen::Error,
    },
    /// The names of a member could not be written into its certificate, or its identity could not be used.
    #[error("making an identity")]
    Identity(#[from] TlsError),
    /// The signing request is no good.
    #[error("the signing request is no good: {0}")]
    BadRequest(&'static str),
    /// There is an authority already.
    #[error("{0} exists: every node trusts this authority, so it is not overwritten")]
    Exists(PathBuf),
}

fn crypto(doing: &'static str) -> impl FnOnce(rcgen::Error) -> CaError {
    move |source| CaError::Crypto { doing, source }
}

/// Serial number of a certificate: 127 random bits (the topmost bit is clear, since serials are positive).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serial(pub u128);

impl Serial {
    fn draw() -> Self {
        // The second-highest bit is set so that the encoding always has sixteen bytes.
        Self((rand::random::<u128>() >> 1) | 1 << 126)
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A certificate that the authority made.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Its number.
    pub serial: Serial,
    /// Itself.
    pub pem: String,
    /// When it ends.
    pub expires: UnixTime,
    /// SHA-256 of the public key in it.
    pub key_sha256: [u8; 32],
}

/// Who the hub is, with the parts as PEM for programs that want files.
#[derive(Clone)]
pub struct HubIdentity {
    /// For the hub's own connections.
    pub identity: Identity,
    /// The certificate.
    pub certificate: Certificate,
    /// Its key, PKCS #8 PEM.
    pub key_pem: String,
}

/// Never shows the key.
impl fmt::Debug for HubIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubIdentity").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// The fleet's certificate authority.
pub struct Authority {
    certificate_pem: String,
    certificate_der: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

/// Never shows the key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("fingerprint", &self.fingerprint()).finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new authority and writes it to the folder. An existing one is never overwritten: every node trusts it.
    ///
    /// # Errors
    /// [`CaError::File`] when there is one already or the folder cannot be written.
    pub fn create(folder: &Path, hub: &NodeId, now: UnixTime) -> Result<Self, CaError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(crypto("making the authority's key"))?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&format!("tidegate fleet of {hub}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let serial = Serial::draw();
        set_validity(&mut params, serial, now, AUTHORITY_LIFETIME);
        let certificate = params.self_signed(&key).map_err(crypto("signing the authority's certificate"))?;
        write_new(&folder.join(KEY_FILE), key.serialize_pem().as_bytes())?;
        write_new(&folder.join(CERTIFICATE_FILE), certificate.pem().as_bytes())?;
        Self::from_parts(certificate.pem(), certificate.der().to_vec(), key)
    }

    /// Reads the authority from the folder.
    ///
    /// # Errors
    /// [`CaError`] names the file that is missing or damaged.
    pub fn open(folder: &Path) -> Result<Self, CaError> {
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read_to_string(&path).map_err(|source| CaError::File { doing: "reading", path, source })
        };
        let key = KeyPair::from_pem(&read(KEY_FILE)?).map_err(crypto("reading the authority's key (ca.key)"))?;
        let pem = read(CERTIFICATE_FILE)?;
        let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes())
            .map_err(|_| CaError::Crypto { doing: "reading ca.pem", source: rcgen::Error::CouldNotParseCertificate })?;
        Self::from_parts(pem, block.contents, key)
    }

    fn from_parts(certificate_pem: String, certificate_der: Vec<u8>, key: KeyPair) -> Result<Self, CaError> {
        let issuer =
            Issuer::from_ca_cert_pem(&certificate_pem, key).map_err(crypto("reading the authority's certificate (ca.pem)"))?;
        Ok(Self { certificate_pem, certificate_der, issuer })
    }

    /// The authority's certificate, PEM: public, and what every node trusts.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// When its certificate ends.
    #[must_use]
    pub fn expires(&self) -> Option<UnixTime> {
        let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(&self.certificate_der).ok()?;
        u64::try_from(parsed.validity().not_after.timestamp()).ok().map(UnixTime)
    }

    /// SHA-256 of the certificate (DER) in hex, as join tokens carry it.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        hex::encode(Sha256::digest(&self.certificate_der))
    }

    /// Issues a certificate for the key in a signing request (DER). Subject and names of the request are ignored.
    ///
    /// # Errors
    /// [`CaError::BadRequest`] when the request is unreadable or not signed by its own key.
    pub fn issue(&self, request: &[u8], node: &NodeId, now: UnixTime, lifetime: Duration) -> Result<Certificate, CaError> {
        let key = proven_key(request)?;
        let mut params = CertificateParams::default();
        name_certificate(&mut params, node, Role::Node)?;
        self.sign(params, &key, now, lifetime)
    }

    /// An identity of the hub with a fresh key, for its own listeners and for its broker. Addresses and host names beyond
    /// the member's are for foreign clients that check the name that they dialled.
    ///
    /// # Errors
    /// [`CaError::Crypto`] when a name cannot stand in a certificate.
    pub fn issue_hub(&self, hub: &NodeId, names: &[String], now: UnixTime) -> Result<HubIdentity, CaError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(crypto("making a key for the hub"))?;
        let mut params = CertificateParams::default();
        name_certificate(&mut params, hub, Role::Hub)?;
        for name in names {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into().map_err(crypto("writing a name into a certificate"))?),
            });
        }
        let certificate = self.sign(params, &key, now, HOST_LIFETIME)?;
        let key_pem = key.serialize_pem();
        let identity = Identity::new(&certificate.pem, &key_pem, &self.certificate_pem)?;
        Ok(HubIdentity { identity, certificate, key_pem })
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        key: &impl PublicKeyData,
        now: UnixTime,
        lifetime: Duration,
    ) -> Result<Certificate, CaError> {
        let serial = Serial::draw();
        let expires = set_validity(&mut params, serial, now, lifetime);
        let certificate = params.signed_by(key, &self.issuer).map_err(crypto("signing a certificate"))?;
        let key_sha256 = Sha256::digest(key.der_bytes()).into();
        Ok(Certificate { serial, pem: certificate.pem(), expires, key_sha256 })
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

/// Returns when it ends.
fn set_validity(params: &mut CertificateParams, serial: Serial, now: UnixTime, lifetime: Duration) -> UnixTime {
    let instant = |at: UnixTime| {
        let seconds = i64::try_from(at.0).unwrap_or(i64::MAX);
        time::OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(time::OffsetDateTime::UNIX_EPOCH)
    };
    let expires = now.plus(lifetime);
    params.not_before = instant(now.minus(BACKDATE));
    params.not_after = instant(expires);
    params.serial_number = Some(SerialNumber::from_slice(&serial.0.to_be_bytes()));
    expires
}

/// The public key of a signing request, once the request's signature shows that its sender holds the private one.
fn proven_key(request: &[u8]) -> Result<SubjectPublicKeyInfo, CaError> {
    if request.len() > REQUEST_BYTES_MAX {
        return Err(CaError::BadRequest("longer than 8 KiB"));
    }
    let (rest, parsed) =
        X509CertificationRequest::from_der(request).map_err(|_| CaError::BadRequest("want a PKCS #10 request in DER"))?;
    if !rest.is_empty() {
        return Err(CaError::BadRequest("bytes after its end"));
    }
    parsed.verify_signature().map_err(|_| CaError::BadRequest("want it signed by the key that it carries"))?;
    SubjectPublicKeyInfo::from_der(parsed.certification_request_info.subject_pki.raw)
        .map_err(|_| CaError::BadRequest("want an ECDSA P-256, P-384 or Ed25519 key"))
}

/// Writes a file that must not exist yet, readable by its owner only.
fn write_new(path: &Path, bytes: &[u8]) -> Result<(), CaError> {
    if path.exists() {
        return Err(CaError::Exists(path.to_owned()));
    }
    write_private(path, bytes).map_err(|source| CaError::File { doing: "writing", path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime as TlsTime, pem::PemObject};
    use std::sync::Arc;
    use x509_parser::prelude::{GeneralName, X509Certificate};

    const NOW: UnixTime = UnixTime(1_800_000_000);
    const MONTH: Duration = Duration::from_secs(30 * 86_400);

    fn node() -> NodeId {
        NodeId::new("eu/site-7/node-2").expect("good")
    }

    fn authority() -> (tempfile::TempDir, Authority) {
        let temp = tempfile::tempdir().expect("temp");
        let authority = Authority::create(temp.path(), &NodeId::new("cloud/hub").expect("good"), NOW).expect("made");
        (temp, authority)
    }

    fn request() -> Vec<u8> {
        let key = KeyPair::generate().expect("key");
        let mut params = CertificateParams::new(vec!["evil.example".to_owned()]).expect("params");
        params.distinguished_name = common_name("cloud.hub");
        params.serialize_request(&key).expect("request").der().to_vec()
    }

    fn der(pem: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
    }

    #[test]
    fn names_in_the_certificate_are_the_hubs() {
        let (_temp, authority) = authority();
        let issued = authority.issue(&request(), &node(), NOW, MONTH).expect("issued");
        let der = der(&issued.pem);
        let (_, parsed) = X509Certificate::from_der(&der).expect("readable");
        let subject = parsed.subject().iter_common_name().map(|name| name.as_str().expect("text")).collect::<Vec<_>>();
        assert_eq!(subject, ["eu.site-7.node-2"]);
        let names = parsed.subject_alternative_name().expect("names").expect("names").value.general_names.clone();
        assert_eq!(names, [GeneralName::URI("tidegate:node:eu/site-7/node-2"), GeneralName::DNSName("tidegate")]);
        assert_eq!(hex::encode(parsed.raw_serial()), issued.serial.to_string());
        assert!(!parsed.is_ca());
        assert_eq!(parsed.validity().not_before.timestamp(), 1_800_000_000 - 300, "a little in the past");
        assert_eq!(parsed.validity().not_after.timestamp(), 1_800_000_000 + 30 * 86_400);
    }

    #[test]
    fn tls_believes_its_own_authority_only_and_only_in_time() {
        let (_temp, ours) = authority();
        let (_other_temp, foreign) = authority();
        let issued = ours.issue(&request(), &node(), NOW, MONTH).expect("issued");
        let verify = |by: &Authority, at: u64| {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(der(by.certificate_pem())).expect("a root");
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier =
                rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().expect("verifier");
            let name = ServerName::try_from("tidegate").expect("name");
            let at = TlsTime::since_unix_epoch(Duration::from_secs(at));
            rustls::client::danger::ServerCertVerifier::verify_server_cert(&*verifier, &der(&issued.pem), &[], &name, &[], at)
        };
        verify(&ours, NOW.0).expect("good");
        verify(&ours, NOW.0 - 200).expect("a clock a little behind");
        verify(&foreign, NOW.0).expect_err("another fleet's");
        verify(&ours, NOW.0 + MONTH.as_secs() + 1).expect_err("expired");
        verify(&ours, NOW.0 - 3_600).expect_err("not yet");
    }

    #[test]
    fn requests_that_prove_nothing_are_refused() {
        let (_temp, authority) = authority();
        let good = request();
        let mut tampered = good.clone();
        let last = tampered.len() - 1;
        tampered[last] ^= 1;
        let mut longer = good.clone();
        longer.push(0);
        for bad in [tampered, longer, good[..good.len() / 2].to_vec(), Vec::new(), vec![0x30; 9_000]] {
            let error = authority.issue(&bad, &node(), NOW, MONTH).expect_err("refused");
            assert!(matches!(error, CaError::BadRequest(_)), "{error}");
        }
    }

    #[test]
    fn serials_differ_and_the_authority_is_never_overwritten() {
        let (temp, authority) = authority();
        let first = authority.issue_hub(&node(), &["127.0.0.1".to_owned(), "hub.local".to_owned()], NOW).expect("issued");
        let second = authority.issue_hub(&node(), &[], NOW).expect("issued");
        assert_ne!(first.certificate.serial, second.certificate.serial);
        Authority::create(temp.path(), &node(), NOW).expect_err("there is one");
        assert_eq!(Authority::open(temp.path()).expect("read").fingerprint(), authority.fingerprint());
        assert!(!format!("{first:?} {authority:?}").contains("PRIVATE"));
    }
}
