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
    /// Images among its parts.
    pub(super) images: u32,
}

/// Tokens that a chat template spends on each message: role, separators, line ends.
const TOKENS_PER_MESSAGE: u32 = 4;
/// Tokens of an image, by which its cost is reckoned: engines make some hundreds to a thousand of one.
const TOKENS_PER_IMAGE: u32 = 800;
/// Most texts in one call for vectors, as in OpenAI's API.
const INPUTS_MAX: usize = 2_048;
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
        PromptKind::Embedding => inputs(members),
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
    Ok(Text { tokens: estimate(prompt.len(), 0), prompt: Prompt::Plain(prompt), tool_calls: false, images: 0 })
}

/// The texts of a call for vectors.
fn inputs(members: &Members<'_>) -> Result<Text, ApiError> {
    let want = format!("a string or 1 to {INPUTS_MAX} strings, none empty");
    let wrong = || members.wrong("input", &want);
    let texts: Vec<String> = match members.raw("input").map(shape).ok_or_else(wrong)? {
        Shape::Text => members.string("input")?.into_iter().collect(),
        Shape::Array => {
            let entries = members.array("input")?.unwrap_or_default();
            if entries.iter().any(|entry| shape(entry) != Shape::Text) {
                return Err(ApiError::unsupported("input", "`input`: token ids are not served: send text"));
            }
            entries.into_iter().map(|entry| serde_json::from_str(entry.get()).map_err(|_| wrong())).collect::<Result<_, _>>()?
        }
        _ => return Err(wrong()),
    };
    if texts.is_empty() || texts.len() > INPUTS_MAX || texts.iter().any(String::is_empty) {
        return Err(wrong());
    }
    let bytes = texts.iter().map(String::len).sum();
    Ok(Text { tokens: estimate(bytes, 0), prompt: Prompt::Inputs(texts), tool_calls: false, images: 0 })
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
    Some(Text { prompt: Prompt::Chat(messages.into_iter().map(message).collect()), tokens, tool_calls: false, images: 0 })
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
    let (mut tool_calls, mut images) = (false, 0_u32);
    for (i, raw) in entries.into_iter().enumerate() {
        let (message, calls, shown) = message(&members.path(&format!("messages[{i}]")), raw)?;
        tool_calls |= calls;
        images = images.saturating_add(shown);
        messages.push(message);
    }
    let bytes = messages.iter().map(|message: &Message| message.content.len()).sum();
    let tokens = Tokens(estimate(bytes, messages.len()).0.saturating_add(images.saturating_mul(TOKENS_PER_IMAGE)));
    Ok(Text { tokens, prompt: Prompt::Chat(messages), tool_calls, images })
}

/// One message, whether it calls tools, and how many images it shows.
fn message(path: &str, raw: &RawValue) -> Result<(Message, bool, u32), ApiError> {
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
    let (content, images) = match members.raw("content").map(shape) {
        Some(Shape::Array) => parts(&members)?,
        None if calls => (String::new(), 0),
        _ => (members.string("content")?.ok_or_else(|| members.wrong("content", "a string or an array of parts"))?, 0),
    };
    Ok((Message { role: role.to_owned(), content }, calls, images))
}

/// Text parts, joined by line ends, and how many images are between them. Images travel with the messages as they were written.
fn parts(members: &Members<'_>) -> Result<(String, u32), ApiError> {
    let (mut texts, mut images) = (Vec::new(), 0_u32);
    for (i, raw) in members.array("content")?.unwrap_or_default().into_iter().enumerate() {
        let part = Members::of_raw(&members.path(&format!("content[{i}]")), raw)?;
        match part.string("type")?.as_deref() {
            Some("text") => texts.push(part.string("text")?.ok_or_else(|| part.wrong("text", "a string"))?),
            Some("image_url") => {
                let image = part.object("image_url")?.ok_or_else(|| part.wrong("image_url", "an object with `url`"))?;
                if image.string("url")?.is_none_or(|url| url.is_empty()) {
                    return Err(image.wrong("url", "an address, or an image as `data:image/…;base64,…`"));
                }
                images = images.saturating_add(1);
            }
            _ => {
                let path = part.path("type");
                let message = format!("`{path}`: only parts of types `text` and `image_url` are served (no audio or files)");
                return Err(ApiError::unsupported(path, message));
            }
        }
    }
    if texts.is_empty() && images == 0 {
        return Err(members.wrong("content", "at least one part"));
    }
    Ok((texts.join("\n"), images))
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
