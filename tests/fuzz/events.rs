//! Damaged answers of an upstream server: whatever it sends, a job ends exactly once.

use crate::dice::Run;
use edge_node::exec::upstream::{Upstream, UpstreamConfig};
use edge_node::exec::{Engine, ExecEvent, Job};
use serde_json::json;
use shared::fleet::ReplicaState;
use shared::ids::{AttemptId, NodeId, RequestId, ServiceId, VariantId};
use shared::units::{Bytes, Tokens};
use shared::wire::Body;
use shared::wire::body::{Message, Prompt, Sampling};
use shared::work::{ExecHeader, Features, Precision, Priority, PromptKind, ResidencyBound};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(20);

const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
    data: {\"id\":\"1\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"The\"}}]}\n\n\
    : ping\n\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\" tide\"},\"finish_reason\":null}]}\r\n\r\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";

/// A server that says what it is told to, to whoever posts; health checks are answered well.
async fn serve(listener: TcpListener, says: Arc<Mutex<Vec<u8>>>) {
    while let Ok((socket, _)) = listener.accept().await {
        answer(socket, &says).await;
    }
}

async fn answer(mut socket: TcpStream, says: &Mutex<Vec<u8>>) {
    let (mut asked, mut piece) = (Vec::new(), [0; 4096]);
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
        match socket.read(&mut piece).await {
            Ok(read @ 1..) => asked.extend_from_slice(&piece[..read]),
            _ => return,
        }
    }
    let good = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}".to_vec();
    let said = if asked.starts_with(b"POST") { says.lock().expect("no panic").clone() } else { good };
    // The reader may have had enough.
    let _written = socket.write_all(&said).await;
}

fn job(sink: mpsc::Sender<ExecEvent>, number: usize) -> Job {
    let header = ExecHeader {
        attempt: AttemptId::new(RequestId(number as u128), 0),
        ingress: NodeId::new("bay/edge-1").expect("good"),
        target: NodeId::new("bay/edge-1").expect("good"),
        service: ServiceId::new("assistant").expect("good"),
        variant: VariantId::new("canned").expect("good"),
        kind: PromptKind::Chat,
        prompt: Tokens(5),
        output_max: Tokens(8),
        output_likely: None,
        features: Features::default(),
        body: Bytes(10),
        residency: ResidencyBound::Anywhere,
        priority: Priority::default(),
        remaining: None,
        resume_from: Tokens(0),
        stages: Vec::new(),
        precision: Precision::default(),
        parent_span: 0,
    };
    let message = Message { role: "user".to_owned(), content: "When?".to_owned() };
    let sampling = Sampling { max_tokens: 8, ..Sampling::default() };
    let body = Body { prompt: Prompt::Chat(vec![message]), sampling, passthrough: None, resume: Vec::new() };
    Job::whole(header, body, CancellationToken::new(), sink)
}

async fn until_ready(engine: &Upstream) {
    let mut watch = engine.watch();
    let ready = watch.wait_for(|report| report.state == ReplicaState::Ready);
    tokio::time::timeout(PATIENCE, ready).await.expect("in time").expect("the engine lives");
}

/// Runs a job to its end and says whether the answer was whole.
async fn ends(engine: &Upstream, number: usize) -> bool {
    let (sink, mut events) = mpsc::channel(4);
    loop {
        until_ready(engine).await;
        match engine.submit(job(sink.clone(), number)) {
            Ok(()) => break,
            // Failures may have made it look unhealthy a moment ago.
            Err(reason) => println!("not taken: {reason}"),
        }
        tokio::task::yield_now().await;
    }
    drop(sink);
    let mut last = None;
    while let Some(event) = tokio::time::timeout(PATIENCE, events.recv()).await.expect("a job that hangs") {
        assert!(!matches!(last, Some(ExecEvent::End(..) | ExecEvent::Failed(_))), "{event:?} after the end");
        last = Some(event);
    }
    match last {
        Some(ExecEvent::End(..)) => true,
        Some(ExecEvent::Failed(_)) => false,
        other => panic!("it ended with {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_answers_end_a_job_exactly_once() {
    shared_net_ring();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address: SocketAddr = listener.local_addr().expect("bound");
    let says = Arc::new(Mutex::new(STREAM.as_bytes().to_vec()));
    let server = tokio::spawn(serve(listener, Arc::clone(&says)));
    let config = json!({
        "variant": "canned", "url": format!("http://{address}/v1"), "model": "canned", "slots": 4, "health_ms": 10,
        "rates": {"prompt_per_s": 100.0, "decode_per_s": 10.0},
    });
    let config: UpstreamConfig = serde_json::from_value(config).expect("good");
    let engine = Upstream::start(config, std::path::Path::new("unused")).expect("starts");
    assert!(ends(&engine, 0).await, "the undamaged answer is whole");
    let mut run = Run::new("an upstream's answers");
    while run.again() {
        let mut bytes = STREAM.as_bytes().to_vec();
        let end = bytes.len();
        run.damage(&mut bytes, end);
        *says.lock().expect("no panic") = bytes;
        ends(&engine, run.rounds).await;
    }
    *says.lock().expect("no panic") = STREAM.as_bytes().to_vec();
    assert!(ends(&engine, 1).await, "and again whole after all the damage");
    engine.shutdown(PATIENCE).await.expect("in time");
    server.abort();
}

/// The engine's HTTP client speaks TLS through the process's provider.
fn shared_net_ring() {
    // A second installation finds the first, which is the same.
    drop(rustls::crypto::ring::default_provider().install_default());
}
