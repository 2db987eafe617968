//! An upstream that keeps everything it is sent: what reached an engine can then be searched.

use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long one request may take to come; a client that sends less is cut off.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// Largest request that is kept; stories send short ones.
const REQUEST_BYTES_MAX: usize = 1 << 20;

/// A server of the OpenAI API that answers every prompt with one word: a call of the first tool where tools are offered, an object where
/// an object is wanted, and vectors where vectors are.
#[derive(Debug)]
pub struct Recorder {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
    _stop: DropGuard,
}

impl Recorder {
    /// Serves on a free port of loopback until it is dropped.
    ///
    /// # Panics
    /// When no port can be had.
    pub async fn start() -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = socket.local_addr().expect("an address");
        let (heard, stop) = (Arc::default(), CancellationToken::new());
        tokio::spawn(stop.clone().run_until_cancelled_owned(serve(socket, Arc::clone(&heard))));
        Self { address, heard, _stop: stop.drop_guard() }
    }

    /// An engine of an agent that asks this server.
    #[must_use]
    pub fn engine(&self, variant: &str) -> String {
        format!(
            "[[engines]]\nengine = \"upstream\"\nvariant = \"{variant}\"\nurl = \"http://{}/v1\"\nmodel = \"recorded\"\nslots = 4\n\
             context = 2048\nrates = {{ prompt_per_s = 2000.0, decode_per_s = 100.0 }}\n",
            self.address
        )
    }

    /// The same, declaring capabilities.
    #[must_use]
    pub fn engine_with(&self, variant: &str, capabilities: &[&str]) -> String {
        format!("{}capabilities = {capabilities:?}\n", self.engine(variant))
    }

    /// Whether this text was ever sent here.
    #[must_use]
    pub fn heard(&self, text: &str) -> bool {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.windows(text.len()).any(|window| window == text.as_bytes())
    }
}

async fn serve(socket: TcpListener, heard: Arc<Mutex<Vec<u8>>>) {
    let mut open = JoinSet::new();
    while let Ok((stream, _)) = socket.accept().await {
        let heard = Arc::clone(&heard);
        open.spawn(async move { tokio::time::timeout(READ_WITHIN, answer(stream, &heard)).await });
    }
}

async fn answer(mut stream: TcpStream, heard: &Mutex<Vec<u8>>) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !is_whole(&request) && request.len() < REQUEST_BYTES_MAX {
        if stream.read_buf(&mut request).await? == 0 {
            break;
        }
    }
    heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&request);
    let (kind, body) = if request.starts_with(b"GET") {
        ("application/json", r#"{"object":"list","data":[{"id":"recorded","object":"model"}]}"#.to_owned())
    } else {
        said(&request)
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    stream.shutdown().await
}

/// What is said to a request: its kind, and its body.
fn said(request: &[u8]) -> (&'static str, String) {
    let body = request.windows(4).position(|four| four == b"\r\n\r\n").map_or(request.len(), |end| end + 4);
    let asked: Value = serde_json::from_slice(&request[body..]).unwrap_or_default();
    if let Some(texts) = asked["input"].as_array() {
        let vector = |(index, text): (usize, &Value)| {
            let length = text.as_str().map_or(0, str::len);
            json!({"object": "embedding", "index": index, "embedding": [length, 0.5, -0.25]})
        };
        let data: Vec<Value> = texts.iter().enumerate().map(vector).collect();
        let answer =
            json!({"object": "list", "data": data, "model": "recorded", "usage": {"prompt_tokens": 5, "total_tokens": 5}});
        return ("application/json", answer.to_string());
    }
    let deltas = match &asked["tools"][0]["function"]["name"] {
        Value::String(name) => {
            let part = |function: Value| json!({"tool_calls": [{"index": 0, "function": function}]});
            let mut first = part(json!({"name": name, "arguments": ""}));
            first["tool_calls"][0]["id"] = json!("call-1");
            first["tool_calls"][0]["type"] = json!("function");
            vec![first, part(json!({"arguments": "{\"place\":"})), part(json!({"arguments": "\"pier\"}"}))]
        }
        _ if !asked["response_format"].is_null() => vec![json!({"content": "{\"tide\":"}), json!({"content": "\"high\"}"})],
        _ => vec![json!({"content": "aye"})],
    };
    let reason = if deltas.len() == 3 { "tool_calls" } else { "stop" };
    let mut events: Vec<Value> = deltas.into_iter().map(|delta| json!({"choices": [{"index": 0, "delta": delta}]})).collect();
    events.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}));
    events.push(json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}}));
    let events: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    ("text/event-stream", format!("{events}data: [DONE]\n\n"))
}

fn is_whole(request: &[u8]) -> bool {
    let Some(head) = request.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let lines = String::from_utf8_lossy(&request[..head]).to_ascii_lowercase();
    let length = lines.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    request.len() >= head + 4 + length.unwrap_or(0)
}
