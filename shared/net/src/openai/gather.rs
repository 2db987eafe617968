//! A whole answer, put together from its batches.

use super::shape::{Piece, content_key, finish_word};
use serde_json::{Map, Value, json};
use shared::plan::{Failure, Finish};
use shared::wire::frame::TokenBatch;
use shared::work::PromptKind;
use std::collections::BTreeMap;

/// Largest answer that is put together in memory: about a million tokens. A longer one is a broken engine; streams have no such limit.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The choices of one answer so far.
#[derive(Debug)]
pub(super) struct Gather {
    kind: PromptKind,
    /// Text that came alone, before anything with more structure: most answers are no more than this.
    plain: String,
    choices: BTreeMap<u64, Choice>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Choice {
    message: Map<String, Value>,
    logprobs: Value,
    finish: Option<String>,
}

impl Gather {
    pub(super) const fn new(kind: PromptKind) -> Self {
        Self { kind, plain: String::new(), choices: BTreeMap::new(), bytes: 0 }
    }

    /// Adds a batch.
    pub(super) fn add(&mut self, batch: TokenBatch) -> Result<(), Failure> {
        self.bytes = self.bytes.saturating_add(batch.text.len() + batch.delta.as_ref().map_or(0, String::len));
        if self.bytes > ANSWER_BYTES_MAX {
            return Err(Failure::Engine(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")));
        }
        if batch.delta.is_none() && self.choices.is_empty() {
            self.plain.push_str(&batch.text);
            return Ok(());
        }
        self.settle();
        let Some(piece) = Piece::of(self.kind, batch) else { return Ok(()) };
        let choice = self.choices.entry(piece.index).or_default();
        merge_members(&mut choice.message, piece.delta);
        merge(&mut choice.logprobs, piece.logprobs);
        if piece.finish.is_some() {
            choice.finish = piece.finish;
        }
        Ok(())
    }

    /// Plain text becomes a part of the first choice.
    fn settle(&mut self) {
        let plain = std::mem::take(&mut self.plain);
        if !plain.is_empty() {
            self.choices.entry(0).or_default().message.insert(content_key(self.kind).to_owned(), Value::String(plain));
        }
    }

    /// The choices, complete.
    pub(super) fn choices(mut self, finish: Finish) -> Vec<Value> {
        self.settle();
        self.choices.entry(0).or_default();
        let key = content_key(self.kind);
        let whole = |(index, choice): (u64, Choice)| {
            let finish = choice.finish.unwrap_or_else(|| finish_word(finish).to_owned());
            let mut message = choice.message;
            match self.kind {
                PromptKind::Chat => {
                    message.insert("role".to_owned(), json!("assistant"));
                    let calls = without_indices(&mut message);
                    message.entry(key).or_insert_with(|| if calls { Value::Null } else { json!("") });
                    message.entry("refusal").or_insert(Value::Null);
                    json!({"index": index, "message": message, "logprobs": choice.logprobs, "finish_reason": finish})
                }
                PromptKind::Completion | PromptKind::Embedding => {
                    let text = message.remove(key).unwrap_or_else(|| json!(""));
                    json!({"index": index, "text": text, "logprobs": choice.logprobs, "finish_reason": finish})
                }
            }
        };
        self.choices.into_iter().map(whole).collect()
    }
}

/// In a whole message, tool calls have no index. Says whether there are any calls.
fn without_indices(message: &mut Map<String, Value>) -> bool {
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        for call in calls.iter_mut().filter_map(Value::as_object_mut) {
            call.remove("index");
        }
    }
    message.contains_key("tool_calls") || message.contains_key("function_call")
}

/// Members that name something and are not pieces of a text.
const NAMES: [&str; 4] = ["role", "id", "type", "name"];

fn merge_members(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (name, value) in from {
        match into.get_mut(&name) {
            Some(old) if !NAMES.contains(&name.as_str()) => merge(old, value),
            // Engines repeat a name as an empty text.
            Some(_) if value.as_str().is_none_or(str::is_empty) => {}
            _ => drop(into.insert(name, value)),
        }
    }
}

/// Texts and lists grow, objects merge, entries with an index merge with the entry of that index; null adds nothing.
fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (_, Value::Null) => {}
        (Value::String(old), Value::String(new)) => old.push_str(&new),
        (Value::Object(old), Value::Object(new)) => merge_members(old, new),
        (Value::Array(old), Value::Array(new)) => {
            for entry in new {
                let same = entry.get("index").and_then(|index| old.iter().position(|other| other.get("index") == Some(index)));
                match same.and_then(|at| old.get_mut(at)) {
                    Some(other) => merge_entry(other, entry),
                    None => old.push(entry),
                }
            }
        }
        (old, new) => *old = new,
    }
}

fn merge_entry(into: &mut Value, mut entry: Value) {
    if let Some(members) = entry.as_object_mut() {
        members.remove("index");
    }
    merge(into, entry);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(text: &str, delta: Option<&Value>) -> TokenBatch {
        TokenBatch { count: 1, ids: Vec::new(), text: text.to_owned(), delta: delta.map(Value::to_string) }
    }

    fn gathered(kind: PromptKind, batches: Vec<TokenBatch>) -> Vec<Value> {
        let mut gather = Gather::new(kind);
        for batch in batches {
            gather.add(batch).expect("small");
        }
        gather.choices(Finish::Stop)
    }

    #[test]
    fn texts_are_joined() {
        let choices = gathered(PromptKind::Chat, vec![batch("a", None), batch("", None), batch("b", None)]);
        assert_eq!(choices[0]["message"], json!({"role": "assistant", "content": "ab", "refusal": null}));
        assert_eq!(choices[0]["finish_reason"], "stop");
        assert_eq!(gathered(PromptKind::Completion, vec![])[0]["text"], "", "an empty answer is an answer");
    }

    #[test]
    fn tool_calls_are_joined_by_index() {
        let call = |arguments: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]});
        let first = json!({"role": "assistant", "tool_calls": [
            {"index": 0, "id": "c1", "type": "function", "function": {"name": "clock", "arguments": ""}},
        ]});
        let second = json!({"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "door", "arguments": "{}"}}]});
        let batches = [&first, &call("{\"a\""), &second, &call(":1}")].into_iter().map(|delta| batch("", Some(delta))).collect();
        let choices = gathered(PromptKind::Chat, batches);
        let calls = &choices[0]["message"]["tool_calls"];
        assert_eq!(calls[0], json!({"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{\"a\":1}"}}));
        assert_eq!(calls[1]["function"], json!({"name": "door", "arguments": "{}"}));
        assert_eq!(choices[0]["message"]["content"], Value::Null);
    }

    #[test]
    fn several_answers_and_logprobs_stay_apart() {
        let part = |index: u64, text: &str| json!({"index": index, "delta": {"content": text}, "logprobs": {"content": [text]}});
        let batches = [part(1, "x"), part(0, "a"), part(1, "y")].iter().map(|delta| batch("", Some(delta))).collect();
        let choices = gathered(PromptKind::Chat, batches);
        assert_eq!(choices[0]["message"]["content"], "a");
        assert_eq!(choices[1]["message"]["content"], "xy");
        assert_eq!(choices[1]["logprobs"]["content"], json!(["x", "y"]));
    }

    #[test]
    fn endless_answers_end() {
        let mut gather = Gather::new(PromptKind::Chat);
        let big = "x".repeat(1024 * 1024);
        let failed = (0..100).find_map(|_| gather.add(batch(&big, None)).err());
        assert!(matches!(failed, Some(Failure::Engine(_))));
    }
}
