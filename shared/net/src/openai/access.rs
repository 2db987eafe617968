//! Who may ask: API keys, and pages of the web that must not reach a keyless listener.

use super::config::{BadFront, FrontConfig};
use super::error::{ApiError, INVALID, PERMISSION};
use axum::http::header::{AUTHORIZATION, ORIGIN};
use axum::http::{HeaderMap, StatusCode, Uri};
use sha2::{Digest, Sha256};

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
    keys: Vec<[u8; 32]>,
    exposure: Exposure,
}

impl Access {
    pub(super) fn new(config: &FrontConfig, exposure: Exposure) -> Result<Self, BadFront> {
        let mut keys = Vec::new();
        for (i, hexed) in config.api_keys_sha256.iter().enumerate() {
            let mut key = [0; 32];
            hex::decode_to_slice(hexed, &mut key).map_err(|_| BadFront::Key(i))?;
            keys.push(key);
        }
        if keys.is_empty() && exposure == Exposure::Network {
            return Err(BadFront::NoKeys);
        }
        Ok(Self { keys, exposure })
    }

    /// Whether a request with these headers may be served.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        match (self.exposure, presented(headers)) {
            (Exposure::Loopback, Presented::Nothing) => local_page(headers),
            (Exposure::Loopback, _) if self.keys.is_empty() => local_page(headers),
            (_, Presented::Key(key)) if self.knows(key) => Ok(()),
            (_, Presented::Nothing) => Err(unauthorized("no API key: send `Authorization: Bearer KEY`")),
            _ => Err(unauthorized("this API key is not known here")),
        }
    }

    /// Every known hash is compared in full, so that the time taken tells nothing about them.
    fn knows(&self, key: &[u8]) -> bool {
        let hash: [u8; 32] = Sha256::digest(key).into();
        self.keys.iter().fold(false, |known, other| known | equal_in_constant_time(&hash, other))
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

fn equal_in_constant_time(a: &[u8; 32], b: &[u8; 32]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |differ, (x, y)| differ | (x ^ y))) == 0
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, INVALID, "invalid_api_key", message)
}

/// A browser would let any page of the web post to a listener on its own machine. Pages say where they come from; without a
/// key, only those served by this machine are answered.
fn local_page(headers: &HeaderMap) -> Result<(), ApiError> {
    let foreign = headers.get_all(ORIGIN).iter().any(|origin| !origin.to_str().is_ok_and(is_loopback_origin));
    if foreign {
        let message = "pages from elsewhere may not use a listener without an API key: set `api_keys_sha256`, and send a key";
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
    use axum::http::HeaderValue;

    fn access(exposure: Exposure, keys: &[&str]) -> Access {
        let config = FrontConfig { api_keys_sha256: keys.iter().map(|key| key_sha256(key)).collect(), ..FrontConfig::default() };
        Access::new(&config, exposure).expect("good settings")
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
        assert_eq!(Access::new(&FrontConfig::default(), Exposure::Network).err(), Some(BadFront::NoKeys));
        let access = access(Exposure::Network, &["sk-one", "sk-two"]);
        assert_eq!(access.check(&with("authorization", &[b"Bearer sk-two"])), Ok(()));
        assert_eq!(access.check(&with("authorization", &[b"bearer sk-one"])), Ok(()));
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
            let error = access.check(&with("authorization", values)).expect_err("refused");
            assert_eq!((error.status, error.code), (StatusCode::UNAUTHORIZED, "invalid_api_key"), "{values:?}");
        }
    }

    #[test]
    fn loopback_takes_none_or_a_right_one() {
        let open = access(Exposure::Loopback, &[]);
        assert_eq!(open.check(&HeaderMap::new()), Ok(()));
        assert_eq!(open.check(&with("authorization", &[b"Bearer anything"])), Ok(()));
        let keyed = access(Exposure::Loopback, &["sk-one"]);
        assert_eq!(keyed.check(&HeaderMap::new()), Ok(()));
        assert!(keyed.check(&with("authorization", &[b"Bearer wrong"])).is_err(), "a wrong key is a mistake to be told");
    }

    #[test]
    fn pages_of_the_web_do_not_reach_loopback() {
        let open = access(Exposure::Loopback, &[]);
        for origin in ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:80"] {
            assert_eq!(open.check(&with("origin", &[origin.as_bytes()])), Ok(()), "{origin}");
        }
        for origin in ["https://example.org", "null", "http://localhost.example.org", "\u{fc}"] {
            assert!(open.check(&with("origin", &[origin.as_bytes()])).is_err(), "{origin}");
        }
    }

    #[test]
    fn settings_without_hashes_are_refused() {
        let plain = FrontConfig { api_keys_sha256: vec!["sk-plain".to_owned()], ..FrontConfig::default() };
        assert_eq!(Access::new(&plain, Exposure::Loopback).err(), Some(BadFront::Key(0)));
    }
}
