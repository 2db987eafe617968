//! A client of the OpenAI API that measures: time to the first token, time of each further one.

use futures_util::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use shared::ids::{NodeId, VariantId};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// Longest line of a stream and largest plain answer. The answers asked for here are some hundred bytes.
const LINE_BYTES_MAX: usize = 1024 * 1024;
/// A request that takes longer is lost: nothing here asks for more than a few seconds of work.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
/// Loopback connects at once or not at all.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Why there is no reply at all. An error that the server answered with is a [`Reply`].
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The connection could not be made, or broke.
    #[error("asking {url}")]
    Connection {
        /// Whom.
        url: String,
        /// What happened.
        #[source]
        source: reqwest::Error,
    },
    /// What came is not what the API says.
    #[error("{url} answered with something that is no answer: {why}")]
    Nonsense {
        /// Who.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Text of a client or a model; shown only on purpose.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Text(pub String);

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Text({} bytes)", self.0.len())
    }
}

/// One chat request.
#[derive(Clone, Debug)]
pub struct Question {
    /// Service, alias or variant.
    pub model: String,
    /// Role and content of each message.
    pub messages: Vec<(&'static str, Text)>,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// The `tidegate` member of the body; `null` without needs.
    pub needs: Value,
    /// Further members of the body, such as `temperature`.
    pub more: BTreeMap<&'static str, Value>,
}

impl Question {
    /// A question of one message.
    #[must_use]
    pub fn new(model: &str, content: &str, max_tokens: u32) -> Self {
        Self {
            model: model.to_owned(),
            messages: vec![("user", Text(content.to_owned()))],
            max_tokens,
            needs: Value::Null,
            more: BTreeMap::new(),
        }
    }

    /// With needs, as the API names them.
    #[must_use]
    pub fn needing(mut self, needs: Value) -> Self {
        self.needs = needs;
        self
    }

    /// With one more member of the body.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: Value) -> Self {
        self.more.insert(name, value);
        self
    }

    fn body(&self) -> Value {
        let messages: Vec<Value> = self.messages.iter().map(|(role, text)| json!({"role": role, "content": text.0})).collect();
        let mut body = json!({
            "model": self.model, "messages": messages, "max_tokens": self.max_tokens,
            "stream": true, "stream_options": {"include_usage": true},
        });
        if let Some(members) = body.as_object_mut() {
            members.extend(self.more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
            if !self.needs.is_null() {
                members.insert("tidegate".to_owned(), self.needs.clone());
            }
        }
        body
    }
}

/// An error in OpenAI's shape.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ErrorBody {
    /// What is wrong.
    pub message: String,
    /// OpenAI's kind.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// A stable code.
    pub code: Option<String>,
}

/// Times in milliseconds, as the server tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Times {
    /// Arrival to the first token.
    pub first_token_ms: Option<f64>,
    /// Mean time of each further token.
    pub per_token_ms: Option<f64>,
    /// Arrival to the end.
    pub total_ms: Option<f64>,
    /// What nine in ten should keep within to the first token, where it was predicted.
    pub first_token_high_ms: Option<f64>,
}

/// The decision in short: the `tidegate` member of an answer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Served {
    /// Who served it.
    pub node: Option<NodeId>,
    /// With what.
    pub variant: Option<VariantId>,
    /// How that node was reached.
    pub hop: Option<String>,
    /// Quality of the variant.
    pub quality: Option<f64>,
    /// Which policy decided.
    pub policy: Option<String>,
    /// How many candidates fell to each reason.
    pub rejected: BTreeMap<String, u32>,
    /// How often it was tried.
    pub attempts: Option<u32>,
    /// Whether the hub was out of reach.
    pub degraded: bool,
    /// What the decision expected.
    pub predicted: Option<Times>,
    /// What the ingress measured.
    pub actual: Times,
}

/// What came back, and when.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Its id at the server.
    pub request: Option<String>,
    /// All `x-tidegate-*` headers.
    pub headers: BTreeMap<String, String>,
    /// What was generated.
    pub text: Text,
    /// From sending to the first content.
    pub first_token: Option<Duration>,
    /// Mean time of each further token.
    pub per_token: Option<Duration>,
    /// From sending to the end.
    pub total: Duration,
    /// Tokens generated, as the server counted them.
    pub tokens: u64,
    /// Why generation ended.
    pub finish: Option<String>,
    /// The error, in place of an answer or in the middle of a stream.
    pub error: Option<ErrorBody>,
    /// The decision in short, from the stream's last chunk.
    pub served: Option<Served>,
}

impl Reply {
    /// Whether a whole answer came.
    #[must_use]
    pub fn answered(&self) -> bool {
        self.error.is_none() && self.finish.is_some()
    }
}

/// Asks servers on loopback. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client(reqwest::Client);

impl Client {
    /// A client with its own connections.
    ///
    /// # Errors
    /// What the HTTP library says; it needs a crypto provider even for plain HTTP.
    pub fn new() -> Result<Self, reqwest::Error> {
        Self::patient(ANSWER_WITHIN)
    }

