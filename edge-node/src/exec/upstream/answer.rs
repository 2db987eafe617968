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
struct Plain<'a> {
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
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

/// Reads the chunks of one answer. They are all alike but for their text: one that has the same bytes as the one before it, up to its
/// text and after it, says the same but for its text, and is not taken apart again.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The bytes of a chunk up to its text, with the quote that opens it, and from the quote that closes it.
    around: Option<(Vec<u8>, Vec<u8>)>,
}

impl Reader {
    /// Reads a chunk; nothing when it is none.
    pub(super) fn read(&mut self, data: &[u8]) -> Option<Said> {
        if let Some(text) = self.like_before(data) {
            let batch = (!text.is_empty()).then(|| plain(text.to_owned()));
            return Some(Said { batch, ..Said::default() });
        }
        let (said, around) = read(data)?;
        let only_text = said.finish.is_none() && said.usage.is_none() && !said.failed;
        self.around = around.filter(|_| only_text);
        Some(said)
    }

    /// The text of a chunk that differs from the one before in nothing else.
    fn like_before<'a>(&self, data: &'a [u8]) -> Option<&'a str> {
        let (before, after) = self.around.as_ref()?;
        let text = data.strip_prefix(before.as_slice())?.strip_suffix(after.as_slice())?;
        // Without these it means in JSON what it is.
        let literal = !text.iter().any(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f));
        if literal { std::str::from_utf8(text).ok() } else { None }
    }
}

/// What stands around a part of `data`.
fn around(data: &[u8], part: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let begin = part.as_ptr().addr().checked_sub(data.as_ptr().addr())?;
    let inner = part.len().checked_sub(2).filter(|_| part.starts_with('"'))?;
    let (before, rest) = data.split_at_checked(begin + 1)?;
    Some((before.to_vec(), rest.get(inner..)?.to_vec()))
}

fn plain(text: String) -> TokenBatch {
    TokenBatch { count: 1, ids: Vec::new(), text, delta: None }
}

/// Reads a chunk, and says what stands around its text, where that is all that its choice says.
#[expect(clippy::type_complexity, reason = "the two parts are named where they are kept")]
fn read(data: &[u8]) -> Option<(Said, Option<(Vec<u8>, Vec<u8>)>)> {
    let chunk: Chunk<'_> = serde_json::from_slice(data).ok()?;
    let mut said = Said { failed: chunk.error.is_some_and(|error| !error.is_null()), ..Said::default() };
    said.usage = chunk.usage.map(|counted| Usage {
        prompt: Tokens(counted.prompt_tokens),
        output: Tokens(counted.completion_tokens),
        cached: Tokens(counted.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0)),
    });
    // Only one answer was asked for.
    let mut text_at = None;
    if let Some(choice) = chunk.choices.into_iter().find(|choice| choice.index == 0) {
        said.finish = choice.finish_reason.as_deref().map(finish);
        let delta = choice.delta.map(RawValue::get).unwrap_or("null");
        let simple = serde_json::from_str::<Option<Plain<'_>>>(delta).ok().and_then(|delta| delta.unwrap_or_default().read());
        said.batch = match simple {
            Some((content, literal)) => {
                text_at = literal.filter(|_| choice.text.is_none()).and_then(|literal| around(data, literal));
                content.or(choice.text).filter(|text| !text.is_empty()).map(plain)
            }
            None => structured(delta, choice.text),
        };
    }
    Some((said, text_at))
}

impl<'a> Plain<'a> {
    /// The text, where there is one, and as it is written; nothing when the content is something else.
    fn read(self) -> Option<(Option<String>, Option<&'a str>)> {
        let Some(literal) = self.content.map(RawValue::get) else { return Some((None, None)) };
        let text: Option<String> = serde_json::from_str(literal).ok()?;
        Some((text, Some(literal)))
    }
}

fn finish(reason: &str) -> Finish {
    match reason {
        "length" => Finish::Length,
        "content_filter" => Finish::ContentFilter,
        "tool_calls" | "function_call" => Finish::ToolCalls,
        _ => Finish::Stop,
    }
}

fn structured(delta: &str, text: Option<String>) -> Option<TokenBatch> {
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
    fn chunks_that_differ_in_their_text_alone_say_what_they_say_alone() {
        let chunk =
            |text: &str, more: &str| format!(r#"{{"id":"x","choices":[{{"index":0,"delta":{{"content":{text}}}{more}}}]}}"#);
        let mut chunks: Vec<String> = [r#""a""#, r#""b c""#, r#""\u0041""#, r#""\"""#, r#""""#, "null", r#""é""#, "7", r#""z""#]
            .iter()
            .map(|text| chunk(text, ""))
            .collect();
        chunks.push(chunk(r#""end""#, r#","finish_reason":"length""#));
        chunks.push(chunk(r#""}}],"error":{"x":"y""#, ""));
        chunks.push(chunk(r#""q","content":"r""#, ""));
        chunks.push(chunk(r#""s","tool_calls":[{"index":0}]"#, ""));
        chunks.push(chunk(r#""t""#, ""));
        let mut reader = Reader::default();
        for chunk in &chunks {
            let alone = read(chunk.as_bytes()).map(|(said, _)| said);
            assert_eq!(reader.read(chunk.as_bytes()), alone, "{chunk}");
        }
        assert!(reader.like_before(chunk(r#""u""#, "").as_bytes()).is_some_and(|text| text == "u"), "the short way is taken");
    }

    #[test]
    fn chunks_of_all_kinds() {
        let read = |data: &[u8]| read(data).map(|(said, _)| said);
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
