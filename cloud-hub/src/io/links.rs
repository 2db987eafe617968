//! Agents' connections: who may say what on which stream, and nothing about what it means.

use super::effects::close_code;
use super::input::{Inbox, Input};
use super::metrics::Metrics;
use crate::ca::Authority;
use crate::clock::UnixTime;
use crate::join;
use crate::logic::{Connection, HubEvent};
use crate::store::Store;
use shared::fleet::Hop;
use shared::ids::NodeId;
use shared::wire::Frame;
use shared::wire::frame::{Goodbye, Hello, Issued, Join, PULSES_MAX, Pulse};
use shared_net::host::Tasks;
use shared_net::link::{Acceptor, Code, FrameReader, FrameWriter, Link, Stream, StreamError};
use shared_net::tls::CertClock;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// How long the first frame of a stream may take: it fits one packet.
const FIRST_FRAME_TIME_MAX: Duration = Duration::from_secs(5);
/// Frames that wait for a control stream: a few pings and answers. Full means stuck, and the connection is closed.
const CONTROL_FRAMES_MAX: usize = 32;
/// How long a row of pings may take that is to show whether a transport carries.
const ECHO_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a goodbye may take to arrive before the connection is closed anyway.
const GOODBYE_TIME_MAX: Duration = Duration::from_millis(500);

/// What all connections share.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) me: NodeId,
    pub(crate) authority: Arc<Authority>,
    pub(crate) store: Store,
    pub(crate) wall: CertClock,
    pub(crate) node_lifetime: Duration,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) inbox: Inbox,
    pub(crate) next: AtomicU64,
}

/// Takes connections until the endpoint is closed.
pub(crate) async fn accept(gate: Arc<Gate>, mut acceptor: Acceptor, tasks: Tasks) {
    let stop = tasks.cancelled();
    loop {
        let link = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            link = acceptor.next() => link,
        };
        let Some(link) = link else { return };
        let gate = Arc::clone(&gate);
        match link.peer().cloned() {
            Some(node) => tasks.spawn(format!("agent {node}"), serve_member(gate, link, node, stop.clone())),
            None => {
                let stop = stop.clone();
                tasks.spawn(
                    "joining",
                    async move { stop.run_until_cancelled(serve_joiner(gate, link)).await.unwrap_or_default() },
                );
            }
        }
    }
}

/// A client without a certificate may join, and nothing else.
async fn serve_joiner(gate: Arc<Gate>, link: Link) {
    let Ok(mut stream) = link.accept().await else { return };
    match first_frame(&mut stream.reader).await {
        Some(Frame::Join(asked)) => {
            let answer = gate.join(asked, link.address()).await;
            if shared_net::join::answer(stream, answer).await.is_err() {
                tracing::debug!(address = %link.address(), "a joining machine went away before its answer");
            }
            link.close(Code::DONE, "answered");
        }
        _ => {
            gate.metrics.refused("join", "no_request", &link.address().ip().to_string());
            link.close(Code::FORBIDDEN, "want a join request: a connection without a certificate can do nothing else");
        }
    }
}

async fn first_frame(reader: &mut FrameReader) -> Option<Frame> {
    timeout(FIRST_FRAME_TIME_MAX, reader.read()).await.ok()?.ok()?
}

impl Gate {
    async fn join(&self, asked: Join, from: SocketAddr) -> Result<Issued, String> {
        let (authority, hub) = (Arc::clone(&self.authority), self.me.clone());
        let (now, lifetime) = (UnixTime::now(&self.wall), self.node_lifetime);
        let joined = self.store.call(move |db| join::join(db, &authority, &hub, &asked, now, lifetime)).await;
        self.metrics.join(joined.as_ref().err().map_or("joined", join::Denied::code));
        if let Err(denied) = &joined {
            self.metrics.refused("join", denied.code(), &from.ip().to_string());
        }
        self.enrol(joined, now, true).await
    }

