//! Byte-pair encoding with the vocabulary of a GGUF file.
//!
//! Control tokens are recognised only where the caller says that the text is the template's own: never in a user's.

use super::config::ModelError;
use super::gguf::Gguf;
use super::pieces::{Cut, Letters, Pieces};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

/// Kind of a vocabulary entry in a GGUF file: a control token.
const CONTROL: u64 = 3;
/// Kind of a vocabulary entry in a GGUF file: matched as a whole wherever it stands.
const USER_DEFINED: u64 = 4;

/// Two tokens that stand side by side.
type Pair = (u32, u32);
/// A pair that may be merged: its rank, where its left token stands, and which it was when it was found.
type Candidate = (u32, usize, Pair);

/// After so many words, or merges inside one word, the encoder asks whether it shall go on: a few milliseconds of work.
const STEPS_PER_ASK: usize = 2_000;

/// Encoder and decoder of one vocabulary.
#[derive(Debug)]
pub struct Tokenizer {
    /// What each token stands for; empty for control tokens.
    bytes: Vec<Vec<u8>>,
    /// The token of each single byte.
    byte_ids: Vec<Option<u32>>,
    /// Which pair becomes what, and its rank: lower goes first.
    merges: HashMap<Pair, (u32, u32)>,
    /// Words that are one token whatever the merges say; only Llama 3 has that rule.
    words: HashMap<Vec<u8>, u32>,
    /// Control tokens, longest text first.
    controls: Vec<(String, u32)>,
    /// Tokens that are matched wherever they stand, longest text first.
    everywhere: Vec<(String, u32)>,
    letters: Letters,
    cut: Cut,
    /// The token that begins a text, and whether it shall be put there.
    begin: Option<u32>,
    begin_added: bool,
    end: Option<u32>,
    ends: BTreeSet<u32>,
}

/// Texts of control tokens that end an answer, beside those that the metadata name.
const END_TEXTS: [&str; 7] = ["<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<end_of_turn>", "</s>"];

impl Tokenizer {
    /// From the metadata.
    pub(super) fn from_gguf(gguf: &Gguf) -> Result<Self, ModelError> {
        let model = gguf.text("tokenizer.ggml.model")?;
        if model != "gpt2" {
            return Err(gguf.unsupported(format!("tokenizer `{model}`, want `gpt2` (byte-pair encoding)")));
        }
        let pre = gguf.text_maybe("tokenizer.ggml.pre").unwrap_or("gpt-2");
        let cut = Cut::named(pre).ok_or_else(|| gguf.unsupported(format!("pre-tokenizer `{pre}`")))?;
        let texts = gguf.texts("tokenizer.ggml.tokens")?;
        let kinds = gguf.counts("tokenizer.ggml.token_type")?;
        let ids: HashMap<&str, u32> = texts.iter().zip(0..).map(|(text, id)| (*text, id)).collect();

        let of_kind = |kind: u64| {
            let mut tokens: Vec<(String, u32)> = Vec::new();
            for ((text, id), found) in texts.iter().zip(0..).zip(&kinds) {
                if *found == kind && !text.is_empty() {
                    tokens.push(((*text).to_owned(), id));
                }
            }
            tokens.sort_by_key(|(text, id)| (Reverse(text.len()), *id));
            tokens
        };
        let (controls, everywhere) = (of_kind(CONTROL), of_kind(USER_DEFINED));
        let bytes = token_bytes(&texts, &kinds);
        let words = if cut == Cut::Llama3 { bytes.iter().cloned().zip(0..).collect() } else { HashMap::new() };
        let mut tokenizer = Self {
            bytes,
            words,
            byte_ids: (0..=255).map(|byte| ids.get(byte_to_char(byte).encode_utf8(&mut [0; 4]) as &str).copied()).collect(),
            merges: merges(gguf, &ids)?,
            controls,
            everywhere,
            letters: Letters::new(),
            cut,
            begin: gguf.id_maybe("tokenizer.ggml.bos_token_id")?,
            begin_added: gguf.flag("tokenizer.ggml.add_bos_token"),
            end: gguf.id_maybe("tokenizer.ggml.eos_token_id")?,
            ends: BTreeSet::new(),
        };
        tokenizer.ends = tokenizer.find_ends(gguf)?;
        Ok(tokenizer)
    }

