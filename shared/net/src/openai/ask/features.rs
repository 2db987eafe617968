//! Members of the API that not every engine serves. Those with a flag in [`Features`] travel on, and candidates without the capability
//! are rejected by dispatch; those that no engine serves are refused here, by name, unless they have their neutral value.

use crate::openai::error::ApiError;
use crate::openai::json::{Members, Shape, shape};
use serde_json::value::RawValue;
use shared::work::{Features, PromptKind};
use std::collections::BTreeMap;

/// Most answers to one prompt, as in OpenAI's API.
const ANSWERS_MAX: i64 = 128;
/// Most alternatives listed for a token, as in OpenAI's API for chat.
const TOP_LOGPROBS_MAX: i64 = 20;
/// The same for `logprobs` of `/v1/completions`.
const LOGPROBS_MAX: i64 = 5;

/// What was read.
pub(super) struct Asked {
    pub(super) features: Features,
    /// Members for an upstream, as they were written.
    pub(super) passthrough: Option<String>,
}

pub(super) fn read(kind: PromptKind, members: &Members<'_>, tool_calls: bool, images: u32) -> Result<Asked, ApiError> {
    let mut passed = Passed::default();
    if kind == PromptKind::Embedding {
        return vectors(members, passed);
    }
    unserved(members)?;
    let features = Features {
        constrained: constrained(members, &mut passed)?,
        many: many(members, &mut passed)?,
        logprobs: logprobs(kind, members, &mut passed)?,
        tools: kind == PromptKind::Chat && tools(members, tool_calls, &mut passed)?,
        vision: images > 0,
        ..Features::default()
    };
    if images > 0 {
        passed.take(members, "messages");
    }
    Ok(Asked { features, passthrough: passed.text() })
}

/// Most numbers of a vector that a client may wish for: none has more.
const DIMENSIONS_MAX: i64 = 1_000_000;

/// What can be asked of vectors: how they are written, and how long they are.
fn vectors<'a>(members: &Members<'a>, mut passed: Passed<'a>) -> Result<Asked, ApiError> {
    if !matches!(members.string("encoding_format")?.as_deref(), None | Some("float" | "base64")) {
        return Err(members.wrong("encoding_format", "`float` or `base64`"));
    }
    members.integer("dimensions", 1, DIMENSIONS_MAX)?;
    passed.take(members, "encoding_format");
    passed.take(members, "dimensions");
    Ok(Asked { features: Features { embeddings: true, ..Features::default() }, passthrough: passed.text() })
}

/// Members to hand on verbatim.
#[derive(Default)]
struct Passed<'a>(BTreeMap<&'static str, &'a RawValue>);

impl<'a> Passed<'a> {
    fn take(&mut self, members: &Members<'a>, name: &'static str) {
        if let Some(raw) = members.raw(name) {
            self.0.insert(name, raw);
        }
    }

    fn text(self) -> Option<String> {
        if self.0.is_empty() { None } else { serde_json::to_string(&self.0).ok() }
    }
}

/// Refuses what no engine serves, unless it is neutral.
fn unserved(members: &Members<'_>) -> Result<(), ApiError> {
    let refuse = |name: &str, neutral: &str| {
        let message = format!("`{name}` is not served here: leave it out{neutral}");
        Err(ApiError::unsupported(name, message))
    };
    if members.object("logit_bias")?.is_some_and(|bias| bias.names().next().is_some()) {
        return refuse("logit_bias", "");
    }
    if members.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return refuse("suffix", "");
    }
    if members.boolean("echo")?.unwrap_or(false) {
        return refuse("echo", " or set it to false");
    }
    if members.integer("best_of", 1, ANSWERS_MAX)?.is_some_and(|best_of| best_of > 1) {
        return refuse("best_of", " or set it to 1");
    }
    if members.array("modalities")?.unwrap_or_default().iter().any(|raw| raw.get() != "\"text\"") {
        return refuse("modalities", " or set it to [\"text\"]");
    }
    match ["audio", "web_search_options"].into_iter().find(|name| members.raw(name).is_some()) {
        Some(name) => refuse(name, ""),
        None => Ok(()),
    }
}

fn constrained<'a>(members: &Members<'a>, passed: &mut Passed<'a>) -> Result<bool, ApiError> {
    let Some(format) = members.object("response_format")? else { return Ok(false) };
    match format.string("type")?.as_deref() {
        Some("text") => Ok(false),
        Some("json_object" | "json_schema") => {
            passed.take(members, "response_format");
            Ok(true)
        }
        _ => Err(format.wrong("type", "`text`, `json_object` or `json_schema`")),
    }
}

fn many<'a>(members: &Members<'a>, passed: &mut Passed<'a>) -> Result<bool, ApiError> {
    let many = members.integer("n", 1, ANSWERS_MAX)?.is_some_and(|n| n > 1);
    if many {
        passed.take(members, "n");
    }
    Ok(many)
}

fn logprobs<'a>(kind: PromptKind, members: &Members<'a>, passed: &mut Passed<'a>) -> Result<bool, ApiError> {
    let wanted = match kind {
        PromptKind::Chat => members.boolean("logprobs")?.unwrap_or(false),
        PromptKind::Completion | PromptKind::Embedding => members.integer("logprobs", 0, LOGPROBS_MAX)?.is_some(),
    };
    let top = members.integer("top_logprobs", 0, TOP_LOGPROBS_MAX)?;
    if top.is_some_and(|top| top > 0) && !wanted {
        return Err(members.wrong("top_logprobs", "`logprobs`: true with it"));
    }
    if wanted {
        passed.take(members, "logprobs");
        passed.take(members, "top_logprobs");
    }
    Ok(wanted)
}

/// Tools offered, or called earlier in the conversation. Messages then travel verbatim as well: calls and their ids have no place in
/// plain messages.
fn tools<'a>(members: &Members<'a>, called: bool, passed: &mut Passed<'a>) -> Result<bool, ApiError> {
    let mut offered = false;
    for name in ["tools", "functions"] {
        offered |= members.array(name)?.is_some_and(|tools| !tools.is_empty());
    }
    for name in ["tool_choice", "function_call"] {
        let neutral = members.raw(name).is_none_or(|raw| matches!(raw.get(), "\"none\"" | "\"auto\""));
        if !offered && !neutral {
            return Err(members.wrong(name, "tools to choose from with it"));
        }
        if members.raw(name).is_some_and(|raw| !matches!(shape(raw), Shape::Text | Shape::Object)) {
            return Err(members.wrong(name, "a string or an object"));
        }
    }
    if !offered && !called {
        return Ok(false);
    }
    for name in ["tools", "functions", "tool_choice", "function_call", "parallel_tool_calls", "messages"] {
        passed.take(members, name);
    }
    Ok(true)
}
