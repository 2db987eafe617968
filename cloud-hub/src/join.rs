//! How a machine becomes a node: join tokens, first certificates, renewals.
//!
//! All in one transaction: a token is used, the node is registered and its certificate is kept, or nothing happened at all.

use crate::ca::{Authority, CaError, Certificate};
use crate::clock::UnixTime;
use crate::store::{Db, NewToken, StoreError, registry, tokens};
use sha2::{Digest, Sha256};
use shared::ids::{NodeId, ScopeId};
use shared::units::Micros;
use shared::wire::JoinToken;
use shared::wire::frame::{Issued, Join};
use std::collections::BTreeMap;
use std::time::Duration;

/// Most nodes that one token may let in. A batch for a larger fleet takes several tokens, so that a leaked one has an end.
pub const USES_MAX: u32 = 10_000;
/// Longest life of a token. A longer one is a standing invitation.
pub const LIFETIME_MAX: Duration = Duration::from_secs(90 * 24 * 3600);
/// Most labels of a token, and the longest label: they travel in inventories and views.
pub const LABELS_MAX: usize = 32;
const LABEL_BYTES_MAX: usize = 64;

/// Why a machine may not join, in words for its operator. What an attacker could learn from is worded alike.
#[derive(Debug, thiserror::Error)]
pub enum Denied {
    /// The secret is not known: wrong, of another fleet, or long expired.
    #[error("this fleet does not know the token: want a fresh one of this hub, from `cloud-hub token`")]
    UnknownToken,
    /// Too late.
    #[error("the token has expired: make a new one with `cloud-hub token`")]
    Expired,
    /// No use left.
    #[error("the token has been used as often as it allows: make a new one with `cloud-hub token`")]
    Used,
    /// Thrown out.
    #[error("`{0}` was revoked: join again with a fresh token from `cloud-hub token`")]
    Revoked(NodeId),
    /// No name for a node.
    #[error("`{name}` cannot be the node's name: {why}")]
    Name {
        /// The wished name, shortened.
        name: String,
        /// What would be right.
        why: String,
    },
    /// There is such a node.
    #[error("`{0}` is in the fleet already: choose another name, or first throw it out with `cloud-hub revoke {0}`")]
    Taken(NodeId),
    /// The signing request is no good.
    #[error(transparent)]
    Request(#[from] CaError),
    /// The hub could not write. The cause is in its log.
    #[error("the hub could not register the node: see its log")]
    Store(#[from] StoreError),
}

impl Denied {
    /// A short stable code for metrics.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownToken => "unknown_token",
            Self::Expired => "expired",
            Self::Used => "used",
            Self::Revoked(_) => "revoked",
            Self::Name { .. } => "bad_name",
            Self::Taken(_) => "taken",
            Self::Request(_) => "bad_request",
            Self::Store(_) => "store",
        }
    }
}

/// A token that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BadTokenOrder {
    /// A number outside what makes sense.
    #[error("{what}: want {want}")]
    Range {
        /// Which.
        what: &'static str,
        /// What would be right.
        want: String,
    },
    /// The database refused.
    #[error("making a join token")]
    Store(#[from] StoreError),
}

/// What an operator asks for when making a token.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenOrder {
    /// Where nodes that join with it stand.
    pub site: ScopeId,
    /// Labels that they get.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// How many nodes may join with it.
    pub count: u32,
    /// For how long, in seconds.
    pub lifetime_s: u64,
    /// `host:port` to print into the token instead of the hub's own, for nodes that reach it another way.
    #[serde(default)]
    pub address: Option<String>,
}

/// Makes a token. Its secret is in the answer only; the store keeps a hash.
///
/// # Errors
/// [`BadTokenOrder`] says what would be right.
pub fn make_token(db: &mut Db, authority: &Authority, order: TokenOrder, now: UnixTime) -> Result<JoinToken, BadTokenOrder> {
    check(&order)?;
    let secret: [u8; 32] = rand::random();
    let expires = now.plus(Duration::from_secs(order.lifetime_s));
    let token = NewToken { site: order.site.clone(), labels: order.labels, uses: order.count, expires };
    let address = match order.address {
        Some(address) => address,
        None => db.meta()?.address,
    };
    if address.ends_with(":0") {
        return Err(BadTokenOrder::Range { what: "address", want: "a hub that runs, since its port is not fixed".to_owned() });
    }
    db.add_token(&hash(&secret), &token, now)?;
    Ok(JoinToken { address, authority_sha256: authority.fingerprint(), secret: hex::encode(secret), site: order.site })
}

