//! Where requests begin and end on a connection: which bytes may go on to the parser. Pure.

use super::head::{Fault, Follows, Head, LINE_END, TOO_LARGE, judge};

/// Longest line before a chunk, its extension included. Nobody uses extensions; sixteen digits are any size.
const CHUNK_LINE_BYTES_MAX: usize = 256;
/// Most bytes of trailers. None of ours are read.
const TRAILER_BYTES_MAX: usize = 4 * 1024;
/// Most digits of a chunk's size: more would overflow, or hide behind zeros.
const CHUNK_DIGITS_MAX: usize = 15;

const NO_HTTP: Fault = Fault::new(400, "malformed_request", "this is no HTTP: want a request line");
const CHUNK: Fault = Fault::new(400, "ambiguous_request", "want chunks of a plain hexadecimal size and exactly that many bytes");

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Head,
    Sized(u64),
    ChunkLine,
    Chunk(u64),
    ChunkEnd,
    Trailers(usize),
}

/// The place on the connection.
#[derive(Debug)]
pub(super) struct Framing {
    stage: Stage,
    header_bytes_max: usize,
    /// Bytes of an unfinished head that were looked through already.
    looked: usize,
    interim: bool,
}

/// What may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// So many bytes.
    Pass(usize),
    /// More must come first.
    More,
}

impl Framing {
    pub(super) const fn new(header_bytes_max: usize) -> Self {
        Self { stage: Stage::Head, header_bytes_max, looked: 0, interim: false }
    }

    /// Whether a new request is to begin.
    pub(super) const fn at_head(&self) -> bool {
        matches!(self.stage, Stage::Head)
    }

    /// Whether the client of the newest request may be sent interim answers.
    pub(super) const fn interim(&self) -> bool {
        self.interim
    }

    /// Bytes of a body of known size that are still to come; they need no look.
    pub(super) const fn plain(&self) -> Option<u64> {
        match self.stage {
            Stage::Sized(left) => Some(left),
            _ => None,
        }
    }

    /// So many bytes of the body went by.
    pub(super) const fn went_by(&mut self, bytes: u64) {
        if let Stage::Sized(left) = self.stage {
            self.stage = if left > bytes { Stage::Sized(left - bytes) } else { Stage::Head };
        }
    }

    /// Looks at what has come. After `Pass`, the next call must begin behind those bytes.
    pub(super) fn step(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        if bytes.is_empty() {
            return Ok(Step::More);
        }
        match self.stage {
            Stage::Head => self.head(bytes),
            Stage::Sized(left) | Stage::Chunk(left) => {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let rest = left - u64::try_from(count).unwrap_or(left);
                self.stage = match self.stage {
                    Stage::Sized(_) if rest == 0 => Stage::Head,
                    Stage::Sized(_) => Stage::Sized(rest),
                    _ if rest == 0 => Stage::ChunkEnd,
                    _ => Stage::Chunk(rest),
                };
                Ok(Step::Pass(count))
            }
            Stage::ChunkLine => self.chunk_line(bytes),
            Stage::ChunkEnd => self.chunk_end(bytes),
            Stage::Trailers(passed) => self.trailers(bytes, passed),
        }
    }

    fn head(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        // Some old clients end their bodies with an empty line that is in no count.
        if bytes.starts_with(b"\r\n") {
            self.looked = 0;
            return Ok(Step::Pass(2));
        }
        // What begins like this is another protocol, and would wait for us as long as we for it.
        if bytes.first().is_some_and(|first| !first.is_ascii_alphabetic() && *first != b'\r') {
            return Err(NO_HTTP);
        }
        let from = self.looked.saturating_sub(3);
        let new = bytes.get(from..).unwrap_or_default();
        let end = new.windows(4).position(|four| four == b"\r\n\r\n").map(|at| from + at + 4);
        if end.unwrap_or(bytes.len()) > self.header_bytes_max {
            return Err(TOO_LARGE);
        }
        let Some(end) = end else {
            // A head with other line ends would never end.
            if new.windows(2).any(|two| two == b"\n\n") || new.windows(3).any(|three| three == b"\n\r\n") {
                return Err(LINE_END);
            }
            self.looked = bytes.len();
            return Ok(Step::More);
        };
        let Head { follows, interim } = judge(bytes.get(..end).unwrap_or_default())?;
        (self.looked, self.interim) = (0, interim);
        self.stage = match follows {
            Follows::Sized(0) => Stage::Head,
            Follows::Sized(length) => Stage::Sized(length),
            Follows::Chunked => Stage::ChunkLine,
        };
        Ok(Step::Pass(end))
    }

