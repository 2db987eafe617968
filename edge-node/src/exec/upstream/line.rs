//! Connections to an upstream that speaks plain HTTP: most stand on the same machine or in the same rack, and a request there is
//! short. No task stands between a request and its socket: whoever waits for an answer drives the connection, and takes everything
//! that has come at once. Never here: what an answer means.

use http_body_util::Full;
use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// Longest time to a connection: a listening server accepts within a round trip.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that was idle for longer is not used again: servers and middleboxes forget it about then.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// How long the end of an answer may take after its last word. Then the connection is closed instead of kept.
const SETTLE_MAX: Duration = Duration::from_secs(1);
/// Bytes of an answer that are taken together. More are for the next time: a client waits for the first of them.
const TOGETHER_MAX: usize = 64 * 1024;

/// The connection broke, or there was none.
#[derive(Debug, thiserror::Error)]
pub(super) enum Torn {
    /// None could be made.
    #[error("connecting to the upstream")]
    Connect(#[from] io::Error),
    /// It broke.
    #[error("talking to the upstream")]
    Talk(#[from] hyper::Error),
    /// No request can be made of this.
    #[error("writing the head of a request")]
    Head(#[from] hyper::http::Error),
}

/// The connections to one upstream.
#[derive(Debug)]
pub(super) struct Lines {
    host: String,
    port: u16,
    authority: String,
    key: Option<HeaderValue>,
    idle_max: usize,
    /// Newest last.
    idle: Mutex<VecDeque<(Instant, Line)>>,
}

/// One connection.
#[derive(Debug)]
struct Line {
    send: SendRequest<Full<Bytes>>,
    connection: Connection<TokioIo<TcpStream>, Full<Bytes>>,
    /// It has ended, and must not be driven any more.
    ended: bool,
}

/// An answer that is being read. Dropping it closes the connection, which is how an upstream is told to stop.
#[derive(Debug)]
pub(super) struct Exchange {
    line: Line,
    lines: Arc<Lines>,
    status: u16,
    headers: HeaderMap,
    body: Incoming,
    over: bool,
}

impl Lines {
    /// Connections to the server of this URL; none for one that wants TLS. `key` is sent with each request.
    pub(super) fn to(url: &Url, key: Option<&str>, idle_max: usize) -> Option<Arc<Self>> {
        if url.scheme() != "http" {
            return None;
        }
        let key = match key.map(|key| HeaderValue::from_str(&format!("Bearer {key}"))) {
            Some(Ok(mut key)) => {
                key.set_sensitive(true);
                Some(key)
            }
            Some(Err(_)) => return None,
            None => None,
        };
        let (bare, port) = (url.host_str()?, url.port_or_known_default()?);
        let host = bare.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Arc::new(Self { host, port, authority: format!("{bare}:{port}"), key, idle_max, idle: Mutex::default() }))
    }

    /// Posts a JSON document, and waits for the head of the answer.
    pub(super) async fn post(self: &Arc<Self>, path: &str, document: Bytes) -> Result<Exchange, Torn> {
        if let Some(line) = self.idle_line().await {
            // A server may hang up an idle connection just now. That says nothing about the server: another connection does.
            if let Ok(exchange) = self.exchange(line, self.request(path, document.clone())?).await {
                return Ok(exchange);
            }
        }
        let line = self.connect().await?;
        self.exchange(line, self.request(path, document)?).await
    }

    fn request(&self, path: &str, document: Bytes) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let mut request = Request::post(path).header(HOST, &self.authority).header(CONTENT_TYPE, "application/json");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key.clone());
        }
        request.body(Full::new(document))
    }

    async fn connect(&self) -> Result<Line, Torn> {
        let connecting = TcpStream::connect((self.host.as_str(), self.port));
        let socket = timeout(CONNECT_TIMEOUT, connecting).await.map_err(io::Error::from)??;
        socket.set_nodelay(true)?;
        let (send, connection) = Builder::new().handshake(TokioIo::new(socket)).await?;
        Ok(Line { send, connection, ended: false })
    }

    async fn exchange(self: &Arc<Self>, mut line: Line, request: Request<Full<Bytes>>) -> Result<Exchange, Torn> {
        let mut sending = pin!(line.send.send_request(request));
        let (connection, ended) = (&mut line.connection, &mut line.ended);
        let response: Response<Incoming> = poll_fn(|cx| {
            if let Poll::Ready(response) = sending.as_mut().poll(cx) {
                return Poll::Ready(response);
            }
            drive(connection, ended, cx);
            sending.as_mut().poll(cx)
        })
        .await?;
        let (head, body) = response.into_parts();
        let (status, headers) = (head.status.as_u16(), head.headers);
        Ok(Exchange { line, lines: Arc::clone(self), status, headers, body, over: false })
    }

    /// A connection that was kept and still stands.
    async fn idle_line(&self) -> Option<Line> {
        loop {
            let (since, mut line) = self.idle().pop_back()?;
            if since.elapsed() > IDLE_MAX {
                self.idle().clear();
                return None;
            }
            line.look().await;
            if !line.ended && line.send.is_ready() {
                return Some(line);
            }
        }
    }

    fn keep(&self, line: Line) {
        let mut idle = self.idle();
        if idle.len() >= self.idle_max {
            idle.pop_front();
        }
        idle.push_back((Instant::now(), line));
    }

    fn idle(&self) -> MutexGuard<'_, VecDeque<(Instant, Line)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// Lets the connection do what it can now.
    async fn look(&mut self) {
        poll_fn(|cx| {
            drive(&mut self.connection, &mut self.ended, cx);
            Poll::Ready(())
        })
        .await;
    }
}