fn check(order: &TokenOrder) -> Result<(), BadTokenOrder> {
    let range = |what, want: String| Err(BadTokenOrder::Range { what, want });
    if order.count == 0 || order.count > USES_MAX {
        return range("count", format!("1 to {USES_MAX} nodes"));
    }
    if order.lifetime_s == 0 || order.lifetime_s > LIFETIME_MAX.as_secs() {
        return range("expiry", format!("1 second to {} days", LIFETIME_MAX.as_secs() / 86_400));
    }
    let long = |text: &String| text.is_empty() || text.len() > LABEL_BYTES_MAX;
    if order.labels.len() > LABELS_MAX || order.labels.iter().any(|(key, value)| long(key) || long(value)) {
        return range("labels", format!("at most {LABELS_MAX}, each key and value of 1 to {LABEL_BYTES_MAX} bytes"));
    }
    if order.address.as_deref().is_some_and(|address| !crate::config::is_host_and_port(address)) {
        return range("address", "`host:port`".to_owned());
    }
    Ok(())
}

fn hash(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// A node that was let in.
#[derive(Clone, Debug)]
pub struct Joined {
    /// Who it is now.
    pub node: NodeId,
    /// Its certificate.
    pub certificate: Certificate,
    /// Labels from the token.
    pub labels: BTreeMap<String, String>,
}

/// Lets a machine in.
///
/// A machine that lost the answer may ask again: the same key with the same token for the same name gets another certificate
/// without using the token again.
///
/// # Errors
/// [`Denied`] in words for the machine's operator.
pub fn join(
    db: &mut Db,
    authority: &Authority,
    hub: &NodeId,
    join: &Join,
    now: UnixTime,
    lifetime: Duration,
) -> Result<Joined, Denied> {
    let secret = hex::decode(&join.secret).map_err(|_| Denied::UnknownToken)?;
    let token_sha256 = hash(&secret);
    let transaction = db.durable.transaction().map_err(crate::store::doing("letting a node in"))?;
    let token = tokens::find(&transaction, &token_sha256)?.ok_or(Denied::UnknownToken)?;
    if token.expires <= now {
        return Err(Denied::Expired);
    }
    let node = wished_name(&token.site, &join.name, hub)?;
    let certificate = authority.issue(&join.request, &node, now, lifetime)?;
    let proof = registry::Proof { key_sha256: certificate.key_sha256, token: token_sha256 };
    if !registry::joined_by(&transaction, &node, &proof)? {
        // In this order, so that a wrong name does not use up the token.
        if registry::find(&transaction, &node)?.is_some_and(|row| row.revoked.is_none()) {
            return Err(if token.uses_left == 0 { Denied::Used } else { Denied::Taken(node) });
        }
        if !tokens::consume(&transaction, &token_sha256)? {
            return Err(Denied::Used);
        }
        registry::add(&transaction, &node, &token.labels, Some(&proof), now)?;
    }
    registry::add_certificate(&transaction, &node, &certificate.serial.to_string(), certificate.expires)?;
    transaction.commit().map_err(crate::store::doing("letting a node in"))?;
    Ok(Joined { node, certificate, labels: token.labels })
}

/// A node that showed its certificate.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Who it is.
    pub node: &'a NodeId,
    /// Number of the certificate in hex.
    pub serial: &'a str,
}

/// A fresh certificate for a node that showed its present one.
///
/// # Errors
/// [`Denied`] in words for the machine's operator.
pub fn renew(
    db: &mut Db,
    authority: &Authority,
    shown: Shown<'_>,
    request: &[u8],
    now: UnixTime,
    lifetime: Duration,
) -> Result<Joined, Denied> {
    let node = shown.node;
    let row = db.node(node)?;
    // A node that was thrown out and joined again has good certificates; the old ones buy nothing.
    if row.as_ref().is_some_and(|row| row.revoked.is_some()) || db.is_revoked(shown.serial)? {
        return Err(Denied::Revoked(node.clone()));
    }
    let certificate = authority.issue(request, node, now, lifetime)?;
    db.add_certificate(node, &certificate)?;
    Ok(Joined { node: node.clone(), certificate, labels: row.map(|row| row.labels).unwrap_or_default() })
}

