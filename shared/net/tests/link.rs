//! Members talk, strangers do not, and streams end as they should: each story over QUIC, and over TLS on TCP.

mod fleet;

use fleet::{Fleet, Pair, connect, node, soon, until};
use shared::fleet::{Hop, Transport};
use shared::wire::Frame;
use shared::wire::frame::{Chunk, Pulse, TokenBatch};
use shared_net::link::{Code, Endpoint, LinkError, Lost, ResetSecret, Spliced, StreamError, splice};
use shared_net::tls::{Admit, Identity, Role};
use std::time::{Duration, Instant};

/// Each story over both transports.
macro_rules! over_both {
    ($($story:ident),* $(,)?) => {
        mod quic {
            $(#[tokio::test] async fn $story() { super::$story(shared::fleet::Transport::Quic).await; })*
        }
        mod tcp {
            $(#[tokio::test] async fn $story() { super::$story(shared::fleet::Transport::Tcp).await; })*
        }
    };
}

over_both!(
    members_know_each_other_by_their_certificates,
    whoever_is_not_the_expected_member_is_refused,
    an_expired_certificate_is_refused_on_either_side,
    a_renewed_identity_is_used_for_the_next_connection,
    a_dropped_stream_is_a_reset_and_never_an_end,
    what_is_no_frame_is_refused_and_nobody_else_disturbed,
    reading_survives_being_cancelled_in_the_middle_of_a_frame,
    a_relay_carries_both_ways_and_passes_on_the_ends,
    a_cancel_crosses_the_relay_even_when_nobody_reads,
    a_lost_executor_is_a_reset_for_the_asker,
    an_early_refusal_arrives_although_the_body_is_no_longer_read,
    peers_of_a_program_that_was_killed_notice_when_it_is_back,
    garbage_disturbs_nobody,
    closing_tells_the_other_end,
);

fn ping(number: u64) -> Frame {
    Frame::Ping(Pulse { number, ..Pulse::default() })
}

async fn members_know_each_other_by_their_certificates(by: Transport) {
    let Pair { links: (a, b), .. } = Pair::new(by).await;
    assert_eq!((a.peer(), b.peer()), (Some(&node("site/b")), Some(&node("site/a"))));
    assert!(b.serial().is_some_and(|serial| !serial.is_empty()));
    let mut asking = a.open().await.expect("stream");
    asking.writer.write(&ping(7)).await.expect("written");
    let mut answering = soon("a stream", b.accept()).await.expect("accepted");
    assert_eq!(soon("a frame", answering.reader.read()).await.expect("read"), Some(ping(7)));
    asking.writer.finish().await.expect("finished");
    assert_eq!(soon("the end", answering.reader.read()).await.expect("read"), None);
    let report = a.report(Hop::Direct);
    assert!(report.rtt.is_some_and(|rtt| rtt.0 > 0) && report.rate_out.is_none());
}

async fn whoever_is_not_the_expected_member_is_refused(by: Transport) {
    let (fleet, other) = (Fleet::new(), Fleet::new());
    let a = fleet.endpoint(&fleet.member("site/a", Role::Node), Admit::Members);
    let b = fleet.endpoint(&fleet.member("site/b", Role::Node), Admit::Members);
    let foreign = other.endpoint(&other.member("site/a", Role::Node), Admit::Members);
    let mut acceptor = b.acceptor();
    let accepting = tokio::spawn(async move { acceptor.next().await });
    let address = b.local_addr().expect("address");

    let wrong = soon("the wrong name", a.connect(address, &node("site/c"), by)).await;
    let text = wrong.expect_err("refused").to_string();
    assert!(text.contains("`site/b` answers, want `site/c`"), "{text}");
    soon("another fleet's node", foreign.connect(address, &node("site/b"), by)).await.expect_err("refused");
    let nameless = Endpoint::nameless(fleet::local(), &fleet.clock).expect("endpoint");
    let link = soon("no certificate", nameless.connect_to_join(address, &fleet.sha256(), by)).await;
    link.expect_err("b is no hub and admits no joiners");

    until("all are counted", || b.refused() >= 3).await;
    // And b still serves.
    soon("the right one", a.connect(address, &node("site/b"), by)).await.expect("connected");
    let link = soon("accepting", accepting).await.expect("task").expect("link");
    assert_eq!(link.peer(), Some(&node("site/a")));
}

async fn an_expired_certificate_is_refused_on_either_side(by: Transport) {
    let fleet = Fleet::new();
    let good = fleet.endpoint(&fleet.member("site/a", Role::Node), Admit::Members);
    let expired = fleet.endpoint(&fleet.member_for("site/b", Role::Node, 1_800), Admit::Members);
    let mut acceptors = (good.acceptor(), expired.acceptor());
    let expected = node("site/b");
    let dial_expired = good.connect(expired.local_addr().expect("address"), &expected, by);
    let refused = soon("dialling", async {
        tokio::select! { r = dial_expired => r, _ = acceptors.1.next() => panic!("accepted") }
    });
    assert!(refused.await.is_err());
    let (address, expected) = (good.local_addr().expect("address"), node("site/a"));
    let refused = soon("being dialled", async {
        let dialled = expired.connect(address, &expected, by);
        tokio::select! {
            // The server checks the client last: the client may think for a moment that it is connected.
            dialled = dialled => match dialled { Ok(link) => Err(link.closed().await), Err(error) => Err(error) },
            _ = acceptors.0.next() => Ok(()),
        }
    });
    assert!(refused.await.is_err());
}

async fn a_renewed_identity_is_used_for_the_next_connection(by: Transport) {
    let Pair { fleet, ends: (a, b), links: (old, _kept) } = Pair::new(by).await;
    let renewed: Identity = fleet.member("site/b", Role::Node);
    b.set_identity(&renewed).expect("good");
    let (new, _) = connect(&a, &b, "site/b", by).await;
    assert_eq!(new.serial(), Some(renewed.serial()));
    assert!(old.serial() != new.serial() && !old.is_closed());
}

async fn a_dropped_stream_is_a_reset_and_never_an_end(by: Transport) {
    let Pair { links: (a, b), .. } = Pair::new(by).await;
    let mut asking = a.open().await.expect("stream");
    asking.writer.write(&ping(1)).await.expect("written");
    let mut answering = b.accept().await.expect("accepted");
    answering.reader.read().await.expect("read");
    let stopped = answering.writer.stopped();
    drop(asking);
    let read = soon("the reset", answering.reader.read()).await;
    assert!(matches!(read, Err(StreamError::Reset(Code::CANCELLED))), "{read:?}");
    assert!(soon("the stop", stopped).await.is_some());
}

async fn what_is_no_frame_is_refused_and_nobody_else_disturbed(by: Transport) {
    let Pair { links: (a, b), .. } = Pair::new(by).await;
    let quiet = {
        let mut quiet = a.open().await.expect("stream");
        quiet.writer.write(&ping(1)).await.expect("written");
        quiet
    };
    let mut other = b.accept().await.expect("accepted");
    assert_eq!(other.reader.read().await.expect("read"), Some(ping(1)));
    let huge = Frame::Body(Chunk { bytes: vec![0; 300 * 1024], last: true });
    let mut stream = a.open().await.expect("stream");
    assert!(matches!(stream.writer.write(&huge).await, Err(StreamError::BadFrame(_))));
    drop((quiet, stream));
}

async fn reading_survives_being_cancelled_in_the_middle_of_a_frame(by: Transport) {
    let Pair { links: (a, b), .. } = Pair::new(by).await;
    let mut asking = a.open().await.expect("stream");
    let frame = Frame::Tokens(TokenBatch { count: 1, text: "x".repeat(200_000), ..TokenBatch::default() });
    let (sent, frames) = (frame.clone(), 20);
    let writing = tokio::spawn(async move {
        for _ in 0..frames {
            asking.writer.write(&sent).await.expect("written");
        }
        asking.writer.finish().await.expect("finished");
        asking
    });
    let mut answering = b.accept().await.expect("accepted");
    let mut read = 0;
    soon("all frames", async {
        while read < frames {
            tokio::select! {
                biased;
                got = answering.reader.read() => {
                    assert!(got.expect("read").is_some_and(|got| got == frame), "a frame was torn");
                    read += 1;
                }
                () = tokio::task::yield_now() => {}
            }
        }
    })
    .await;
    assert_eq!(soon("the end", answering.reader.read()).await.expect("read"), None);
    drop(writing.await.expect("writer"));
}

/// a → relay → c.
struct Relayed {
    asking: shared_net::link::Stream,
    answering: shared_net::link::Stream,
    relay: tokio::task::JoinHandle<Spliced>,
    links: Vec<shared_net::link::Link>,
    _ends: Vec<Endpoint>,
}

impl Relayed {
    async fn new(by: Transport) -> Self {
        let fleet = Fleet::new();
        let [a, relay, c] =
            ["site/a", "hub/relay", "site/c"].map(|n| fleet.endpoint(&fleet.member(n, Role::Node), Admit::Members));
        let (a_link, from_a) = connect(&a, &relay, "hub/relay", by).await;
        let (to_c, c_link) = connect(&relay, &c, "site/c", by).await;
        let mut asking = a_link.open().await.expect("stream");
        asking.writer.write(&ping(1)).await.expect("written");
        let front = from_a.accept().await.expect("accepted");
        let mut back = to_c.open().await.expect("stream");
        // The relay reads and sends on the first frame itself, as the hub does with the header.
        let mut front = front;
        let first = front.reader.read().await.expect("read").expect("a frame");
        back.writer.write(&first).await.expect("written");
        let relaying = tokio::spawn(splice(front, back));
        let mut answering = c_link.accept().await.expect("accepted");
        assert_eq!(soon("the first frame", answering.reader.read()).await.expect("read"), Some(ping(1)));
        Self { asking, answering, relay: relaying, links: vec![a_link, from_a, to_c, c_link], _ends: vec![a, relay, c] }
    }
}

async fn a_relay_carries_both_ways_and_passes_on_the_ends(by: Transport) {
    let Relayed { mut asking, mut answering, relay, links: _links, _ends } = Relayed::new(by).await;
    let body = Frame::Body(Chunk { bytes: vec![7; 60_000], last: true });
    for _ in 0..50 {
        let (sent, got) = tokio::join!(asking.writer.write(&body), answering.reader.read());
        sent.expect("written");
        assert_eq!(got.expect("read").as_ref(), Some(&body));
    }
    asking.writer.finish().await.expect("finished");
    assert_eq!(soon("the end", answering.reader.read()).await.expect("read"), None);
    answering.writer.write(&ping(2)).await.expect("written");
    answering.writer.finish().await.expect("finished");
    assert_eq!(soon("the answer", asking.reader.read()).await.expect("read"), Some(ping(2)));
    assert_eq!(soon("the end", asking.reader.read()).await.expect("read"), None);
    let spliced = soon("the relay", relay).await.expect("task");
    assert_eq!(spliced.cut, None);
    assert!(spliced.forth > 50 * 60_000 && spliced.back > 0, "{spliced:?}");
}

async fn a_cancel_crosses_the_relay_even_when_nobody_reads(by: Transport) {
    let Relayed { mut asking, mut answering, relay, links: _links, _ends } = Relayed::new(by).await;
    // The executor reads nothing: fill every window on the way until no more is taken.
    let body = Frame::Body(Chunk { bytes: vec![7; 60_000], last: false });
    let filled = async { while tokio::time::timeout(Duration::from_millis(100), asking.writer.write(&body)).await.is_ok() {} };
    soon("the windows are full", filled).await;
    let begun = Instant::now();
    asking.cancel(Code::CANCELLED);
    let stopped = soon("the executor hears", answering.writer.stopped()).await;
    assert_eq!(stopped, Some(Code::CANCELLED));
    let ended = loop {
        match soon("the reset", answering.reader.read()).await {
            Ok(Some(_)) => {}
            other => break other,
        }
    };
    assert!(matches!(ended, Err(StreamError::Reset(Code::CANCELLED))), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!(soon("the relay", relay).await.expect("task").cut, Some(Code::CANCELLED));
}

async fn a_lost_executor_is_a_reset_for_the_asker(by: Transport) {
    let Relayed { mut asking, answering, relay, links, _ends } = Relayed::new(by).await;
    links[3].close(Code::DONE, "gone");
    let read = soon("the reset", asking.reader.read()).await;
    assert!(matches!(read, Err(StreamError::Reset(Code::GONE))), "{read:?}");
    assert_eq!(soon("the relay", relay).await.expect("task").cut, Some(Code::GONE));
    drop(answering);
}

async fn an_early_refusal_arrives_although_the_body_is_no_longer_read(by: Transport) {
    let Relayed { mut asking, mut answering, relay, links: _links, _ends } = Relayed::new(by).await;
    answering.writer.write(&ping(9)).await.expect("written");
    answering.writer.finish().await.expect("finished");
    drop(answering);
    assert_eq!(soon("the refusal", asking.reader.read()).await.expect("read"), Some(ping(9)));
    assert_eq!(soon("the end", asking.reader.read()).await.expect("read"), None);
    assert_eq!(soon("the relay", relay).await.expect("task").cut, None);
}

async fn peers_of_a_program_that_was_killed_notice_when_it_is_back(by: Transport) {
    let fleet = Fleet::new();
    let folder = tempfile::tempdir().expect("folder");
    let secret = ResetSecret::load(folder.path()).expect("secret");
    let identity = fleet.member("site/b", Role::Hub);
    // The first life runs in a runtime of its own: dropping that is the nearest thing to kill -9.
    let (lent, first_life) = (identity.clone(), tokio::runtime::Runtime::new().expect("runtime"));
    let (clock, kept) = (fleet.clock.clone(), secret.clone());
    let b = first_life.spawn(async move { Endpoint::bind(fleet::local(), &lent, Admit::Members, &clock, &kept).expect("bound") });
    let b = b.await.expect("task");
    let address = b.local_addr().expect("address");
    let mut acceptor = b.acceptor();
    let _serving = first_life.spawn(async move {
        let link = acceptor.next().await.expect("a connection");
        let mut stream = link.accept().await.expect("a stream");
        let asked = stream.reader.read().await.expect("read").expect("a frame");
        stream.writer.write(&asked).await.expect("written");
        std::future::pending::<()>().await;
    });
    let a = fleet.endpoint(&fleet.member("site/a", Role::Node), Admit::Members);
    let link = soon("connecting", a.connect(address, &node("site/b"), by)).await.expect("connected");
    // Only a handshake that both ends know to be over can be reset; with an answer in hand it is.
    let mut stream = link.open().await.expect("stream");
    stream.writer.write(&ping(1)).await.expect("written");
    assert_eq!(soon("an answer", stream.reader.read()).await.expect("read"), Some(ping(1)));
    let silent = soon("killed", tokio::task::spawn_blocking(move || first_life.shutdown_timeout(Duration::from_millis(10))));
    silent.await.expect("killed");
    drop(b);
    let begun = Instant::now();
    let restarted = Endpoint::bind(address, &identity, Admit::Members, &fleet.clock, &secret).expect("the port is free again");
    let why = soon("the reset", link.closed()).await;
    match by {
        Transport::Quic => assert!(matches!(why, LinkError::Lost(Lost::Reset)), "{why}"),
        // There the system itself says so, long before the restart.
        Transport::Tcp => assert!(matches!(why, LinkError::Lost(Lost::Broken(_))), "{why}"),
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "{why}, {:?}", begun.elapsed());
    drop(restarted);
}

async fn garbage_disturbs_nobody(by: Transport) {
    let Pair { ends: (a, b), links: (link, accepted), .. } = Pair::new(by).await;
    let socket = std::net::UdpSocket::bind(fleet::local()).expect("socket");
    let target = b.local_addr().expect("address");
    let mut strangers = Vec::new();
    for number in 0..2_000_u32 {
        let seed = number.wrapping_mul(2_654_435_761);
        let length = usize::try_from(seed % 1_300).expect("small");
        let bytes: Vec<u8> = (0..length).map(|i| (seed >> (i % 24)) as u8 ^ i as u8).collect();
        match by {
            Transport::Quic => drop(socket.send_to(&bytes, target).expect("sent")),
            Transport::Tcp if number < 100 => {
                let mut stranger = std::net::TcpStream::connect(target).expect("connected");
                // Refused as soon as the first bytes are looked at.
                drop(std::io::Write::write_all(&mut stranger, &bytes));
                strangers.push(stranger);
            }
            Transport::Tcp => break,
        }
    }
    let mut stream = link.open().await.expect("stream");
    stream.writer.write(&ping(1)).await.expect("written");
    let mut other = soon("a stream", accepted.accept()).await.expect("accepted");
    assert_eq!(soon("a frame", other.reader.read()).await.expect("read"), Some(ping(1)));
    let again = connect(&a, &b, "site/b", by).await;
    assert!(!again.0.is_closed());
}

async fn closing_tells_the_other_end(by: Transport) {
    let Pair { ends: (a, _b), links: (_link, accepted), .. } = Pair::new(by).await;
    soon("closing", a.close(Code::DONE, "done", fleet::DEADLINE)).await;
    until("the other end hears", || accepted.is_closed()).await;
}
