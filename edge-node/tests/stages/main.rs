//! Requests over several nodes, each with some of the layers: what the streams between them carry, and how everything ends.

mod lab;
mod toy;

use edge_node::io::Running;
use lab::{Ingress, Lab, active, node, read, until};
use shared::fleet::Hop;
use shared::ids::ScopeId;
use shared::plan::{Failure, Reason};
use shared::units::Micros;
use shared::wire::body::Sampling;
use shared::wire::frame::{Chunk, Hidden};
use shared::wire::{Frame, StageBody};
use shared::work::ResidencyBound;
use std::sync::Arc;
use std::time::{Duration, Instant};
use toy::{LAYERS, Manner, ROW, Toy, whole};

/// From the issue.
const FREE_WITHIN: Duration = Duration::from_millis(500);
/// As fast as it goes.
const FAST: Manner = Manner::Serves(Duration::ZERO);
/// A request of a thousand tokens takes long enough to be cancelled.
const SLOW: Manner = Manner::Serves(Duration::from_millis(10));

/// Two agents with half of the layers each, and an ingress at the first.
struct Pair {
    a: Running,
    b: Running,
    toys: [Arc<Toy>; 2],
    ingress: Ingress,
    lab: Lab,
}

impl Pair {
    async fn new(first: Manner, second: Manner) -> Self {
        let lab = Lab::new();
        let toys = [Toy::new(0, LAYERS / 2, 2, first), Toy::new(LAYERS / 2, LAYERS, 2, second)];
        let b = lab.agent("lab/b", &toys[1], None).await;
        let a = lab.agent("lab/a", &toys[0], Some(("lab/b", b.quic_address().expect("it listens")))).await;
        let ingress = lab.ingress("lab/edge", "lab/a", a.quic_address().expect("it listens")).await;
        Self { a, b, toys, ingress, lab }
    }

    async fn until_active(&self, count: u64) {
        for (running, name) in [(&self.a, "a"), (&self.b, "b")] {
            until(running, &format!("{count} active at {name}"), |status| active(status) == count).await;
        }
    }

    /// Both slots become free in time from now.
    async fn freed(&self) {
        let since = Instant::now();
        self.until_active(0).await;
        assert!(since.elapsed() < FREE_WITHIN, "{:?}", since.elapsed());
    }

    async fn end(self) {
        self.a.shutdown().await.expect("all tasks end");
        self.b.shutdown().await.expect("all tasks end");
    }
}

