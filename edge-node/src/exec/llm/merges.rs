//! Byte-pair encoding: the bytes of a word are joined pair by pair, by the ranks that a vocabulary lists.

use super::config::ModelError;
use super::gguf::Gguf;
use super::pieces::{Cut, Letters, Pieces};
use super::tokenizer::STEPS_PER_ASK;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Two tokens that stand side by side.
type Pair = (u32, u32);
/// A pair that may be merged: its rank, where its left token stands, and which it was when it was found.
type Candidate = (u32, usize, Pair);

/// Encoder of a byte-level vocabulary.
#[derive(Debug)]
pub(super) struct Merges {
    /// The token of each single byte.
    byte_ids: Vec<Option<u32>>,
    /// Which pair becomes what, and its rank: lower goes first.
    merges: HashMap<Pair, (u32, u32)>,
    /// Words that are one token whatever the merges say; only Llama 3 has that rule.
    words: HashMap<Vec<u8>, u32>,
    letters: Letters,
    cut: Cut,
}

impl Merges {
    /// From the metadata; `bytes` are what each token stands for.
    pub(super) fn from_gguf(gguf: &Gguf, texts: &[&str], bytes: &[Vec<u8>]) -> Result<Self, ModelError> {
        let pre = gguf.text_maybe("tokenizer.ggml.pre").unwrap_or("gpt-2");
        let cut = Cut::named(pre).ok_or_else(|| gguf.unsupported(format!("pre-tokenizer `{pre}`")))?;
        let ids: HashMap<&str, u32> = texts.iter().zip(0..).map(|(text, id)| (*text, id)).collect();
        let words = if cut == Cut::Llama3 { bytes.iter().cloned().zip(0..).collect() } else { HashMap::new() };
        let byte_ids = (0..=255).map(|byte| ids.get(byte_to_char(byte).encode_utf8(&mut [0; 4]) as &str).copied()).collect();
        Ok(Self { byte_ids, merges: merges(gguf, &ids)?, words, letters: Letters::new(), cut })
    }

    /// What a token's text in the vocabulary stands for.
    pub(super) fn decoder() -> impl Fn(&str) -> Vec<u8> {
        let chars: HashMap<char, u8> = (0..=255).map(|byte| (byte_to_char(byte), byte)).collect();
        move |text| text.chars().filter_map(|c| chars.get(&c).copied()).collect()
    }

    /// Appends the tokens of `text`. Nothing when `go_on`, asked now and then, says no.
    pub(super) fn encode(&self, text: &str, go_on: &mut dyn FnMut() -> bool, ids: &mut Vec<u32>) -> Option<()> {
        for (piece, number) in Pieces::new(&self.letters, self.cut, text).zip(0..) {
            if number % STEPS_PER_ASK == 0 && !go_on() {
                return None;
            }
            match self.words.get(piece.as_bytes()) {
                Some(id) => ids.push(*id),
                None => self.merge(piece.as_bytes(), go_on, ids)?,
            }
        }
        Some(())
    }

    /// Merges the bytes of one word, the pair of lowest rank first, leftmost of equals. A heap keeps a word of a megabyte
    /// from taking the square of its length.
    fn merge(&self, word: &[u8], go_on: &mut dyn FnMut() -> bool, ids: &mut Vec<u32>) -> Option<()> {
        let mut parts: Vec<Part> =
            word.iter().filter_map(|byte| *self.byte_ids.get(usize::from(*byte))?).map(Part::new).collect();
        let count = parts.len();
        for (at, part) in parts.iter_mut().enumerate() {
            part.before = at.checked_sub(1);
            part.after = Some(at + 1).filter(|after| *after < count);
        }
        let mut heap = BinaryHeap::new();
        for left in 0..count.saturating_sub(1) {
            self.consider(&parts, Some(left), &mut heap);
        }
        let mut steps = 0;
        while let Some(Reverse((_, left, pair))) = heap.pop() {
            steps += 1;
            if steps % STEPS_PER_ASK == 0 && !go_on() {
                return None;
            }
            let Some((right, merged)) = self.still_there(&parts, left, pair) else { continue };
            let after = parts.get(right).and_then(|part| part.after);
            if let Some(part) = parts.get_mut(right) {
                part.id = None;
            }
            if let Some(part) = parts.get_mut(left) {
                (part.id, part.after) = (Some(merged), after);
            }
            if let Some(part) = after.and_then(|after| parts.get_mut(after)) {
                part.before = Some(left);
            }
            self.consider(&parts, parts.get(left).and_then(|part| part.before), &mut heap);
            self.consider(&parts, Some(left), &mut heap);
        }
        ids.extend(parts.iter().filter_map(|part| part.id));
        Some(())
    }

    fn consider(&self, parts: &[Part], left: Option<usize>, heap: &mut BinaryHeap<Reverse<Candidate>>) {
        let pair = left.and_then(|left| Some((left, pair_at(parts, left)?)));
        if let Some((left, (_, pair))) = pair
            && let Some((rank, _)) = self.merges.get(&pair)
        {
            heap.push(Reverse((*rank, left, pair)));
        }
    }

    /// The right neighbour and the merged token, unless one of the two has been merged otherwise meanwhile.
    fn still_there(&self, parts: &[Part], left: usize, pair: (u32, u32)) -> Option<(usize, u32)> {
        let (right, now) = pair_at(parts, left)?;
        let (_, merged) = self.merges.get(&pair)?;
        (now == pair).then_some((right, *merged))
    }
}

/// A part of a word while it is merged: a linked list in a vector.
struct Part {
    id: Option<u32>,
    before: Option<usize>,
    after: Option<usize>,
}

impl Part {
    fn new(id: u32) -> Self {
        Self { id: Some(id), before: None, after: None }
    }
}

fn pair_at(parts: &[Part], left: usize) -> Option<(usize, (u32, u32))> {
    let part = parts.get(left)?;
    let right = part.after?;
    Some((right, (part.id?, parts.get(right)?.id?)))
}

fn merges(gguf: &Gguf, ids: &HashMap<&str, u32>) -> Result<HashMap<Pair, (u32, u32)>, ModelError> {
    let mut merges = HashMap::new();
    for (text, rank) in gguf.texts("tokenizer.ggml.merges")?.into_iter().zip(0..) {
        let pair = text.split_once(' ').and_then(|(left, right)| {
            let joined = ids.get(format!("{left}{right}").as_str())?;
            Some(((*ids.get(left)?, *ids.get(right)?), *joined))
        });
        let (pair, joined) = pair.ok_or_else(|| gguf.damaged(format!("merge {rank} joins no two known tokens to a third")))?;
        merges.entry(pair).or_insert((rank, joined));
    }
    Ok(merges)
}

/// The printable character by which byte-level vocabularies write a byte: itself if it is printable Latin-1, else one of
/// the characters from U+0100 on, in order.
fn byte_to_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(*byte)).count();
    u32::try_from(before).ok().and_then(|before| char::from_u32(0x100 + before)).unwrap_or(' ')
}
