//! SentencePiece encoding: characters are joined as long as the joined text is a piece, the piece of highest score first; what
//! no piece covers is written byte by byte.

use super::config::ModelError;
use super::gguf::Gguf;
use super::tokenizer::STEPS_PER_ASK;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// How pieces write a space.
const SPACE: char = '\u{2581}';
/// Kinds of vocabulary entries that text may become: ordinary and user-defined ones. The latter were matched before.
const MERGED: u64 = 1;
/// Kind of the entries that stand for one byte each, written `<0x00>`.
const BYTE: u64 = 6;

/// A piece that could be made: its rank, where its left part stands, and how many bytes it has.
type Candidate = (u32, usize, usize);

/// Encoder of a vocabulary of pieces.
#[derive(Debug)]
pub(super) struct Sentence {
    /// Id and rank of each piece: a lower rank goes first.
    pieces: HashMap<String, (u32, u32)>,
    /// The token of each single byte.
    byte_ids: Vec<Option<u32>>,
    unknown: Option<u32>,
    /// Whether a text is encoded as if a space stood before it.
    space_first: bool,
}

impl Sentence {
    /// From the metadata.
    pub(super) fn from_gguf(gguf: &Gguf, texts: &[&str], kinds: &[u64]) -> Result<Self, ModelError> {
        let scores = gguf.reals("tokenizer.ggml.scores")?;
        if scores.len() != texts.len() || kinds.len() != texts.len() {
            return Err(gguf.damaged("`tokenizer.ggml` has not as many scores and kinds as tokens"));
        }
        let mut byte_ids = vec![None; 256];
        let mut entries: Vec<(&str, u32, f64)> = Vec::new();
        for (((text, id), kind), score) in texts.iter().zip(0..).zip(kinds).zip(&scores) {
            match (*kind, byte_of(text)) {
                (BYTE, Some(byte)) => byte_ids.splice(usize::from(byte)..=usize::from(byte), [Some(id)]).for_each(drop),
                (MERGED, _) => entries.push((text, id, *score)),
                _ => {}
            }
        }
        entries.sort_by(|a, b| b.2.total_cmp(&a.2));
        let mut pieces = HashMap::with_capacity(entries.len());
        let (mut rank, mut last) = (0, f64::INFINITY);
        for (text, id, score) in entries {
            // Equals share a rank: the leftmost of them goes first.
            rank += u32::from(score < last);
            last = score;
            pieces.insert(text.to_owned(), (id, rank));
        }
        let space_first = gguf.flag_maybe("tokenizer.ggml.add_space_prefix").unwrap_or(true);
        Ok(Self { pieces, byte_ids, unknown: gguf.id_maybe("tokenizer.ggml.unknown_token_id")?, space_first })
    }

    /// What a piece stands for.
    pub(super) fn decode(text: &str) -> Vec<u8> {
        byte_of(text).map_or_else(|| text.replace(SPACE, " ").into_bytes(), |byte| vec![byte])
    }

    /// Appends the tokens of `text`; `first` when nothing but a control token stands before it. Nothing when `go_on`, asked now
    /// and then, says no.
    pub(super) fn encode(&self, text: &str, first: bool, go_on: &mut dyn FnMut() -> bool, ids: &mut Vec<u32>) -> Option<()> {
        if text.is_empty() {
            return Some(());
        }
        let mut spaced = String::with_capacity(text.len() + SPACE.len_utf8());
        spaced.extend((first && self.space_first).then_some(SPACE));
        spaced.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let parts = self.join(&spaced, go_on)?;
        for part in parts.iter().filter(|part| part.length > 0) {
            let text = spaced.get(part.start..part.start + part.length).unwrap_or_default();
            match self.pieces.get(text) {
                Some((id, _)) => ids.push(*id),
                None => self.by_bytes(text, ids),
            }
        }
        Some(())
    }

    /// A character that is no piece: its bytes, or the unknown token where the vocabulary has no bytes.
    fn by_bytes(&self, text: &str, ids: &mut Vec<u32>) {
        let bytes = text.bytes().map(|byte| self.byte_ids.get(usize::from(byte)).copied().flatten());
        match bytes.collect::<Option<Vec<u32>>>() {
            Some(bytes) => ids.extend(bytes),
            None => ids.extend(self.unknown),
        }
    }

    /// Joins characters to pieces. A heap keeps a text of a megabyte from taking the square of its length.
    fn join(&self, text: &str, go_on: &mut dyn FnMut() -> bool) -> Option<Vec<Part>> {
        let mut parts: Vec<Part> =
            text.char_indices().map(|(start, c)| Part { start, length: c.len_utf8(), before: None, after: None }).collect();
        let count = parts.len();
        for (at, part) in parts.iter_mut().enumerate() {
            part.before = at.checked_sub(1);
            part.after = Some(at + 1).filter(|after| *after < count);
        }
        let mut heap = BinaryHeap::new();
        for left in 0..count {
            self.consider(text, &parts, Some(left), &mut heap);
        }
        let mut steps = 0;
        while let Some(Reverse((_, left, length))) = heap.pop() {
            if steps % STEPS_PER_ASK == 0 && !go_on() {
                return None;
            }
            steps += 1;
            let Some((right, joined)) = neighbours(&parts, left).filter(|(_, joined)| *joined == length) else { continue };
            let after = parts.get_mut(right).and_then(|part| {
                part.length = 0;
                part.after
            });
            let before = parts.get_mut(left).and_then(|part| {
                (part.length, part.after) = (joined, after);
                part.before
            });
            if let Some(part) = after.and_then(|after| parts.get_mut(after)) {
                part.before = Some(left);
            }
            self.consider(text, &parts, before, &mut heap);
            self.consider(text, &parts, Some(left), &mut heap);
        }
        Some(parts)
    }

    fn consider(&self, text: &str, parts: &[Part], left: Option<usize>, heap: &mut BinaryHeap<Reverse<Candidate>>) {
        let found = left.and_then(|left| {
            let (_, length) = neighbours(parts, left)?;
            let start = parts.get(left)?.start;
            let (_, rank) = self.pieces.get(text.get(start..start + length)?)?;
            Some((*rank, left, length))
        });
        heap.extend(found.map(Reverse));
    }
}

/// A piece of a text while it is joined: a linked list in a vector. Its length is zero once it belongs to another.
struct Part {
    start: usize,
    length: usize,
    before: Option<usize>,
    after: Option<usize>,
}

/// The right neighbour of a part, and the length of the two together. A length tells whether they are still what they were when
/// they were found: parts only grow.
fn neighbours(parts: &[Part], left: usize) -> Option<(usize, usize)> {
    let part = parts.get(left).filter(|part| part.length > 0)?;
    let right = part.after?;
    Some((right, part.length + parts.get(right)?.length))
}

/// The byte that `<0x0A>` stands for.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>').filter(|digits| digits.len() == 2)?;
    u8::from_str_radix(digits, 16).ok()
}
