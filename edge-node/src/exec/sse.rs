//! Server-sent events, as a client reads them.

use std::ops::Range;

/// Longest event: a chunk of an answer is far below; more is a server gone wrong, and the stream is given up.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// An event, or the lack of its end, was longer than is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {EVENT_BYTES_MAX} bytes")]
pub(super) struct TooLong;

/// Cuts a stream of bytes into events. Bytes are put into [`Self::space`]; then [`Self::next`] finds the events that they complete.
/// An event of one line, as nearly all are, is never copied.
#[derive(Debug, Default)]
pub(super) struct Events {
    buffer: Vec<u8>,
    /// Where the line begins that is not wholly there yet.
    line: usize,
    /// No line ends between `line` and here.
    searched: usize,
    after_return: bool,
    /// The data of an event whose end has not come: one line of the buffer, or several, joined in `joined`.
    data: Option<Data>,
    joined: Vec<u8>,
}

/// Where the data of an event is. Good until the next call of [`Events::next`] or [`Events::space`].
#[derive(Clone, Debug)]
pub(super) enum Data {
    Line(Range<usize>),
    Joined,
}

impl Events {
    /// Where new bytes are appended.
    pub(super) fn space(&mut self) -> &mut Vec<u8> {
        let used = match &self.data {
            Some(Data::Line(line)) => line.start,
            _ => self.line,
        };
        self.buffer.drain(..used);
        self.line -= used;
        self.searched -= used;
        if let Some(Data::Line(line)) = &mut self.data {
            *line = line.start - used..line.end - used;
        }
        &mut self.buffer
    }

    /// The next event whose end has come. Comments and other fields are nothing to a client of this API.
    pub(super) fn next(&mut self) -> Result<Option<Data>, TooLong> {
        if self.after_return && self.buffer.get(self.line) == Some(&b'\n') {
            self.line += 1;
            self.searched = self.line;
            self.after_return = false;
        }
        loop {
            let unsearched = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(found) = memchr::memchr2(b'\n', b'\r', unsearched) else {
                self.searched = self.buffer.len();
                let waiting = self.buffer.len() - self.line + self.waiting();
                return if waiting > EVENT_BYTES_MAX { Err(TooLong) } else { Ok(None) };
            };
            let line = self.line..self.searched + found;
            self.line = line.end + 1;
            if self.buffer.get(line.end) == Some(&b'\r') {
                // The other half of this line's end may not have come yet.
                self.after_return = self.buffer.get(self.line).is_none();
                self.line += usize::from(self.buffer.get(self.line) == Some(&b'\n'));
            } else {
                self.after_return = false;
            }
            self.searched = self.line;
            if line.is_empty() {
                if let Some(data) = self.data.take() {
                    return Ok(Some(data));
                }
            } else {
                self.add(line);
            }
            if self.waiting() > EVENT_BYTES_MAX {
                return Err(TooLong);
            }
        }
    }

    /// The bytes of an event.
    pub(super) fn bytes(&self, data: &Data) -> &[u8] {
        match data {
            Data::Line(line) => self.buffer.get(line.clone()).unwrap_or_default(),
            Data::Joined => &self.joined,
        }
    }

    /// Bytes of the event that is not whole.
    fn waiting(&self) -> usize {
        match &self.data {
            Some(Data::Line(line)) => line.len(),
            Some(Data::Joined) => self.joined.len(),
            None => 0,
        }
    }

    fn add(&mut self, line: Range<usize>) {
        let text = self.buffer.get(line.clone()).unwrap_or_default();
        let Some(value) = text.strip_prefix(b"data:").map(|value| value.strip_prefix(b" ").unwrap_or(value)) else { return };
        let value = line.end - value.len()..line.end;
        self.data = Some(match self.data.take() {
            None => Data::Line(value),
            Some(before) => {
                if let Data::Line(first) = before {
                    self.joined.clear();
                    self.joined.extend_from_slice(self.buffer.get(first).unwrap_or_default());
                }
                self.joined.push(b'\n');
                self.joined.extend_from_slice(self.buffer.get(value).unwrap_or_default());
                Data::Joined
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(events: &mut Events, bytes: &[u8]) -> Result<Vec<Vec<u8>>, TooLong> {
        events.space().extend_from_slice(bytes);
        let mut all = Vec::new();
        while let Some(data) = events.next()? {
            all.push(events.bytes(&data).to_vec());
        }
        Ok(all)
    }

    #[test]
    fn events_come_whole_however_they_are_cut() {
        let stream = b": hello\r\n\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: lines\n\n\r\rdata: three\r\rdata:\n\ndata: lost";
        let expected = ["one", "two\nlines", "three", ""];
        for size in 1..stream.len() {
            let mut events = Events::default();
            let all: Vec<Vec<u8>> = stream.chunks(size).flat_map(|chunk| found(&mut events, chunk).expect("short")).collect();
            assert_eq!(all, expected.map(|text| text.as_bytes().to_vec()), "cut by {size}");
        }
    }

    #[test]
    fn an_endless_event_is_given_up() {
        for piece in [vec![b'x'; 100_000], [b"data: ".as_slice(), &vec![b'x'; 100_000], b"\n"].concat()] {
            let mut events = Events::default();
            assert!((0..20).any(|_| found(&mut events, &piece).is_err()));
        }
    }
}