    async fn renew(&self, node: NodeId, serial: String, request: Vec<u8>) -> Result<Issued, String> {
        let (authority, who) = (Arc::clone(&self.authority), node.to_string());
        let (now, lifetime) = (UnixTime::now(&self.wall), self.node_lifetime);
        let renewed = self.store.call(move |db| {
            let shown = join::Shown { node: &node, serial: &serial };
            join::renew(db, &authority, shown, &request, now, lifetime)
        });
        let renewed = renewed.await;
        self.metrics.join(if renewed.is_ok() { "renewed" } else { "renewal_denied" });
        if renewed.is_err() {
            self.metrics.refused("join", "renewal", &who);
        }
        self.enrol(renewed, now, false).await
    }

    async fn enrol(&self, outcome: Result<join::Joined, join::Denied>, now: UnixTime, first: bool) -> Result<Issued, String> {
        match outcome {
            Ok(joined) => {
                let labels = if first { joined.labels.clone() } else { Default::default() };
                let (node, serial) = (joined.node.clone(), joined.certificate.serial.to_string());
                tracing::info!(%node, serial, first, "a certificate was issued");
                // Fails only when the hub is stopping; the store knows of the node already.
                drop(self.inbox.send(Input::Event(HubEvent::Enrolled { node, serial, labels })).await);
                Ok(joined.issued(&self.authority, &self.me, now))
            }
            Err(denied) => {
                tracing::debug!(error = &denied as &dyn std::error::Error, "a certificate was denied");
                Err(denied.to_string())
            }
        }
    }
}

/// One agent's connection, from its first stream to its end. All tasks of its streams end with it.
async fn serve_member(gate: Arc<Gate>, link: Link, node: NodeId, stop: CancellationToken) {
    let connection = Connection(gate.next.fetch_add(1, Ordering::Relaxed));
    let serial = link.serial().unwrap_or_default().to_owned();
    let member = Arc::new(Member { gate, link, node, serial, connection, said_hello: AtomicBool::new(false) });
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = streams.join_next() => {}
            () = stop.cancelled() => break,
            stream = member.link.accept() => match stream {
                Ok(stream) => drop(streams.spawn(Arc::clone(&member).serve_stream(stream))),
                Err(error) => {
                    tracing::debug!(node = %member.node, %error, "a connection ended");
                    break;
                }
            }
        }
    }
    if stop.is_cancelled() {
        // The control stream says goodbye; what does not end by itself is aborted.
        drop(timeout(GOODBYE_TIME_MAX * 2, async { while streams.join_next().await.is_some() {} }).await);
    }
    streams.shutdown().await;
    if member.said_hello.load(Ordering::Relaxed) {
        // Fails only when the hub is stopping.
        drop(member.gate.inbox.send(Input::Event(HubEvent::ConnectionLost { connection })).await);
    }
}

/// Answers pings on a stream of their own: the node finds out whether this transport carries.
async fn echo(mut stream: Stream, mut pulse: Pulse) -> Result<(), StreamError> {
    for _ in 0..PULSES_MAX {
        stream.writer.write(&Frame::Pong(Pulse { number: pulse.number, ..Pulse::default() })).await?;
        match stream.reader.read().await? {
            Some(Frame::Ping(next)) => pulse = next,
            _ => break,
        }
    }
    stream.writer.finish().await
}

#[derive(Debug)]
struct Member {
    gate: Arc<Gate>,
    link: Link,
    node: NodeId,
    /// Number of its certificate in hex.
    serial: String,
    connection: Connection,
    said_hello: AtomicBool,
}

impl Member {
    async fn serve_stream(self: Arc<Self>, mut stream: Stream) {
        match first_frame(&mut stream.reader).await {
            Some(Frame::Hello(hello)) => self.control(stream, hello).await,
            Some(Frame::Ping(pulse)) => {
                // Fails with the stream, and then nobody waits.
                drop(timeout(ECHO_TIME_MAX, echo(stream, pulse)).await);
            }
            Some(Frame::Renew(renew)) => {
                let answer = self.gate.renew(self.node.clone(), self.serial.clone(), renew.request).await;
                if shared_net::join::answer(stream, answer).await.is_err() {
                    tracing::debug!(node = %self.node, "a node went away before its renewed certificate");
                }
            }
            Some(Frame::Header(header)) if self.said_hello.load(Ordering::Relaxed) && header.sender() == Some(&self.node) => {
                let input = Input::Relay { connection: self.connection, header, stream: Box::new(stream) };
                // Fails only when the hub is stopping.
                drop(self.gate.inbox.send(input).await);
            }
            _ => {
                stream.cancel(Code::PROTOCOL);
                self.bad_payload(
                    "stream",
                    "want a stream to begin with hello, renew, or the header of an own request or of a later stage",
                )
                .await;
            }
        }
    }

