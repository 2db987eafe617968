//! A canned upstream: an OpenAI-compatible server on loopback that answers by script, with all the faults that real ones have.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::stream;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What the server does with a request, step by step.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A chunk with this content.
    Say(&'static str),
    /// A chunk that is this JSON document.
    Chunk(Value),
    /// These bytes as they are.
    Raw(&'static str),
    /// Nothing until the test says [`Canned::go_on`].
    Hold,
    /// Nothing, for ever.
    Silence,
    /// The connection is cut.
    Cut,
}

/// What the server answers to a call.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// A stream of these steps, then an end of the connection.
    Stream(Vec<Step>),
    /// An error with this status and body.
    Error(u16, Value),
}

impl Script {
    /// A well-behaved answer of these words, with usage if it is given.
    pub(crate) fn words(words: &[&'static str], usage: Option<(u32, u32)>) -> Self {
        let mut steps: Vec<Step> = words.iter().map(|word| Step::Say(word)).collect();
        steps.push(Step::Chunk(json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] })));
        if let Some((prompt, output)) = usage {
            steps.push(Step::Chunk(json!({ "choices": [], "usage": { "prompt_tokens": prompt, "completion_tokens": output } })));
        }
        steps.push(Step::Raw("data: [DONE]\n\n"));
        Self::Stream(steps)
    }
}

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: Value,
}

#[derive(Default)]
struct Desk {
    scripts: Mutex<VecDeque<Script>>,
    seen: Mutex<Vec<Seen>>,
    healthy: Mutex<bool>,
    open: watch::Sender<u32>,
    go_on: tokio::sync::Notify,
}

/// The running server; it ends when this is dropped.
pub(crate) struct Canned {
    pub(crate) address: SocketAddr,
    desk: Arc<Desk>,
    stop: CancellationToken,
    server: Option<tokio::task::JoinHandle<()>>,
}

impl Canned {
    /// Starts a healthy server that answers `hello` when no script is left.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let desk = Arc::new(Desk { healthy: Mutex::new(true), ..Desk::default() });
        let app = Router::new()
            .route("/v1/models", get(models))
            .route("/v1/chat/completions", post(complete))
            .route("/v1/completions", post(complete))
            .route("/v1/embeddings", post(complete))
            .with_state(Arc::clone(&desk));
        let stop = CancellationToken::new();
        let ended = stop.clone().cancelled_owned();
        let server = tokio::spawn(async move {
            let served = axum::serve(listener, app);
            tokio::select! {
                _ = served.into_future() => {}
                () = ended => {}
            }
        });
        Self { address, desk, stop, server: Some(server) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// Answers one of the next calls so; scripts are used in order.
    pub(crate) fn script(&self, script: Script) {
        lock(&self.desk.scripts).push_back(script);
    }

    pub(crate) fn set_healthy(&self, healthy: bool) {
        *lock(&self.desk.healthy) = healthy;
    }

    /// Ends one [`Step::Hold`].
    pub(crate) fn go_on(&self) {
        self.desk.go_on.notify_one();
    }

    /// All calls so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        lock(&self.desk.seen).clone()
    }

    /// How many streams are open now, and when that changes.
    pub(crate) fn open(&self) -> watch::Receiver<u32> {
        self.desk.open.subscribe()
    }

    /// Stops listening.
    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        if let Some(server) = self.server.take() {
            server.await.expect("no panic");
        }
    }
}

impl Drop for Canned {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn models(State(desk): State<Arc<Desk>>) -> Response {
    if *lock(&desk.healthy) {
        axum::Json(json!({ "object": "list", "data": [{ "id": "canned", "object": "model" }] })).into_response()
    } else {
        StatusCode::INTERNAL_SERVER_ERROR.into_response()
    }
}

async fn complete(State(desk): State<Arc<Desk>>, uri: axum::http::Uri, headers: HeaderMap, body: Bytes) -> Response {
    let authorization = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let chat = body.get("messages").is_some();
    lock(&desk.seen).push(Seen { path: uri.path().to_owned(), authorization, body });
    let script = lock(&desk.scripts).pop_front();
    match script.unwrap_or_else(|| Script::words(&["hello"], Some((1, 1)))) {
        Script::Error(status, body) => {
            let status = StatusCode::from_u16(status).expect("a status");
            (status, axum::Json(body)).into_response()
        }
        Script::Stream(steps) => {
            let open = Open::new(&desk);
            let stream = stream::unfold((steps.into_iter(), open), move |(mut steps, open)| async move {
                let bytes = match steps.next()? {
                    Step::Hold => {
                        open.0.go_on.notified().await;
                        Ok(Bytes::new())
                    }
                    Step::Silence => std::future::pending().await,
                    Step::Cut => Err(std::io::Error::other("cut")),
                    step => Ok(bytes_of(step, chat)),
                };
                Some((bytes, (steps, open)))
            });
            ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(stream)).into_response()
        }
    }
}

fn bytes_of(step: Step, chat: bool) -> Bytes {
    let document = match step {
        Step::Raw(text) => return Bytes::from_static(text.as_bytes()),
        Step::Chunk(document) => document,
        Step::Say(word) if chat => json!({ "choices": [{ "index": 0, "delta": { "content": word } }] }),
        Step::Say(word) => json!({ "choices": [{ "index": 0, "text": word }] }),
        Step::Hold | Step::Silence | Step::Cut => return Bytes::new(),
    };
    Bytes::from(format!("data: {document}\n\n"))
}

/// Counts an open stream until dropped, which is when the client went away or the stream ended.
struct Open(Arc<Desk>);

impl Open {
    fn new(desk: &Arc<Desk>) -> Self {
        desk.open.send_modify(|count| *count += 1);
        Self(Arc::clone(desk))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.send_modify(|count| *count -= 1);
    }
}