fn drive(connection: &mut Connection<TokioIo<TcpStream>, Full<Bytes>>, ended: &mut bool, cx: &mut Context<'_>) {
    if !*ended {
        // What ended it shows in the answer that is read from it.
        *ended = Pin::new(connection).poll(cx).is_ready();
    }
}

impl Exchange {
    pub(super) const fn status(&self) -> u16 {
        self.status
    }

    pub(super) fn content_type(&self) -> Option<&str> {
        self.headers.get(CONTENT_TYPE)?.to_str().ok()
    }

    /// Appends what has come, and waits while nothing has. False when the answer is over.
    pub(super) async fn read(&mut self, into: &mut Vec<u8>) -> Result<bool, Torn> {
        if self.over {
            return Ok(false);
        }
        let before = into.len();
        poll_fn(|cx| {
            loop {
                match self.take(into, cx) {
                    Poll::Ready(Ok(true)) if into.len() - before < TOGETHER_MAX => {}
                    Poll::Ready(read) => return Poll::Ready(read.map(|_| into.len() > before)),
                    Poll::Pending if into.len() > before => return Poll::Ready(Ok(true)),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }

    /// One piece of the body; false when there are no more.
    fn take(&mut self, into: &mut Vec<u8>, cx: &mut Context<'_>) -> Poll<Result<bool, Torn>> {
        let mut frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_pending() {
            drive(&mut self.line.connection, &mut self.line.ended, cx);
            frame = Pin::new(&mut self.body).poll_frame(cx);
        }
        frame.map(|frame| match frame {
            Some(Ok(frame)) => {
                if let Some(bytes) = frame.data_ref() {
                    into.extend_from_slice(bytes);
                }
                Ok(true)
            }
            Some(Err(error)) => Err(error.into()),
            None => {
                self.over = true;
                Ok(false)
            }
        })
    }

    /// Keeps the connection for the next request, once the answer is wholly read.
    pub(super) async fn settle(mut self) {
        let mut rest = Vec::new();
        let end = async {
            while !self.over && self.read(&mut rest).await.is_ok() {
                rest.clear();
            }
        };
        if timeout(SETTLE_MAX, end).await.is_ok() && self.over {
            self.line.look().await;
            if !self.line.ended {
                self.lines.keep(self.line);
            }
        }
    }
}
