//! A message with its bytes, and all of them.

use crate::frames::{bodies, frames};
use crate::grow::{cbor, grow_body, grow_frame, grow_json, has_structure};
use crate::payloads::payloads;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::ids::ScopeId;
use shared::wire::body::Body;
use shared::wire::{Frame, JoinToken};

type Reader = Box<dyn Fn(&[u8]) -> Result<Vec<u8>, String>>;
type Grower = fn(&[u8]) -> Vec<(String, Vec<u8>)>;

/// A message with its bytes.
pub(crate) struct Sample {
    pub(crate) file: String,
    /// As this build writes it.
    pub(crate) bytes: Vec<u8>,
    /// In how many places a newer sender could add a field, at least.
    pub(crate) structs_min: usize,
    reader: Reader,
    grower: Grower,
}

impl Sample {
    /// Reads the bytes, compares what they mean with what they should, and writes it again.
    pub(crate) fn read_as_expected(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        (self.reader)(bytes)
    }

    /// The message with an unknown field added, once for each place that is a structure.
    pub(crate) fn grown(&self, bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
        (self.grower)(bytes)
    }

    fn frame(name: &str, frame: Frame) -> Self {
        let bytes = frame.encode().expect("small");
        let reader = move |bytes: &[u8]| {
            let (prefix, item) = bytes.split_at_checked(4).ok_or("no length")?;
            let length = prefix.iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
            let item = item.get(..length).filter(|whole| whole.len() == item.len()).ok_or("another length")?;
            same(&frame, &Frame::decode(item).map_err(|error| error.to_string())?)?;
            frame.encode().map_err(|error| error.to_string())
        };
        let structs_min = usize::from(has_structure(&cbor(&bytes[4..])));
        Self { file: format!("frame-{name}.cbor"), bytes, structs_min, reader: Box::new(reader), grower: grow_frame }
    }

    fn body(name: &str, body: Body) -> Self {
        let bytes = body.encode().expect("small");
        let reader = move |bytes: &[u8]| {
            let read = Body::decode(bytes).map_err(|error| error.to_string())?;
            if read != body {
                return Err("means something else".to_owned());
            }
            read.encode().map_err(|error| error.to_string())
        };
        Self { file: format!("body-{name}.cbor"), bytes, structs_min: 2, reader: Box::new(reader), grower: grow_body }
    }

    pub(crate) fn json<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug + 'static>(name: &str, value: T) -> Self {
        let bytes = serde_json::to_vec(&value).expect("writable");
        let reader = move |bytes: &[u8]| {
            let read: T = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
            same(&value, &read)?;
            serde_json::to_vec(&read).map_err(|error| error.to_string())
        };
        Self { file: format!("{name}.json"), bytes, structs_min: 1, reader: Box::new(reader), grower: grow_json }
    }

    fn token(token: JoinToken) -> Self {
        let bytes = token.to_string().into_bytes();
        let reader = move |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
            let read: JoinToken = text.parse().map_err(|error: shared::wire::BadToken| error.to_string())?;
            same(&token, &read)?;
            Ok(read.to_string().into_bytes())
        };
        Self { file: "join-token.txt".to_owned(), bytes, structs_min: 0, reader: Box::new(reader), grower: |_| Vec::new() }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(wanted: &T, read: &T) -> Result<(), String> {
    if wanted == read { Ok(()) } else { Err(format!("means {read:?}, should mean {wanted:?}")) }
}

/// Every sample there is.
pub(crate) fn all() -> Vec<Sample> {
    let mut samples: Vec<_> = frames().into_iter().map(|(name, frame)| Sample::frame(&name, frame)).collect();
    samples.extend(bodies().into_iter().map(|(name, body)| Sample::body(name, body)));
    samples.extend(payloads());
    samples.push(Sample::token(JoinToken {
        address: "hub.example:7400".to_owned(),
        authority_sha256: "ab".repeat(32),
        secret: "cd".repeat(16),
        site: ScopeId::new("eu/site-7").expect("good"),
    }));
    samples
}
