//! A frame of every kind, and bodies.

use crate::values::*;
use shared::fleet::{Hop, ReplicaState};
use shared::ids::*;
use shared::plan::{Failure, Finish, Reason, Stage, Usage};
use shared::units::*;
use shared::wire::Frame;
use shared::wire::body::{Body, Message, Prompt, Sampling};
use shared::wire::frame::*;
use shared::work::*;
use std::collections::BTreeMap;

fn header() -> ExecHeader {
    ExecHeader {
        attempt: AttemptId::new(RequestId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef), 1),
        ingress: node("eu/site-7/edge-1"),
        target: node("eu/cloud/gpu-1"),
        service: service("assistant"),
        variant: variant("smollm2-135m-q8"),
        kind: PromptKind::Chat,
        prompt: Tokens(120),
        output_max: Tokens(64),
        output_likely: None,
        features: Features { stop: true, unseeded: true, ..Features::default() },
        body: Bytes(480),
        residency: ResidencyBound::Within(ScopeId::new("eu").expect("good")),
        priority: Priority::new(7).expect("at most 9"),
        remaining: Some(Micros::from_secs(4)),
        resume_from: Tokens(9),
        stages: Vec::new(),
        precision: Precision::default(),
        parent_span: 0xfeed,
    }
}

fn embedding() -> ExecHeader {
    let features = Features { embeddings: true, vision: true, ..Features::default() };
    ExecHeader { kind: PromptKind::Embedding, features, output_max: Tokens(0), ..header() }
}

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: 1,
        node: node("eu/site-7/edge-1"),
        instance: Instance(u64::MAX),
        plan_epoch_seen: epoch(41),
        session_epoch_seen: SessionEpoch(8),
        replicas: vec![replica(ReplicaState::Ready), replica(ReplicaState::Failed("weights damaged".to_owned()))],
    }
}

pub(crate) fn frames() -> Vec<(String, Frame)> {
    let mut frames = plain_frames();
    frames.extend(goodbyes().into_iter().map(Frame::Goodbye).enumerate().map(numbered("goodbye")));
    frames
        .extend(reasons().into_iter().map(|reason| (format!("refused-{}", reason.code()), Frame::Refused(reason, Some(load())))));
    frames.extend(failures().into_iter().map(|failure| (format!("failed-{}", failure.code()), Frame::Failed(failure))));
    frames
}

fn numbered(name: &str) -> impl Fn((usize, Frame)) -> (String, Frame) {
    move |(number, frame)| (format!("{name}-{number}"), frame)
}

fn plain_frames() -> Vec<(String, Frame)> {
    let replicas = vec![replica(ReplicaState::Loading), replica(ReplicaState::Draining)];
    let welcome = Welcome {
        version: 1,
        node: node("core/hub"),
        session: SessionEpoch(9),
        heartbeat: Micros::from_secs(5),
        broker: "hub:8883".to_owned(),
        replicas,
    };
    let pulse = Pulse { number: 12, loads: BTreeMap::from([("smollm2-135m-q8".to_owned(), load())]) };
    let tokens = TokenBatch { count: 2, ids: vec![28, 49_151], text: "tide €".to_owned(), delta: Some("{}".to_owned()) };
    let usage = Usage { prompt: Tokens(118), output: Tokens(64), cached: Tokens(32) };
    let end = |finish| Frame::End(End { finish, usage, load: Some(load()) });
    let issued = Issued {
        node: node("eu/site-7/edge-1"),
        hub: node("core/hub"),
        certificate: "-----BEGIN CERTIFICATE-----\n".to_owned(),
        authority: "-----BEGIN CERTIFICATE-----\n".to_owned(),
        labels: BTreeMap::from([("rack".to_owned(), "3".to_owned())]),
        expires_in: Micros::from_secs(86_400),
    };
    let join = Join { secret: "cd".repeat(16), name: "edge-1".to_owned(), request: vec![0x30, 0x82, 0xff] };
    let residency = |residency| Frame::Header(Box::new(ExecHeader { residency, kind: PromptKind::Completion, ..header() }));
    let named = [
        ("hello", Frame::Hello(hello())),
        ("welcome", Frame::Welcome(welcome)),
        ("ping", Frame::Ping(pulse.clone())),
        ("pong", Frame::Pong(pulse)),
        ("header", Frame::Header(Box::new(header()))),
        ("header-anywhere", residency(ResidencyBound::Anywhere)),
        ("header-exactly", residency(ResidencyBound::Exactly(node("eu/site-7/edge-1")))),
        ("header-embedding", Frame::Header(Box::new(embedding()))),
        ("accepted", Frame::Accepted(load())),
        ("body", Frame::Body(Chunk { bytes: vec![0, 1, 254, 255], last: true })),
        ("progress", Frame::Progress),
        ("header-stage", Frame::Header(Box::new(staged()))),
        ("hidden", Frame::Hidden(Hidden { start: 16, count: 1, draw: true, bytes: vec![0, 0, 128, 63] })),
        ("failed-stage", Frame::Failed(Failure::Stage { node: node("eu/cloud/gpu-1"), failure: Box::new(Failure::ClientGone) })),
        ("drawn", Frame::Drawn(Drawn(49_151))),
        ("tokens", Frame::Tokens(tokens)),
        ("end-stop", end(Finish::Stop)),
        ("end-length", end(Finish::Length)),
        ("end-content-filter", end(Finish::ContentFilter)),
        ("end-tool-calls", end(Finish::ToolCalls)),
        ("join", Frame::Join(join)),
        ("renew", Frame::Renew(Renew { request: vec![0x30, 0x00] })),
        ("issued", Frame::Issued(issued)),
        ("denied", Frame::Denied("the token has expired".to_owned())),
    ];
    named.into_iter().map(|(name, frame)| (name.to_owned(), frame)).collect()
}

