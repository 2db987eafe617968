//! Who may ask: API keys, and pages of the web that must not reach a keyless listener.

use super::config::{BadFront, FrontConfig};
use super::counters::Endpoint;
use super::error::{ApiError, INVALID, PERMISSION};
use super::keys::{Holder, KeyRing};
use axum::http::header::{AUTHORIZATION, ORIGIN};
use axum::http::{HeaderMap, StatusCode, Uri};
use shared::work::KeyHash;
use std::sync::Arc;

/// Where the listener can be reached from. The caller knows what it bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposure {
    /// Loopback addresses only: whoever can connect is already on the machine, so a key may be left out.
    Loopback,
    /// Anything else: every request needs a key.
    Network,
}

/// Longest key that is hashed. Keys are tens of bytes; hashing megabytes for strangers would be a gift.
const KEY_BYTES_MAX: usize = 512;

/// The check of each request.
#[derive(Clone, Debug)]
pub(super) struct Access {
    ring: KeyRing,
    exposure: Exposure,
    key_required: bool,
}

/// A request that may not be served, and whose key it came with where that is known.
pub(super) type Refused = (ApiError, Option<Arc<Holder>>);

impl Access {
    pub(super) fn new(config: &FrontConfig, exposure: Exposure, ring: KeyRing) -> Result<Self, BadFront> {
        let hash = |(at, hexed): (usize, &String)| KeyHash::parse(hexed).map_err(|_| BadFront::Key(at));
        let hashes = config.api_keys_sha256.iter().enumerate().map(hash).collect::<Result<Vec<_>, _>>()?;
        ring.configure(&hashes);
        let key_required = config.key_required || exposure == Exposure::Network;
        if key_required && !ring.may_open() {
            return Err(BadFront::NoKeys);
        }
        Ok(Self { ring, exposure, key_required })
    }

    /// Whether a request with these headers may be served, and whose key it came with.
    pub(super) fn check(&self, headers: &HeaderMap, endpoint: Endpoint) -> Result<Option<Arc<Holder>>, Refused> {
        let holder = self.holder(headers).map_err(|error| (error, None))?;
        if let Some(holder) = &holder {
            let refused = |error: ApiError| (error, Some(Arc::clone(holder)));
            match endpoint {
                Endpoint::Pages => holder.admin().map_err(refused)?,
                _ if endpoint.infers() => holder.request().map_err(refused)?,
                _ => {}
            }
        }
        Ok(holder)
    }

    fn holder(&self, headers: &HeaderMap) -> Result<Option<Arc<Holder>>, ApiError> {
        match presented(headers) {
            Presented::Nothing if !self.key_required => local_page(headers).map(|()| None),
            // Clients on the machine itself must send something, and some send anything.
            _ if self.exposure == Exposure::Loopback && !self.key_required && self.ring.is_empty() => {
                local_page(headers).map(|()| None)
            }
            Presented::Key(key) => match self.ring.find(key) {
                Some(holder) => Ok(Some(holder)),
                None => Err(unauthorized("this API key is not known here, or it has ended")),
            },
            Presented::Nothing => Err(unauthorized("no API key: send `Authorization: Bearer KEY`")),
            Presented::Garbage => Err(unauthorized("no API key in `Authorization`: want `Bearer KEY`")),
        }
    }
}

enum Presented<'a> {
    Nothing,
    Garbage,
    Key(&'a [u8]),
}

fn presented(headers: &HeaderMap) -> Presented<'_> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Presented::Nothing };
    if values.next().is_some() {
        return Presented::Garbage;
    }
    let bytes = value.as_bytes();
    match bytes.split_at_checked(7) {
        Some((scheme, key)) if scheme.eq_ignore_ascii_case(b"bearer ") && !key.is_empty() && key.len() <= KEY_BYTES_MAX => {
            Presented::Key(key.trim_ascii())
        }
        _ => Presented::Garbage,
    }
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, INVALID, "invalid_api_key", message)
}

/// A browser would let any page of the web post to a listener on its own machine. Pages say where they come from; without a
/// key, only those served by this machine are answered.
fn local_page(headers: &HeaderMap) -> Result<(), ApiError> {
    let foreign = headers.get_all(ORIGIN).iter().any(|origin| !origin.to_str().is_ok_and(is_loopback_origin));
    if foreign {
        let message = "pages from elsewhere may not use a listener without an API key: make a key, and send it";
        return Err(ApiError::new(StatusCode::FORBIDDEN, PERMISSION, "foreign_origin", message));
    }
    Ok(())
}

