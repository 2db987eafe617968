//! An OpenAI server that computes nothing: the same answer to everybody, as cheaply as a socket allows, on a thread of its own.
//!
//! A stream comes in bursts of a few tokens, nothing between them: whoever passes them on cannot rest. Writes are few, so that the
//! server is never what a measurement waits for.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Tokens of an answer.
pub(crate) const TOKENS: usize = 16;
/// Tokens of one write.
const BURST: usize = 4;
/// So much of the end of a request is searched for `stream`; the text is before it or far larger.
const SEARCHED: usize = 2_048;

/// The running server.
#[derive(Debug)]
pub(crate) struct Canned {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Canned {
    pub(crate) fn start() -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let thread = std::thread::Builder::new().name("canned".to_owned()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    _ = stopped => {}
                    ended = accept(listener) => drop(ended),
                }
            });
        })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Canned {
    fn drop(&mut self) {
        drop(self.stop.take());
        drop(self.thread.take().map(JoinHandle::join));
    }
}

async fn accept(listener: std::net::TcpListener) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        connections.spawn(serve(socket));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(mut socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let (whole, stream, models) = (whole(), stream(), models());
    let mut buffer = vec![0; 64 * 1024];
    let mut kept = Vec::new();
    loop {
        let Some(asked) = request(&mut socket, &mut buffer, &mut kept).await? else { return Ok(()) };
        match asked {
            Asked::Page => socket.write_all(&models).await?,
            Asked::Whole => socket.write_all(&whole).await?,
            Asked::Stream => {
                for part in &stream {
                    socket.write_all(part).await?;
                }
            }
        }
    }
}

enum Asked {
    Page,
    Whole,
    Stream,
}

/// Reads one request; `kept` holds its head, and then the end of its body.
async fn request(socket: &mut TcpStream, buffer: &mut [u8], kept: &mut Vec<u8>) -> io::Result<Option<Asked>> {
    kept.clear();
    let body_at = loop {
        let read = socket.read(buffer).await?;
        if read == 0 {
            return Ok(None);
        }
        kept.extend_from_slice(&buffer[..read]);
        if let Some(at) = kept.windows(4).position(|end| end == b"\r\n\r\n") {
            break at + 4;
        }
    };
    if kept.starts_with(b"GET") {
        return Ok(Some(Asked::Page));
    }
    let length = super::wire::length(&kept[..body_at]).ok_or_else(|| io::Error::other("a request without a length"))?;
    let mut missing = (body_at + length).saturating_sub(kept.len());
    while missing > 0 {
        let read = socket.read(buffer).await?;
        if read == 0 {
            return Ok(None);
        }
        missing = missing.saturating_sub(read);
        let surplus = (kept.len() + read).saturating_sub(SEARCHED + 64 * 1024);
        kept.drain(..surplus.min(kept.len()));
        kept.extend_from_slice(&buffer[..read]);
    }
    let end = &kept[kept.len().saturating_sub(SEARCHED)..];
    let streams =
        [b"\"stream\":true".as_slice(), b"\"stream\": true"].iter().any(|word| end.windows(word.len()).any(|at| at == *word));
    Ok(Some(if streams { Asked::Stream } else { Asked::Whole }))
}

fn answered(kind: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn models() -> Vec<u8> {
    answered("application/json", r#"{"object":"list","data":[{"id":"canned","object":"model","created":1,"owned_by":"bench"}]}"#)
}

fn usage() -> String {
    format!(r#"{{"prompt_tokens":20,"completion_tokens":{TOKENS},"total_tokens":{}}}"#, 20 + TOKENS)
}

fn whole() -> Vec<u8> {
    let text = " word".repeat(TOKENS);
    let body = format!(
        r#"{{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"canned","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"logprobs":null,"finish_reason":"stop"}}],"usage":{}}}"#,
        usage()
    );
    answered("application/json", &body)
}

/// The head with the first token, then bursts, the last with the end.
fn stream() -> Vec<Vec<u8>> {
    let chunk = |text: String| format!("{:x}\r\n{text}\r\n", text.len()).into_bytes();
    let event = |delta: &str, finish: &str, usage: &str| {
        chunk(format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"canned\",\"choices\":[{{\"index\":0,\"delta\":{delta},\"logprobs\":null,\"finish_reason\":{finish}}}],\"usage\":{usage}}}\n\n"
        ))
    };
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut parts = vec![[head.as_slice(), &event(r#"{"role":"assistant","content":" word"}"#, "null", "null")].concat()];
    let rest: Vec<Vec<u8>> = (1..TOKENS).map(|_| event(r#"{"content":" word"}"#, "null", "null")).collect();
    parts.extend(rest.chunks(BURST).map(<[Vec<u8>]>::concat));
    if let Some(last) = parts.last_mut() {
        last.extend_from_slice(&event("{}", "\"stop\"", &usage()));
        last.extend_from_slice(&chunk("data: [DONE]\n\n".to_owned()));
        last.extend_from_slice(b"0\r\n\r\n");
    }
    parts
}
