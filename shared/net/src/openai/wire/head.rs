//! The head of a request as it came, judged before anything parses it.
//!
//! Two programs that disagree about where a request ends let a client smuggle a second one past the first of them. So whatever could
//! be read in two ways is refused here, also where our own parser would be lenient. Pure: bytes in, verdict out.

/// Longest request line. Our longest path has a few dozen bytes; proxies commonly allow this much.
const REQUEST_LINE_BYTES_MAX: usize = 8 * 1024;
/// Most header lines: far above any sane client, and what our parser takes.
const HEADERS_MAX: usize = 100;
/// Longest number of a content length: more digits cannot be a size.
const LENGTH_DIGITS_MAX: usize = 15;

/// Why a request is refused before it is parsed: a status, a stable code, and what would be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) status: u16,
    pub(super) code: &'static str,
    pub(super) message: &'static str,
}

impl Fault {
    pub(super) const fn new(status: u16, code: &'static str, message: &'static str) -> Self {
        Self { status, code, message }
    }
}

const fn ambiguous(message: &'static str) -> Fault {
    Fault::new(400, "ambiguous_request", message)
}

const fn malformed(message: &'static str) -> Fault {
    Fault::new(400, "malformed_request", message)
}

/// A head that is too large, in whatever way.
pub(super) const TOO_LARGE: Fault =
    Fault::new(431, "header_too_large", "the request's header is too large, or has too many lines");
const LINE_TOO_LONG: Fault = Fault::new(414, "request_line_too_long", "the request line is too long: want at most 8192 bytes");
/// A line that ends otherwise than in both of carriage return and line feed.
pub(super) const LINE_END: Fault = ambiguous("want every line to end in CR and LF, and neither of them elsewhere");

/// What follows the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Follows {
    /// So many bytes; none without a length.
    Sized(u64),
    /// Chunks.
    Chunked,
}

/// What is known of a good head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) follows: Follows,
    /// Whether the client may be sent interim answers.
    pub(super) interim: bool,
}

#[derive(Default)]
struct Seen {
    length: Option<u64>,
    chunked: bool,
    hosts: usize,
}

/// Judges a whole head, its empty line included.
pub(super) fn judge(head: &[u8]) -> Result<Head, Fault> {
    let mut lines = head.strip_suffix(b"\r\n\r\n").ok_or(LINE_END)?.split(|byte| *byte == b'\n').peekable();
    let mut seen = Seen::default();
    let mut version_11 = None;
    let mut count = 0;
    while let Some(line) = lines.next() {
        // The last line has lost its end already.
        let line = if lines.peek().is_some() { line.strip_suffix(b"\r").ok_or(LINE_END)? } else { line };
        if line.contains(&b'\r') {
            return Err(LINE_END);
        }
        if line.contains(&0) {
            return Err(malformed("want no NUL byte in a header"));
        }
        if version_11.is_none() {
            version_11 = Some(request_line(line)?);
            continue;
        }
        count += 1;
        if count > HEADERS_MAX {
            return Err(TOO_LARGE);
        }
        header(line, &mut seen)?;
    }
    finish(&seen, version_11.unwrap_or(false))
}

fn finish(seen: &Seen, version_11: bool) -> Result<Head, Fault> {
    if seen.chunked && seen.length.is_some() {
        return Err(ambiguous("want `Content-Length` or `Transfer-Encoding`, not both"));
    }
    if seen.chunked && !version_11 {
        return Err(ambiguous("HTTP/1.0 has no `Transfer-Encoding`: want a `Content-Length`"));
    }
    if seen.hosts > 1 || (version_11 && seen.hosts == 0) {
        return Err(malformed("want exactly one `Host`"));
    }
    let follows = if seen.chunked { Follows::Chunked } else { Follows::Sized(seen.length.unwrap_or(0)) };
    Ok(Head { follows, interim: version_11 })
}

/// Says whether it is HTTP/1.1.
fn request_line(line: &[u8]) -> Result<bool, Fault> {
    if line.len() > REQUEST_LINE_BYTES_MAX {
        return Err(LINE_TOO_LONG);
    }
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(malformed("want a request line of method, path and version with single spaces between them"));
    };
    if method.is_empty() || !method.iter().all(|byte| is_token(*byte)) {
        return Err(malformed("want a method of plain letters"));
    }
    if method == b"CONNECT" {
        return Err(Fault::new(405, "method_not_allowed", "this is no proxy: it takes no CONNECT"));
    }
    let bare = target.starts_with(b"/") || (target == b"*" && method == b"OPTIONS");
    if !bare {
        return Err(malformed("this is no proxy: want a path that begins with `/`, and the server's name in `Host`"));
    }
    match version {
        b"HTTP/1.1" => Ok(true),
        b"HTTP/1.0" => Ok(false),
        _ => Err(Fault::new(505, "http_version", "want HTTP/1.1")),
    }
}

