//! What both ends of a TCP connection remember of its streams: QUIC's rules for streams, without its packets.
//!
//! Words and bytes go in and come out as values; sockets, tasks and waiting are elsewhere. Everything that the other end can make
//! this one keep is bounded: bytes by credit, streams by number, words by both.

use super::line::{Line, Received, Sending};
use super::wire::{CONNECTION, Head, Word};
use crate::link::connection::Code;
use crate::link::limits::{CONNECTION_WINDOW, JOINER_STREAMS_MAX, JOINER_WINDOW, STREAM_WINDOW, STREAMS_MAX};
use crate::link::lost::Lost;
use bytes::{BufMut, Bytes, BytesMut};
use std::collections::{BTreeMap, VecDeque};

/// Largest piece of a stream in one go: one TLS record, so that no stream holds up the others for long.
const DATA_BYTES_MAX: u32 = 16 * 1024;
/// Words that wait to go out. Credit bounds them far below this, also with an end that grants and never reads; a broken count
/// ends the connection rather than filling the memory.
const WORDS_MAX: usize = 8 * STREAMS_MAX as usize;
/// Longest reason that is read; longer ones are against the protocol.
pub(super) const REASON_BYTES_MAX: u32 = 256;

/// Which end this is, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) enum End {
    /// Dialled a member with a certificate.
    Dialler,
    /// Dialled without a certificate, to join.
    Joiner,
    /// Was dialled by a member.
    Host,
    /// Was dialled by somebody without a certificate.
    HostOfJoiner,
}

/// The streams of one connection.
#[derive(Debug)]
pub(super) struct Mux {
    /// Number of the next stream that this end opens; the dialler's are even.
    next: u32,
    /// Number of the next stream that the other end opens.
    theirs_next: u32,
    /// Streams that this end may still open.
    may_open: u32,
    /// Streams that the other end may still open.
    may_come: u32,
    /// Bytes that may still be sent and received, all streams together.
    credit_out: u32,
    credit_in: u32,
    window_in: u32,
    /// Received bytes that were taken and not granted anew.
    taken: u32,
    lines: BTreeMap<u32, Line>,
    /// Opened by the other end and not accepted yet.
    come: VecDeque<u32>,
    /// Streams with something to send, each once.
    ready: VecDeque<u32>,
    words: VecDeque<Head>,
    /// The newest ping that was not answered: older ones need no answer.
    pong: Option<u32>,
    ended: Option<Lost>,
    last_words: Option<(Code, String)>,
}

fn broken(why: &str) -> Lost {
    Lost::Broken(format!("against the protocol: {why}"))
}

impl Mux {
    pub(super) fn new(end: End) -> Self {
        let member = |yes: bool, streams, window| if yes { (STREAMS_MAX, CONNECTION_WINDOW) } else { (streams, window) };
        let (may_open, credit_out) = member(end != End::Joiner, JOINER_STREAMS_MAX, JOINER_WINDOW);
        let (may_come, credit_in) = member(end != End::HostOfJoiner, JOINER_STREAMS_MAX, JOINER_WINDOW);
        let dialled = matches!(end, End::Dialler | End::Joiner);
        Self {
            next: if dialled { 2 } else { 1 },
            theirs_next: if dialled { 1 } else { 2 },
            may_open,
            may_come,
            credit_out,
            credit_in,
            window_in: credit_in,
            taken: 0,
            lines: BTreeMap::new(),
            come: VecDeque::new(),
            ready: VecDeque::new(),
            words: VecDeque::new(),
            pong: None,
            ended: None,
            last_words: None,
        }
    }

    pub(super) const fn ended(&self) -> Option<&Lost> {
        self.ended.as_ref()
    }

    /// The connection is over; the first reason counts.
    pub(super) fn end(&mut self, lost: Lost) {
        if self.ended.is_none() {
            if matches!(lost, Lost::Broken(_)) {
                self.last_words = Some((Code::PROTOCOL, lost.to_string()));
            }
            self.ended = Some(lost);
            self.lines.values().for_each(|line| line.changed.notify_waiters());
        }
    }

    /// This end ends it, and says why.
    pub(super) fn close(&mut self, code: Code, why: &str) {
        if self.ended.is_none() {
            self.last_words = Some((code, why.to_owned()));
            self.end(Lost::Here);
        }
    }