    fn find_ends(&self, gguf: &Gguf) -> Result<BTreeSet<u32>, ModelError> {
        let mut ends: BTreeSet<u32> =
            self.controls.iter().filter(|(text, _)| END_TEXTS.contains(&text.as_str())).map(|(_, id)| *id).collect();
        for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
            ends.extend(gguf.id_maybe(key)?);
        }
        Ok(ends)
    }

    /// Whether this token ends an answer.
    #[must_use]
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// The token that begins a text, if the vocabulary has one.
    #[must_use]
    pub fn begin(&self) -> Option<u32> {
        self.begin
    }

    /// Whether the model wants [`Self::begin`] before each text.
    #[must_use]
    pub fn begin_added(&self) -> bool {
        self.begin_added
    }

    /// The token that ends an answer, by the metadata.
    #[must_use]
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    /// Text of a control token, for templates.
    #[must_use]
    pub fn control_text(&self, id: u32) -> Option<&str> {
        self.controls.iter().find(|(_, control)| *control == id).map(|(text, _)| text.as_str())
    }

    /// Texts of all control tokens.
    pub fn control_texts(&self) -> impl Iterator<Item = &str> {
        self.controls.iter().map(|(text, _)| text.as_str())
    }

    /// What a token stands for.
    #[must_use]
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], Vec::as_slice)
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is no token at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends the tokens of `text`, control tokens never among them: those come from [`Self::split_controls`]. Nothing
    /// when `go_on`, asked now and then, says no.
    pub fn encode(&self, text: &str, go_on: &mut dyn FnMut() -> bool, ids: &mut Vec<u32>) -> Option<()> {
        let mut words = 0;
        let mut rest = text;
        while !rest.is_empty() {
            let (before, whole, after) = self.next_whole(rest);
            for piece in Pieces::new(&self.letters, self.cut, before) {
                words += 1;
                if words % STEPS_PER_ASK == 1 && !go_on() {
                    return None;
                }
                match self.words.get(piece.as_bytes()) {
                    Some(id) => ids.push(*id),
                    None => self.merge(piece.as_bytes(), go_on, ids)?,
                }
            }
            ids.extend(whole);
            rest = after;
        }
        Some(())
    }

    /// Splits trusted text at its control tokens: what stands before each, and the token; last what remains.
    pub(super) fn split_controls<'t>(&self, text: &'t str) -> Vec<(&'t str, Option<u32>)> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, id, after)) = split_first(rest, &self.controls) {
            parts.push((before, Some(id)));
            rest = after;
        }
        parts.push((rest, None));
        parts
    }

    /// Splits at the first token that is matched as a whole.
    fn next_whole<'t>(&self, text: &'t str) -> (&'t str, Option<u32>, &'t str) {
        match split_first(text, &self.everywhere) {
            Some((before, id, after)) => (before, Some(id), after),
            None => (text, None, ""),
        }
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

/// Splits at the first of the whole tokens in `text`, the longest if several begin there.
fn split_first<'t>(text: &'t str, wholes: &[(String, u32)]) -> Option<(&'t str, u32, &'t str)> {
    if wholes.is_empty() {
        return None;
    }
    text.char_indices().find_map(|(at, c)| {
        let (before, rest) = text.split_at(at);
        // Sorted by length: the first that fits is the longest.
        let (whole, id) = wholes.iter().find(|(whole, _)| whole.starts_with(c) && rest.starts_with(whole.as_str()))?;
        Some((before, *id, rest.get(whole.len()..)?))
    })
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

/// What each token stands for.
fn token_bytes(texts: &[&str], kinds: &[u64]) -> Vec<Vec<u8>> {
    let chars: HashMap<char, u8> = (0..=255).map(|byte| (byte_to_char(byte), byte)).collect();
    let kinds = kinds.iter().copied().chain(std::iter::repeat(1));
    let decode = |text: &str| text.chars().filter_map(|c| chars.get(&c).copied()).collect();
    texts
        .iter()
        .zip(kinds)
        .map(|(text, kind)| match kind {
            CONTROL => Vec::new(),
            USER_DEFINED => text.as_bytes().to_vec(),
            _ => decode(text),
        })
        .collect()
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
