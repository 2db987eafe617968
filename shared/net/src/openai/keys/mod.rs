//! API keys: which are good here, and what each of them has used at this ingress.
//!
//! Keys come from three places: hashes in the configuration, keys of this node alone, and keys of the fleet as the hub tells
//! them. The secrets are kept nowhere. What a key used is counted here and written down by the host; a budget is one for each
//! ingress, since an ingress must be able to judge without any other.

mod account;
mod holder;

pub(super) use holder::{Charge, Holder};

use crate::tls::CertClock;
use holder::Used;
use serde::{Deserialize, Serialize};
use shared::ids::KeyName;
use shared::work::{ClientKey, KeyHash, KeyScope};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// How secrets begin, so that scanners of repositories and logs find one that leaked.
const PREFIX: &str = "tg-";

/// A new secret: 256 bits of chance. To be shown once; keep [`KeyHash::of`] it.
#[must_use]
pub fn new_secret() -> String {
    format!("{PREFIX}{}", hex::encode(rand::random::<[u8; 32]>()))
}

/// Where keys come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeySource {
    /// Hashes in the configuration: no name, no limits.
    Configuration,
    /// Keys of this node alone.
    Node,
    /// Keys of the fleet.
    Fleet,
}

/// Tokens that a key used in a day, as hosts write it down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyUsage {
    /// Which key: by its hash, so that a later one of the same name begins anew.
    pub sha256: KeyHash,
    /// Days since the Unix epoch.
    pub day: u64,
    /// Tokens of prompts and answers.
    pub tokens: u64,
}

/// What a key did since the process began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyCounts {
    /// Requests that came with it.
    pub requests: u64,
    /// Tokens that they used.
    pub tokens: u64,
    /// Those that were refused because of the key, by code.
    pub refusals: BTreeMap<&'static str, u64>,
}

/// The keys that are good at one ingress. Clones lead to the same ones.
#[derive(Clone, Debug)]
pub struct KeyRing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: CertClock,
    known: RwLock<Arc<Known>>,
    sources: Mutex<BTreeMap<KeySource, Vec<ClientKey>>>,
    /// Accounts of all keys that were ever known in this life, and of those that were restored. Bounded: keys are made by
    /// operators only, and at most [`ACCOUNTS_MAX`] are kept.
    accounts: Mutex<BTreeMap<KeyHash, Arc<Mutex<Used>>>>,
    expecting: AtomicBool,
}

/// Accounts that are kept of keys that are no longer known: more than there may be keys, so that nobody gains by a swap.
const ACCOUNTS_MAX: usize = 4 * ClientKey::KEYS_MAX;

/// Sorted by hash.
#[derive(Debug, Default)]
struct Known(Vec<(KeyHash, Arc<Holder>)>);

impl KeyRing {
    /// Without keys. The clock says when keys end and days begin.
    #[must_use]
    pub fn new(clock: CertClock) -> Self {
        Self(Arc::new(Inner {
            clock,
            known: RwLock::default(),
            sources: Mutex::default(),
            accounts: Mutex::default(),
            expecting: AtomicBool::new(false),
        }))
    }

    /// Keys may come later: a listener beyond loopback may open without any, and refuses everybody until then.
    pub fn expect_keys(&self) {
        self.0.expecting.store(true, Ordering::Relaxed);
    }

    pub(super) fn may_open(&self) -> bool {
        self.0.expecting.load(Ordering::Relaxed) || !self.known().0.is_empty()
    }

    /// From now on these are the keys from this source.
    pub fn set(&self, source: KeySource, keys: Vec<ClientKey>) {
        let mut sources = self.0.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.insert(source, keys);
        let mut known = Known::default();
        for key in sources.values().flatten() {
            let holder = Holder::new(key.clone(), self.account(key.sha256), self.0.clock.clone());
            known.0.push((key.sha256, Arc::new(holder)));
        }
        // Of one key from two sources the first source's limits hold: the sort is stable.
        known.0.sort_by_key(|(hash, _)| *hash);
        known.0.dedup_by_key(|(hash, _)| *hash);
        *self.0.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
    }