/// The header of the second of two stages.
fn staged() -> ExecHeader {
    let stage = |name: &str, hop, from, to| Stage { node: node(name), hop, layers: LayerRange { from, to, of: 30 } };
    let stages = vec![stage("eu/site-7/edge-1", Hop::Local, 0, 15), stage("eu/cloud/gpu-1", Hop::Relay, 15, 30)];
    let first = ExecHeader { stages, precision: Precision::F16, ..header() };
    first.next_stage().expect("there are two")
}

fn goodbyes() -> Vec<Goodbye> {
    use Goodbye::*;
    vec![Replaced, Cloned, Revoked, Version, Shutdown, Protocol("a body before acceptance".to_owned())]
}

fn reasons() -> Vec<Reason> {
    use Reason::*;
    let quality = |value| shared::units::Quality::new(value).expect("from 0 to 1");
    vec![
        Stale { age: Micros::from_secs(20) },
        Unknown,
        Offline,
        Suspect,
        Draining,
        Cloned,
        NoPath,
        NotGranted,
        BoundReached { open_max: 4 },
        NoReplica,
        Loading,
        ReplicaFailed("weights damaged".to_owned()),
        NoProfile,
        Residency,
        Quality { has: quality(0.25), wanted: quality(0.5) },
        Context { wanted: Tokens(5_000), context: Tokens(2_048) },
        Capability("tools".to_owned()),
        NotPinned,
        Busy,
        Deadline { predicted: Micros::from_secs(3), remaining: Micros::from_secs(1) },
        Energy(Joules::new(2.5).expect("good")),
        Money(MicroDollars(30)),
        Tried,
        NotResumable("other weights".to_owned()),
        Policy("cloud-only".to_owned()),
        RetryBudget,
        QueueFull,
        Part(LayerRange { from: 0, to: 15, of: 30 }),
        SplitMargin { split: Micros::from_secs(3), whole: Micros::from_secs(2) },
        NoCandidate,
    ]
}

fn failures() -> Vec<Failure> {
    use Failure::*;
    vec![
        Broken("eu/cloud/gpu-1".to_owned()),
        Stalled(Micros::from_secs(10)),
        Engine("out of memory".to_owned()),
        PromptTooLong { prompt: Tokens(5_000), context: Tokens(2_048) },
        BadRequest { param: Some("stop".to_owned()), message: "at most four".to_owned() },
        DeadlineExceeded,
        ClientGone,
        ClientStalled,
        Refused(Reason::Busy),
    ]
}

pub(crate) fn bodies() -> Vec<(&'static str, Body)> {
    let message = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
    let sampling = Sampling {
        max_tokens: 64,
        temperature: 0.75,
        top_p: 0.95,
        seed: 7,
        stop: vec!["\n\n".to_owned()],
        frequency_penalty: 0.5,
        presence_penalty: -0.25,
        repetition_penalty: 1.125,
    };
    let chat = Prompt::Chat(vec![message("system", "Be brief."), message("user", "Why do tides rise? 🌊")]);
    let passthrough = Some(r#"{"tools":[]}"#.to_owned());
    vec![
        ("chat", Body { prompt: chat, sampling, passthrough, resume: vec![1, 28, 49_151] }),
        (
            "plain",
            Body {
                prompt: Prompt::Plain("The tide".to_owned()),
                sampling: Sampling::default(),
                passthrough: None,
                resume: Vec::new(),
            },
        ),
        (
            "inputs",
            Body {
                prompt: Prompt::Inputs(vec!["The tide".to_owned(), "The gate".to_owned()]),
                sampling: Sampling::default(),
                passthrough: None,
                resume: Vec::new(),
            },
        ),
    ]
}

/// Fails to compile when a kind of message is added, so that nobody forgets its sample.
#[test]
fn every_kind_of_frame_has_a_sample() {
    let place = |frame: &Frame| match frame {
        Frame::Hello(_) => 0,
        Frame::Welcome(_) => 1,
        Frame::Goodbye(_) => 2,
        Frame::Ping(_) => 3,
        Frame::Pong(_) => 4,
        Frame::Header(_) => 5,
        Frame::Accepted(_) => 6,
        Frame::Refused(..) => 7,
        Frame::Body(_) => 8,
        Frame::Progress => 9,
        Frame::Tokens(_) => 10,
        Frame::End(_) => 11,
        Frame::Failed(_) => 12,
        Frame::Join(_) => 13,
        Frame::Renew(_) => 14,
        Frame::Issued(_) => 15,
        Frame::Denied(_) => 16,
        Frame::Hidden(_) => 17,
        Frame::Drawn(_) => 18,
    };
    let mut seen: Vec<_> = frames().iter().map(|(_, frame)| place(frame)).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (0..=18).collect::<Vec<_>>());
}
