//! What applications saw. Their stream is checked while it comes: one answer, no token twice, none missing.

use shared::ids::{AttemptId, NodeId, RequestId};
use shared::plan::{Decision, Failure, Finish, Record, Usage};
use std::collections::{BTreeMap, BTreeSet};

/// How a request ended for its client.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// With a whole answer.
    Whole(Finish, Usage),
    /// With a typed error.
    Error(Failure),
}

/// One request as its client saw it.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// Tokens received.
    pub tokens: u32,
    /// Where each of its attempts' content came from.
    pub fed_by: Vec<AttemptId>,
    /// The newest decision.
    pub decision: Option<Decision>,
    /// How it ended.
    pub answer: Option<Answer>,
    /// The record of its ingress.
    pub record: Option<Record>,
    /// Hosts that held its text.
    pub seen_by: BTreeSet<NodeId>,
    /// The client went away.
    pub gone: bool,
}

/// All clients.
#[derive(Debug, Default)]
pub(super) struct Clients {
    all: BTreeMap<RequestId, Client>,
    next_id: u128,
}

impl Clients {
    pub(super) fn open(&mut self, ingress: &NodeId) -> RequestId {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.all.insert(id, Client { seen_by: BTreeSet::from([ingress.clone()]), ..Client::default() });
        id
    }

    pub(super) fn get(&self, id: RequestId) -> Option<&Client> {
        self.all.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&RequestId, &Client)> {
        self.all.iter()
    }

    pub(super) fn leave(&mut self, id: RequestId) {
        self.client(id).gone = true;
    }

    pub(super) fn saw(&mut self, id: RequestId, host: &NodeId) {
        self.client(id).seen_by.insert(host.clone());
    }

    pub(super) fn decided(&mut self, decision: Decision) {
        let request = decision.attempt.request;
        self.client(request).decision = Some(decision);
    }

    /// Tokens number `first..first + count` come from an attempt.
    pub(super) fn deliver(&mut self, attempt: AttemptId, first: u32, count: u32) {
        let client = self.client(attempt.request);
        assert!(!client.gone, "{attempt}: content for a client that has gone");
        assert_eq!(client.answer, None, "{attempt}: content after the end");
        assert_eq!(first, client.tokens, "{attempt}: a token came twice, or is missing");
        assert!(client.fed_by.last().is_none_or(|last| last.number <= attempt.number), "{attempt}: an older attempt speaks");
        if client.fed_by.last() != Some(&attempt) {
            client.fed_by.push(attempt);
        }
        client.tokens += count;
    }

    pub(super) fn end(&mut self, id: RequestId, answer: Answer) {
        let client = self.client(id);
        assert_eq!(client.answer, None, "{id}: two answers");
        client.answer = Some(answer);
    }

    pub(super) fn recorded(&mut self, record: Record) {
        let client = self.client(record.request);
        assert!(client.record.is_none(), "two records of {}", record.request);
        client.record = Some(record);
    }

    fn client(&mut self, id: RequestId) -> &mut Client {
        #[expect(clippy::panic, reason = "a story that fails must say so")]
        self.all.get_mut(&id).unwrap_or_else(|| panic!("{id} was never asked"))
    }
}
