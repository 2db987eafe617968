//! Server-sent events, as a client reads them.

/// Longest event: a chunk of an answer is far below; more is a server gone wrong, and the stream is given up.
const EVENT_BYTES_MAX: usize = 1 << 20;

/// An event, or the lack of its end, was longer than is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {EVENT_BYTES_MAX} bytes")]
pub(super) struct TooLong;

/// Cuts a stream of bytes into events.
#[derive(Debug, Default)]
pub(super) struct Events {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_return: bool,
}

impl Events {
    /// Takes in bytes as they come, and returns the data of each event that they complete. Comments and other fields are
    /// nothing to a client of this API.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, TooLong> {
        let mut events = Vec::new();
        let mut rest = bytes;
        while let Some(&byte) = rest.first() {
            if byte == b'\n' && std::mem::take(&mut self.after_return) {
                rest = &rest[1..];
                continue;
            }
            self.after_return = false;
            let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let (text, more) = rest.split_at(end.unwrap_or(rest.len()));
            self.line.extend_from_slice(text);
            if self.line.len() + self.data.len() > EVENT_BYTES_MAX {
                return Err(TooLong);
            }
            let Some((end, more)) = more.split_first() else { break };
            self.after_return = *end == b'\r';
            events.extend(self.end_line());
            rest = more;
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Option<Vec<u8>> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return std::mem::take(&mut self.has_data).then(|| std::mem::take(&mut self.data));
        }
        let value = line.strip_prefix(b"data:").map(|value| value.strip_prefix(b" ").unwrap_or(value));
        if let Some(value) = value {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            self.data.extend_from_slice(value);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_they_are_cut() {
        let stream = b": hello\r\n\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata: lines\n\n\r\rdata: three\r\rdata: lost";
        let expected = ["one", "two\nlines", "three"];
        for size in 1..stream.len() {
            let mut events = Events::default();
            let found: Vec<Vec<u8>> = stream.chunks(size).flat_map(|chunk| events.feed(chunk).expect("short")).collect();
            assert_eq!(found, expected.map(|text| text.as_bytes().to_vec()), "cut by {size}");
        }
    }

    #[test]
    fn an_endless_event_is_given_up() {
        let mut events = Events::default();
        let piece = vec![b'x'; 100_000];
        assert!((0..20).any(|_| events.feed(&piece).is_err()));
    }
}
