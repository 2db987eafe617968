//! Requests: of the hub's own clients, and relayed between agents.

use crate::agent::{Agent, Session_, replica};
use crate::world::{PATIENCE, World};
use cloud_hub::logic::PlanRow;
use serde_json::{Value, json};
use shared::fleet::{Load, NodeState};
use shared::ids::{AttemptId, NodeId, RequestId, ServiceId, VariantId};
use shared::plan::{Finish, PlanRows, Reason, Usage};
use shared::units::{Bytes, Tokens};
use shared::wire::frame::{Chunk, End, TokenBatch};
use shared::wire::{Body, Frame};
use shared::work::{ExecHeader, Features, Precision, Priority, PromptKind, ResidencyBound};
use shared_net::link::{Code, Stream, StreamError};
use std::time::Duration;
use tokio::time::timeout;

const CANARY: &str = "canary-5f1c";

async fn online(world: &World, agent: &Agent, instance: u64) -> Session_ {
    let session = agent.connect(world, agent.hello(instance, vec![replica("tiny")])).await;
    let (_mqtt, _events) = agent.report(world, session.session, vec![replica("tiny")]).await;
    world.until_state(&agent.node, NodeState::Online).await;
    world.until(&agent.node, "reported", |row| row.report_age.is_some()).await;
    session
}

async fn frame(stream: &mut Stream) -> Frame {
    timeout(PATIENCE, stream.reader.read()).await.expect("in time").expect("read").expect("a frame")
}

/// Takes the next request stream up to its whole body.
async fn take(session: &Session_) -> (Stream, ExecHeader, Body) {
    let mut stream = timeout(PATIENCE, session.link.accept()).await.expect("in time").expect("a stream");
    let Frame::Header(header) = frame(&mut stream).await else { panic!("want a header first") };
    stream.writer.write(&Frame::Accepted(Load { slots: 4, active: 1, ..Load::default() })).await.expect("written");
    let mut bytes = Vec::new();
    loop {
        let Frame::Body(chunk) = frame(&mut stream).await else { panic!("want the body after acceptance") };
        bytes.extend(chunk.bytes);
        if chunk.last {
            break;
        }
    }
    (stream, *header, Body::decode(&bytes).expect("a body"))
}

fn tokens(text: &str) -> Frame {
    Frame::Tokens(TokenBatch { count: 1, ids: vec![1], text: text.to_owned(), delta: None })
}

fn end() -> Frame {
    let usage = Usage { prompt: Tokens(3), output: Tokens(2), cached: Tokens(0) };
    Frame::End(End { finish: Finish::Stop, usage, load: None })
}

