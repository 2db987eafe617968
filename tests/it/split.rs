//! A model that fits no node, served by two: real inference, each node with half of the layers.

use futures_util::StreamExt;
use scenarios::emulate::client::{Question, Reply};
use scenarios::emulate::wait::until;
use serde_json::{Value, json};
use shared::ids::NodeId;
use std::time::{Duration, Instant};
use tests::{SOON, World, agent_metric, llm, service};

/// From the issue.
const FREE_WITHIN: Duration = Duration::from_millis(500);
/// Memory of a node: either half of the model fits with its cache, the whole does not.
const MEMORY: u64 = 160_000_000;

/// Two nodes with half of the layers each, one with none, and one beside them with all, for comparison.
struct Halves {
    world: World,
    a: NodeId,
    b: NodeId,
    edge: NodeId,
}

fn part(layers: &str) -> String {
    format!("{}memory_max = {MEMORY}\nlayers = \"{layers}\"\n", llm("v", 1))
}

impl Halves {
    async fn new(b: &str) -> Self {
        let mut world = World::new(vec![service("s", &[("v", 50)]), service("whole", &[("w", 50)])], "").await;
        let a = world.agent("lab/a", &part("0..15")).await;
        let b = world.agent(b, &part("15..30")).await;
        let edge = world.agent("lab/edge", "").await;
        world.until_answered(&edge, &Question::new("s", "ready?", 1)).await;
        Self { world, a, b, edge }
    }

    /// Both slots become free in time from now.
    async fn freed(&self, when: &str) {
        let left = Instant::now();
        for node in [&self.a, &self.b] {
            let freed = until(format!("a free slot at {node}"), Duration::from_secs(10), || async {
                let now = self.world.active(node).await;
                if now == 0 { Ok(()) } else { Err(format!("{now} active")) }
            });
            freed.await.unwrap_or_else(|late| panic!("{when}: {late}"));
        }
        assert!(left.elapsed() < FREE_WITHIN, "{when}: {:?}", left.elapsed());
    }

    async fn until_active(&self) {
        for node in [&self.a, &self.b] {
            let busy = until(format!("work at {node}"), SOON, || async {
                if self.world.active(node).await == 1 { Ok(()) } else { Err("idle".to_owned()) }
            });
            busy.await.unwrap_or_else(|late| panic!("{late}"));
        }
    }
}

fn questions(model: &str) -> Vec<Question> {
    let drawn = json!(0.8);
    let texts = ["Name three rivers of Europe.", "Why does the tide rise twice a day?"];
    let greedy = texts.map(|text| Question::new(model, text, 24).with("temperature", json!(0.0)));
    let seeded = texts.map(|text| Question::new(model, text, 24).with("temperature", drawn.clone()).with("seed", json!(7)));
    greedy.into_iter().chain(seeded).collect()
}

/// The stages that a record names, and how the second was to be reached.
async fn stages(world: &World, at: &NodeId, reply: &Reply) -> Vec<(String, String)> {
    let id = reply.request.as_deref().expect("an id");
    let url = format!("{}/tidegate/v1/requests/{id}", world.base(at));
    let record: Value = world.client.http().get(url).send().await.expect("asked").json().await.expect("JSON");
    let split = record.pointer("/attempts/0/decision/verdict/assign/candidate/split/layers").and_then(Value::as_array);
    let split = split.unwrap_or_else(|| panic!("no stages in {record}"));
    let text = |stage: &Value, field: &str| stage[field].as_str().unwrap_or_default().to_owned();
    split.iter().map(|stage| (text(stage, "node"), text(stage, "hop"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_answer_as_one_directly_and_through_the_hub() {
    for (b, hop) in [("lab/b", "direct"), ("cloud/b", "relay")] {
        let mut halves = Halves::new(b).await;
        let whole = halves.world.agent("cloud/whole", &llm("w", 1)).await;
        halves.world.until_ready(&whole, "whole").await;
        let Halves { world, a, b, edge } = &halves;
        for (split, alone) in questions("s").iter().zip(questions("whole")) {
            // The first stage's node is an ingress as good as any.
            for at in [edge, a] {
                let (reply, expected) = (world.ask(at, split).await, world.ask(&whole, &alone).await);
                assert!(reply.answered(), "{:?}", reply.error);
                assert_eq!((reply.text.0, reply.tokens), (expected.text.0, expected.tokens), "asked at {at}");
            }
        }
        let reply = world.ask(edge, &Question::new("s", "who?", 2)).await;
        let named = stages(world, edge, &reply).await;
        assert_eq!((named[0].0.as_str(), (named[1].0.as_str(), named[1].1.as_str())), (a.as_str(), (b.as_str(), hop)));
        let (tokens, bytes) = ("tidegate_agent_stage_tokens_total", "tidegate_agent_stage_bytes_total");
        let (tokens, bytes) = (agent_metric(world, a, tokens).await, agent_metric(world, a, bytes).await);
        assert!(tokens > 0.0 && bytes / tokens <= 2_304.0 * 1.02, "{bytes} bytes for {tokens} tokens");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_a_split_request_frees_both_nodes() {
    // Row 23 of the complaints.
    let halves = Halves::new("lab/b").await;
    let url = format!("{}/v1/chat/completions", halves.world.base(&halves.edge));
    let ask = |text: String| {
        let body = json!({"model": "s", "stream": true, "max_tokens": 500, "messages": [{"role": "user", "content": text}]});
        halves.world.client.http().post(&url).json(&body).send()
    };
    // In the prompt there is no head of an answer yet.
    let pending = tokio::spawn(ask("the tide rises and the tide falls ".repeat(180)));
    halves.until_active().await;
    pending.abort();
    halves.freed("in the prompt").await;

    let mut stream = ask("Go on and on.".to_owned()).await.expect("sent").bytes_stream();
    stream.next().await.expect("it begins").expect("it lives");
    halves.until_active().await;
    drop(stream);
    halves.freed("while tokens come").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_node_that_is_killed_is_named_or_replaced() {
    let mut halves = Halves::new("lab/b").await;
    let question = Question::new("s", "Count from one to a hundred.", 200).with("temperature", json!(0.0));
    let begin = |halves: &Halves| {
        let (client, base, question) = (halves.world.client.clone(), halves.world.base(&halves.edge), question.clone());
        tokio::spawn(async move { client.ask(&base, &question).await })
    };
    let pending = begin(&halves);
    halves.until_active().await;
    halves.world.fleet.agent_mut(&halves.b).expect("there").kill();
    let reply = pending.await.expect("no panic").expect("a reply");
    let error = reply.error.expect("nobody else has the second half");
    assert!(error.message.contains("lab/b"), "{error:?}");

    halves.world.fleet.agent_mut(&halves.b).expect("there").start().await.expect("starts again");
    halves.world.until_answered(&halves.edge, &Question::new("s", "again?", 1)).await;
    let pending = begin(&halves);
    halves.until_active().await;
    let whole = halves.world.agent("lab/whole", &llm("v", 1)).await;
    halves.world.until_ready(&whole, "s").await;
    assert!(!pending.is_finished(), "too short an answer for this story");
    halves.world.fleet.agent_mut(&halves.b).expect("there").kill();
    let reply = pending.await.expect("no panic").expect("a reply");
    assert!(reply.answered(), "{:?}", reply.error);
    let served = reply.served.expect("told");
    assert_eq!((served.node, served.attempts), (Some(whole.clone()), Some(2)));
    let alone = halves.world.ask(&whole, &question).await;
    assert_eq!((reply.text.0, reply.tokens), (alone.text.0, alone.tokens), "without a lost or repeated token");
}
