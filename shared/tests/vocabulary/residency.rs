//! Where a text may go: every residency against every place.

use shared::ids::NodeId;
use shared::work::Residency::{self, Anywhere, Node, Site};

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("good")
}

#[test]
fn the_matrix() {
    let ingress = node("eu/site-7/edge-1");
    // Place, then whether it may execute and whether it may relay, for anywhere, site and node.
    let places = [
        ("eu/site-7/edge-1", [true, true, true], [true, true, false]),
        ("eu/site-7/edge-2", [true, true, false], [true, true, false]),
        ("eu/site-7/rack/gpu", [true, true, false], [true, true, false]),
        ("eu/site-70/edge-1", [true, false, false], [true, false, false]),
        ("eu/site-8/edge-1", [true, false, false], [true, false, false]),
        ("eu/hub", [true, false, false], [true, false, false]),
        ("us/site-7/edge-1", [true, false, false], [true, false, false]),
        ("site-7/edge-1", [true, false, false], [true, false, false]),
    ];
    for (place, executes, relays) in places {
        for (i, residency) in [Anywhere, Site, Node].into_iter().enumerate() {
            let bound = residency.resolve(&ingress);
            assert_eq!(bound.permits(&node(place)), executes[i], "{residency:?} at {place}");
            assert_eq!(bound.permits_relay(&node(place)), relays[i], "{residency:?} through {place}");
        }
    }
}

#[test]
fn nothing_said_means_anywhere() {
    assert_eq!(Residency::default(), Anywhere);
    assert_eq!(serde_json::from_str::<Residency>(r#""site""#).expect("a word of the API"), Site);
    assert!(serde_json::from_str::<Residency>(r#""planet""#).is_err());
}