fn is_loopback_origin(origin: &str) -> bool {
    let Ok(uri) = origin.parse::<Uri>() else { return false };
    uri.host().is_some_and(|host| {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || bare.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::super::config::key_sha256;
    use super::*;
    use crate::tls::CertClock;
    use axum::http::HeaderValue;

    fn ring() -> KeyRing {
        KeyRing::new(CertClock::new(0))
    }

    fn access(exposure: Exposure, keys: &[&str]) -> Access {
        let config = FrontConfig { api_keys_sha256: keys.iter().map(|key| key_sha256(key)).collect(), ..FrontConfig::default() };
        Access::new(&config, exposure, ring()).expect("good settings")
    }

    impl Access {
        fn judge(&self, headers: &HeaderMap) -> Result<(), ApiError> {
            self.check(headers, Endpoint::Models).map(drop).map_err(|(error, _)| error)
        }
    }

    fn with(name: &'static str, values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_bytes(value).expect("a header can hold it"));
        }
        headers
    }

    #[test]
    fn the_network_needs_a_key() {
        assert_eq!(Access::new(&FrontConfig::default(), Exposure::Network, ring()).err(), Some(BadFront::NoKeys));
        let access = access(Exposure::Network, &["sk-one", "sk-two"]);
        assert_eq!(access.judge(&with("authorization", &[b"Bearer sk-two"])), Ok(()));
        assert_eq!(access.judge(&with("authorization", &[b"bearer sk-one"])), Ok(()));
        let long = [b"Bearer ".as_slice(), &[b'x'; 5_000]].concat();
        let garbage: [&[&[u8]]; 9] = [
            &[],
            &[b""],
            &[b"Bearer"],
            &[b"Bearer "],
            &[b"Bearer sk-three"],
            &[b"Basic sk-one"],
            &[b"Bearer \xff\xfe\x80"],
            &[&long],
            &[b"Bearer sk-one", b"Bearer sk-one"],
        ];
        for values in garbage {
            let error = access.judge(&with("authorization", values)).expect_err("refused");
            assert_eq!((error.status, error.code), (StatusCode::UNAUTHORIZED, "invalid_api_key"), "{values:?}");
        }
    }

    #[test]
    fn loopback_takes_none_or_a_right_one() {
        let open = access(Exposure::Loopback, &[]);
        assert_eq!(open.judge(&HeaderMap::new()), Ok(()));
        assert_eq!(open.judge(&with("authorization", &[b"Bearer anything"])), Ok(()));
        let keyed = access(Exposure::Loopback, &["sk-one"]);
        assert_eq!(keyed.judge(&HeaderMap::new()), Ok(()));
        assert!(keyed.judge(&with("authorization", &[b"Bearer wrong"])).is_err(), "a wrong key is a mistake to be told");
        let strict = FrontConfig { key_required: true, ..FrontConfig::default() };
        assert_eq!(Access::new(&strict, Exposure::Loopback, ring()).err(), Some(BadFront::NoKeys));
        let later = ring();
        later.expect_keys();
        let strict = Access::new(&strict, Exposure::Loopback, later).expect("keys may come");
        assert!(strict.judge(&HeaderMap::new()).is_err() && strict.judge(&with("authorization", &[b"Bearer x"])).is_err());
    }

    #[test]
    fn pages_of_the_web_do_not_reach_loopback() {
        let open = access(Exposure::Loopback, &[]);
        for origin in ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:80"] {
            assert_eq!(open.judge(&with("origin", &[origin.as_bytes()])), Ok(()), "{origin}");
        }
        for origin in ["https://example.org", "null", "http://localhost.example.org", "\u{fc}"] {
            assert!(open.judge(&with("origin", &[origin.as_bytes()])).is_err(), "{origin}");
        }
    }

    #[test]
    fn settings_without_hashes_are_refused() {
        let plain = FrontConfig { api_keys_sha256: vec!["sk-plain".to_owned()], ..FrontConfig::default() };
        assert_eq!(Access::new(&plain, Exposure::Loopback, ring()).err(), Some(BadFront::Key(0)));
    }
}
