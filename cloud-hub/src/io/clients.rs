//! Clients of the hub's own API, and the attempts to serve them.

use super::attempt::{Attempt, Delivered};
use super::input::{Inbox, Input};
use crate::logic::HubEvent;
use shared::ids::{AttemptId, RequestId};
use shared::plan::{Failure, Reason};
use shared::request::AttemptEvent;
use shared::wire::Body;
use shared::work::ExecHeader;
use shared_net::host::Tasks;
use shared_net::link::Link;
use shared_net::openai::{Answer, Ask, Refusal};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

/// Requests that the hub's API holds at once. Each keeps its body (4 MiB at most, a few kilobytes usually); more are refused.
const CLIENTS_MAX: usize = 4_096;
/// How long a client that does not read may hold up its last answer; the front drops such clients after a similar time.
const LAST_WORD_TIME_MAX: Duration = Duration::from_secs(30);

/// Everybody who waits for an answer of the hub's own API.
#[derive(Debug)]
pub(crate) struct Clients {
    clients: BTreeMap<RequestId, Client>,
    attempts: BTreeMap<AttemptId, Running>,
    tasks: Tasks,
    inbox: Inbox,
}

#[derive(Debug)]
struct Client {
    answers: mpsc::Sender<Answer>,
    body: Body,
    delivered: Delivered,
    /// Ends the watch for its going away.
    _watch: DropGuard,
}

#[derive(Debug)]
struct Running {
    body: Option<oneshot::Sender<Vec<u8>>>,
    resumes: bool,
    /// Dropping it resets the stream.
    _cancel: DropGuard,
}

impl Clients {
    pub(crate) fn new(tasks: Tasks, inbox: Inbox) -> Self {
        Self { clients: BTreeMap::new(), attempts: BTreeMap::new(), tasks, inbox }
    }

    /// Takes a request in; returns the event to decide on.
    pub(crate) fn take(&mut self, ask: Ask, answers: mpsc::Sender<Answer>) -> Result<HubEvent, Refusal> {
        let id = ask.request.id;
        if self.clients.len() >= CLIENTS_MAX || self.clients.contains_key(&id) {
            return Err(Refusal(Reason::QueueFull));
        }
        let watch = CancellationToken::new();
        let (watching, gone, inbox) = (watch.clone(), answers.clone(), self.inbox.clone());
        self.tasks.spawn(format!("watch for the client of {id}"), async move {
            tokio::select! {
                biased;
                () = watching.cancelled() => return,
                () = gone.closed() => {}
            }
            // Fails only when the hub is stopping.
            drop(inbox.send(Input::Event(HubEvent::ClientGone(id))).await);
        });
        let client = Client { answers, body: ask.body, delivered: Delivered::default(), _watch: watch.drop_guard() };
        self.clients.insert(id, client);
        Ok(HubEvent::Arrived(ask.request))
    }

    /// Tells the client something that is not the last word.
    pub(crate) fn tell(&self, id: RequestId, answer: Answer) {
        if let Some(client) = self.clients.get(&id) {
            self.send(id, &client.answers, answer);
        }
    }

    /// Tells the client the last word, and forgets it.
    pub(crate) fn finish(&mut self, id: RequestId, answer: Answer) {
        if let Some(client) = self.clients.get(&id) {
            self.send(id, &client.answers, answer);
        }
        self.forget(id);
    }

    /// Lets go of a request and of all attempts to serve it. Whether there was one.
    pub(crate) fn forget(&mut self, id: RequestId) -> bool {
        let of_it: Vec<AttemptId> = self.attempts.keys().filter(|attempt| attempt.request == id).copied().collect();
        for attempt in of_it {
            self.attempts.remove(&attempt);
        }
        self.clients.remove(&id).is_some()
    }

    /// Never waits: the driver has other clients. What does not fit is handed to a task that waits for this client only; it
    /// comes after what already waits, since the channel is fair.
    fn send(&self, id: RequestId, answers: &mpsc::Sender<Answer>, answer: Answer) {
        if let Err(TrySendError::Full(answer)) = answers.try_send(answer) {
            let (answers, stop) = (answers.clone(), self.tasks.cancelled());
            self.tasks.spawn(format!("answer for the slow client of {id}"), async move {
                let sent = tokio::time::timeout(LAST_WORD_TIME_MAX, answers.send(answer));
                // Whoever does not read in time, or not before the hub stops, has been told enough.
                drop(stop.run_until_cancelled(sent).await);
            });
        }
    }

    /// Opens a stream to the executor. Without a connection to it the attempt fails at once.
    pub(crate) fn send_header(&mut self, header: ExecHeader, link: Option<Link>) {
        let attempt = header.attempt;
        let (Some(client), Some(link)) = (self.clients.get(&attempt.request), link) else {
            let failed = AttemptEvent::Failed(Failure::Broken(header.target.to_string()));
            return self.report(attempt, failed);
        };
        let (body, body_comes) = oneshot::channel();
        let cancel = CancellationToken::new();
        let resumes = header.resume_from.0 > 0;
        let task = Attempt {
            link,
            header,
            answers: client.answers.clone(),
            delivered: client.delivered.clone(),
            body: body_comes,
            inbox: self.inbox.clone(),
            cancel: cancel.clone(),
        };
        self.attempts.insert(attempt, Running { body: Some(body), resumes, _cancel: cancel.drop_guard() });
        let span = tracing::info_span!("attempt", request = %attempt.request, number = attempt.number, target = %task.target());
        self.tasks.spawn(format!("attempt {attempt}"), task.run().instrument(span));
    }

    /// Sends the body of an accepted attempt.
    pub(crate) fn send_body(&mut self, attempt: AttemptId) {
        let (Some(running), Some(client)) = (self.attempts.get_mut(&attempt), self.clients.get(&attempt.request)) else { return };
        let mut body = client.body.clone();
        if running.resumes {
            body.resume = client.delivered.ids();
        }
        match (body.encode(), running.body.take()) {
            (Ok(bytes), Some(sender)) => {
                // Fails only when the attempt has just ended.
                drop(sender.send(bytes));
            }
            (Err(error), _) => {
                let message = error.to_string();
                self.report(attempt, AttemptEvent::Failed(Failure::BadRequest { param: None, message }));
                self.attempts.remove(&attempt);
            }
            (Ok(_), None) => {}
        }
    }

    /// Resets an attempt's stream, or forgets one that has ended.
    pub(crate) fn drop_attempt(&mut self, attempt: AttemptId) {
        self.attempts.remove(&attempt);
    }

    fn report(&self, attempt: AttemptId, event: AttemptEvent) {
        let inbox = self.inbox.clone();
        self.tasks.spawn(format!("report of {attempt}"), async move {
            // Fails only when the hub is stopping.
            drop(inbox.send(Input::Event(HubEvent::Remote(attempt, event))).await);
        });
    }
}
