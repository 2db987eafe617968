//! The body of a request: the text itself. Travels only after acceptance, and is never seen by a decision, a record or a log.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

/// Largest encoded body that an ingress takes and an executor accepts.
pub const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What the engine shall continue or answer, and how.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Body {
    /// The text.
    pub prompt: Prompt,
    /// How to draw tokens.
    pub sampling: Sampling,
    /// Members of the client's request that only an upstream understands (tools, response format, …): a JSON object as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passthrough: Option<String>,
    /// Ids of the tokens that the client already has from a broken attempt. They count towards `output_max`.
    #[serde(default)]
    pub resume: Vec<u32>,
}

/// The text of a request.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prompt {
    /// Messages for the model's chat template.
    Chat(Vec<Message>),
    /// Plain text.
    Plain(String),
    /// Texts that each get a vector.
    Inputs(Vec<String>),
}

impl Prompt {
    /// All its texts.
    pub fn texts(&self) -> Vec<&str> {
        match self {
            Self::Chat(messages) => messages.iter().map(|message| message.content.as_str()).collect(),
            Self::Plain(text) => vec![text],
            Self::Inputs(texts) => texts.iter().map(String::as_str).collect(),
        }
    }
}

/// One message of a conversation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Its text; text parts are joined by the front.
    pub content: String,
}

/// How tokens are drawn. The draw of output token `i` depends on the seed and `i` alone, so that a continued stream is the same
/// stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampling {
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// 0 takes the likeliest token.
    pub temperature: f64,
    /// Mass of the likeliest tokens to draw from, above 0 up to 1.
    pub top_p: f64,
    /// Seed of the draws; the ingress draws one where the client gave none.
    pub seed: u64,
    /// Texts that end the answer and are not part of it, at most four.
    pub stop: Vec<String>,
    /// Subtracted from the logit of a token for each time it was generated.
    pub frequency_penalty: f64,
    /// Subtracted from the logit of a token that was generated at all.
    pub presence_penalty: f64,
    /// Logits of tokens seen are divided by it where positive and multiplied where negative; 1 is neutral.
    pub repetition_penalty: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_tokens: 256,
            temperature: 1.0,
            top_p: 1.0,
            seed: 0,
            stop: Vec::new(),
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
        }
    }
}

/// What a later stage of a split request needs: how to draw, and the tokens that drawing depends on. The rest comes as hidden
/// states.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct StageBody {
    /// How to draw tokens. Its texts to stop at are empty: the first stage, which has the text, looks for them.
    pub sampling: Sampling,
    /// Ids of the prompt where a penalty depends on them, else empty.
    #[serde(default)]
    pub prompt: Vec<u32>,
    /// Ids of the tokens that the client already has from a broken attempt.
    #[serde(default)]
    pub resume: Vec<u32>,
    /// Most tokens of prompt and answer together, for memory.
    pub length_max: u32,
}

impl StageBody {
    /// As CBOR.
    ///
    /// # Errors
    /// [`BadBody`] when it exceeds [`BODY_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, BadBody> {
        encode(self)
    }

    /// From CBOR.
    ///
    /// # Errors
    /// [`BadBody`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadBody> {
        decode(bytes)
    }
}

/// Shows sizes only: ids are text.
impl fmt::Debug for StageBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageBody").field("length_max", &self.length_max).finish_non_exhaustive()
    }
}

/// Bytes that are no body.
#[derive(Debug, thiserror::Error)]
#[error("not a request body: {0}")]
pub struct BadBody(String);

impl Body {
    /// As CBOR.
    ///
    /// # Errors
    /// [`BadBody`] when it exceeds [`BODY_BYTES_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>, BadBody> {
        encode(self)
    }

    /// How many bytes [`Self::encode`] would give, without writing them.
    ///
    /// # Errors
    /// [`BadBody`] when that exceeds [`BODY_BYTES_MAX`].
    pub fn encoded_len(&self) -> Result<usize, BadBody> {
        let mut counted = Counted(0);
        ciborium::into_writer(self, &mut counted).map_err(|error| BadBody(error.to_string()))?;
        if counted.0 > BODY_BYTES_MAX { Err(too_long(counted.0)) } else { Ok(counted.0) }
    }

    /// From CBOR.
    ///
    /// # Errors
    /// [`BadBody`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadBody> {
        decode(bytes)
    }
}

/// Takes bytes and keeps their number.
struct Counted(usize);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn too_long(bytes: usize) -> BadBody {
    BadBody(format!("{bytes} bytes, at most {BODY_BYTES_MAX}"))
}

fn encode<T: Serialize>(body: &T) -> Result<Vec<u8>, BadBody> {
    let mut bytes = Vec::new();
    ciborium::into_writer(body, &mut bytes).map_err(|error| BadBody(error.to_string()))?;
    if bytes.len() > BODY_BYTES_MAX { Err(too_long(bytes.len())) } else { Ok(bytes) }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, BadBody> {
    if bytes.len() > BODY_BYTES_MAX {
        return Err(too_long(bytes.len()));
    }
    // The reader's own message may quote the input; it must not, since this is somebody's text.
    ciborium::de::from_reader_with_recursion_limit(bytes, 32).map_err(|_| BadBody("unreadable".to_owned()))
}

/// Shows sizes only: a body in a log line would be a leak.
impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: usize = self.prompt.texts().iter().map(|text| text.len()).sum();
        f.debug_struct("Body").field("prompt_bytes", &bytes).finish_non_exhaustive()
    }
}

impl fmt::Debug for Prompt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prompt(…)")
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("role", &self.role).finish_non_exhaustive()
    }
}
