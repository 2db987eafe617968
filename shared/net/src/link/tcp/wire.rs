//! The heads that tell streams on one TCP connection apart: nine bytes each, and nothing of a frame's meaning.

/// One byte of kind, four of stream, four of value; numbers with the most significant byte first.
pub(super) const HEAD_BYTES: usize = 9;

/// The stream number of what concerns the whole connection.
pub(super) const CONNECTION: u32 = 0;

/// What a head says of its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// So many bytes of the stream follow.
    Data(u32),
    /// No more bytes will come.
    Finish,
    /// Everything up to the finish has come.
    Got,
    /// No more bytes will come, and what came is not the whole.
    Reset(u32),
    /// No more bytes are wanted.
    Stop(u32),
    /// So many more bytes may be sent, on this stream or on all together.
    Credit(u32),
    /// So many more streams may be opened.
    Streams(u32),
    /// Are you there?
    Ping(u32),
    /// Yes.
    Pong(u32),
    /// The connection ends; the stream's field holds the code, and so many bytes of reason follow.
    Close(u32),
}

/// A word and the stream that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) stream: u32,
    pub(super) word: Word,
}

impl Head {
    pub(super) const fn new(stream: u32, word: Word) -> Self {
        Self { stream, word }
    }

    pub(super) fn encode(self) -> [u8; HEAD_BYTES] {
        let (kind, value) = match self.word {
            Word::Data(length) => (0, length),
            Word::Finish => (1, 0),
            Word::Got => (2, 0),
            Word::Reset(code) => (3, code),
            Word::Stop(code) => (4, code),
            Word::Credit(bytes) => (5, bytes),
            Word::Streams(count) => (6, count),
            Word::Ping(number) => (7, number),
            Word::Pong(number) => (8, number),
            Word::Close(length) => (9, length),
        };
        let mut bytes = [0; HEAD_BYTES];
        bytes[0] = kind;
        bytes[1..5].copy_from_slice(&self.stream.to_be_bytes());
        bytes[5..].copy_from_slice(&value.to_be_bytes());
        bytes
    }

    /// Absent for a kind that this version does not know.
    pub(super) fn decode(bytes: [u8; HEAD_BYTES]) -> Option<Self> {
        let [kind, s0, s1, s2, s3, v0, v1, v2, v3] = bytes;
        let (stream, value) = (u32::from_be_bytes([s0, s1, s2, s3]), u32::from_be_bytes([v0, v1, v2, v3]));
        let word = match kind {
            0 => Word::Data(value),
            1 => Word::Finish,
            2 => Word::Got,
            3 => Word::Reset(value),
            4 => Word::Stop(value),
            5 => Word::Credit(value),
            6 => Word::Streams(value),
            7 => Word::Ping(value),
            8 => Word::Pong(value),
            9 => Word::Close(value),
            _ => return None,
        };
        Some(Self { stream, word })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_as_they_went() {
        let words = [
            Word::Data(7),
            Word::Finish,
            Word::Got,
            Word::Reset(u32::MAX),
            Word::Stop(2),
            Word::Credit(9),
            Word::Streams(1),
            Word::Ping(3),
            Word::Pong(3),
            Word::Close(11),
        ];
        for word in words {
            let head = Head::new(0x0102_0304, word);
            assert_eq!(Head::decode(head.encode()), Some(head));
        }
        assert_eq!(Head::decode([10; HEAD_BYTES]), None);
    }
}
