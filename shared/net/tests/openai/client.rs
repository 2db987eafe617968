//! A client that sends exactly the bytes it is given, and reads what comes.

use serde_json::Value;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longest wait of any test for anything: only a broken front takes this long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// One response, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
    /// Whether the body was complete by its own framing.
    pub(crate) complete: bool,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    /// The error's code and parameter.
    pub(crate) fn error(&self) -> (u16, String, Value) {
        let error = &self.json()["error"];
        (self.status, error["code"].as_str().unwrap_or_default().to_owned(), error["param"].clone())
    }

    /// A header, empty when it is missing.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The `data:` of each event.
    pub(crate) fn events(&self) -> Vec<&str> {
        self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }

    /// The chunks of a stream, without the closing mark.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let events = self.events().into_iter().filter(|event| *event != "[DONE]");
        events.map(|event| serde_json::from_str(event).expect("each event is JSON")).collect()
    }
}

/// A connection.
pub(crate) struct Client {
    socket: TcpStream,
    pending: Vec<u8>,
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { socket: TcpStream::connect(address).await.expect("the front listens"), pending: Vec::new() }
    }

    /// From another address of this machine.
    pub(crate) async fn connect_from(from: &str, address: SocketAddr) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(format!("{from}:0").parse().expect("an address")).expect("an own address");
        Self { socket: socket.connect(address).await.expect("the front listens"), pending: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.expect("the front reads");
    }

    /// Reads until `wanted` has come; says what came until then.
    pub(crate) async fn read_until(&mut self, wanted: &str) -> String {
        let found = async {
            loop {
                let text = String::from_utf8_lossy(&self.pending).into_owned();
                if text.contains(wanted) {
                    return text;
                }
                assert!(self.more().await, "closed before {wanted:?}, after {text:?}");
            }
        };
        timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("no {wanted:?} came"))
    }

    async fn more(&mut self) -> bool {
        let mut buffer = [0; 16 * 1024];
        let count = self.socket.read(&mut buffer).await.unwrap_or(0);
        self.pending.extend_from_slice(&buffer[..count]);
        count > 0
    }

    /// Whether the front closes the connection without another byte.
    pub(crate) async fn closed(&mut self) -> bool {
        timeout(PATIENCE, self.more()).await.is_ok_and(|more| !more) && self.pending.is_empty()
    }

    /// Waits until the front closes the connection, and says what came before.
    pub(crate) async fn wait_for_end(&mut self) -> String {
        let end = async { while self.more().await {} };
        timeout(PATIENCE, end).await.expect("the front closes the connection");
        String::from_utf8_lossy(&self.pending).into_owned()
    }

    /// Says that nothing more will be sent.
    pub(crate) async fn finish_writing(&mut self) {
        self.socket.shutdown().await.expect("an open connection");
    }

    /// Reads one response, and those before it that mean nothing yet.
    pub(crate) async fn final_reply(&mut self) -> Reply {
        loop {
            let reply = self.reply().await;
            if reply.status >= 200 {
                return reply;
            }
        }
    }

    /// Reads one response.
    pub(crate) async fn reply(&mut self) -> Reply {
        let head = self.read_until("\r\n\r\n").await;
        let (head, _) = head.split_once("\r\n\r\n").expect("just found");
        self.pending.drain(..head.len() + 4);
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status line");
        let headers: BTreeMap<String, String> =
            lines.filter_map(|line| line.split_once(": ")).map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
        let (body, complete) = match headers.get("content-length").map(|length| length.parse::<usize>().expect("a length")) {
            Some(length) => self.sized(length).await,
            None if headers.contains_key("transfer-encoding") => self.chunked().await,
            None => (Vec::new(), true),
        };
        Reply { status, headers, body: String::from_utf8(body).expect("text"), complete }
    }

    async fn fill(&mut self, length: usize) -> bool {
        while self.pending.len() < length {
            if !timeout(PATIENCE, self.more()).await.expect("the front goes on writing") {
                return false;
            }
        }
        true
    }

    async fn sized(&mut self, length: usize) -> (Vec<u8>, bool) {
        let complete = self.fill(length).await;
        let length = length.min(self.pending.len());
        (self.pending.drain(..length).collect(), complete)
    }

    async fn chunked(&mut self) -> (Vec<u8>, bool) {
        let mut body = Vec::new();
        loop {
            let Some(end) = self.pending.windows(2).position(|pair| pair == b"\r\n") else {
                if !timeout(PATIENCE, self.more()).await.expect("the front goes on writing") {
                    return (body, false);
                }
                continue;
            };
            let digits = String::from_utf8_lossy(&self.pending[..end]).into_owned();
            let size = usize::from_str_radix(&digits, 16).expect("a chunk size");
            if !self.fill(end + 2 + size + 2).await {
                return (body, false);
            }
            let chunk: Vec<u8> = self.pending.drain(..end + 2 + size + 2).collect();
            body.extend_from_slice(&chunk[end + 2..end + 2 + size]);
            if size == 0 {
                return (body, true);
            }
        }
    }
}

/// The bytes of a POST of JSON, with more header lines.
pub(crate) fn post(path: &str, body: &str, more: &[&str]) -> Vec<u8> {
    let more: String = more.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{more}\r\n{body}"
    )
    .into_bytes()
}

/// Sends one request on a connection of its own.
pub(crate) async fn exchange(address: SocketAddr, request: &[u8]) -> Reply {
    let mut client = Client::connect(address).await;
    client.send(request).await;
    client.reply().await
}

/// Posts JSON on a connection of its own.
pub(crate) async fn post_json(address: SocketAddr, path: &str, body: &Value, more: &[&str]) -> Reply {
    exchange(address, &post(path, &body.to_string(), more)).await
}