fn named(failure: Failure) -> Option<Failure> {
    Some(Failure::Stage { node: node("lab/b"), failure: Box::new(failure) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_and_three_stages_answer_as_one() {
    let lab = Lab::new();
    let toy = || Toy::new(0, LAYERS, 2, FAST);
    let c = lab.agent("lab/c", &toy(), None).await;
    let b = lab.agent("lab/b", &toy(), Some(("lab/c", c.quic_address().expect("it listens")))).await;
    let a = lab.agent("lab/a", &toy(), Some(("lab/b", b.quic_address().expect("it listens")))).await;
    let ingress = lab.ingress("lab/edge", "lab/a", a.quic_address().expect("it listens")).await;
    for (seed, length) in [(0, 1), (7, 16), (8, 17), (u64::MAX, 500)] {
        let (prompt, sampling) = ("tide ".repeat(length), Sampling { seed, ..Sampling::default() });
        let expected = whole(&prompt, &sampling, 20);
        for nodes in [&["lab/a", "lab/b"][..], &["lab/a", "lab/b", "lab/c"]] {
            let answer = ingress.ask(ingress.header(nodes, 20), &prompt, seed).await;
            assert_eq!((answer.ids.as_slice(), &answer.failure), (expected.as_slice(), &None), "{nodes:?}, seed {seed}");
        }
    }
    for running in [&a, &b, &c] {
        until(running, "its slots are free", |status| active(status) == 0).await;
    }
    for running in [a, b, c] {
        running.shutdown().await.expect("all tasks end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_frees_every_stage() {
    // Row 23 of the complaints: in the prompt of the first stage, in that of the second, and while tokens come.
    for (first, second, tokens_first) in [(SLOW, FAST, false), (FAST, Manner::Ponders, false), (FAST, SLOW, true)] {
        let pair = Pair::new(first, second).await;
        let mut stream = pair.ingress.begin(pair.ingress.header(&["lab/a", "lab/b"], 1_000), &"x".repeat(1_000), 1).await;
        if tokens_first {
            while !matches!(stream.reader.read().await, Ok(Some(Frame::Tokens(_)))) {}
        }
        pair.until_active(1).await;
        drop(stream);
        pair.freed().await;
        pair.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadline_frees_every_stage() {
    let pair = Pair::new(SLOW, FAST).await;
    let mut header = pair.ingress.header(&["lab/a", "lab/b"], 1_000);
    header.remaining = Some(Micros::from_millis(300));
    let answer = pair.ingress.ask(header, "x", 1).await;
    assert_eq!(answer.failure, Some(Failure::DeadlineExceeded));
    pair.freed().await;
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_fails_says_so_and_frees_the_others() {
    let pair = Pair::new(FAST, Manner::Fails(20)).await;
    let answer = pair.ingress.ask(pair.ingress.header(&["lab/a", "lab/b"], 1_000), "0123456789", 1).await;
    assert_eq!(answer.failure, named(Failure::Engine("as planned".to_owned())));
    assert_eq!(answer.ids.len(), 11, "one token after the prompt's ten rows, and one after each of ten more");
    pair.freed().await;
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_dies_is_named_and_frees_the_others() {
    let lab = Lab::new();
    // b's runtime is its process: it dies without a word.
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let (first, second) = (Toy::new(0, LAYERS / 2, 2, FAST), Toy::new(LAYERS / 2, LAYERS, 2, SLOW));
    let lab = Arc::new(lab);
    let of = Arc::clone(&lab);
    let b = process.spawn(async move { of.agent("lab/b", &second, None).await }).await.expect("joined");
    let a = lab.agent("lab/a", &first, Some(("lab/b", b.quic_address().expect("it listens")))).await;
    let ingress = lab.ingress("lab/edge", "lab/a", a.quic_address().expect("it listens")).await;
    let mut stream = ingress.begin(ingress.header(&["lab/a", "lab/b"], 10_000), "x", 1).await;
    while !matches!(stream.reader.read().await, Ok(Some(Frame::Tokens(_)))) {}
    std::mem::forget(b);
    process.shutdown_background();
    let answer = read(&mut stream).await;
    assert_eq!(answer.failure, named(Failure::Broken("lab/b".to_owned())));
    until(&a, "a's slot is free", |status| active(status) == 0).await;
    a.shutdown().await.expect("all tasks end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_finds_no_slot_gives_back_that_of_the_one_before() {
    let pair = Pair::new(FAST, SLOW).await;
    let header = || pair.ingress.header(&["lab/a", "lab/b"], 10_000);
    // As an ingress would that knows b without a.
    let at_b = pair.lab.ingress("lab/z", "lab/b", pair.b.quic_address().expect("it listens")).await;
    let mut busy = Vec::new();
    for _ in 0..2 {
        let mut direct = header();
        direct.stages[0].node = node("lab/z");
        let mut stream = at_b.offer(direct.next_stage().expect("a second")).await;
        assert!(matches!(stream.reader.read().await, Ok(Some(Frame::Accepted(_)))));
        let body = StageBody { sampling: Sampling::default(), prompt: Vec::new(), resume: Vec::new(), length_max: 100 };
        let bytes = body.encode().expect("small");
        stream.writer.write(&Frame::Body(Chunk { bytes, last: true })).await.expect("sent");
        busy.push(stream);
    }
    until(&pair.b, "both slots of b are taken", |status| active(status) == 2).await;
    let answer = pair.ingress.ask(header(), "x", 1).await;
    assert_eq!(answer.failure, named(Failure::Refused(Reason::Busy)));
    until(&pair.a, "a's slot is free", |status| active(status) == 0).await;
    drop(busy);
    pair.freed().await;
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_next_stage_does_not_take_costs_nothing_here() {
    let pair = Pair::new(FAST, FAST).await;
    let answer = pair.ingress.ask(pair.ingress.header(&["lab/a", "lab/nobody"], 10), "x", 1).await;
    let failure = Box::new(Failure::Refused(Reason::NoPath));
    assert_eq!(answer.failure, Some(Failure::Stage { node: node("lab/nobody"), failure }));

    let mut header = pair.ingress.header(&["lab/a", "lab/b"], 10);
    header.stages[0].layers.to -= 1;
    header.stages[1].layers.from -= 1;
    let answer = pair.ingress.ask(header, "x", 1).await;
    assert_eq!(answer.failure, named(Failure::Refused(Reason::Part(pair.toys[1].range()))), "b does not hold one of them");

    let mut header = pair.ingress.header(&["lab/a", "lab/b"], 10);
    header.variant = shared::ids::VariantId::new("large").expect("good");
    assert_eq!(pair.ingress.refused(header).await, Reason::NoReplica);
    let mut header = pair.ingress.header(&["lab/a", "lab/b"], 10);
    header.stages[1].layers = header.stages[0].layers;
    assert_eq!(pair.ingress.refused(header).await, Reason::NotGranted, "this is no split at all");
    assert_eq!(pair.toys[0].rows(), 0, "nothing was computed for nothing");
    pair.freed().await;
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_hop_refuses_what_breaks_residency() {
    let lab = Lab::new();
    let toy = || Toy::new(0, LAYERS, 2, FAST);
    let outside = lab.agent("other/b", &toy(), None).await;
    let a = lab.agent("lab/a", &toy(), Some(("other/b", outside.quic_address().expect("it listens")))).await;
    let ingress = lab.ingress("lab/edge", "lab/a", a.quic_address().expect("it listens")).await;
    let mut header = ingress.header(&["lab/a", "other/b"], 10);
    let answer = ingress.ask(header.clone(), "x", 1).await;
    assert_eq!(answer.failure, None, "anywhere is everywhere");

    header.attempt.number = 1;
    header.residency = ResidencyBound::Within(ScopeId::new("lab").expect("good"));
    assert_eq!(ingress.refused(header.clone()).await, Reason::Residency, "the first stage sends nothing there");

    // Whoever sends it all the same is refused there.
    let forger = lab.ingress("lab/z", "other/b", outside.quic_address().expect("it listens")).await;
    header.stages[0].node = node("lab/z");
    assert_eq!(forger.refused(header.next_stage().expect("a second")).await, Reason::Residency);
    for running in [a, outside] {
        running.shutdown().await.expect("all tasks end");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_takes_hidden_states_only_of_the_stage_before() {
    let pair = Pair::new(FAST, FAST).await;
    let at_b = pair.lab.ingress("lab/z", "lab/b", pair.b.quic_address().expect("it listens")).await;
    let header = pair.ingress.header(&["lab/a", "lab/b"], 10);
    let mut elsewhere = header.clone();
    elsewhere.attempt = header.attempt.at_stage(5);
    elsewhere.target = node("lab/b");
    for forged in [header.next_stage().expect("a second"), elsewhere] {
        let mut stream = at_b.offer(forged).await;
        assert!(stream.reader.read().await.is_err(), "reset");
    }
    assert_eq!(pair.toys[1].rows(), 0);
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_that_takes_nothing_holds_the_one_before_back() {
    let pair = Pair::new(FAST, Manner::Deaf).await;
    let stream = pair.ingress.begin(pair.ingress.header(&["lab/a", "lab/b"], 10), &"x".repeat(10_000), 1).await;
    // The prompt's rows have 23 MB. What fits on the way is computed, and then nothing more.
    let (mut before, mut same) = (0, 0);
    while same < 20 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = pair.toys[0].rows();
        same = if now == before && now > 0 { same + 1 } else { 0 };
        before = now;
    }
    assert!(before * u32::try_from(ROW).expect("small") < 1_000_000, "{before} rows are on the way");
    drop(stream);
    pair.freed().await;
    pair.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_goes_through_what_connection_there_is() {
    let pair = Pair::new(FAST, FAST).await;
    let mut header = pair.ingress.header(&["lab/a", "lab/b"], 5);
    header.stages[1].hop = Hop::Relay;
    let answer = pair.ingress.ask(header, "x", 3).await;
    let expected = whole("x", &Sampling { seed: 3, ..Sampling::default() }, 5);
    assert_eq!((answer.ids, answer.failure), (expected, None), "the hub is gone, the neighbour is not");
    pair.end().await;
}

#[test]
fn a_token_costs_its_hidden_state_and_at_most_two_percent() {
    let hidden = Hidden { start: 100_000, count: 1, draw: true, bytes: vec![0xff; ROW] };
    let frame = Frame::Hidden(hidden);
    let bytes = frame.encode().expect("a frame").len();
    assert_eq!(frame.encoded_bytes(), bytes);
    assert!(bytes <= ROW + ROW / 50, "{bytes} bytes");
}
