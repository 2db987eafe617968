//! The text of a request, and the estimate of its tokens.

use crate::openai::error::ApiError;
use crate::openai::json::{ENTRIES_MAX, Members, Shape, shape};
use serde::Deserialize;
use serde_json::value::RawValue;
use shared::units::Tokens;
use shared::wire::body::{Message, Prompt};
use shared::work::PromptKind;

/// What was read.
pub(super) struct Text {
    pub(super) prompt: Prompt,
    /// Estimated.
    pub(super) tokens: Tokens,
    /// Whether a message carries tool calls, which plain engines would lose.
    pub(super) tool_calls: bool,
}

/// Tokens that a chat template spends on each message: role, separators, line ends.
const TOKENS_PER_MESSAGE: u32 = 4;
/// Tokens that start the text and open the answer.
const TOKENS_PER_PROMPT: u32 = 3;

/// The estimate: one token for 3.5 bytes, as byte-pair vocabularies do on English prose and code (other scripts take more bytes a
/// character, and more tokens with them), plus the template. Only the choice depends on it; the executor counts exactly.
fn estimate(bytes: usize, messages: usize) -> Tokens {
    let text = u32::try_from(bytes.saturating_mul(2).div_ceil(7)).unwrap_or(u32::MAX);
    let framing = u32::try_from(messages).unwrap_or(u32::MAX).saturating_mul(TOKENS_PER_MESSAGE);
    Tokens(text.saturating_add(framing).saturating_add(TOKENS_PER_PROMPT))
}

pub(super) fn read(kind: PromptKind, members: &Members<'_>) -> Result<Text, ApiError> {
    match kind {
        PromptKind::Chat => chat(members),
        PromptKind::Completion => completion(members),
    }
}

fn completion(members: &Members<'_>) -> Result<Text, ApiError> {
    let missing = || members.wrong("prompt", "a string");
    let prompt = match members.raw("prompt").map(shape).ok_or_else(missing)? {
        Shape::Array => single(members)?,
        _ => members.string("prompt")?.ok_or_else(missing)?,
    };
    if prompt.is_empty() {
        return Err(members.wrong("prompt", "at least one character"));
    }
    Ok(Text { tokens: estimate(prompt.len(), 0), prompt: Prompt::Plain(prompt), tool_calls: false })
}

/// The only entry of a `prompt` array.
fn single(members: &Members<'_>) -> Result<String, ApiError> {
    let entries = members.array("prompt")?.unwrap_or_default();
    let [entry] = entries.as_slice() else {
        let message = "`prompt`: several prompts in one request (or token ids) are not served: send one string a request";
        return Err(ApiError::unsupported("prompt", message));
    };
    if shape(entry) != Shape::Text {
        return Err(ApiError::unsupported("prompt", "`prompt`: token ids are not served: send text"));
    }
    serde_json::from_str(entry.get()).map_err(|_| members.wrong("prompt", "a string"))
}

/// Messages as nearly all clients send them, read in one go. What is more than this is read slowly, and refused by name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Simple {
    role: Role,
    content: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            // The newer name of the same role; templates know only the older one.
            Self::System | Self::Developer => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

fn simple(members: &Members<'_>) -> Option<Text> {
    let messages: Vec<Simple> = serde_json::from_str(members.raw("messages")?.get()).ok()?;
    if messages.is_empty() || messages.len() > ENTRIES_MAX {
        return None;
    }
    let bytes = messages.iter().map(|message| message.content.len()).sum();
    let tokens = estimate(bytes, messages.len());
    let message = |message: Simple| Message { role: message.role.name().to_owned(), content: message.content };
    Some(Text { prompt: Prompt::Chat(messages.into_iter().map(message).collect()), tokens, tool_calls: false })
}

fn chat(members: &Members<'_>) -> Result<Text, ApiError> {
    if let Some(text) = simple(members) {
        return Ok(text);
    }
    let entries = members.array("messages")?.ok_or_else(|| members.wrong("messages", "an array of messages"))?;
    if entries.is_empty() {
        return Err(members.wrong("messages", "at least one message"));
    }
    let mut messages = Vec::with_capacity(entries.len());
    let mut tool_calls = false;
    for (i, raw) in entries.into_iter().enumerate() {
        let (message, calls) = message(&members.path(&format!("messages[{i}]")), raw)?;
        tool_calls |= calls;
        messages.push(message);
    }
    let bytes = messages.iter().map(|message: &Message| message.content.len()).sum();
    Ok(Text { tokens: estimate(bytes, messages.len()), prompt: Prompt::Chat(messages), tool_calls })
}

/// One message, and whether it calls tools.
fn message(path: &str, raw: &RawValue) -> Result<(Message, bool), ApiError> {
    let members = Members::of_raw(path, raw)?;
    let role = match members.string("role")?.as_deref() {
        // The newer name of the same role; templates know only the older one.
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool") => "tool",
        _ => return Err(members.wrong("role", "`system`, `developer`, `user`, `assistant` or `tool`")),
    };
    let calls = role == "assistant" && (members.raw("tool_calls").is_some() || members.raw("function_call").is_some());
    let content = match members.raw("content").map(shape) {
        Some(Shape::Array) => parts(&members)?,
        None if calls => String::new(),
        _ => members.string("content")?.ok_or_else(|| members.wrong("content", "a string or an array of text parts"))?,
    };
    Ok((Message { role: role.to_owned(), content }, calls))
}

/// Text parts, joined by line ends.
fn parts(members: &Members<'_>) -> Result<String, ApiError> {
    let mut texts = Vec::new();
    for (i, raw) in members.array("content")?.unwrap_or_default().into_iter().enumerate() {
        let part = Members::of_raw(&members.path(&format!("content[{i}]")), raw)?;
        if part.string("type")?.as_deref() != Some("text") {
            let path = part.path("type");
            let message = format!("`{path}`: only parts of type `text` are served (no images, audio or files)");
            return Err(ApiError::unsupported(path, message));
        }
        texts.push(part.string("text")?.ok_or_else(|| part.wrong("text", "a string"))?);
    }
    if texts.is_empty() {
        return Err(members.wrong("content", "at least one part"));
    }
    Ok(texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_round_up_and_never_overflow() {
        assert_eq!(estimate(0, 0), Tokens(3));
        assert_eq!(estimate(7, 1), Tokens(2 + 4 + 3));
        assert_eq!(estimate(8, 0), Tokens(3 + 3));
        assert_eq!(estimate(usize::MAX, usize::MAX), Tokens(u32::MAX));
    }
}