    fn chunk_line(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        let Some(line) = line(bytes, CHUNK_LINE_BYTES_MAX)? else { return Ok(Step::More) };
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let (digits, extension) = line.split_at(digits);
        let good = (1..=CHUNK_DIGITS_MAX).contains(&digits.len()) && (extension.is_empty() || extension.starts_with(b";"));
        let size = std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
        let size = size.filter(|_| good).ok_or(CHUNK)?;
        self.stage = if size == 0 { Stage::Trailers(0) } else { Stage::Chunk(size) };
        Ok(Step::Pass(line.len() + 2))
    }

    fn chunk_end(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        match bytes {
            [b'\r', b'\n', ..] => {
                self.stage = Stage::ChunkLine;
                Ok(Step::Pass(2))
            }
            [b'\r'] => Ok(Step::More),
            _ => Err(CHUNK),
        }
    }

    fn trailers(&mut self, bytes: &[u8], passed: usize) -> Result<Step, Fault> {
        let Some(line) = line(bytes, TRAILER_BYTES_MAX.saturating_sub(passed))? else { return Ok(Step::More) };
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return Err(LINE_END);
        }
        self.stage = if line.is_empty() { Stage::Head } else { Stage::Trailers(passed + line.len() + 2) };
        Ok(Step::Pass(line.len() + 2))
    }
}

/// The first line, if it is whole.
fn line(bytes: &[u8], bytes_max: usize) -> Result<Option<&[u8]>, Fault> {
    match bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        Some(at) if at > bytes_max => Err(TOO_LARGE),
        Some(at) => match bytes.get(at..) {
            Some([b'\r', b'\n', ..]) => Ok(bytes.get(..at)),
            Some([b'\r']) => Ok(None),
            _ => Err(LINE_END),
        },
        None if bytes.len() > bytes_max => Err(TOO_LARGE),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds the bytes in pieces of this size; says how many passed, or the status of the fault.
    fn fed(bytes: &[u8], piece: usize) -> Result<(usize, bool), u16> {
        let (mut framing, mut held, mut passed) = (Framing::new(8 * 1024), Vec::new(), 0);
        for part in bytes.chunks(piece) {
            held.extend_from_slice(part);
            while let Step::Pass(count) = framing.step(&held).map_err(|fault| fault.status)? {
                held.drain(..count);
                passed += count;
            }
        }
        Ok((passed, framing.at_head() && held.is_empty()))
    }

    #[test]
    fn requests_follow_each_other_however_they_are_cut() {
        let text = b"\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\nPOST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nGET /\
            POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n00a\r\n0123456789\r\n0\r\nx: y\r\n\r\n\
            GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        for piece in [1, 2, 3, 7, 64, text.len()] {
            assert_eq!(fed(text, piece), Ok((text.len(), true)), "pieces of {piece}");
        }
    }

    #[test]
    fn tricks_with_chunks_and_line_ends_are_faults_however_they_are_cut() {
        let chunked = |rest: &str| format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{rest}");
        for rest in [
            "5 \r\nhello\r\n0\r\n\r\n",
            " 5\r\nhello\r\n0\r\n\r\n",
            "+5\r\nhello\r\n0\r\n\r\n",
            "0x5\r\nhello\r\n0\r\n\r\n",
            "-1\r\nhello\r\n0\r\n\r\n",
            "\r\nhello\r\n0\r\n\r\n",
            "5\nhello\n0\n\n",
            "5\r\nhello!\r\n0\r\n\r\n",
            "5\r\nhello\n0\r\n\r\n",
            "fffffffffffffffff\r\n",
            "0000000000000000005\r\nhello\r\n0\r\n\r\n",
            "5;a\nb\r\nhello\r\n0\r\n\r\n",
            "0\r\n x: y\r\n\r\n",
            "0\r\nx: y\n\r\n",
        ] {
            for piece in [1, 3, 1_000] {
                assert_eq!(fed(chunked(rest).as_bytes(), piece), Err(400), "{rest:?} in pieces of {piece}");
            }
        }
        let endless = format!("5;{}", "x".repeat(1_000));
        assert_eq!(fed(chunked(&endless).as_bytes(), 10), Err(431));
        for bare in ["GET / HTTP/1.1\nhost: a\n\n", "GET / HTTP/1.1\r\nhost: a\n\r\n", "GET / HTTP/1.1\nhost: a\r\n\r\n"] {
            assert_eq!(fed(bare.as_bytes(), 5), Err(400), "{bare:?}");
        }
        assert_eq!(fed(format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(9_000)).as_bytes(), 100), Err(431));
    }

    #[test]
    fn bodies_of_known_size_need_no_look() {
        let mut framing = Framing::new(8 * 1024);
        let head = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n";
        assert_eq!(framing.step(head), Ok(Step::Pass(head.len())));
        assert_eq!(framing.plain(), Some(10));
        framing.went_by(4);
        assert_eq!((framing.plain(), framing.at_head()), (Some(6), false));
        framing.went_by(6);
        assert!(framing.at_head());
    }
}
