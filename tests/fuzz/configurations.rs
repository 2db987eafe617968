//! Damaged configuration files and environments.

use crate::dice::Run;
use shared_net::host::{Sources, load};
use std::fs;
use std::path::Path;

#[test]
fn damaged_configurations_are_refused_with_a_sentence() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let seeds = ["agent.toml", "hub.toml"].map(|name| fs::read(deploy.join(name)).expect("is committed"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged.toml");
    let mut run = Run::new("configurations");
    while run.again() {
        let mut bytes = seeds[run.rounds % 2].clone();
        if run.rounds > 2 {
            let end = bytes.len();
            run.damage(&mut bytes, end);
        }
        fs::write(&path, &bytes).expect("written");
        let sources = Sources { file: Some(path.clone()), ..Sources::default() };
        let said = if run.rounds.is_multiple_of(2) {
            load::<edge_node::config::Config>(&sources)
                .map(|loaded| drop(loaded.value.validate()))
                .map_err(|error| error.to_string())
        } else {
            load::<cloud_hub::config::Config>(&sources)
                .map(|loaded| drop(loaded.value.validate()))
                .map_err(|error| error.to_string())
        };
        assert!(said.as_ref().err().is_none_or(|error| !error.is_empty()));
    }
}
