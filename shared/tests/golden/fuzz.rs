//! Bytes that are no messages are refused, whatever they are: truncated, flipped, or drawn by chance.

use crate::samples::all;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use shared::wire::mqtt::{PlanMessage, TelemetryMessage, Topic, ViewMessage};
use shared::wire::{Body, Frame, JoinToken};
use std::time::{SystemTime, UNIX_EPOCH};

/// Mutations of each golden message in one run: all together take about a second.
const MUTATIONS: u32 = 400;

fn dice() -> ChaCha8Rng {
    let given = std::env::var("TIDEGATE_SEED").ok().map(|text| text.parse().expect("TIDEGATE_SEED is a number"));
    let drawn =
        || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() << 20 | u64::from(now.subsec_micros()));
    let seed = given.unwrap_or_else(drawn);
    println!("TIDEGATE_SEED={seed}");
    ChaCha8Rng::seed_from_u64(seed)
}

fn below(dice: &mut ChaCha8Rng, n: usize) -> usize {
    usize::try_from(dice.next_u64() % u64::try_from(n.max(1)).expect("fits")).expect("below n")
}

/// Reads the bytes as everything there is. Only whether it panics matters, and that what is read can be written.
fn read_as_everything(bytes: &[u8]) {
    if let Ok(frame) = Frame::decode(bytes) {
        let written = frame.encode().expect("what was read within the limit can be written");
        let again = Frame::decode(&written[4..]).expect("what was written can be read");
        assert_eq!(again.encode().expect("as before"), written, "reading changes nothing");
    }
    if let Ok(body) = Body::decode(bytes) {
        body.encode().expect("what was read within the limit can be written");
    }
    if let Ok(telemetry) = serde_json::from_slice::<TelemetryMessage>(bytes) {
        let _verdict = telemetry.message.validate();
    }
    let _view = serde_json::from_slice::<ViewMessage>(bytes);
    let _plan = serde_json::from_slice::<PlanMessage>(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _token = text.parse::<JoinToken>();
        let _topic = Topic::parse(text);
    }
}

#[test]
fn truncated_messages_are_errors() {
    for sample in all() {
        for length in 0..sample.bytes.len() {
            let cut = sample.read_as_expected(&sample.bytes[..length]);
            assert!(cut.is_err(), "{}: its first {length} bytes pass for it", sample.file);
        }
    }
}

#[test]
fn damaged_messages_do_no_harm() {
    let mut dice = dice();
    for sample in all() {
        for _ in 0..MUTATIONS {
            let mut bytes = sample.bytes.clone();
            for _ in 0..=below(&mut dice, 4) {
                let place = below(&mut dice, bytes.len());
                match below(&mut dice, 4) {
                    0 => bytes[place] ^= 1 << below(&mut dice, 8),
                    1 => bytes[place] = dice.next_u32().to_le_bytes()[0],
                    2 => bytes.truncate(place.max(1)),
                    _ => bytes.insert(place, 0xff),
                }
            }
            let _verdict = sample.read_as_expected(&bytes);
            read_as_everything(bytes.get(4..).unwrap_or_default());
            read_as_everything(&bytes);
        }
    }
}

#[test]
fn noise_is_refused() {
    let mut dice = dice();
    for _ in 0..20_000 {
        let mut bytes = vec![0; below(&mut dice, 200)];
        dice.fill_bytes(&mut bytes);
        read_as_everything(&bytes);
    }
}

#[test]
fn lengths_that_lie_take_no_memory() {
    // A CBOR text, byte string, array and map, each announcing 2^63 elements: nothing may be reserved for them.
    for head in [0x5b, 0x7b, 0x9b, 0xbb] {
        let mut bytes = vec![head, 0x7f];
        bytes.extend([0xff; 7]);
        assert!(Frame::decode(&bytes).is_err());
        assert!(Body::decode(&bytes).is_err());
    }
}

#[test]
fn nesting_without_end_is_refused() {
    let deep = vec![0x81; 100_000];
    assert!(Frame::decode(&deep).is_err());
    assert!(Body::decode(&deep).is_err());
    assert!(serde_json::from_slice::<ViewMessage>(&vec![b'['; 100_000]).is_err());
}
