//! A fleet's authority in memory, for the tests of this crate. The real one is the hub's.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use sha2::{Digest, Sha256};
use shared::fleet::Transport;
use shared::ids::NodeId;
use shared_net::link::{Endpoint, Link, ResetSecret};
use shared_net::tls::{Admit, CertClock, Identity, Role, name_certificate, new_key_and_request};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use time::OffsetDateTime;

pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

pub(crate) struct Fleet {
    certificate: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
    pub(crate) clock: CertClock,
}

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a good name")
}

pub(crate) fn local() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Waits for a future, and fails the test rather than hanging.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("{what}: nothing within {DEADLINE:?}"))
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

impl Fleet {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("key");
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "a fleet");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).expect("certificate");
        Self { certificate, issuer: Issuer::new(params, key), clock: CertClock::new(0) }
    }

    pub(crate) fn authority(&self) -> String {
        self.certificate.pem()
    }

    pub(crate) fn sha256(&self) -> String {
        hex::encode(Sha256::digest(self.certificate.der()))
    }

    /// The certificate that the authority makes for a request, valid for so many seconds from an hour ago.
    pub(crate) fn sign(&self, request: &[u8], name: &NodeId, role: Role, secs: i64) -> String {
        let request = CertificateSigningRequestParams::from_der(&request.to_vec().into()).expect("request");
        let mut params = CertificateParams::default();
        name_certificate(&mut params, name, role).expect("names");
        params.not_before = OffsetDateTime::now_utc() - time::Duration::HOUR;
        params.not_after = params.not_before + time::Duration::seconds(secs);
        params.signed_by(&request.public_key, &self.issuer).expect("signed").pem()
    }

    pub(crate) fn member(&self, name: &str, role: Role) -> Identity {
        self.member_for(name, role, 7_200)
    }

    pub(crate) fn member_for(&self, name: &str, role: Role, secs: i64) -> Identity {
        let name = node(name);
        let (key, request) = new_key_and_request("whatever").expect("key");
        Identity::new(&self.sign(&request, &name, role, secs), &key, &self.authority()).expect("identity")
    }

    pub(crate) fn endpoint(&self, identity: &Identity, admit: Admit) -> Endpoint {
        Endpoint::bind(local(), identity, admit, &self.clock, &ResetSecret::random()).expect("endpoint")
    }
}

/// Two members of one fleet with a connection: the dialling end first.
pub(crate) struct Pair {
    pub(crate) fleet: Fleet,
    pub(crate) ends: (Endpoint, Endpoint),
    pub(crate) links: (Link, Link),
}

impl Pair {
    pub(crate) async fn new(by: Transport) -> Self {
        let fleet = Fleet::new();
        let a = fleet.endpoint(&fleet.member("site/a", Role::Node), Admit::Members);
        let b = fleet.endpoint(&fleet.member("site/b", Role::Node), Admit::Members);
        let links = connect(&a, &b, "site/b", by).await;
        Self { fleet, ends: (a, b), links }
    }
}

pub(crate) async fn connect(from: &Endpoint, to: &Endpoint, name: &str, by: Transport) -> (Link, Link) {
    let mut acceptor = to.acceptor();
    let expected = node(name);
    let dial = from.connect(to.local_addr().expect("address"), &expected, by);
    let (dialled, accepted) = soon("connecting", async { tokio::join!(dial, acceptor.next()) }).await;
    (dialled.expect("dialled"), accepted.expect("accepted"))
}
