//! Relayed request streams: from one agent through the hub to another, cut through, unread, never stored.

use super::input::{Inbox, Input};
use super::metrics::Metrics;
use crate::logic::{Connection, HubEvent, Stream as Name};
use shared::plan::Reason;
use shared::wire::Frame;
use shared::work::ExecHeader;
use shared_net::host::Tasks;
use shared_net::link::{Code, Link, Stream};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

/// How long a refusal may take to reach the asker, who may have stopped reading.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(2);

/// Streams that asked, and streams that run.
#[derive(Debug)]
pub(crate) struct Relays {
    next: u64,
    asking: BTreeMap<Name, (Stream, ExecHeader)>,
    /// Dropping the guard cuts the stream off.
    running: BTreeMap<Name, DropGuard>,
    tasks: Tasks,
    inbox: Inbox,
    metrics: Arc<Metrics>,
}

impl Relays {
    pub(crate) fn new(tasks: Tasks, inbox: Inbox, metrics: Arc<Metrics>) -> Self {
        Self { next: 0, asking: BTreeMap::new(), running: BTreeMap::new(), tasks, inbox, metrics }
    }

    /// Holds a stream until the core has decided; returns the event to decide on.
    pub(crate) fn ask(&mut self, connection: Connection, header: ExecHeader, stream: Stream) -> HubEvent {
        self.next += 1;
        let name = Name(self.next);
        self.asking.insert(name, (stream, header.clone()));
        HubEvent::RelayAsked { connection, stream: name, header }
    }

    /// Whether the stream was left undecided, which no core should do; it is then cut off.
    pub(crate) fn forget_undecided(&mut self) {
        if !self.asking.is_empty() {
            tracing::error!(streams = self.asking.len(), "relayed streams were left undecided and are cut off");
            self.asking.clear();
        }
    }

    pub(crate) fn open(&mut self, name: Name, to: Option<Link>) {
        let Some((stream, header)) = self.asking.remove(&name) else { return };
        let cancel = CancellationToken::new();
        self.running.insert(name, cancel.clone().drop_guard());
        let (inbox, metrics) = (self.inbox.clone(), Arc::clone(&self.metrics));
        let from = header.sender().unwrap_or(&header.ingress);
        let span = tracing::info_span!("relay", request = %header.attempt.request, %from, to = %header.target);
        let name_of_task = format!("relay {}", header.attempt);
        let relaying = async move {
            metrics.relay_opened();
            let bytes = match to {
                Some(link) => carry(stream, &link, header, &cancel).await,
                None => {
                    refuse_stream(stream, Reason::NoPath).await;
                    (0, 0)
                }
            };
            metrics.relay_closed(bytes.0, bytes.1);
            tracing::debug!(forth = bytes.0, back = bytes.1, "the relayed stream ended");
            // Fails only when the hub is stopping.
            drop(inbox.send(Input::Event(HubEvent::RelayClosed { stream: name })).await);
        };
        self.tasks.spawn(name_of_task, relaying.instrument(span));
    }

    pub(crate) fn refuse(&mut self, name: Name, reason: Reason) {
        if let Some((stream, header)) = self.asking.remove(&name) {
            self.tasks.spawn(format!("refusal {}", header.attempt), refuse_stream(stream, reason));
        }
    }

    /// Cuts a stream off, or forgets one that has ended.
    pub(crate) fn close(&mut self, name: Name) {
        self.asking.remove(&name);
        self.running.remove(&name);
    }
}

/// Says no on a stream, and why.
pub(crate) async fn refuse_stream(mut stream: Stream, reason: Reason) {
    let refused = async {
        stream.writer.write(&Frame::Refused(reason, None)).await?;
        stream.writer.finish().await?;
        stream.writer.stopped().await;
        Ok::<_, shared_net::link::StreamError>(())
    };
    // The asker may be gone, and then nobody is left to be told.
    drop(tokio::time::timeout(REFUSAL_TIME_MAX, refused).await);
}

/// Bytes forth and back.
async fn carry(asker: Stream, to: &Link, header: ExecHeader, cancel: &CancellationToken) -> (u64, u64) {
    let given_up = asker.writer.stopped();
    let opened = tokio::select! {
        biased;
        () = cancel.cancelled() => None,
        _ = given_up => None,
        opened = open(to, header) => Some(opened),
    };
    match opened {
        None => asker.cancel(Code::CANCELLED),
        Some(None) => refuse_stream(asker, Reason::NoPath).await,
        Some(Some(target)) => {
            // When cancelled, the dropped future resets both streams.
            return tokio::select! {
                biased;
                () = cancel.cancelled() => (0, 0),
                spliced = shared_net::link::splice(asker, target) => (spliced.forth, spliced.back),
            };
        }
    }
    (0, 0)
}

async fn open(to: &Link, header: ExecHeader) -> Option<Stream> {
    let mut stream = to.open().await.ok()?;
    stream.writer.write(&Frame::Header(Box::new(header))).await.ok()?;
    Some(stream)
}