fn header(line: &[u8], seen: &mut Seen) -> Result<(), Fault> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err(ambiguous("want no header that is folded over several lines"));
    }
    let Some(colon) = line.iter().position(|byte| *byte == b':') else {
        return Err(malformed("want a colon in every header line"));
    };
    let (name, value) = line.split_at(colon);
    let value = value.get(1..).unwrap_or_default().trim_ascii();
    if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
        return Err(malformed("want header names of plain letters, with the colon right behind"));
    }
    if value.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') {
        return Err(malformed("want no control characters in a header"));
    }
    // Most names have another length than all of these.
    match name.len() {
        4 if name.eq_ignore_ascii_case(b"host") => seen.hosts += 1,
        6 if name.eq_ignore_ascii_case(b"expect") && !value.eq_ignore_ascii_case(b"100-continue") => {
            return Err(Fault::new(417, "expectation_failed", "only `100-continue` can be expected"));
        }
        7 if name.eq_ignore_ascii_case(b"upgrade") => {
            return Err(malformed("this connection cannot be upgraded: leave `Upgrade` out"));
        }
        14 if name.eq_ignore_ascii_case(b"content-length") => {
            let before = seen.length.replace(length(value)?);
            return if before.is_some() { Err(ambiguous("want one `Content-Length`")) } else { Ok(()) };
        }
        17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
            let good = !std::mem::replace(&mut seen.chunked, true) && value.eq_ignore_ascii_case(b"chunked");
            return if good { Ok(()) } else { Err(ambiguous("want one `Transfer-Encoding`, and `chunked` in it")) };
        }
        _ => {}
    }
    Ok(())
}

fn length(value: &[u8]) -> Result<u64, Fault> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    if !digits {
        return Err(ambiguous("want a `Content-Length` of plain digits"));
    }
    if value.len() > LENGTH_DIGITS_MAX {
        return Err(Fault::new(413, "body_too_large", "the request body is too large"));
    }
    Ok(value.iter().fold(0, |length, digit| length * 10 + u64::from(digit - b'0')))
}

const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(lines: &str) -> Result<Follows, u16> {
        let head = format!("POST /v1/models HTTP/1.1\r\nhost: a\r\n{lines}\r\n");
        judge(head.as_bytes()).map(|head| head.follows).map_err(|fault| fault.status)
    }

    #[test]
    fn plain_heads_pass() {
        assert_eq!(judged(""), Ok(Follows::Sized(0)));
        assert_eq!(judged("Content-Length:  12 \r\n"), Ok(Follows::Sized(12)));
        assert_eq!(judged("x-a: b\r\nTransfer-Encoding: Chunked\r\nexpect: 100-continue\r\nx-b:\r\n"), Ok(Follows::Chunked));
        let old = judge(b"GET / HTTP/1.0\r\n\r\n").expect("HTTP/1.0 needs no host");
        assert!(!old.interim);
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_refused() {
        for lines in [
            "content-length: 1\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ncontent-length: 1\r\n",
            "content-length: 1\r\ncontent-length: 1\r\n",
            "content-length: 1\r\ncontent-length: 2\r\n",
            "content-length: 1, 1\r\n",
            "content-length: +1\r\n",
            "content-length: 0x1\r\n",
            "content-length: -1\r\n",
            "content-length:\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: chunked, identity\r\n",
            "transfer-encoding: xchunked\r\n",
            "transfer-encoding: \x0bchunked\r\n",
            "transfer-encoding:\r\n",
            "transfer-encoding : chunked\r\n",
            "content-length : 1\r\n",
            " content-length: 1\r\n",
            "x-a: b\r\n c\r\n",
            "x-a: b\r\n\tc\r\n",
            "x-a: b\nx-b: c\r\n",
            "x-a: b\rx-b: c\r\n",
            "x-a: \0\r\n",
            "x-a\r\n",
            ": b\r\n",
            "x a: b\r\n",
            "host: b\r\n",
            "upgrade: h2c\r\n",
        ] {
            assert_eq!(judged(lines), Err(400), "{lines:?}");
        }
        assert_eq!(judged("content-length: 9999999999999999\r\n"), Err(413));
        assert_eq!(judged("expect: magic\r\n"), Err(417));
        assert_eq!(judged(&"x-a: b\r\n".repeat(HEADERS_MAX)), Err(431));
    }

    #[test]
    fn request_lines_are_plain() {
        let line = |line: &str| judge(format!("{line}\r\nhost: a\r\n\r\n").as_bytes()).map(drop).map_err(|fault| fault.status);
        assert_eq!(line("GET /a?b=c HTTP/1.1"), Ok(()));
        assert_eq!(line("OPTIONS * HTTP/1.1"), Ok(()));
        for (bad, status) in [
            ("GET http://a/ HTTP/1.1", 400),
            ("GET a HTTP/1.1", 400),
            ("GET  / HTTP/1.1", 400),
            ("GET / HTTP/1.1 ", 400),
            ("GET /", 400),
            ("G\u{e9}T / HTTP/1.1", 400),
            ("CONNECT a:443 HTTP/1.1", 405),
            ("GET / HTTP/2.0", 505),
            ("PRI * HTTP/2.0", 400),
            (&format!("GET /{} HTTP/1.1", "a".repeat(REQUEST_LINE_BYTES_MAX)), 414),
        ] {
            assert_eq!(line(bad), Err(status), "{bad:.60}");
        }
        assert_eq!(judge(b"GET / HTTP/1.1\r\n\r\n").map_err(|fault| fault.status), Err(400), "no host");
        assert_eq!(judge(b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n").map_err(|fault| fault.status), Err(400));
    }
}