impl Joined {
    /// As it travels.
    #[must_use]
    pub fn issued(self, authority: &Authority, hub: &NodeId, now: UnixTime) -> Issued {
        Issued {
            node: self.node,
            hub: hub.clone(),
            authority: authority.certificate_pem().to_owned(),
            labels: self.labels,
            expires_in: Micros::from_secs(now.until(self.certificate.expires).as_secs()),
            certificate: self.certificate.pem,
        }
    }
}

fn wished_name(site: &ScopeId, name: &str, hub: &NodeId) -> Result<NodeId, Denied> {
    let bad = |why: String| Denied::Name { name: name.chars().take(40).collect(), why };
    if name.contains('/') {
        return Err(bad("want one name without slashes; the site comes from the token".to_owned()));
    }
    let node = NodeId::new(&format!("{site}/{name}")).map_err(|error| bad(error.why.to_owned()))?;
    if node == *hub { Err(bad("it is the hub's own".to_owned())) } else { Ok(node) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{RecordLimits, Store};

    const NOW: UnixTime = UnixTime(1_800_000_000);
    const MONTH: Duration = Duration::from_secs(30 * 86_400);

    struct Fleet {
        _temp: tempfile::TempDir,
        db: Db,
        authority: Authority,
        hub: NodeId,
    }

    impl Fleet {
        fn new() -> Self {
            let temp = tempfile::tempdir().expect("temp");
            let hub = NodeId::new("cloud/hub").expect("good");
            let authority = Authority::create(temp.path(), &hub, NOW).expect("made");
            let path = temp.path().join("hub.db");
            Store::create(&path, &hub, "h:1", NOW).expect("made");
            let db = Db::open(&path, RecordLimits::default()).expect("open");
            Self { _temp: temp, db, authority, hub }
        }

        fn token(&mut self, count: u32) -> JoinToken {
            let site = ScopeId::new("eu/site-7").expect("good");
            let labels = BTreeMap::from([("gpu".to_owned(), "yes".to_owned())]);
            let order = TokenOrder { site, labels, count, lifetime_s: 3_600, address: None };
            make_token(&mut self.db, &self.authority, order, NOW).expect("made")
        }

        fn join(&mut self, token: &JoinToken, name: &str, request: &[u8], now: UnixTime) -> Result<Joined, Denied> {
            let asked = Join { secret: token.secret.clone(), name: name.to_owned(), request: request.to_vec() };
            join(&mut self.db, &self.authority, &self.hub, &asked, now, MONTH)
        }
    }

    fn request() -> Vec<u8> {
        let key = rcgen::KeyPair::generate().expect("key");
        rcgen::CertificateParams::default().serialize_request(&key).expect("request").der().to_vec()
    }

    #[test]
    fn a_token_lets_in_as_many_nodes_as_it_says() {
        let mut fleet = Fleet::new();
        let token = fleet.token(2);
        let first = fleet.join(&token, "node-1", &request(), NOW).expect("in");
        assert_eq!(first.node.as_str(), "eu/site-7/node-1");
        assert_eq!(first.labels.get("gpu").map(String::as_str), Some("yes"));
        fleet.join(&token, "node-2", &request(), NOW).expect("in");
        assert!(matches!(fleet.join(&token, "node-3", &request(), NOW), Err(Denied::Used)));
        let names: Vec<_> = fleet.db.nodes().expect("read").into_iter().map(|row| row.node.to_string()).collect();
        assert_eq!(names, ["eu/site-7/node-1", "eu/site-7/node-2"]);
    }

    #[test]
    fn what_a_token_does_not_allow_is_denied_and_changes_nothing() {
        let mut fleet = Fleet::new();
        let token = fleet.token(1);
        let late = UnixTime(NOW.0 + 3_600);
        assert!(matches!(fleet.join(&token, "node-1", &request(), late), Err(Denied::Expired)));
        for name in ["", "A", "a/b", "a b", "-a", "a.b"] {
            assert!(matches!(fleet.join(&token, name, &request(), NOW), Err(Denied::Name { .. })), "{name}");
        }
        assert!(matches!(fleet.join(&token, "node-1", b"garbage", NOW), Err(Denied::Request(_))));
        let foreign = Fleet::new().token(1);
        let unknown = JoinToken { secret: "00".repeat(32), ..foreign.clone() };
        let garbage = JoinToken { secret: "secret".to_owned(), ..foreign.clone() };
        let texts: Vec<_> = [foreign, unknown, garbage]
            .iter()
            .map(|token| fleet.join(token, "node-1", &request(), NOW).expect_err("denied").to_string())
            .collect();
        assert!(texts.iter().all(|text| *text == texts[0]), "unknown and foreign sound alike: {texts:?}");
        assert!(fleet.db.nodes().expect("read").is_empty());
        fleet.join(&token, "node-1", &request(), NOW).expect("the token is still good");
    }

    #[test]
    fn a_taken_name_is_denied_until_its_node_is_revoked() {
        let mut fleet = Fleet::new();
        let token = fleet.token(3);
        let first = fleet.join(&token, "node-1", &request(), NOW).expect("in");
        let (node, serial) = (first.node, first.certificate.serial.to_string());
        let old = Shown { node: &node, serial: &serial };
        let error = fleet.join(&token, "node-1", &request(), NOW).expect_err("taken");
        assert!(error.to_string().contains("cloud-hub revoke eu/site-7/node-1"), "{error}");
        assert!(fleet.db.revoke(&node, NOW).expect("written"));
        assert_eq!(fleet.db.revoked_serials(NOW).expect("read").len(), 1);
        assert!(matches!(renew(&mut fleet.db, &fleet.authority, old, &request(), NOW, MONTH), Err(Denied::Revoked(_))));
        let again = fleet.join(&token, "node-1", &request(), NOW).expect("free again");
        assert!(matches!(renew(&mut fleet.db, &fleet.authority, old, &request(), NOW, MONTH), Err(Denied::Revoked(_))));
        let good = fleet.db.certificates(&node).expect("read");
        assert_eq!(good.iter().map(|one| one.serial.clone()).collect::<Vec<_>>(), [again.certificate.serial.to_string()]);
    }

    #[test]
    fn a_lost_answer_can_be_asked_for_again() {
        let mut fleet = Fleet::new();
        let token = fleet.token(1);
        let same = request();
        fleet.join(&token, "node-1", &same, NOW).expect("in");
        fleet.join(&token, "node-1", &same, NOW).expect("the same machine asks again");
        assert!(matches!(fleet.join(&token, "node-2", &same, NOW), Err(Denied::Used)), "but not for another name");
        assert!(matches!(fleet.join(&token, "node-1", &request(), NOW), Err(Denied::Used)), "nor with another key");
    }

    #[test]
    fn absurd_orders_are_refused_by_name() {
        let mut fleet = Fleet::new();
        let site = ScopeId::new("eu").expect("good");
        let good = TokenOrder { site, labels: BTreeMap::new(), count: 1, lifetime_s: 60, address: None };
        for (bad, what) in [
            (TokenOrder { count: 0, ..good.clone() }, "count"),
            (TokenOrder { count: USES_MAX + 1, ..good.clone() }, "count"),
            (TokenOrder { lifetime_s: u64::MAX, ..good.clone() }, "expiry"),
            (TokenOrder { address: Some("nowhere".to_owned()), ..good.clone() }, "address"),
            (TokenOrder { labels: BTreeMap::from([("k".to_owned(), "v".repeat(65))]), ..good.clone() }, "labels"),
        ] {
            let error = make_token(&mut fleet.db, &fleet.authority, bad, NOW).expect_err("refused").to_string();
            assert!(error.starts_with(what), "{error}");
        }
        let made = make_token(&mut fleet.db, &fleet.authority, good, NOW).expect("made");
        assert_eq!(made.to_string().parse::<JoinToken>().expect("a token"), made);
    }
}
