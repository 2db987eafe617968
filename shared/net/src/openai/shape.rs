//! OpenAI's response objects, whole and in chunks.

use super::progress::Story;
use serde::Serialize;
use serde_json::{Map, Value, json};
use shared::ids::RequestId;
use shared::plan::{Finish, Usage};
use shared::wire::frame::TokenBatch;
use shared::work::PromptKind;

/// Room for a whole answer of usual length, so that it is written without being moved.
const WHOLE_BYTES: usize = 2_048;

/// What all objects of one answer have in common.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    pub(super) kind: PromptKind,
    pub(super) id: RequestId,
    /// Unix time in seconds, as the API wants it. For display only.
    pub(super) created: u64,
    pub(super) model: String,
}

impl Envelope {
    /// A whole answer, as JSON.
    pub(super) fn whole(&self, choices: &[Value], usage: Usage, tidegate: &Story<'_>) -> Vec<u8> {
        let object = match self.kind {
            PromptKind::Chat => "chat.completion",
            PromptKind::Completion | PromptKind::Embedding => "text_completion",
        };
        let (id, created, model) = (self.name(), self.created, &self.model);
        let whole = Whole { id, object, created, model, choices, usage: Counted::of(usage), tidegate };
        let mut bytes = Vec::with_capacity(WHOLE_BYTES);
        // Texts, numbers and what was JSON before always serialise.
        drop(serde_json::to_writer(&mut bytes, &whole));
        bytes
    }

    /// A chunk of a stream.
    pub(super) fn chunk(&self, choices: Vec<Value>) -> Value {
        self.object(self.chunk_object(), choices)
    }

    /// What a chunk calls itself.
    pub(super) const fn chunk_object(&self) -> &'static str {
        match self.kind {
            PromptKind::Chat => "chat.completion.chunk",
            PromptKind::Completion | PromptKind::Embedding => "text_completion",
        }
    }

    /// The answer's id.
    pub(super) fn name(&self) -> String {
        let prefix = match self.kind {
            PromptKind::Chat => "chatcmpl",
            PromptKind::Completion | PromptKind::Embedding => "cmpl",
        };
        format!("{prefix}-{}", self.id)
    }

    fn object(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.name(),
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

/// The usage object.
#[derive(Debug, Serialize)]
pub(super) struct Counted {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: Details,
}

#[derive(Debug, Serialize)]
struct Details {
    cached_tokens: u32,
}

impl Counted {
    pub(super) fn of(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt.0,
            completion_tokens: usage.output.0,
            total_tokens: (usage.prompt + usage.output).0,
            prompt_tokens_details: Details { cached_tokens: usage.cached.0 },
        }
    }
}

#[derive(Serialize)]
struct Whole<'a> {
    id: String,
    object: &'a str,
    created: u64,
    model: &'a str,
    choices: &'a [Value],
    usage: Counted,
    tidegate: &'a Story<'a>,
}

/// The API's word for why an answer ended.
pub(super) const fn finish_word(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
        Finish::ContentFilter => "content_filter",
        Finish::ToolCalls => "tool_calls",
    }
}

/// What one batch adds to one choice.
#[derive(Debug)]
pub(super) struct Piece {
    /// Which choice; always 0 unless several answers were asked for.
    pub(super) index: u64,
    /// `delta` of a chat, or `{"text": …}` of a completion.
    pub(super) delta: Map<String, Value>,
    /// `logprobs`, where the engine sent any.
    pub(super) logprobs: Value,
    /// `finish_reason`, where the engine sent one for this choice.
    pub(super) finish: Option<String>,
}

impl Piece {
    /// What a batch adds; nothing when its text is still incomplete.
    ///
    /// A structured delta is either the `delta` object alone, or a whole choice of a chunk (`index`, `delta` or `text`, `logprobs`,
    /// `finish_reason`), which engines need for several answers and for log-probabilities. The batch's text is added where the delta
    /// has no content of its own.
    pub(super) fn of(kind: PromptKind, batch: TokenBatch) -> Option<Self> {
        let key = content_key(kind);
        let sent = batch.delta.as_deref().and_then(|delta| serde_json::from_str::<Map<String, Value>>(delta).ok());
        let mut piece = Self::of_delta(sent.unwrap_or_default(), key);
        if !batch.text.is_empty() && !piece.delta.get(key).is_some_and(Value::is_string) {
            piece.delta.insert(key.to_owned(), Value::String(batch.text));
        }
        let empty = piece.delta.is_empty() && piece.logprobs.is_null() && piece.finish.is_none();
        if empty { None } else { Some(piece) }
    }

