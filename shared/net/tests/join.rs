//! A machine joins the fleet of its token, and no other.

#[expect(dead_code, reason = "this crate uses a part of it")]
mod fleet;

use fleet::{Fleet, node, soon};
use shared::fleet::Transport;
use shared::ids::ScopeId;
use shared::units::Micros;
use shared::wire::frame::Issued;
use shared::wire::{Frame, JoinToken};
use shared_net::join::{JoinError, answer, join, renew};
use shared_net::link::{Endpoint, Link};
use shared_net::tls::{Admit, Identity, Role};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// A hub that takes one secret and one name.
fn serve(fleet: Arc<Fleet>, endpoint: &Endpoint) -> JoinHandle<()> {
    let mut acceptor = endpoint.acceptor();
    tokio::spawn(async move {
        while let Some(link) = acceptor.next().await {
            serve_one(&fleet, &link).await;
        }
    })
}

async fn serve_one(fleet: &Fleet, link: &Link) {
    let Ok(mut stream) = link.accept().await else { return };
    let issue = |request: &[u8]| Issued {
        node: node("site/new"),
        hub: node("hub/main"),
        certificate: fleet.sign(request, &node("site/new"), Role::Node, 7_200),
        authority: fleet.authority(),
        labels: [("rack".to_owned(), "7".to_owned())].into(),
        expires_in: Micros::from_secs(3_600),
    };
    let answered = match stream.reader.read().await {
        Ok(Some(Frame::Join(ask))) if ask.secret == "right" => Ok(issue(&ask.request)),
        Ok(Some(Frame::Renew(ask))) if link.peer() == Some(&node("site/new")) => Ok(issue(&ask.request)),
        _ => Err("no such token".to_owned()),
    };
    answer(stream, answered).await.expect("answered");
}

fn hub(fleet: &Fleet) -> Endpoint {
    fleet.endpoint(&fleet.member("hub/main", Role::Hub), Admit::MembersAndJoiners)
}

fn token(fleet: &Fleet, endpoint: &Endpoint, secret: &str) -> JoinToken {
    let address = endpoint.local_addr().expect("address").to_string();
    let site = ScopeId::new("site").expect("good");
    JoinToken { address, authority_sha256: fleet.sha256(), secret: secret.to_owned(), site }
}

#[tokio::test]
async fn a_node_joins_comes_back_and_renews() {
    let fleet = Arc::new(Fleet::new());
    let hub = hub(&fleet);
    let serving = serve(Arc::clone(&fleet), &hub);
    let joined = soon("joining", join(&token(&fleet, &hub, "right"), "new", &fleet.clock)).await.expect("joined");
    assert_eq!((joined.identity.node(), &joined.hub), (&node("site/new"), &node("hub/main")));
    assert_eq!(joined.labels.get("rack").map(String::as_str), Some("7"));

    let folder = tempfile::tempdir().expect("folder");
    joined.identity.save(folder.path()).expect("saved");
    let identity = Identity::load(folder.path()).expect("readable").expect("there");
    assert_eq!(identity.serial(), joined.identity.serial());
    assert!(identity.expires_in(&fleet.clock) > Micros::from_secs(3_000));

    let node_end = fleet.endpoint(&identity, Admit::Members);
    let link = soon("coming back", node_end.connect(hub.local_addr().expect("address"), &joined.hub, Transport::Quic))
        .await
        .expect("connected");
    let renewed = soon("renewing", renew(&link, identity.node())).await.expect("renewed");
    assert_eq!(renewed.identity.node(), identity.node());
    assert_ne!(renewed.identity.serial(), identity.serial());
    serving.abort();
}

#[tokio::test]
async fn a_wrong_secret_is_denied_with_a_reason() {
    let fleet = Arc::new(Fleet::new());
    let hub = hub(&fleet);
    let serving = serve(Arc::clone(&fleet), &hub);
    let denied = soon("joining", join(&token(&fleet, &hub, "wrong"), "new", &fleet.clock)).await;
    assert!(matches!(&denied, Err(JoinError::Denied(why)) if why == "no such token"), "{denied:?}");
    serving.abort();
}

#[tokio::test]
async fn the_secret_is_told_to_nobody_but_the_hub_of_the_token() {
    let (fleet, other) = (Arc::new(Fleet::new()), Fleet::new());
    // Another fleet's hub, and a plain node of the right fleet, each posing as the hub.
    let foreign = hub(&other);
    let node_end = fleet.endpoint(&fleet.member("site/x", Role::Node), Admit::MembersAndJoiners);
    // And a hub of another fleet that sends the right authority along.
    for endpoint in [foreign, node_end] {
        let mut acceptor = endpoint.acceptor();
        let posing = tokio::spawn(async move { acceptor.next().await.map(drop) });
        let refused = soon("joining", join(&token(&fleet, &endpoint, "right"), "new", &fleet.clock)).await;
        assert!(matches!(refused, Err(JoinError::Unreachable { .. })), "{refused:?}");
        assert!(!posing.is_finished(), "no connection came about");
        posing.abort();
    }
}

#[tokio::test]
async fn a_stranger_gets_one_stream() {
    let fleet = Arc::new(Fleet::new());
    let hub = hub(&fleet);
    let mut acceptor = hub.acceptor();
    let stranger = Endpoint::nameless(fleet::local(), &fleet.clock).expect("endpoint");
    let address = hub.local_addr().expect("address");
    let sha = fleet.sha256();
    let both = async { tokio::join!(stranger.connect_to_join(address, &sha, Transport::Quic), acceptor.next()) };
    let (dialled, accepted) = soon("connecting", both).await;
    let (link, accepted) = (dialled.expect("dialled"), accepted.expect("accepted"));
    assert_eq!(accepted.peer(), None);
    let _first = soon("one stream", link.open()).await.expect("stream");
    let second = tokio::time::timeout(Duration::from_millis(300), link.open()).await;
    assert!(second.is_err(), "a second stream at the same time");

    // A member gets its streams on the same endpoint, though it is known only after the handshake.
    let member = fleet.endpoint(&fleet.member("site/a", Role::Node), Admit::Members);
    let expected = node("hub/main");
    let both = async { tokio::join!(member.connect(address, &expected, Transport::Quic), acceptor.next()) };
    let (dialled, _accepted) = soon("connecting", both).await;
    let link = dialled.expect("dialled");
    let mut streams = Vec::new();
    for _ in 0..20 {
        streams.push(soon("a stream", link.open()).await.expect("stream"));
    }
}
