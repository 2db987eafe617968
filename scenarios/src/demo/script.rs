//! What is asked, where, and what must come of it.

use super::cast::{Cast, FLOOR, SERVICE};
use crate::emulate::client::{Question, Text};
use serde_json::{Value, json};
use shared::ids::{NodeId, ScopeId};

/// What must come of a request, besides an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Promise {
    /// An answer, from anywhere.
    Answer,
    /// An answer from inside this part of the fleet.
    Within(ScopeId),
    /// An answer by a variant at least this good.
    Quality(f64),
    /// A typed refusal: nobody in reach may serve it, and nobody must.
    Refusal,
}

/// One request of the play.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    /// What a person would call it.
    pub(super) label: String,
    /// Where it is asked.
    pub(super) at: NodeId,
    /// What is asked.
    pub(super) question: Question,
    /// What must come of it.
    pub(super) promise: Promise,
    /// Whether the ingress must know that it is cut off; absent where it may know either.
    pub(super) degraded: Option<bool>,
}

impl Ask {
    fn new(label: &str, at: &NodeId, prompt: &str, max_tokens: u32) -> Self {
        Self {
            label: label.to_owned(),
            at: at.clone(),
            // Drawn with a seed: the same prompt gives the same answer, and a penalty keeps so small a model from going round.
            question: Question::new(SERVICE, prompt, max_tokens)
                .with("temperature", json!(0.6))
                .with("frequency_penalty", json!(0.4))
                .with("seed", json!(7)),
            promise: Promise::Answer,
            degraded: None,
        }
    }

    fn needing(mut self, needs: Value) -> Self {
        self.question = self.question.needing(needs);
        self
    }

    fn promising(mut self, promise: Promise) -> Self {
        self.promise = promise;
        self
    }

    fn degraded(mut self, degraded: bool) -> Self {
        self.degraded = Some(degraded);
        self
    }
}

/// One request after the other, each with another need.
pub(super) fn needs(cast: &Cast) -> Vec<Ask> {
    let (one, two) = (&cast.edge_1, &cast.edge_2);
    vec![
        Ask::new("no needs", one, "Why does the sea have tides?", 32),
        Ask::new("loose deadline", two, "Name three things a lighthouse keeper does.", 32)
            .needing(json!({"deadline_ms": 30_000})),
        Ask::new("tight first token", two, "Say hello to a sailor.", 16).needing(json!({"first_token_ms": 400})),
        Ask::new("quality floor", one, "Explain in one sentence what a harbour is.", 32)
            .needing(json!({"min_quality": FLOOR}))
            .promising(Promise::Quality(FLOOR)),
        Ask::new("stays at the site", one, "Summarise: the crane on pier 4 needs a new cable.", 24)
            .needing(json!({"residency": "site"}))
            .promising(Promise::Within(cast.site.clone())),
        Ask::new("stays on the node", two, "Rephrase politely: close the gate.", 24)
            .needing(json!({"residency": "node"}))
            .promising(Promise::Within(two.scope())),
        Ask::new("asked at the hub", &cast.hub, "What is a tide gate?", 24),
    ]
}

/// The turns of a conversation; the answers so far go into each next one.
pub(super) fn turns(cast: &Cast) -> Vec<Ask> {
    let prompts = ["Give me a name for a small boat.", "Why that name?", "Now a name for a big one."];
    let turn = |(i, prompt): (usize, &&str)| {
        Ask::new(&format!("conversation, turn {}", i + 1), &cast.edge_2, prompt, 20).needing(json!({"session": "demo"}))
    };
    prompts.iter().enumerate().map(turn).collect()
}

/// `ask` with what was said before.
pub(super) fn after(mut ask: Ask, said: &[(&'static str, Text)]) -> Ask {
    let own = std::mem::take(&mut ask.question.messages);
    ask.question.messages = said.iter().cloned().chain(own).collect();
    ask
}

/// More at once than one edge can do.
pub(super) fn burst(cast: &Cast) -> Vec<Ask> {
    let prompts = ["wind", "rain", "fog", "ice", "sun", "storm"];
    let ask = |(i, word): (usize, &&str)| {
        Ask::new(
            &format!("burst, {} of {}", i + 1, prompts.len()),
            &cast.edge_1,
            &format!("One sentence about {word} at sea."),
            16,
        )
    };
    prompts.iter().enumerate().map(ask).collect()
}

/// With the uplink of the first edge cut.
pub(super) fn cut_off(cast: &Cast) -> Vec<Ask> {
    let one = &cast.edge_1;
    vec![
        Ask::new("cut off: no needs", one, "How do you tie a knot?", 24)
            .promising(Promise::Within(cast.site.clone()))
            .degraded(true),
        Ask::new("cut off: stays at the site", one, "Summarise: ferry 2 is late.", 16)
            .needing(json!({"residency": "site"}))
            .promising(Promise::Within(cast.site.clone()))
            .degraded(true),
        Ask::new("cut off: quality floor", one, "Describe a lock in one sentence.", 16)
            .needing(json!({"min_quality": FLOOR, "deadline_ms": 2_000}))
            .promising(Promise::Refusal)
            .degraded(true),
        Ask::new("the neighbour is not cut", &cast.edge_2, "Describe a lock in one sentence.", 16)
            .needing(json!({"min_quality": FLOOR}))
            .promising(Promise::Quality(FLOOR)),
    ]
}

/// With the cable in place again.
pub(super) fn restored(cast: &Cast) -> Vec<Ask> {
    vec![
        Ask::new("restored: quality floor", &cast.edge_1, "Describe a lock in one sentence.", 16)
            .needing(json!({"min_quality": FLOOR}))
            .promising(Promise::Quality(FLOOR))
            .degraded(false),
    ]
}

/// Answered as soon as the node's own model is loaded.
pub(super) fn own_model(at: &NodeId) -> Ask {
    Ask::new("own model", at, "Hi.", 1).needing(json!({"residency": "node"}))
}

/// Answered as soon as the cloud's model is in reach.
pub(super) fn cloud_model(at: &NodeId) -> Ask {
    Ask::new("cloud in reach", at, "Hi.", 1).needing(json!({"min_quality": FLOOR}))
}
