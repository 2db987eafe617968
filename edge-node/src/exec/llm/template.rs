//! From a conversation to tokens by the model's own chat template, such that no user can write a control token.
//!
//! Before rendering, every place in a user's text where the text of a control token begins is broken by a private mark;
//! after rendering, the template's own control tokens are recognised, and the marks are taken out of what lies between.

use super::config::ModelError;
use super::gguf::Gguf;
use super::tokenizer::Tokenizer;
use minijinja::{Environment, ErrorKind, context};
use serde::Serialize;
use shared::plan::Failure;
use shared::wire::body::{Message, Prompt};
use std::borrow::Cow;

/// Begins a mark. Unicode reserves it for internal use; a user's own is written as [`OWN`].
const MARK: char = '\u{fdd0}';
/// After [`MARK`]: the user's text had this character itself.
const OWN: char = '\u{fdd1}';
/// After [`MARK`]: nothing stood here; a control token's text was broken.
const BREAK: char = '\u{fdd2}';

/// Roles that a message may have. Others would put a client's text where templates expect a fixed word.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Vocabulary and template of a model: all that turns text into tokens.
#[derive(Debug)]
pub struct Texts {
    pub(super) tokenizer: Tokenizer,
    environment: Environment<'static>,
    /// The source of the template; absent in base models, which have none.
    source: Option<String>,
}

const TEMPLATE: &str = "chat";

#[derive(Serialize)]
struct Turn<'a> {
    role: &'a str,
    content: Cow<'a, str>,
}

impl Texts {
    /// From the metadata.
    pub(super) fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let tokenizer = Tokenizer::from_gguf(gguf)?;
        let source = gguf.text_maybe("tokenizer.chat_template").map(str::to_owned);
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |why: String| -> Result<String, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, why))
        });
        if let Some(source) = &source {
            let added = environment.add_template_owned(TEMPLATE, source.clone());
            added.map_err(|error| gguf.unsupported(format!("its chat template ({:?})", error.kind())))?;
        }
        Ok(Self { tokenizer, environment, source })
    }

    /// The vocabulary.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The tokens of a prompt. Nothing when `go_on`, asked now and then, says no.
    ///
    /// # Errors
    /// [`Failure::BadRequest`] for a conversation that the template refuses, and for an empty prompt.
    pub fn encode(&self, prompt: &Prompt, go_on: &mut dyn FnMut() -> bool) -> Result<Option<Vec<u32>>, Failure> {
        let mut ids = Vec::new();
        let begin = self.tokenizer.begin();
        let whole = match prompt {
            Prompt::Plain(text) => {
                ids.extend(begin.filter(|_| self.tokenizer.begin_added() || text.is_empty()));
                self.tokenizer.encode(text, go_on, &mut ids)
            }
            // Dispatch knows that no engine of this kind gives vectors.
            Prompt::Inputs(_) => return Err(bad("input", "the model's engine does not support `embeddings`")),
            Prompt::Chat(messages) => self.encode_chat(&self.render(messages)?, go_on, &mut ids),
        };
        if whole.is_none() {
            return Ok(None);
        }
        if matches!(prompt, Prompt::Chat(_)) && self.tokenizer.begin_added() && ids.first().copied() != begin {
            ids.splice(0..0, begin);
        }
        if ids.is_empty() { Err(bad("prompt", "the prompt is empty")) } else { Ok(Some(ids)) }
    }

    /// Encodes a rendered conversation: control tokens are the template's own, since those of users are broken by marks.
    fn encode_chat(&self, rendered: &str, go_on: &mut dyn FnMut() -> bool, ids: &mut Vec<u32>) -> Option<()> {
        for (text, control) in self.tokenizer.split_controls(rendered) {
            self.tokenizer.encode(&unmark(text), go_on, ids)?;
            ids.extend(control);
        }
        Some(())
    }

    fn render(&self, messages: &[Message]) -> Result<String, Failure> {
        let Some(source) = &self.source else {
            return Err(bad("messages", "this model has no chat template: use /v1/completions"));
        };
        if messages.is_empty() {
            return Err(bad("messages", "want at least one message"));
        }
        if let Some(at) = messages.iter().position(|message| !ROLES.contains(&message.role.as_str())) {
            return Err(bad(&format!("messages[{at}].role"), "want system, user, assistant or tool"));
        }
        let turns: Vec<Turn<'_>> =
            messages.iter().map(|message| Turn { role: &message.role, content: self.mark(&message.content) }).collect();
        let control = |id: Option<u32>| id.and_then(|id| self.tokenizer.control_text(id)).unwrap_or_default();
        let rendered = self.environment.get_template(TEMPLATE).and_then(|template| {
            template.render(context! {
                messages => turns,
                add_generation_prompt => true,
                bos_token => control(self.tokenizer.begin()),
                eos_token => control(self.tokenizer.end()),
            })
        });
        rendered.map_err(|error| refused(source, &error))
    }

    /// Breaks each control token in a user's text, also one that what follows the text might complete.
    fn mark<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let begins =
            |rest: &str| self.tokenizer.control_texts().any(|control| rest.starts_with(control) || control.starts_with(rest));
        let first = |c: char| self.tokenizer.control_texts().any(|control| control.starts_with(c));
        if !text.contains(|c| c == MARK || first(c)) {
            return Cow::Borrowed(text);
        }
        let mut marked = String::with_capacity(text.len() + 16);
        for (at, c) in text.char_indices() {
            marked.push(c);
            if c == MARK {
                marked.push(OWN);
            } else if first(c) && begins(text.get(at..).unwrap_or_default()) {
                marked.extend([MARK, BREAK]);
            }
        }
        Cow::Owned(marked)
    }
}

fn unmark(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != MARK {
            plain.push(c);
        } else if chars.next_if_eq(&BREAK).is_none() {
            chars.next_if_eq(&OWN);
            plain.push(MARK);
        }
    }
    plain
}

/// What a template said by `raise_exception` is told only if it is the template's own sentence: it could quote the user.
fn refused(source: &str, error: &minijinja::Error) -> Failure {
    match error.detail().filter(|detail| !detail.is_empty() && source.contains(detail)) {
        Some(detail) => bad("messages", &format!("the model's chat template refuses the conversation: {detail}")),
        None => bad("messages", "the model's chat template cannot render the conversation"),
    }
}

fn bad(param: &str, message: &str) -> Failure {
    Failure::BadRequest { param: Some(param.to_owned()), message: message.to_owned() }
}