    /// Opens a stream, unless the other end's limit is reached.
    pub(super) fn open(&mut self) -> Result<Option<u32>, Lost> {
        if let Some(lost) = &self.ended {
            return Err(lost.clone());
        }
        if self.may_open == 0 {
            return Ok(None);
        }
        self.may_open -= 1;
        let id = self.next;
        self.next = self.next.checked_add(2).ok_or_else(|| Lost::Broken("all stream numbers are used up".to_owned()))?;
        self.lines.insert(id, Line::new(false, STREAM_WINDOW));
        self.words.push_back(Head::new(id, Word::Data(0)));
        Ok(Some(id))
    }

    /// The next stream that the other end opened.
    pub(super) fn accept(&mut self) -> Result<Option<u32>, Lost> {
        match (self.come.pop_front(), &self.ended) {
            (_, Some(lost)) => Err(lost.clone()),
            (id, None) => Ok(id),
        }
    }

    pub(super) fn line(&mut self, id: u32) -> Option<&mut Line> {
        self.lines.get_mut(&id)
    }

    /// Puts the stream in the queue when it has something to send.
    pub(super) fn queue(&mut self, id: u32) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        if line.out.is_ready() && !line.out.queued {
            line.out.queued = true;
            self.ready.push_back(id);
        }
    }

    pub(super) fn say(&mut self, head: Head) {
        self.words.push_back(head);
    }

    /// Gives up sending on a stream.
    pub(super) fn reset(&mut self, id: u32, code: Code) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        if matches!(line.out.sending, Sending::Open | Sending::Finishing) {
            line.out.give_up();
            line.changed.notify_waiters();
            self.words.push_back(Head::new(id, Word::Reset(code.0)));
        }
    }

    /// Reads no more of a stream.
    pub(super) fn stop(&mut self, id: u32, code: Code) {
        let Some(line) = self.lines.get_mut(&id) else { return };
        if line.inc.end.is_none() && !line.inc.unwanted {
            line.inc.unwanted = true;
            self.words.push_back(Head::new(id, Word::Stop(code.0)));
        }
        let thrown_away = line.inc.discard();
        self.took(thrown_away);
    }

    /// Bytes have left this end's memory: the other end may send as many anew.
    pub(super) fn took(&mut self, bytes: usize) {
        self.taken = self.taken.saturating_add(u32::try_from(bytes).unwrap_or(u32::MAX));
        if self.taken >= self.window_in / 2 {
            self.credit_in = self.credit_in.saturating_add(self.taken);
            self.words.push_back(Head::new(CONNECTION, Word::Credit(self.taken)));
            self.taken = 0;
        }
    }

    /// Forgets the stream if it is over, and lets the other end open one more in place of one of its own.
    pub(super) fn tidy(&mut self, id: u32) {
        if self.lines.get(&id).is_some_and(Line::is_over)
            && let Some(line) = self.lines.remove(&id)
            && line.theirs
        {
            self.may_come += 1;
            self.words.push_back(Head::new(CONNECTION, Word::Streams(1)));
        }
    }

    /// Whether so many bytes may follow on a stream; to be asked before they are read. Says whether the stream is new.
    pub(super) fn expect(&mut self, id: u32, length: u32) -> Result<bool, Lost> {
        if length > DATA_BYTES_MAX {
            return Err(broken("a piece of a stream is too long"));
        }
        self.credit_in = self.credit_in.checked_sub(length).ok_or_else(|| broken("more bytes than were granted"))?;
        let new = id == self.theirs_next;
        if new {
            self.may_come = self.may_come.checked_sub(1).ok_or_else(|| broken("more streams than were granted"))?;
            self.theirs_next = self.theirs_next.saturating_add(2);
            self.lines.insert(id, Line::new(true, STREAM_WINDOW));
            self.come.push_back(id);
        }
        let Some(line) = self.lines.get_mut(&id) else { return self.known(id).map(|()| false) };
        if line.inc.spend(length) { Ok(new) } else { Err(broken("more bytes on a stream than were granted")) }
    }

    /// A stream that is over may still be spoken of; one that never was may not.
    fn known(&self, id: u32) -> Result<(), Lost> {
        let opened = if id % 2 == self.next % 2 { id < self.next } else { id < self.theirs_next };
        if opened && id != CONNECTION { Ok(()) } else { Err(broken("a word about a stream that was never opened")) }
    }

    /// Takes in bytes that [`Self::expect`] allowed.
    pub(super) fn data(&mut self, id: u32, bytes: Bytes) {
        let length = bytes.len();
        match self.lines.get_mut(&id) {
            Some(line) if !line.inc.unwanted && length > 0 => {
                line.inc.push(bytes);
                line.changed.notify_waiters();
            }
            _ => self.took(length),
        }
    }

    /// Takes in any other word; pongs and closes concern the connection's driver.
    pub(super) fn word(&mut self, head: Head) -> Result<(), Lost> {
        let id = head.stream;
        match head.word {
            Word::Credit(bytes) if id == CONNECTION => {
                self.credit_out = self.credit_out.checked_add(bytes).ok_or_else(|| broken("too much credit"))?;
            }
            Word::Streams(count) if id == CONNECTION => {
                self.may_open = self.may_open.checked_add(count).ok_or_else(|| broken("too many streams granted"))?;
            }
            Word::Ping(number) => self.pong = Some(number),
            Word::Pong(_) | Word::Close(_) | Word::Data(_) => {}
            Word::Streams(_) => return Err(broken("streams are granted to a connection")),
            Word::Credit(_) | Word::Finish | Word::Got | Word::Reset(_) | Word::Stop(_) => {
                if self.lines.contains_key(&id) {
                    self.about_line(id, head.word)?;
                } else {
                    self.known(id)?;
                }
            }
        }
        if self.words.len() > WORDS_MAX { Err(broken("too many words wait for an answer")) } else { Ok(()) }
    }

    fn about_line(&mut self, id: u32, word: Word) -> Result<(), Lost> {
        let Some(line) = self.lines.get_mut(&id) else { return Ok(()) };
        match word {
            Word::Credit(bytes) => {
                line.out.credit = line.out.credit.checked_add(bytes).ok_or_else(|| broken("too much credit"))?;
                self.queue(id);
                return Ok(());
            }
            Word::Finish if line.inc.end.is_none() => {
                line.inc.end = Some(Received::Whole);
                self.words.push_back(Head::new(id, Word::Got));
            }
            Word::Reset(code) if line.inc.end.is_none() => {
                line.inc.end = Some(Received::Reset(Code(code)));
                let thrown_away = line.inc.discard();
                line.changed.notify_waiters();
                self.took(thrown_away);
            }
            Word::Got if line.out.sending == Sending::Finished => line.out.sending = Sending::Delivered,
            Word::Stop(code) if line.out.stopped.is_none() && line.out.sending != Sending::Delivered => {
                line.out.stopped = Some(Code(code));
                self.reset(id, Code(code));
            }
            _ => return Err(broken("a word that does not fit its stream")),
        }
        if let Some(line) = self.lines.get(&id) {
            line.changed.notify_waiters();
        }
        self.tidy(id);
        Ok(())
    }

    /// Writes what may go out now, words first, then the streams in turn, up to about `max` bytes. Streams that got room are
    /// told.
    pub(super) fn fill(&mut self, out: &mut BytesMut, max: usize) {
        if let Some(number) = self.pong.take() {
            out.put_slice(&Head::new(CONNECTION, Word::Pong(number)).encode());
        }
        for head in self.words.drain(..) {
            out.put_slice(&head.encode());
        }
        while out.len() < max
            && let Some(id) = self.ready.pop_front()
        {
            if !self.send_from(id, out) {
                self.ready.push_front(id);
                break;
            }
        }
        if let Some((code, mut why)) = self.last_words.take() {
            why.truncate(why.floor_char_boundary(REASON_BYTES_MAX as usize));
            out.put_slice(&Head::new(code.0, Word::Close(u32::try_from(why.len()).unwrap_or(0))).encode());
            out.put_slice(why.as_bytes());
        }
    }

    /// False when all streams together have no credit left.
    fn send_from(&mut self, id: u32, out: &mut BytesMut) -> bool {
        let Some(line) = self.lines.get_mut(&id) else { return true };
        if self.credit_out == 0 && !line.out.is_empty() {
            return false;
        }
        line.out.queued = false;
        let bytes = line.out.take(DATA_BYTES_MAX.min(self.credit_out));
        if !bytes.is_empty() {
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            self.credit_out -= length;
            out.put_slice(&Head::new(id, Word::Data(length)).encode());
            out.put_slice(&bytes);
        }
        if line.out.sending == Sending::Finishing && line.out.is_empty() {
            line.out.sending = Sending::Finished;
            out.put_slice(&Head::new(id, Word::Finish).encode());
        }
        line.changed.notify_waiters();
        self.queue(id);
        true
    }
}