    fn of_delta(mut sent: Map<String, Value>, key: &str) -> Self {
        if !(sent.contains_key("delta") || sent.contains_key("index") || sent.contains_key("finish_reason")) {
            return Self { index: 0, delta: sent, logprobs: Value::Null, finish: None };
        }
        let mut delta = match sent.remove("delta") {
            Some(Value::Object(delta)) => delta,
            _ => Map::new(),
        };
        if let Some(text @ Value::String(_)) = sent.remove(key) {
            delta.insert(key.to_owned(), text);
        }
        Self {
            index: sent.get("index").and_then(Value::as_u64).unwrap_or(0),
            delta,
            logprobs: sent.remove("logprobs").unwrap_or_default(),
            finish: sent.get("finish_reason").and_then(Value::as_str).map(str::to_owned),
        }
    }

    /// The choice of a chunk. `first` adds the role to the first of a chat.
    pub(super) fn chunk_choice(mut self, kind: PromptKind, first: bool) -> Value {
        match kind {
            PromptKind::Chat => {
                if first {
                    self.delta.insert("role".to_owned(), json!("assistant"));
                }
                json!({"index": self.index, "delta": self.delta, "logprobs": self.logprobs, "finish_reason": self.finish})
            }
            PromptKind::Completion | PromptKind::Embedding => {
                let text = self.delta.remove("text").unwrap_or_else(|| json!(""));
                json!({"index": self.index, "text": text, "logprobs": self.logprobs, "finish_reason": self.finish})
            }
        }
    }
}

/// Where plain content lies in a delta.
pub(super) const fn content_key(kind: PromptKind) -> &'static str {
    match kind {
        PromptKind::Chat => "content",
        PromptKind::Completion | PromptKind::Embedding => "text",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(text: &str, delta: Option<&str>) -> TokenBatch {
        TokenBatch { count: 1, ids: Vec::new(), text: text.to_owned(), delta: delta.map(str::to_owned) }
    }

    #[test]
    fn plain_text_becomes_a_delta() {
        let piece = Piece::of(PromptKind::Chat, batch("hi", None)).expect("content");
        let choice = piece.chunk_choice(PromptKind::Chat, true);
        assert_eq!(choice["delta"], json!({"role": "assistant", "content": "hi"}));
        assert!(Piece::of(PromptKind::Chat, batch("", None)).is_none(), "an incomplete character shows nothing");
        let piece = Piece::of(PromptKind::Completion, batch("hi", Some("not json"))).expect("content");
        assert_eq!(piece.chunk_choice(PromptKind::Completion, true)["text"], "hi");
    }

    #[test]
    fn structured_deltas_pass_through() {
        let delta = r#"{"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}"#;
        let piece = Piece::of(PromptKind::Chat, batch("", Some(delta))).expect("content");
        assert_eq!(piece.delta["tool_calls"][0]["function"]["arguments"], "{");
        let whole = r#"{"index": 2, "delta": {"content": "x"}, "logprobs": {"content": [1]}, "finish_reason": "stop"}"#;
        let piece = Piece::of(PromptKind::Chat, batch("x", Some(whole))).expect("content");
        assert_eq!((piece.index, piece.finish.as_deref()), (2, Some("stop")));
        assert_eq!(piece.delta["content"], "x");
        let piece = Piece::of(PromptKind::Completion, batch("y", Some(r#"{"index": 1, "text": "y"}"#))).expect("content");
        assert_eq!(
            piece.chunk_choice(PromptKind::Completion, false),
            json!({"index": 1, "text": "y", "logprobs": null, "finish_reason": null})
        );
    }
}
