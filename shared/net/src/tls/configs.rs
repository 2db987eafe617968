//! rustls configurations: TLS 1.3 only, ring only, no resumption.
//!
//! A resumed session would skip the check of the certificate, and with it a revocation; a full handshake costs a millisecond.

use super::names::{HUB_NAME, Role, node_of, role_of};
use super::{CertClock, Identity, TlsError};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore, ServerConfig, SignatureScheme,
};
use sha2::{Digest, Sha256};
use shared::ids::NodeId;
use std::sync::Arc;

/// Whom a server lets through the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Members of the fleet only.
    Members,
    /// Also clients without a certificate; what they may do then is to join, and nothing else.
    MembersAndJoiners,
}

pub(super) fn provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

fn trust(authority: &CertificateDer<'_>) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone().into_owned()).map_err(|error| TlsError::Authority(error.to_string()))?;
    Ok(Arc::new(roots))
}

/// Configuration of a server that is `identity` and lets in whom `admit` says.
///
/// # Errors
/// [`TlsError`] when rustls refuses the identity.
pub fn server_config(identity: &Identity, clock: &CertClock, admit: Admit, alpn: &[u8]) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(trust(identity.authority())?, Arc::clone(&provider));
    let verifier = if admit == Admit::Members { verifier } else { verifier.allow_unauthenticated() };
    let verifier = verifier.build().map_err(|error| TlsError::Authority(error.to_string()))?;
    let mut config = ServerConfig::builder_with_details(provider, Arc::new(clock.clone()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.chain(), identity.key())?;
    config.alpn_protocols = if alpn.is_empty() { Vec::new() } else { vec![alpn.to_vec()] };
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Configuration of a client that is `identity` and talks to the member `expected` only, whatever address it was found at.
///
/// # Errors
/// [`TlsError`] when rustls refuses the identity.
pub fn client_config(identity: &Identity, clock: &CertClock, expected: &NodeId, alpn: &[u8]) -> Result<ClientConfig, TlsError> {
    let trusted = Trusted::Member { roots: trust(identity.authority())?, expected: expected.clone() };
    let config = client_builder(clock, trusted)?.with_client_auth_cert(identity.chain(), identity.key())?;
    Ok(finish_client(config, alpn))
}

/// Configuration of a client without a certificate that talks to the hub of one fleet only: the one whose authority has the
/// given SHA-256 (hex), as a join token names it.
///
/// # Errors
/// [`TlsError::Authority`] when the fingerprint is none.
pub fn joining_config(authority_sha256: &str, clock: &CertClock, alpn: &[u8]) -> Result<ClientConfig, TlsError> {
    let mut fingerprint = [0; 32];
    hex::decode_to_slice(authority_sha256, &mut fingerprint)
        .map_err(|error| TlsError::Authority(format!("fingerprint in the token: {error}; want 64 hexadecimal digits")))?;
    let config = client_builder(clock, Trusted::HubOf { fingerprint })?.with_no_client_auth();
    Ok(finish_client(config, alpn))
}

/// Whether a chain leads from its first certificate to `authority`, and is valid at this time.
///
/// # Errors
/// [`TlsError::Rustls`] says what is wrong with it.
pub(super) fn check_chain(chain: &[CertificateDer<'_>], authority: &CertificateDer<'_>, now: UnixTime) -> Result<(), TlsError> {
    let Some((own, intermediates)) = chain.split_first() else { return Err(TlsError::Pem { what: "certificate" }) };
    let parsed = ParsedCertificate::try_from(own)?;
    let roots = trust(authority)?;
    let algorithms = provider().signature_verification_algorithms.all;
    Ok(verify_server_cert_signed_by_trust_anchor(&parsed, &roots, intermediates, now, algorithms)?)
}

type NamedClient = rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>;

fn client_builder(clock: &CertClock, trusted: Trusted) -> Result<NamedClient, TlsError> {
    let provider = Arc::new(provider());
    let verifier = MemberVerifier { provider: Arc::clone(&provider), trusted };
    Ok(ClientConfig::builder_with_details(provider, Arc::new(clock.clone()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier)))
}

fn finish_client(mut config: ClientConfig, alpn: &[u8]) -> ClientConfig {
    config.alpn_protocols = if alpn.is_empty() { Vec::new() } else { vec![alpn.to_vec()] };
    config.resumption = Resumption::disabled();
    config
}

#[derive(Debug)]
enum Trusted {
    /// Exactly this member of the fleet.
    Member { roots: Arc<RootCertStore>, expected: NodeId },
    /// A hub of the fleet whose authority has this SHA-256.
    HubOf { fingerprint: [u8; 32] },
}

/// Checks chain, validity, usage and name of a server. The DNS name of the address is not asked: the member's name is.
#[derive(Debug)]
struct MemberVerifier {
    provider: Arc<CryptoProvider>,
    trusted: Trusted,
}

fn refuse(why: String) -> Error {
    Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(std::io::Error::other(why)))))
}

impl MemberVerifier {
    fn roots(&self, chain: &[CertificateDer<'_>]) -> Result<Arc<RootCertStore>, Error> {
        match &self.trusted {
            Trusted::Member { roots, .. } => Ok(Arc::clone(roots)),
            Trusted::HubOf { fingerprint } => {
                let authority = chain.iter().find(|sent| Sha256::digest(sent).as_slice() == fingerprint);
                let authority = authority.ok_or_else(|| refuse("not the fleet that the token is for".to_owned()))?;
                trust(authority).map_err(|error| refuse(error.to_string()))
            }
        }
    }

    fn check_name(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        match &self.trusted {
            Trusted::Member { expected, .. } => {
                let node = node_of(certificate).map_err(|error| refuse(error.to_string()))?;
                if node == *expected { Ok(()) } else { Err(refuse(format!("`{node}` answers, want `{expected}`"))) }
            }
            Trusted::HubOf { .. } => match role_of(certificate) {
                Ok(Role::Hub) => node_of(certificate).map(|_| ()).map_err(|error| refuse(error.to_string())),
                _ => Err(refuse(format!("a node answers, want the fleet's hub (with `{HUB_NAME}` in its certificate)"))),
            },
        }
    }
}

impl ServerCertVerifier for MemberVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let roots = self.roots(intermediates)?;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, intermediates, now, algorithms)?;
        self.check_name(end_entity)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
