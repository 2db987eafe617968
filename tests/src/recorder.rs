//! An upstream that keeps everything it is sent: what reached an engine can then be searched.

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

/// A server of the OpenAI API that answers every prompt with one word.
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
        let word = r#"{"choices":[{"index":0,"delta":{"content":"aye"},"finish_reason":"stop"}]}"#;
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}"#;
        ("text/event-stream", format!("data: {word}\n\ndata: {usage}\n\ndata: [DONE]\n\n"))
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    stream.shutdown().await
}

fn is_whole(request: &[u8]) -> bool {
    let Some(head) = request.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let lines = String::from_utf8_lossy(&request[..head]).to_ascii_lowercase();
    let length = lines.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    request.len() >= head + 4 + length.unwrap_or(0)
}