/// Asks the hub as a client does. Until its first plan the hub may use nobody, so that refusal is waited out.
async fn ask(world: &World, stream: bool) -> reqwest::Response {
    let body = json!({"model": "assistant", "stream": stream, "messages": [{"role": "user", "content": CANARY}]});
    let url = format!("http://{}/v1/chat/completions", world.addresses().http);
    let asked = timeout(PATIENCE, async {
        loop {
            let answer = world.http.post(&url).json(&body).send().await.expect("answered");
            if answer.status() == 200 {
                return answer;
            }
            let refusal: Value = answer.json().await.expect("JSON");
            assert_eq!(refusal["error"]["code"], "not_granted", "{refusal}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    asked.await.expect("a plan in time")
}

/// Waits until a node may send to others.
async fn granted(world: &World, node: &NodeId) {
    let may_send =
        |row: &PlanRow| matches!(&row.plan.rows, PlanRows::Offload(rows) if rows.iter().any(|row| !row.targets.is_empty()));
    world.until(node, "granted anything", |row| row.plans.iter().any(may_send)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_the_hub_is_served_by_an_agent() {
    let mut world = World::start().await;
    world.put_service("assistant", "tiny").await;
    let token = world.token("eu/site-7", 1).await;
    let agent = Agent::join(&world, &token, "node-1").await;
    let session = online(&world, &agent, 1).await;
    let executor = async {
        let (mut stream, header, body) = take(&session).await;
        assert_eq!((&header.target, &header.ingress), (&agent.node, &agent.hub));
        assert!(matches!(&body.prompt, shared::wire::body::Prompt::Chat(messages) if messages[0].content == CANARY));
        for sent in [tokens("Hello"), tokens(" there"), end()] {
            stream.writer.write(&sent).await.expect("written");
        }
        stream.writer.finish().await.expect("finished");
    };
    let (answer, ()) = tokio::join!(ask(&world, false), executor);
    let id = answer.headers().get("x-request-id").expect("an id").to_str().expect("text").to_owned();
    let answer: Value = answer.json().await.expect("JSON");
    assert_eq!(answer["choices"][0]["message"]["content"], "Hello there", "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 2);
    let kept = timeout(PATIENCE, async {
        loop {
            let records = world.get(&format!("records/{id}")).await;
            if let Some(kept) = records.as_array().and_then(|records| records.first()) {
                return kept.clone();
            }
        }
    });
    let kept = kept.await.expect("a record, soon after the answer");
    assert_eq!(kept["record"]["served_by"][0], "eu/site-7/node-1", "{kept}");
    world.stop_hub().await;
    assert_no_canary(world.folder.path());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_must_stay_at_a_site_is_refused_and_recorded() {
    let mut world = World::start().await;
    world.put_service("assistant", "tiny").await;
    for stream in [false, true] {
        let body = json!({"model": "assistant", "stream": stream, "messages": [{"role": "user", "content": CANARY}],
            "tidegate": {"residency": "site"}});
        let url = format!("http://{}/v1/chat/completions", world.addresses().http);
        let answer = world.http.post(&url).json(&body).send().await.expect("answered");
        assert_eq!(answer.status(), 403);
        let id = answer.headers().get("x-request-id").expect("an id").to_str().expect("text").to_owned();
        let refusal: Value = answer.json().await.expect("JSON");
        assert!(refusal["error"]["message"].as_str().is_some_and(|why| why.contains("asked of an agent there")), "{refusal}");
        let kept = timeout(PATIENCE, async {
            loop {
                let records = world.get(&format!("records/{id}")).await;
                if let Some(kept) = records.as_array().and_then(|records| records.first()) {
                    return kept.clone();
                }
            }
        });
        let kept = kept.await.expect("a record, soon after the answer");
        assert_eq!(kept["record"]["ingress"], "cloud/hub", "{kept}");
        assert!(kept["record"]["outcome"].to_string().contains("residency"), "{kept}");
    }
    world.stop_hub().await;
    assert_no_canary(world.folder.path());
}

/// What clients say must not be in anything that the hub keeps.
fn assert_no_canary(folder: &std::path::Path) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            assert_no_canary(&path);
        } else {
            let bytes = std::fs::read(&path).expect("a file");
            assert!(!bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes()), "{}", path.display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_cancels_the_execution() {
    let mut world = World::start().await;
    world.put_service("assistant", "tiny").await;
    let token = world.token("eu/site-7", 1).await;
    let agent = Agent::join(&world, &token, "node-1").await;
    let session = online(&world, &agent, 1).await;
    let (mut answer, (mut stream, ..)) = tokio::join!(
        async {
            let mut answer = ask(&world, true).await;
            let first = timeout(PATIENCE, answer.chunk()).await.expect("in time").expect("read");
            assert!(first.is_some());
            answer
        },
        async {
            let (mut stream, header, body) = take(&session).await;
            stream.writer.write(&tokens("Hello")).await.expect("written");
            (stream, header, body)
        }
    );
    assert_eq!(answer.status(), 200);
    drop(answer.chunk());
    drop(answer);
    let stopped = timeout(PATIENCE, stream.writer.stopped()).await.expect("in time");
    assert_eq!(stopped, Some(Code::CANCELLED), "the executor is told to stop");
    stream.writer.reset(Code::CANCELLED);
    let page = world.page_with("tidegate_hub_requests_total{outcome=\"client_gone\"} 1").await;
    assert!(page.contains("tidegate_hub_http_open{what=\"streams\"} 0"), "{page}");
    world.stop_hub().await;
}

fn header(from: &Agent, to: &Agent, number: u128) -> ExecHeader {
    ExecHeader {
        attempt: AttemptId::new(RequestId(number), 0),
        ingress: from.node.clone(),
        target: to.node.clone(),
        service: ServiceId::new("assistant").expect("good"),
        variant: VariantId::new("tiny").expect("good"),
        kind: PromptKind::Chat,
        prompt: Tokens(3),
        output_max: Tokens(10),
        output_likely: None,
        features: Features::default(),
        body: Bytes(4),
        residency: ResidencyBound::Anywhere,
        priority: Priority::default(),
        remaining: None,
        resume_from: Tokens(0),
        stages: Vec::new(),
        precision: Precision::default(),
        parent_span: 0,
    }
}

async fn open(session: &Session_, header: ExecHeader) -> Stream {
    let mut stream = session.link.open().await.expect("a stream");
    stream.writer.write(&Frame::Header(Box::new(header))).await.expect("written");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_reach_each_other_through_the_hub() {
    let mut world = World::start().await;
    world.put_service("assistant", "tiny").await;
    let token = world.token("eu/site-7", 1).await;
    let edge = Agent::join(&world, &token, "edge").await;
    let token = world.token("cloud", 1).await;
    let cloud = Agent::join(&world, &token, "gpu").await;
    let (from, to) = (online(&world, &edge, 1).await, online(&world, &cloud, 2).await);
    granted(&world, &edge.node).await;

    let mut asking = open(&from, header(&edge, &cloud, 1)).await;
    let mut serving = timeout(PATIENCE, to.link.accept()).await.expect("in time").expect("a stream");
    assert!(matches!(frame(&mut serving).await, Frame::Header(header) if header.ingress == edge.node));
    serving.writer.write(&Frame::Accepted(Load::default())).await.expect("written");
    assert!(matches!(frame(&mut asking).await, Frame::Accepted(_)));
    asking.writer.write(&Frame::Body(Chunk { bytes: vec![7; 10_000], last: true })).await.expect("written");
    asking.writer.finish().await.expect("finished");
    assert!(matches!(frame(&mut serving).await, Frame::Body(chunk) if chunk.bytes.len() == 10_000));
    serving.writer.write(&end()).await.expect("written");
    serving.writer.finish().await.expect("finished");
    assert!(matches!(frame(&mut asking).await, Frame::End(_)));
    assert!(timeout(PATIENCE, asking.reader.read()).await.expect("in time").expect("read").is_none());

    let cancelled = open(&from, header(&edge, &cloud, 2)).await;
    let mut serving = timeout(PATIENCE, to.link.accept()).await.expect("in time").expect("a stream");
    frame(&mut serving).await;
    cancelled.cancel(Code::CANCELLED);
    let seen = timeout(PATIENCE, serving.reader.read()).await.expect("in time");
    assert!(matches!(seen, Err(StreamError::Reset(Code::CANCELLED))), "{seen:?}");

    let mut bound = header(&edge, &cloud, 3);
    bound.residency = ResidencyBound::Within(edge.node.site());
    let mut refused = open(&from, bound).await;
    assert!(matches!(frame(&mut refused).await, Frame::Refused(Reason::Residency, _)), "a relay is outside the site");
    let mut borrowed = header(&edge, &cloud, 4);
    borrowed.ingress = cloud.node.clone();
    let mut foreign = open(&from, borrowed).await;
    let seen = timeout(PATIENCE, foreign.reader.read()).await.expect("in time");
    assert!(matches!(seen, Err(StreamError::Reset(Code::PROTOCOL))), "nobody asks in another's name: {seen:?}");

    timeout(PATIENCE, async { while world.metric("tidegate_hub_relay_open").await > 0.0 {} }).await.expect("relays end");
    assert!(world.metric("tidegate_hub_relay_bytes_total{direction=\"forth\"}").await >= 10_000.0);
    world.stop_hub().await;
}
