//! Messages of wire version 1 as bytes: what was once released decodes for ever, and to the same meaning.
//!
//! `cargo test -p shared --test golden -- --ignored regenerate` writes the files anew. After a release that is an act of
//! violence against every running fleet: add a field with a default, or a new version, instead.

mod frames;
mod fuzz;
mod grow;
mod payloads;
mod samples;
mod values;

use samples::{Sample, all};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1")
}

fn read(sample: &Sample) -> Vec<u8> {
    let path = folder().join(&sample.file);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; `--ignored regenerate` writes it", path.display()))
}

#[test]
fn each_golden_message_has_its_meaning_and_is_written_the_same_way() {
    for sample in all() {
        let golden = read(&sample);
        let again = sample.read_as_expected(&golden).unwrap_or_else(|fault| panic!("{}: {fault}", sample.file));
        let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(again, golden, "{}: now {}, was {}", sample.file, shown(&again), shown(&golden));
    }
}

#[test]
fn every_golden_file_is_read() {
    let known: BTreeSet<_> = all().into_iter().map(|sample| sample.file).collect();
    for entry in fs::read_dir(folder()).expect("the folder is there") {
        let name = entry.expect("readable").file_name().into_string().expect("a plain name");
        assert!(known.contains(&name), "{name} is no message that this build knows");
    }
}

#[test]
fn what_a_newer_sender_adds_is_ignored() {
    for sample in all() {
        let golden = read(&sample);
        let grown = sample.grown(&golden);
        assert!(grown.len() >= sample.structs_min, "{}: only {} places to grow", sample.file, grown.len());
        for (place, bytes) in grown {
            let read = sample.read_as_expected(&bytes);
            assert!(read.is_ok(), "{}: a new field in {place}: {}", sample.file, read.unwrap_err());
        }
    }
}

#[test]
#[ignore = "writes the golden files anew: only before a release"]
fn regenerate() {
    fs::create_dir_all(folder()).expect("the folder can be made");
    for sample in all() {
        fs::write(folder().join(&sample.file), &sample.bytes).expect("the folder is writable");
    }
}
