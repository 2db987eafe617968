//! One chunk of a streamed answer.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use shared::plan::{Finish, Usage};
use shared::units::Tokens;
use shared::wire::frame::TokenBatch;
use std::borrow::Cow;

/// What a chunk says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Said {
    /// New content.
    pub(super) batch: Option<TokenBatch>,
    /// Why generation stopped.
    pub(super) finish: Option<Finish>,
    /// The upstream's count.
    pub(super) usage: Option<Usage>,
    /// The upstream gave up in mid-stream.
    pub(super) failed: bool,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Vec<Choice<'a>>,
    #[serde(default)]
    usage: Option<Counted>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
    #[serde(default)]
    text: Option<String>,
    #[serde(borrow, default)]
    finish_reason: Option<Cow<'a, str>>,
}

/// A delta that says no more than text, as nearly all do.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plain {
    #[serde(default)]
    content: Option<String>,
    #[serde(default, rename = "role")]
    _role: IgnoredAny,
}

#[derive(Deserialize)]
struct Counted {
    prompt_tokens: u32,
    #[serde(default)]
    completion_tokens: u32,
    #[serde(default)]
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

/// Reads a chunk; nothing when it is none.
pub(super) fn read(data: &[u8]) -> Option<Said> {
    let chunk: Chunk<'_> = serde_json::from_slice(data).ok()?;
    let mut said = Said { failed: chunk.error.is_some_and(|error| !error.is_null()), ..Said::default() };
    said.usage = chunk.usage.map(|counted| Usage {
        prompt: Tokens(counted.prompt_tokens),
        output: Tokens(counted.completion_tokens),
        cached: Tokens(counted.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0)),
    });
    // Only one answer was asked for.
    if let Some(choice) = chunk.choices.into_iter().find(|choice| choice.index == 0) {
        said.finish = choice.finish_reason.as_deref().map(finish);
        said.batch = batch(choice.delta.map(RawValue::get).unwrap_or("null"), choice.text);
    }
    Some(said)
}

fn finish(reason: &str) -> Finish {
    match reason {
        "length" => Finish::Length,
        "content_filter" => Finish::ContentFilter,
        "tool_calls" | "function_call" => Finish::ToolCalls,
        _ => Finish::Stop,
    }
}

fn batch(delta: &str, text: Option<String>) -> Option<TokenBatch> {
    if let Ok(plain) = serde_json::from_str::<Option<Plain>>(delta) {
        let content = plain.unwrap_or_default().content.or(text).filter(|content| !content.is_empty())?;
        return Some(TokenBatch { count: 1, ids: Vec::new(), text: content, delta: None });
    }
    let mut delta: Map<String, Value> = serde_json::from_str(delta).unwrap_or_default();
    let content = match delta.remove("content") {
        Some(Value::String(content)) => content,
        _ => text.unwrap_or_default(),
    };
    delta.remove("role");
    delta.retain(|_, value| !value.is_null());
    let delta = if delta.is_empty() { None } else { serde_json::to_string(&delta).ok() };
    (!content.is_empty() || delta.is_some()).then(|| TokenBatch { count: 1, ids: Vec::new(), text: content, delta })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_of_all_kinds() {
        let text = |said: Option<Said>| said.and_then(|said| said.batch).map(|batch| batch.text);
        assert_eq!(text(read(br#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#)), None);
        assert_eq!(text(read(br#"{"choices":[{"index":0,"delta":{"content":"a"}}]}"#)).as_deref(), Some("a"));
        assert_eq!(text(read(br#"{"choices":[{"index":0,"text":"b"}],"usage":null}"#)).as_deref(), Some("b"));
        let last = read(br#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"prompt_tokens_details":null}}"#);
        assert_eq!(last.and_then(|said| said.usage).map(|usage| (usage.prompt.0, usage.output.0)), Some((3, 4)));
        let tool = read(
            br#"{"choices":[{"index":0,"delta":{"content":null,"tool_calls":[{"index":0}]},"finish_reason":"tool_calls"}]}"#,
        );
        let tool = tool.expect("a chunk");
        assert_eq!(tool.finish, Some(Finish::ToolCalls));
        assert_eq!(tool.batch.and_then(|batch| batch.delta).as_deref(), Some(r#"{"tool_calls":[{"index":0}]}"#));
        assert!(read(br#"{"error":{"message":"x"}}"#).is_some_and(|said| said.failed));
        assert_eq!(read(b"{\"choices\":"), None);
    }
}
