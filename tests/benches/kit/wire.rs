//! A client that costs little: requests made beforehand, written on connections that stay open, each answer read to its end before
//! the next request (a closed loop).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// An answer that takes so long is none: something is broken, and the benchmark says so.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// What one answer took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Took {
    /// Until the first byte of its body.
    pub(crate) first: Duration,
    /// Until its end.
    pub(crate) whole: Duration,
}

/// What many took.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) took: Vec<Took>,
    pub(crate) lasted: Duration,
}

impl Run {
    /// The median of one of the times, in microseconds.
    pub(crate) fn p50(&self, pick: impl Fn(&Took) -> Duration) -> f64 {
        let mut times: Vec<Duration> = self.took.iter().map(pick).collect();
        times.sort_unstable();
        times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6)
    }

    /// Answers a second.
    pub(crate) fn rate(&self) -> f64 {
        f64::from(u32::try_from(self.took.len()).unwrap_or(u32::MAX)) / self.lasted.as_secs_f64()
    }
}

/// A chat request with a prompt of so many bytes.
pub(crate) fn chat(prompt_bytes: usize, stream: bool) -> Vec<u8> {
    let words = "the tide comes in and the gate is shut ";
    let prompt: String = words.chars().cycle().take(prompt_bytes).collect();
    let body = format!(
        r#"{{"model":"canned","messages":[{{"role":"user","content":"{prompt}"}}],"max_tokens":16,"temperature":0,"stream":{stream}}}"#
    );
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n";
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// Asks `count` times over `connections` connections.
pub(crate) async fn load(address: SocketAddr, request: &Arc<Vec<u8>>, connections: usize, count: usize) -> io::Result<Run> {
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(Connection::open(address).await?);
    }
    let (left, begun) = (Arc::new(AtomicUsize::new(count)), Instant::now());
    let mut tasks = JoinSet::new();
    for mut connection in open {
        let (request, left) = (Arc::clone(request), Arc::clone(&left));
        tasks.spawn(async move {
            let mut took = Vec::new();
            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                took.push(tokio::time::timeout(ANSWER_MAX, connection.ask(&request)).await??);
            }
            io::Result::Ok(took)
        });
    }
    let mut run = Run::default();
    while let Some(ended) = tasks.join_next().await {
        run.took.extend(ended.map_err(io::Error::other)??);
    }
    run.lasted = begun.elapsed();
    Ok(run)
}

struct Connection {
    socket: TcpStream,
    answer: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, answer: Vec::with_capacity(64 * 1024) })
    }

    async fn ask(&mut self, request: &[u8]) -> io::Result<Took> {
        self.answer.clear();
        let begun = Instant::now();
        self.socket.write_all(request).await?;
        let (mut body, mut first) = (None, None);
        loop {
            if self.socket.read_buf(&mut self.answer).await? == 0 {
                return Err(self.bad("it ended early"));
            }
            if body.is_none()
                && let Some(at) = self.answer.windows(4).position(|end| end == b"\r\n\r\n")
            {
                if !self.answer.starts_with(b"HTTP/1.1 200") {
                    return Err(self.bad("not a 200"));
                }
                body = Some((at + 4, length(&self.answer[..at + 4])));
            }
            let Some((at, length)) = body else { continue };
            if self.answer.len() > at {
                first.get_or_insert_with(|| begun.elapsed());
            }
            let whole = match length {
                Some(length) => self.answer.len() >= at + length,
                None => self.answer.ends_with(b"\r\n0\r\n\r\n"),
            };
            if whole {
                let whole = begun.elapsed();
                return Ok(Took { first: first.unwrap_or(whole), whole });
            }
        }
    }

    fn bad(&self, why: &str) -> io::Error {
        let shown = String::from_utf8_lossy(self.answer.get(..self.answer.len().min(600)).unwrap_or_default()).into_owned();
        io::Error::other(format!("an answer was no good ({why}): {shown}"))
    }
}

/// `content-length` of a head.
pub(crate) fn length(head: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(head).ok()?;
    let line = text.split("\r\n").find(|line| line.get(..15).is_some_and(|name| name.eq_ignore_ascii_case("content-length:")))?;
    line.get(15..)?.trim().parse().ok()
}