    /// Hashes of a configuration, as keys without limits that open everything.
    pub(super) fn configure(&self, hashes: &[KeyHash]) {
        let named = |(at, sha256): (usize, &KeyHash)| {
            let name = KeyName::new(&format!("configured-{at}")).ok()?;
            let (services, scope) = (Vec::new(), KeyScope::Admin);
            let limits = (None, None, None);
            Some(ClientKey {
                name,
                sha256: *sha256,
                scope,
                services,
                rate_per_minute: limits.0,
                tokens_per_day: limits.1,
                expires: limits.2,
            })
        };
        self.set(KeySource::Configuration, hashes.iter().enumerate().filter_map(named).collect());
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.0.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn account(&self, hash: KeyHash) -> Arc<Mutex<Used>> {
        let mut accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if accounts.len() >= ACCOUNTS_MAX && !accounts.contains_key(&hash) {
            // Those that nobody holds belong to keys that are gone.
            accounts.retain(|_, used| Arc::strong_count(used) > 1);
        }
        Arc::clone(accounts.entry(hash).or_default())
    }

    /// The key with this secret, if it is known and has not ended.
    ///
    /// The search goes by hash, whose bytes nobody can choose without trying 2^n secrets for n bits: how long it takes tells nothing of
    /// use. The whole hash is then compared in constant time all the same.
    pub(super) fn find(&self, secret: &[u8]) -> Option<Arc<Holder>> {
        let (hash, known) = (KeyHash::of(secret), self.known());
        let at = known.0.binary_search_by_key(&hash, |(known, _)| *known).ok()?;
        let (found, holder) = known.0.get(at)?;
        (equal_in_constant_time(found.bytes(), hash.bytes()) && !holder.ended()).then(|| Arc::clone(holder))
    }

    /// Whether there is any key at all.
    pub(super) fn is_empty(&self) -> bool {
        self.known().0.is_empty()
    }

    /// Whether the key with this secret opens admin APIs; nothing when it is not known. An error is the sentence to show.
    #[must_use]
    pub fn admin(&self, secret: &[u8]) -> Option<Result<(), String>> {
        let holder = self.find(secret)?;
        Some(holder.admin().map_err(|error| {
            holder.refused(error.code);
            error.message
        }))
    }

    /// What was used of each key's day.
    #[must_use]
    pub fn usage(&self) -> Vec<KeyUsage> {
        let accounts = self.0.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        let used = |(sha256, used): (&KeyHash, &Arc<Mutex<Used>>)| {
            let (day, tokens) = used.lock().unwrap_or_else(PoisonError::into_inner).account.used();
            (tokens > 0).then_some(KeyUsage { sha256: *sha256, day, tokens })
        };
        accounts.iter().filter_map(used).collect()
    }

    /// Takes back what an earlier life counted.
    pub fn restore(&self, usage: &[KeyUsage]) {
        for used in usage.iter().take(ACCOUNTS_MAX) {
            let account = self.account(used.sha256);
            account.lock().unwrap_or_else(PoisonError::into_inner).account.restore(used.day, used.tokens);
        }
    }

    /// What each key did, by name.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, KeyCounts> {
        let known = self.known();
        let counts = |(_, holder): &(KeyHash, Arc<Holder>)| {
            let used = holder.used();
            let counts = KeyCounts { requests: used.requests, tokens: used.tokens, refusals: used.refusals.clone() };
            (holder.key.name.to_string(), counts)
        };
        known.0.iter().map(counts).collect()
    }
}

fn equal_in_constant_time(a: &[u8; 32], b: &[u8; 32]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |differ, (x, y)| differ | (x ^ y))) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str, secret: &str) -> ClientKey {
        ClientKey {
            name: KeyName::new(name).expect("a name"),
            sha256: KeyHash::of(secret.as_bytes()),
            scope: KeyScope::Inference,
            services: Vec::new(),
            rate_per_minute: None,
            tokens_per_day: Some(100),
            expires: None,
        }
    }

    #[test]
    fn sources_stand_side_by_side_and_a_revoked_key_is_gone() {
        let ring = KeyRing::new(CertClock::new(0));
        assert!(ring.is_empty() && !ring.may_open());
        ring.set(KeySource::Node, vec![key("a", "tg-a")]);
        ring.set(KeySource::Fleet, vec![key("b", "tg-b"), ClientKey { expires: Some(1), ..key("c", "tg-c") }]);
        assert_eq!(ring.find(b"tg-a").expect("known").name(), "a");
        assert!(ring.find(b"tg-b").is_some() && ring.find(b"tg-c").is_none() && ring.find(b"tg-d").is_none());
        ring.set(KeySource::Fleet, Vec::new());
        assert!(ring.find(b"tg-b").is_none() && ring.find(b"tg-a").is_some());
    }

    #[test]
    fn a_key_keeps_its_past_when_its_limits_change_and_across_a_restart() {
        let ring = KeyRing::new(CertClock::new(0));
        ring.set(KeySource::Fleet, vec![key("a", "tg-a")]);
        let usage = KeyUsage { sha256: KeyHash::of(b"tg-a"), day: u64::MAX / account::DAY_S, tokens: 90 };
        ring.restore(&[usage]);
        ring.set(KeySource::Fleet, vec![ClientKey { tokens_per_day: Some(1_000), ..key("a", "tg-a") }]);
        assert_eq!(ring.usage(), [usage]);
    }

    #[test]
    fn secrets_are_long_and_unlike() {
        let (one, other) = (new_secret(), new_secret());
        assert!(one.starts_with(PREFIX) && one.len() == PREFIX.len() + 64 && one != other);
    }
}
