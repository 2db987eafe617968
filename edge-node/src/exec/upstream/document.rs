//! Writes the JSON document of a request straight from its parts. A prompt may have megabytes: it is copied once, into the document.

use serde::Serialize;

/// A JSON object that is being written.
#[derive(Debug)]
pub(super) struct Document(Vec<u8>);

impl Document {
    /// An empty object, with room for a text of so many bytes and what is usually beside it.
    pub(super) fn with_room(text_bytes: usize) -> Self {
        let mut bytes = Vec::with_capacity(text_bytes + text_bytes / 16 + 512);
        bytes.push(b'{');
        Self(bytes)
    }

    /// A member. Values of our own types always serialise.
    pub(super) fn put(&mut self, name: &str, value: &impl Serialize) {
        self.name(name);
        let before = self.0.len();
        if serde_json::to_writer(&mut self.0, value).is_err() {
            self.0.truncate(before);
            self.0.extend_from_slice(b"null");
        }
    }

    /// A member that is a text.
    pub(super) fn put_text(&mut self, name: &str, text: &str) {
        self.name(name);
        write_text(&mut self.0, text);
    }

    /// A member that is an array of objects.
    pub(super) fn put_objects<T>(&mut self, name: &str, items: &[T], mut write: impl FnMut(&T, &mut Self)) {
        self.name(name);
        self.0.push(b'[');
        for (number, item) in items.iter().enumerate() {
            self.0.extend_from_slice(if number == 0 { b"{" } else { b",{" });
            write(item, self);
            self.0.push(b'}');
        }
        self.0.push(b']');
    }

    /// The whole document.
    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }

    fn name(&mut self, name: &str) {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        write_text(&mut self.0, name);
        self.0.push(b':');
    }
}

/// Bytes that are looked at together: a vector register or two.
const LANE: usize = 32;

/// Writes a text as a JSON string. What needs no escape, nearly everything, is copied in runs.
fn write_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    loop {
        let (run, more) = rest.split_at(plain(rest));
        out.extend_from_slice(run);
        let Some((special, after)) = more.split_first() else { break };
        match special {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            control => out.extend_from_slice(format!("\\u{control:04x}").as_bytes()),
        }
        rest = after;
    }
    out.push(b'"');
}

const fn special(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

/// How many bytes from the beginning stand for themselves.
fn plain(bytes: &[u8]) -> usize {
    // Without a way out in the middle of a lane, the compiler looks at all of it at once.
    let clean = |lane: &&[u8]| !lane.iter().fold(false, |found, byte| found | special(*byte));
    let begun = bytes.chunks_exact(LANE).take_while(clean).count() * LANE;
    begun + bytes[begun..].iter().take_while(|byte| !special(**byte)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_what_a_json_reader_reads() {
        let long = "the tide \u{1f30a} comes in, \"slowly\"\\\n".repeat(50);
        let control: String = (0_u8..=0x7f).map(char::from).collect();
        for text in ["", "a", &"x".repeat(LANE), &"x".repeat(LANE + 1), &long, &control] {
            for cut in 0..LANE.min(text.len()) {
                let Some(part) = text.get(cut..) else { continue };
                let mut out = Vec::new();
                write_text(&mut out, part);
                assert_eq!(serde_json::from_slice::<String>(&out).expect("JSON"), part);
            }
        }
    }

    #[test]
    fn objects_nest() {
        let mut document = Document::with_room(0);
        document.put_objects("a", &["x", "y"], |item, object| {
            object.put_text("name", item);
            object.put("size", &item.len());
        });
        document.put("b", &true);
        let read: serde_json::Value = serde_json::from_slice(&document.end()).expect("JSON");
        assert_eq!(read, serde_json::json!({"a": [{"name": "x", "size": 1}, {"name": "y", "size": 1}], "b": true}));
        assert_eq!(Document::with_room(0).end(), b"{}");
    }
}
