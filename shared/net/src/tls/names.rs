//! The names in a certificate: written by the hub's authority, read by everybody.

use super::TlsError;
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose as Usage, IsCa, KeyUsagePurpose, SanType};
use rustls::pki_types::CertificateDer;
use shared::ids::NodeId;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Starts the URI that names every member.
const NODE_URI: &str = "tidegate:node:";
/// The DNS name in every certificate, for clients that insist on one.
pub const SERVER_NAME: &str = "tidegate";
/// The second DNS name, which only a hub's certificate carries. Every member may listen, so without this mark any member could
/// pose as the hub to a machine that joins, and take the secret of its token.
pub const HUB_NAME: &str = "hub.tidegate";

/// What a certificate's holder is in the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The authority's own server.
    Hub,
    /// An agent.
    Node,
}

/// Makes `params` those of a member's certificate: names, usages, no authority. Validity and serial number stay the caller's.
///
/// The common name is [`NodeId::topic_level`], which brokers that know no alternative names take as user name.
///
/// # Errors
/// [`TlsError::Request`] for a name that no certificate can hold, which no [`NodeId`] is.
pub fn name_certificate(params: &mut CertificateParams, node: &NodeId, role: Role) -> Result<(), TlsError> {
    let mut names = vec![SanType::URI(format!("{NODE_URI}{node}").try_into()?), SanType::DnsName(SERVER_NAME.try_into()?)];
    if role == Role::Hub {
        names.push(SanType::DnsName(HUB_NAME.try_into()?));
    }
    params.subject_alt_names = names;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, node.topic_level());
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![Usage::ServerAuth, Usage::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(())
}

/// The member that a certificate names. Does not say that the certificate is trusted.
///
/// # Errors
/// [`TlsError::Nameless`] without exactly one proper name, [`TlsError::Unreadable`] for what is no certificate.
pub fn node_of(certificate: &CertificateDer<'_>) -> Result<NodeId, TlsError> {
    let parsed = parse(certificate)?;
    let names = parsed.subject_alternative_name().map_err(|error| TlsError::Unreadable(error.to_string()))?;
    let mut found = names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::URI(uri) => uri.strip_prefix(NODE_URI),
        _ => None,
    });
    match (found.next().map(NodeId::new), found.next()) {
        (Some(Ok(node)), None) => Ok(node),
        _ => Err(TlsError::Nameless),
    }
}

/// What the holder of a certificate is. Does not say that the certificate is trusted.
///
/// # Errors
/// [`TlsError::Unreadable`] for what is no certificate.
pub fn role_of(certificate: &CertificateDer<'_>) -> Result<Role, TlsError> {
    let parsed = parse(certificate)?;
    let names = parsed.subject_alternative_name().map_err(|error| TlsError::Unreadable(error.to_string()))?;
    let mut all = names.iter().flat_map(|names| &names.value.general_names);
    let hub = all.any(|name| matches!(name, GeneralName::DNSName(HUB_NAME)));
    Ok(if hub { Role::Hub } else { Role::Node })
}

/// Serial number in lower-case hex without leading zeros: the form in which revocations are listed.
///
/// # Errors
/// [`TlsError::Unreadable`] for what is no certificate.
pub fn serial_of(certificate: &CertificateDer<'_>) -> Result<String, TlsError> {
    let serial = parse(certificate)?.tbs_certificate.raw_serial().to_vec();
    let digits = hex::encode(serial);
    let trimmed = digits.trim_start_matches('0');
    Ok(if trimmed.is_empty() { "0".to_owned() } else { trimmed.to_owned() })
}

/// Until when a certificate is valid, in seconds since the Unix epoch.
pub(super) fn expiry_secs_of(certificate: &CertificateDer<'_>) -> Result<u64, TlsError> {
    Ok(u64::try_from(parse(certificate)?.validity().not_after.timestamp()).unwrap_or(0))
}

/// From when on a certificate is valid, in seconds since the Unix epoch.
pub(super) fn begin_secs_of(certificate: &CertificateDer<'_>) -> Result<u64, TlsError> {
    Ok(u64::try_from(parse(certificate)?.validity().not_before.timestamp()).unwrap_or(0))
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, TlsError> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err(TlsError::Unreadable("bytes after its end".to_owned())),
        Err(error) => Err(TlsError::Unreadable(error.to_string())),
    }
}