    async fn bad_payload(&self, topic: &str, why: &str) {
        let event = HubEvent::BadPayload { node: self.node.clone(), topic: topic.to_owned(), why: why.to_owned() };
        // Fails only when the hub is stopping.
        drop(self.gate.inbox.send(Input::Event(event)).await);
    }

    async fn control(&self, stream: Stream, hello: Hello) {
        let (mut reader, mut writer) = (stream.reader, stream.writer);
        if hello.node != self.node || self.said_hello.swap(true, Ordering::Relaxed) {
            let why = "want one hello on a connection, with the name in the certificate".to_owned();
            return self.goodbye(&mut writer, Goodbye::Protocol(why)).await;
        }
        let (frames, mut outgoing) = mpsc::channel(CONTROL_FRAMES_MAX);
        let input = Input::Hello { connection: self.connection, link: self.link.clone(), frames, hello: Box::new(hello) };
        if self.gate.inbox.send(input).await.is_err() {
            return;
        }
        let heard = tokio::select! {
            heard = self.listen(&mut reader) => heard,
            () = self.speak(&mut writer, &mut outgoing) => return,
        };
        match heard {
            Some(goodbye) => self.goodbye(&mut writer, goodbye).await,
            // It speaks on a newer connection; this one is left to the streams that run on it.
            None => tokio::select! {
                _ = self.link.closed() => {}
                () = self.speak(&mut writer, &mut outgoing) => {}
            },
        }
    }

    /// Reads signs of life until something else comes; returns what to say to that, which is nothing to a mere end.
    async fn listen(&self, reader: &mut FrameReader) -> Option<Goodbye> {
        loop {
            let event = match reader.read().await {
                Ok(Some(Frame::Ping(pulse))) => HubEvent::Pinged { connection: self.connection, pulse },
                Ok(Some(Frame::Pong(pulse))) => HubEvent::Pong { connection: self.connection, pulse },
                Ok(None) => return None,
                Ok(Some(Frame::Goodbye(_))) => return Some(Goodbye::Shutdown),
                Ok(Some(_)) => {
                    self.bad_payload("control", "want pings and pongs on a control stream").await;
                    return Some(Goodbye::Protocol("want pings and pongs on a control stream".to_owned()));
                }
                Err(error) => {
                    self.bad_payload("control", &error.to_string()).await;
                    return Some(Goodbye::Protocol(error.to_string()));
                }
            };
            let path = self.link.report(Hop::Direct);
            let measured = HubEvent::PathMeasured { connection: self.connection, path };
            for event in [measured, event] {
                if self.gate.inbox.send(Input::Event(event)).await.is_err() {
                    return Some(Goodbye::Shutdown);
                }
            }
        }
    }

    /// Writes what the driver sends, up to a goodbye.
    async fn speak(&self, writer: &mut FrameWriter, outgoing: &mut mpsc::Receiver<Frame>) {
        while let Some(frame) = outgoing.recv().await {
            if let Frame::Goodbye(goodbye) = frame {
                return self.goodbye(writer, goodbye).await;
            }
            if writer.write(&frame).await.is_err() {
                break;
            }
        }
        self.link.close(Code::GONE, "the control stream ended");
    }

    async fn goodbye(&self, writer: &mut FrameWriter, goodbye: Goodbye) {
        let code = close_code(&goodbye);
        let told = async {
            writer.write(&Frame::Goodbye(goodbye)).await?;
            writer.finish().await?;
            writer.stopped().await;
            Ok::<_, StreamError>(())
        };
        // Whoever does not hear it sees the close.
        drop(timeout(GOODBYE_TIME_MAX, told).await);
        self.link.close(code, "goodbye");
    }
}
