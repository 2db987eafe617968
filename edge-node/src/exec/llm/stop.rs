//! From token bytes to text that may be shown: whole characters only, and nothing of a stop text.

use shared::plan::Failure;
use shared::wire::body::Sampling;

/// Most stop texts of one request: the API's own limit.
const STOPS_MAX: usize = 4;
/// Longest stop text in bytes: so much text may have to be held back.
const STOP_BYTES_MAX: usize = 1_024;

/// Gathers bytes, and gives out text as soon as it can be no part of a broken character or of a stop text.
#[derive(Debug, Default)]
pub(super) struct Spout {
    /// Bytes of a character that is not whole yet; at most three.
    bytes: Vec<u8>,
    /// Text that may be the beginning of a stop text.
    held: String,
    stops: Vec<String>,
}

/// What came out for one token.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Poured {
    /// Text to show.
    pub(super) text: String,
    /// Whether a stop text was found; the text ends before it.
    pub(super) stopped: bool,
}

impl Spout {
    /// # Errors
    /// [`Failure::BadRequest`] for too many, too long or empty stop texts.
    pub(super) fn new(sampling: &Sampling) -> Result<Self, Failure> {
        let bad = |message: String| Failure::BadRequest { param: Some("stop".to_owned()), message };
        if sampling.stop.len() > STOPS_MAX {
            return Err(bad(format!("{} stop texts: want at most {STOPS_MAX}", sampling.stop.len())));
        }
        if sampling.stop.iter().any(|stop| stop.is_empty() || stop.len() > STOP_BYTES_MAX) {
            return Err(bad(format!("want stop texts of 1 to {STOP_BYTES_MAX} bytes")));
        }
        Ok(Self { stops: sampling.stop.clone(), ..Self::default() })
    }

    /// Takes in the bytes of a token.
    pub(super) fn pour(&mut self, bytes: &[u8]) -> Poured {
        self.bytes.extend_from_slice(bytes);
        let whole = self.take_whole();
        self.held.push_str(&whole);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.held.truncate(at);
            self.bytes.clear();
            return Poured { text: std::mem::take(&mut self.held), stopped: true };
        }
        let kept = self.held.split_off(self.held.len() - self.suspicious());
        Poured { text: std::mem::replace(&mut self.held, kept), stopped: false }
    }

    /// What was held back, at the end of an answer. An unfinished character becomes the replacement character.
    pub(super) fn drain(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.bytes).into_owned();
        self.bytes.clear();
        std::mem::take(&mut self.held) + &rest
    }

    /// Takes all whole characters; what can be none becomes the replacement character.
    fn take_whole(&mut self) -> String {
        let mut text = String::new();
        for chunk in self.bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            if chunk.invalid().is_empty() {
                continue;
            }
            text.push(char::REPLACEMENT_CHARACTER);
        }
        let unfinished = unfinished(&self.bytes);
        if unfinished > 0 {
            text.pop();
        }
        self.bytes.drain(..self.bytes.len() - unfinished);
        text
    }

    /// Length of the longest end of the held text that begins a stop text.
    fn suspicious(&self) -> usize {
        let ends = self.held.char_indices().map(|(at, _)| self.held.get(at..).unwrap_or_default());
        let mut begins = ends.filter(|end| self.stops.iter().any(|stop| stop.starts_with(end)));
        begins.next().map_or(0, str::len)
    }
}

/// How many bytes at the end may still become a character.
fn unfinished(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes.get(bytes.len().saturating_sub(3)..).unwrap_or_default()) {
        Ok(_) => 0,
        Err(_) => (1..=3.min(bytes.len()))
            .find(|n| {
                let end = bytes.get(bytes.len() - n..).unwrap_or_default();
                matches!(std::str::from_utf8(end), Err(error) if error.error_len().is_none() && error.valid_up_to() == 0)
            })
            .unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spout(stops: &[&str]) -> Spout {
        Spout::new(&Sampling { stop: stops.iter().map(|s| (*s).to_owned()).collect(), ..Sampling::default() }).expect("good")
    }

    #[test]
    fn characters_come_whole() {
        let mut spout = spout(&[]);
        let mut shown = String::new();
        for byte in "a€🙂é".bytes() {
            shown += &spout.pour(&[byte]).text;
            assert!(!shown.contains(char::REPLACEMENT_CHARACTER), "{shown}");
        }
        assert_eq!(shown + &spout.drain(), "a€🙂é");
    }

    #[test]
    fn broken_characters_are_replaced_and_what_follows_is_kept() {
        let mut spout = spout(&[]);
        assert_eq!(spout.pour(&[0xf0, 0x9f]).text, "");
        assert_eq!(spout.pour(b"ab").text, "\u{fffd}ab");
        assert_eq!(spout.pour(&[0xff, b'c', 0xe2]).text, "\u{fffd}c");
        assert_eq!(spout.drain(), "\u{fffd}");
    }

    #[test]
    fn stop_texts_never_show_in_part() {
        let mut spout = spout(&["END", "\n\n"]);
        assert_eq!(spout.pour(b"one E").text, "one ");
        assert_eq!(spout.pour(b"N").text, "");
        assert_eq!(spout.pour(b"e\n").text, "ENe");
        let last = spout.pour(b"\nmore");
        assert_eq!((last.text.as_str(), last.stopped), ("", true));
    }

    #[test]
    fn the_earliest_stop_text_counts() {
        let last = spout(&["c", "b"]).pour(b"abc");
        assert_eq!((last.text.as_str(), last.stopped), ("a", true));
    }

    #[test]
    fn what_was_held_back_comes_at_the_end() {
        let mut spout = spout(&["STOP"]);
        assert_eq!(spout.pour(b"x STO").text, "x ");
        assert_eq!(spout.drain(), "STO");
    }
}
