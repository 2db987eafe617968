//! A request over two nodes beside the same request on one: `make bench-split`.
//!
//! Three agents on loopback, one computing thread each: one with the whole model, two with half of the layers. While one half
//! computes the other waits, so a split would be as fast as the whole if its way between the halves cost nothing.

use scenarios::emulate::client::{Question, Reply};
use serde_json::json;
use shared::ids::NodeId;
use tests::report::{Bound, Report, Spread, number};
use tests::{World, agent_metric, llm, service};

/// Tokens of an answer: enough that the first, which takes the prompt's time, counts for nothing.
const TOKENS: u32 = 96;
/// Bytes of the hidden state of one token of the model, in f32.
const HIDDEN_BYTES: f64 = 576.0 * 4.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> Result<(), Box<dyn std::error::Error>> {
    let mut report = Report::begin("split", "one request over two nodes, f32, loopback, one computing thread each");
    let mut world = World::new(vec![service("s", &[("v", 50)]), service("w", &[("all", 50)])], "").await;
    let part = |layers: &str| format!("{}layers = \"{layers}\"\n", llm("v", 1));
    let whole = world.agent("lab/whole", &llm("all", 1)).await;
    let first = world.agent("lab/a", &part("0..15")).await;
    let second = world.agent("lab/b", &part("15..30")).await;
    for node in [&whole, &first, &second] {
        open_way(&mut world, node).await?;
    }
    world.until_ready(&whole, "w").await;
    world.until_answered(&first, &Question::new("s", "ready?", 1)).await;

    let (mut rates, mut prompts) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let before = Sent::read(&world, &first).await;
    let rounds = number("--rounds", 9);
    for round in 0..=rounds {
        let text = format!("Tell the story of the harbour, the lamp and the gate, part {round}.");
        let mut texts = Vec::new();
        for (at, model, kind) in [(&whole, "w", 0), (&first, "s", 1)] {
            let question = Question::new(model, &text, TOKENS).with("temperature", json!(0.0));
            let reply = world.ask(at, &question).await;
            // The first round warms up.
            if round > 0 {
                rates[kind].push(rate(&reply)?);
                prompts[kind].push(reply.first_token.ok_or("no token")?.as_secs_f64() * 1e3);
            }
            texts.push(reply.text.0);
        }
        assert_eq!(texts.first(), texts.last(), "a split answers as the whole, token for token");
    }
    let sent = Sent::read(&world, &first).await.since(&before);

    let row =
        |name: &str, kind: usize| vec![name.to_owned(), Spread::of(&rates[kind]).shown(1), Spread::of(&prompts[kind]).shown(0)];
    report.table("median (least..most)", &["", "tokens/s", "first token ms"], &[row("whole", 0), row("split 15/15", 1)]);
    let frame = sent.frames / sent.tokens;
    report.note(&format!(
        "{:.0} tokens' hidden states: {frame:.1} bytes each in frames, {:.1} in datagrams with all overhead and the control stream",
        sent.tokens,
        sent.datagrams / sent.tokens
    ));
    report.floor("decode of the split to the whole's", Spread::of_ratios(&rates[1], &rates[0]), Bound::AtLeast(0.85));
    report.floor("bytes per token to the hidden state's", Spread::of(&[frame / HIDDEN_BYTES]), Bound::AtMost(1.02));
    drop(second);
    report.end()?;
    Ok(())
}

/// Takes away the gate before a node, behind which its neighbours would find it: a relay that a site has not.
async fn open_way(world: &mut World, node: &NodeId) -> Result<(), Box<dyn std::error::Error>> {
    let agent = world.fleet.agent_mut(node)?;
    let gate = agent.gate().address().to_string();
    let path = agent.folder().join("agent.toml");
    let text = std::fs::read_to_string(&path)?;
    let quic = text.split_once("[quic]").and_then(|(_, section)| section.split('"').nth(1)).ok_or("no [quic] listen")?;
    std::fs::write(&path, text.replace(&gate, quic))?;
    agent.stop();
    Ok(agent.start().await?)
}

/// Tokens per second after the first.
fn rate(reply: &Reply) -> Result<f64, String> {
    let per_token = reply.per_token.filter(|_| reply.answered()).ok_or_else(|| format!("no answer: {:?}", reply.error))?;
    Ok(1.0 / per_token.as_secs_f64())
}

/// What the first stage has sent.
struct Sent {
    tokens: f64,
    frames: f64,
    datagrams: f64,
}

impl Sent {
    async fn read(world: &World, node: &NodeId) -> Self {
        Self {
            tokens: agent_metric(world, node, "tidegate_agent_stage_tokens_total").await,
            frames: agent_metric(world, node, "tidegate_agent_stage_bytes_total").await,
            datagrams: agent_metric(world, node, "tidegate_agent_peer_bytes{direction=\"sent\"}").await,
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            tokens: self.tokens - before.tokens,
            frames: self.frames - before.frames,
            datagrams: self.datagrams - before.datagrams,
        }
    }
}
