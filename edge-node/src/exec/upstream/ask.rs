//! The request as the upstream wants it, and its refusals as ours.

use super::UpstreamConfig;
use serde_json::{Map, Value, json};
use shared::plan::{Failure, Reason};
use shared::units::Tokens;
use shared::wire::Body;
use shared::wire::body::Prompt;
use shared::work::{ExecHeader, PromptKind};

/// Longest message of an upstream that is passed on, in characters.
const MESSAGE_CHARS_MAX: usize = 300;
/// A message of an upstream that repeats so much of the prompt is not passed on: it would carry text into records.
const QUOTE_CHARS: usize = 16;
/// Prompts above this are not searched for quotes; the upstream's message is then not passed on at all.
const SEARCHED_BYTES_MAX: usize = 256 * 1024;

/// Path of the call under the base URL.
pub(super) const fn path(kind: PromptKind) -> &'static str {
    match kind {
        PromptKind::Chat => "chat/completions",
        PromptKind::Completion => "completions",
        PromptKind::Embedding => "embeddings",
    }
}

/// The JSON document of the request. Members that came through from the client win over those rebuilt, save what this
/// engine's own working depends on.
pub(super) fn document(config: &UpstreamConfig, header: &ExecHeader, body: &Body) -> Result<Value, Failure> {
    let sampling = &body.sampling;
    let mut document = Map::new();
    let mut put = |name: &str, value: Value| _ = document.insert(name.to_owned(), value);
    match &body.prompt {
        Prompt::Chat(messages) => {
            let turns = messages.iter().map(|message| json!({ "role": message.role, "content": message.content }));
            put("messages", turns.collect());
        }
        Prompt::Plain(text) => put("prompt", text.as_str().into()),
        Prompt::Inputs(_) => return Err(vectors_only()),
    }
    put("max_tokens", sampling.max_tokens.min(header.output_max.0).into());
    put("temperature", sampling.temperature.into());
    put("top_p", sampling.top_p.into());
    if !header.features.unseeded {
        put("seed", sampling.seed.into());
    }
    if !sampling.stop.is_empty() {
        put("stop", sampling.stop.clone().into());
    }
    for (name, value, neutral) in [
        ("frequency_penalty", sampling.frequency_penalty, 0.0),
        ("presence_penalty", sampling.presence_penalty, 0.0),
        ("repetition_penalty", sampling.repetition_penalty, 1.0),
    ] {
        if value != neutral {
            put(name, value.into());
        }
    }
    if let Some(extras) = &body.passthrough {
        document.extend(passed_through(extras)?);
    }
    document.insert("model".to_owned(), config.model.clone().into());
    document.insert("stream".to_owned(), true.into());
    document.insert("stream_options".to_owned(), json!({ "include_usage": true }));
    Ok(Value::Object(document))
}

/// A body of another kind than the call.
pub(super) fn vectors_only() -> Failure {
    Failure::BadRequest { param: Some("input".to_owned()), message: "texts for vectors belong to `/v1/embeddings`".to_owned() }
}

fn passed_through(extras: &str) -> Result<Map<String, Value>, Failure> {
    let bad = |param: Option<&str>, message: &str| {
        Err(Failure::BadRequest { param: param.map(str::to_owned), message: message.to_owned() })
    };
    let Ok(Value::Object(extras)) = serde_json::from_str(extras) else {
        return bad(None, "further parameters must be a JSON object");
    };
    match extras.get("n") {
        None | Some(Value::Null) => Ok(extras),
        Some(n) if n.as_u64() == Some(1) => Ok(extras),
        Some(_) => bad(Some("n"), "more than one answer cannot be passed on from an upstream: want 1"),
    }
}

/// What an answer with this status means. `answer` is its body, or the beginning of it.
pub(super) fn refusal(status: u16, answer: &[u8], header: &ExecHeader, body: &Body, config: &UpstreamConfig) -> Failure {
    let error = serde_json::from_slice::<Value>(answer).ok().and_then(|mut answer| Some(answer.get_mut("error")?.take()));
    let member = |name: &str| error.as_ref().and_then(|error| error.get(name)).and_then(Value::as_str);
    match status {
        429 | 503 => Failure::Refused(Reason::Busy),
        400 | 404 | 413 | 422 => {
            let codes = [member("code"), member("type")];
            if codes.iter().flatten().any(|code| matches!(*code, "context_length_exceeded" | "exceed_context_size_error")) {
                return Failure::PromptTooLong { prompt: header.prompt.max(Tokens(1)), context: config.context };
            }
            let message = member("message").filter(|message| !quotes(message, &body.prompt));
            let message = message.map_or_else(|| format!("the upstream refused the request with status {status}"), shorten);
            Failure::BadRequest { param: member("param").filter(|param| param.len() <= 64).map(str::to_owned), message }
        }
        _ => Failure::Engine(format!("the upstream answered with status {status}")),
    }
}

fn shorten(message: &str) -> String {
    message.chars().take(MESSAGE_CHARS_MAX).collect()
}

/// Whether a message repeats a part of the prompt.
fn quotes(message: &str, prompt: &Prompt) -> bool {
    let texts = prompt.texts();
    if texts.iter().map(|text| text.len()).sum::<usize>() > SEARCHED_BYTES_MAX {
        return true;
    }
    let chars: Vec<char> = message.chars().take(MESSAGE_CHARS_MAX).collect();
    // A short prompt is quoted as a whole, a long one in part.
    let whole = texts.iter().any(|text| text.len() >= 4 && message.contains(*text));
    whole || chars.windows(QUOTE_CHARS).any(|part| texts.iter().any(|text| text.contains(&part.iter().collect::<String>())))
}