    /// The same for answers that may take so long.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn patient(limit: Duration) -> Result<Self, reqwest::Error> {
        // An error means that one is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder().no_proxy().connect_timeout(CONNECT_WITHIN).timeout(limit);
        Ok(Self(client.build()?))
    }

    /// The HTTP client behind it, for what is no question.
    #[must_use]
    pub fn http(&self) -> &reqwest::Client {
        &self.0
    }

    /// Asks the server at `base` (such as `http://127.0.0.1:8080`) and reads the stream to its end.
    ///
    /// # Errors
    /// [`AskError`] when the connection broke or no proper answer came. An error of the API is a reply.
    pub async fn ask(&self, base: &str, question: &Question) -> Result<Reply, AskError> {
        let url = format!("{base}/v1/chat/completions");
        let broke = |source| AskError::Connection { url: url.clone(), source };
        let begun = Instant::now();
        let response = self.0.post(&url).json(&question.body()).send().await.map_err(broke)?;
        let id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let (status, headers) = (response.status().as_u16(), tidegate_headers(&response));
        let mut reply = Reply { status, request: id, headers, ..Reply::default() };
        if !response.status().is_success() {
            let bytes = response.bytes().await.map_err(broke)?;
            reply.error = Some(error_of(&bytes).ok_or(AskError::Nonsense { url, why: "an error without an error body" })?);
            reply.total = begun.elapsed();
            return Ok(reply);
        }
        let mut lines = Lines::default();
        let mut times = Vec::new();
        let mut stream = response.bytes_stream();
        while let Some(bytes) = stream.next().await {
            if !lines.push(&bytes.map_err(broke)?) {
                return Err(AskError::Nonsense { url, why: "a line without end" });
            }
            while let Some(line) = lines.next() {
                take_line(&mut reply, &mut times, &line, begun.elapsed());
            }
        }
        reply.total = begun.elapsed();
        reply.first_token = times.first().copied();
        reply.per_token = spread(&times, reply.tokens);
        Ok(reply)
    }
}

/// Mean time of a token after the first, over the tokens that the server counted: one chunk may carry several.
fn spread(times: &[Duration], tokens: u64) -> Option<Duration> {
    let (first, last) = (times.first()?, times.last()?);
    let further = u32::try_from(tokens.max(times.len() as u64)).ok()?.checked_sub(1)?;
    (*last - *first).checked_div(further)
}

fn tidegate_headers(response: &reqwest::Response) -> BTreeMap<String, String> {
    let ours = response.headers().iter().filter(|(name, _)| name.as_str().starts_with("x-tidegate-"));
    ours.filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned()))).collect()
}

fn error_of(bytes: &[u8]) -> Option<ErrorBody> {
    #[derive(Deserialize)]
    struct Enveloped {
        error: ErrorBody,
    }
    serde_json::from_slice::<Enveloped>(bytes).ok().map(|enveloped| enveloped.error)
}

/// Takes in one line of the stream. Comments and what is not understood are passed over, as the protocol wants.
fn take_line(reply: &mut Reply, times: &mut Vec<Duration>, line: &str, at: Duration) {
    let Some(data) = line.strip_prefix("data:").map(str::trim) else { return };
    if let Some(error) = error_of(data.as_bytes()) {
        reply.error = Some(error);
        return;
    }
    let Ok(chunk) = serde_json::from_str::<Value>(data) else { return };
    if let Some(content) = chunk.pointer("/choices/0/delta/content").and_then(Value::as_str)
        && !content.is_empty()
    {
        reply.text.0.push_str(content);
        times.push(at);
    }
    if let Some(finish) = chunk.pointer("/choices/0/finish_reason").and_then(Value::as_str) {
        reply.finish = Some(finish.to_owned());
    }
    if let Some(tokens) = chunk.pointer("/usage/completion_tokens").and_then(Value::as_u64) {
        reply.tokens = tokens;
    }
    if let Some(served) = chunk.get("tidegate").and_then(|told| Served::deserialize(told).ok()) {
        reply.served = Some(served);
    }
}

/// Bytes become lines.
#[derive(Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// False when a line gets too long.
    fn push(&mut self, bytes: &[u8]) -> bool {
        self.0.extend_from_slice(bytes);
        self.0.len() <= LINE_BYTES_MAX
    }

    fn next(&mut self) -> Option<String> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.0.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_measured() {
        let mut reply = Reply::default();
        let mut times = Vec::new();
        let mut lines = Lines::default();
        // Split in the middle of a line and of a character, as a network does.
        let stream = ": waiting\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
            data: {\"choices\":[{\"delta\":{\"content\":\"grü\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"n\"},\"finish_reason\":\"stop\"}]}\n\n\
            data: {\"choices\":[],\"usage\":{\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";
        for (i, bytes) in stream.as_bytes().chunks(7).enumerate() {
            assert!(lines.push(bytes));
            while let Some(line) = lines.next() {
                take_line(&mut reply, &mut times, &line, Duration::from_millis(10 * i as u64));
            }
        }
        assert_eq!((reply.text.0.as_str(), reply.tokens, times.len()), ("grün", 3, 2));
        assert!(reply.answered());
        assert_eq!(spread(&times, reply.tokens), (times[1] - times[0]).checked_div(2));
        assert_eq!(format!("{:?}", reply.text), "Text(5 bytes)", "no text by accident");
    }

    #[test]
    fn an_error_in_the_stream_is_no_answer() {
        let mut reply = Reply { finish: Some("stop".to_owned()), ..Reply::default() };
        take_line(&mut reply, &mut Vec::new(), r#"data: {"error":{"message":"m","type":"t","code":"c"}}"#, Duration::ZERO);
        assert!(!reply.answered());
        assert_eq!(reply.error.and_then(|error| error.code).as_deref(), Some("c"));
    }

    #[test]
    fn one_token_has_no_spread() {
        assert_eq!(spread(&[Duration::from_millis(5)], 1), None);
        assert_eq!(spread(&[], 0), None);
    }
}
