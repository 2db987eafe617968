//! Damaged certificates and join tokens.

use crate::dice::Run;
use rustls::pki_types::CertificateDer;
use shared::wire::JoinToken;
use shared_net::tls::{new_key_and_request, node_of, role_of, serial_of};

#[test]
fn damaged_certificates_name_nobody_or_somebody_proper() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = shared::ids::NodeId::new("cloud/hub").expect("good");
    let now = cloud_hub::clock::UnixTime::now(&shared_net::tls::CertClock::new(0));
    cloud_hub::state::StateDir::at(folder.path()).init(&name, "127.0.0.1:0", now).expect("made");
    let authority = cloud_hub::state::StateDir::at(folder.path()).authority().expect("made by init");
    let identity = authority.issue_hub(&name, &[], now).expect("issued").identity;
    let seed = identity.authority().to_vec();
    let (_, request) = new_key_and_request("bay/edge-1").expect("a request");
    let mut run = Run::new("certificates");
    while run.again() {
        let mut bytes = if run.rounds.is_multiple_of(2) { seed.clone() } else { request.clone() };
        let end = bytes.len();
        run.damage(&mut bytes, end);
        let certificate = CertificateDer::from(bytes);
        if let Ok(node) = node_of(&certificate) {
            assert!(!node.as_str().is_empty());
        }
        let _role = role_of(&certificate);
        let _serial = serial_of(&certificate);
    }
}

#[test]
fn damaged_tokens_are_refused() {
    let token = JoinToken {
        address: "127.0.0.1:7443".to_owned(),
        authority_sha256: "ab".repeat(32),
        secret: "cd".repeat(16),
        site: shared::ids::ScopeId::new("bay").expect("good"),
    };
    let text = token.to_string();
    assert_eq!(text.parse::<JoinToken>().expect("its own"), token);
    let mut run = Run::new("tokens");
    while run.again() {
        let mut bytes = text.clone().into_bytes();
        let end = bytes.len();
        run.damage(&mut bytes, end);
        if let Ok(read) = String::from_utf8_lossy(&bytes).parse::<JoinToken>() {
            assert_eq!(read.to_string().parse::<JoinToken>().expect("what was read can be written"), read);
        }
    }
}
