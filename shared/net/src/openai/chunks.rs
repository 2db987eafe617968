//! Chunks of plain text, written straight to bytes: there is one for each step of an engine, and all of one stream begin alike.
//!
//! What is more than plain text (tool calls, several answers, log-probabilities) goes through `shape`.

use super::shape::Envelope;
use bytes::Bytes;
use serde::Serialize;
use shared::work::PromptKind;

/// The chunks of one stream.
#[derive(Debug)]
pub(super) struct Chunks {
    kind: PromptKind,
    /// From `data:` to the choice's text.
    head: Vec<u8>,
    /// What follows the text.
    tail: &'static str,
}

#[derive(Serialize)]
struct Head<'a> {
    id: String,
    object: &'a str,
    created: u64,
    model: &'a str,
}

impl Chunks {
    /// With `usage`, each chunk says that its usage is not known yet.
    pub(super) fn new(envelope: &Envelope, usage: bool) -> Self {
        let head =
            Head { id: envelope.name(), object: envelope.chunk_object(), created: envelope.created, model: &envelope.model };
        let mut bytes = b"data: ".to_vec();
        // Texts and numbers always serialise.
        if serde_json::to_writer(&mut bytes, &head).is_ok() {
            bytes.pop();
        }
        bytes.extend_from_slice(b",\"choices\":[{\"index\":0,");
        let tail = match (envelope.kind, usage) {
            (PromptKind::Chat, false) => "},\"logprobs\":null,\"finish_reason\":null}]}\n\n",
            (PromptKind::Chat, true) => "},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n",
            (PromptKind::Completion | PromptKind::Embedding, false) => ",\"logprobs\":null,\"finish_reason\":null}]}\n\n",
            (PromptKind::Completion | PromptKind::Embedding, true) => {
                ",\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n"
            }
        };
        Self { kind: envelope.kind, head: bytes, tail }
    }

    /// One chunk. The first of a chat names the role.
    pub(super) fn chunk(&self, text: &str, first: bool) -> Bytes {
        let mut bytes = Vec::with_capacity(self.head.len() + self.tail.len() + text.len() + 64);
        bytes.extend_from_slice(&self.head);
        bytes.extend_from_slice(match (self.kind, first) {
            (PromptKind::Chat, true) => b"\"delta\":{\"role\":\"assistant\",\"content\":",
            (PromptKind::Chat, false) => b"\"delta\":{\"content\":",
            (PromptKind::Completion | PromptKind::Embedding, _) => b"\"text\":",
        });
        if serde_json::to_writer(&mut bytes, text).is_err() {
            bytes.extend_from_slice(b"\"\"");
        }
        bytes.extend_from_slice(self.tail.as_bytes());
        Bytes::from(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::Piece;
    use super::*;
    use serde_json::Value;
    use shared::ids::RequestId;
    use shared::wire::frame::TokenBatch;

    #[test]
    fn they_are_what_the_longer_way_writes() {
        for (kind, usage, first) in [
            (PromptKind::Chat, false, true),
            (PromptKind::Chat, true, false),
            (PromptKind::Completion, false, true),
            (PromptKind::Completion, true, false),
        ] {
            let text = "a \"quoted\"\n\u{1f30a}";
            let envelope = Envelope { kind, id: RequestId(7), created: 5, model: "m \"x\"".to_owned() };
            let batch = TokenBatch { count: 1, ids: Vec::new(), text: text.to_owned(), delta: None };
            let piece = Piece::of(kind, batch).expect("content");
            let mut expected = envelope.chunk(vec![piece.chunk_choice(kind, first)]);
            if usage {
                expected["usage"] = Value::Null;
            }
            let written = Chunks::new(&envelope, usage).chunk(text, first);
            let json = written.strip_prefix(b"data: ").and_then(|rest| rest.strip_suffix(b"\n\n")).expect("one event");
            assert_eq!(serde_json::from_slice::<Value>(json).expect("JSON"), expected);
        }
    }
}
