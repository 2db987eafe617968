//! Asking the agent, one request after the other or several at once.

use super::trace::Ask;
use futures_util::stream::{FuturesUnordered, StreamExt};
use scenarios::emulate::client::{Client, Question, Reply};
use serde_json::{Value, json};
use shared::ids::NodeId;
use std::error::Error;
use std::time::Duration;
use tests::report::Spread;
use tests::{World, llm, service};
use tokio::time::{Instant, sleep, sleep_until};

/// Requests at once.
const SLOTS: usize = 4;
/// The survey takes a few seconds of computing.
const SURVEYED_WITHIN: Duration = Duration::from_secs(60);
/// How many requests come between two of the repeated one.
const REPEAT_EVERY: usize = 5;
/// Share of the engine's time alone that arrivals would take if they did not batch: crowded, but not ever more so.
const BUSY: f64 = 0.5;
/// Fewer tokens than this say more about the clock than about the rate.
const TOKENS_MIN: u64 = 4;

/// What was predicted and what was.
#[derive(Clone, Debug)]
pub(crate) struct Judged {
    pub(crate) learning: bool,
    /// Predicted and actual seconds to the first token.
    pub(crate) first: Option<(f64, f64)>,
    /// What nine in ten first tokens should keep within.
    pub(crate) first_high: Option<f64>,
    /// Predicted and actual seconds of each further token.
    pub(crate) token: Option<(f64, f64)>,
    pub(crate) total: f64,
    prompt: u32,
    tokens: u64,
    in_flight: usize,
}

impl Judged {
    fn of(ask: &Ask, reply: &Reply, learning: bool, in_flight: usize) -> Result<Self, String> {
        if !reply.answered() {
            return Err(format!("no answer: {:?}", reply.error));
        }
        let served = reply.served.as_ref().ok_or("an answer without its decision")?;
        let predicted = served.predicted.ok_or("a decision without a prediction")?;
        let pair = |predicted: Option<f64>, actual: Option<f64>| Some((predicted? / 1e3, actual? / 1e3));
        Ok(Self {
            learning,
            first: pair(predicted.first_token_ms, served.actual.first_token_ms),
            first_high: predicted.first_token_high_ms.map(|ms| ms / 1e3),
            token: pair(predicted.per_token_ms, served.actual.per_token_ms).filter(|_| reply.tokens >= TOKENS_MIN),
            total: reply.total.as_secs_f64(),
            prompt: ask.prompt,
            tokens: reply.tokens,
            in_flight,
        })
    }

    /// A line for a table of all.
    pub(crate) fn row(&self, part: &str) -> String {
        let cells = |pair: Option<(f64, f64)>| pair.map_or_else(|| ",".to_owned(), |(a, b)| format!("{a:.6},{b:.6}"));
        let (first, token) = (cells(self.first), cells(self.token));
        format!("{part},{},{},{},{},{first},{token}\n", self.learning, self.prompt, self.tokens, self.in_flight)
    }
}

/// The agent under judgement.
pub(crate) struct Subject {
    world: World,
    node: NodeId,
}

impl Subject {
    pub(crate) async fn start() -> Result<Self, Box<dyn Error>> {
        let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
        let node = world.agent("lab/a", &llm("v", SLOTS as u32)).await;
        world.until_ready(&node, "s").await;
        Ok(Self { world, node })
    }

    /// Waits until the engine has been measured, and says what was found.
    pub(crate) async fn until_surveyed(&self) -> Result<String, Box<dyn Error>> {
        let end = Instant::now() + SURVEYED_WITHIN;
        let (mut before, mut still) = (Value::Null, 0);
        loop {
            let status = self.world.status(&self.node).await;
            let profile = status.pointer("/replicas/0/profile").cloned().unwrap_or(Value::Null);
            // It reports once it is through: until then the profile stays as it was after the first request.
            still = if profile == before { still + 1 } else { 0 };
            before = profile;
            if still >= 20 {
                return Ok(before.to_string());
            }
            if Instant::now() > end {
                return Err(format!("the engine's profile does not settle: {before}").into());
            }
            sleep(Duration::from_millis(250)).await;
        }
    }

    /// All requests, each after the one before. Also how much one request differs that is asked again and again among them: its first
    /// token, and each further one.
    pub(crate) async fn one_by_one(&mut self, asks: &[Ask]) -> Result<(Vec<Judged>, [Spread; 2]), Box<dyn Error>> {
        let mut judged = Vec::new();
        let mut repeats = [Vec::new(), Vec::new()];
        for (number, ask) in asks.iter().enumerate() {
            let reply = self.world.ask(&self.node, &question(ask, &number.to_string())).await;
            judged.push(Judged::of(ask, &reply, number < asks.len() / 2, 1)?);
            if number >= asks.len() / 2 && number % REPEAT_EVERY == 0 {
                let same = Ask { prompt: 160, output: 24, gap: 0.0, text: "over the sand and out again ".repeat(27) };
                // Another beginning, or it would be known.
                let reply = self.world.ask(&self.node, &question(&same, &format!("again {number}"))).await;
                let again = Judged::of(&same, &reply, false, 1)?;
                for (seen, pair) in repeats.iter_mut().zip([again.first, again.token]) {
                    seen.extend(pair.map(|(_, actual)| actual));
                }
            }
        }
        Ok((judged, repeats.map(|seen| Spread::of(&seen))))
    }

    /// All requests at the gaps of the trace, in a time in which they keep the engine busy, where one takes so many seconds alone.
    pub(crate) async fn at_once(&mut self, asks: &[Ask], alone: f64) -> Result<Vec<Judged>, Box<dyn Error>> {
        let gaps = asks.iter().map(|ask| ask.gap).sum::<f64>() / asks.len().max(1) as f64;
        let scale = alone / BUSY / gaps.max(1e-9);
        let client = Client::new()?;
        let base = self.world.base(&self.node);
        let mut open = FuturesUnordered::new();
        let mut judged = Vec::new();
        let mut due = Instant::now();
        for (number, ask) in asks.iter().enumerate() {
            due += Duration::from_secs_f64(ask.gap * scale);
            while open.len() >= SLOTS || Instant::now() < due {
                if open.len() >= SLOTS {
                    judged.extend(open.next().await.transpose()?);
                    continue;
                }
                tokio::select! {
                    () = sleep_until(due) => {}
                    Some(one) = open.next(), if !open.is_empty() => judged.push(one?),
                }
            }
            let (client, base, in_flight) = (&client, &base, open.len() + 1);
            let learning = number < asks.len() / 2;
            open.push(async move {
                let reply =
                    client.ask(base, &question(ask, &format!("crowd {number}"))).await.map_err(|error| error.to_string())?;
                Judged::of(ask, &reply, learning, in_flight)
            });
        }
        while let Some(one) = open.next().await {
            judged.push(one?);
        }
        Ok(judged)
    }

    /// What the agent has learned of lengths.
    pub(crate) async fn lengths(&self) -> String {
        let status = self.world.status(&self.node).await;
        status.pointer("/learnt/s").cloned().unwrap_or(Value::Null).to_string()
    }
}

fn question(ask: &Ask, mark: &str) -> Question {
    Question::new("s", &format!("{mark} {}", ask.text), ask.output)
        .with("temperature", json!(0.0))
        .needing(json!({"residency": "node"}))
}
