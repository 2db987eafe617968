//! Text to tokens and back, with the vocabulary of a GGUF file.
//!
//! Control tokens are recognised only where the caller says that the text is the template's own: never in a user's.

use super::config::ModelError;
use super::gguf::Gguf;
use super::merges::Merges;
use super::sentence::Sentence;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Kind of a vocabulary entry in a GGUF file: a control token.
const CONTROL: u64 = 3;
/// Kind of a vocabulary entry in a GGUF file: matched as a whole wherever it stands.
const USER_DEFINED: u64 = 4;

/// After so many words, or merges inside one word, the encoder asks whether it shall go on: a few milliseconds of work.
pub(super) const STEPS_PER_ASK: usize = 2_000;

/// How the two kinds of vocabulary encode.
#[derive(Debug)]
enum Way {
    /// Byte-level pairs with ranks (`gpt2` in GGUF files).
    Merges(Merges),
    /// Pieces with scores (`llama` in GGUF files).
    Sentence(Sentence),
}

/// Encoder and decoder of one vocabulary.
#[derive(Debug)]
pub struct Tokenizer {
    /// What each token stands for; empty for control tokens.
    bytes: Vec<Vec<u8>>,
    way: Way,
    /// Control tokens, longest text first.
    controls: Vec<(String, u32)>,
    /// Tokens that are matched wherever they stand, longest text first.
    everywhere: Vec<(String, u32)>,
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
        let texts = gguf.texts("tokenizer.ggml.tokens")?;
        let kinds = gguf.counts("tokenizer.ggml.token_type")?;
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
        let (bytes, way) = match gguf.text("tokenizer.ggml.model")? {
            "gpt2" => {
                let bytes = token_bytes(&texts, &kinds, &Merges::decoder());
                let way = Merges::from_gguf(gguf, &texts, &bytes)?;
                (bytes, Way::Merges(way))
            }
            "llama" => {
                let bytes = token_bytes(&texts, &kinds, &Sentence::decode);
                (bytes, Way::Sentence(Sentence::from_gguf(gguf, &texts, &kinds)?))
            }
            other => {
                let what = format!("tokenizer `{other}`, want `gpt2` (byte-pair encoding) or `llama` (SentencePiece)");
                return Err(gguf.unsupported(what));
            }
        };
        let mut tokenizer = Self {
            bytes,
            way,
            controls,
            everywhere,
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
        let mut rest = text;
        while !rest.is_empty() {
            let (before, whole, after) = self.next_whole(rest);
            match &self.way {
                Way::Merges(merges) => merges.encode(before, go_on, ids)?,
                Way::Sentence(sentence) => sentence.encode(before, rest.len() == text.len(), go_on, ids)?,
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

/// What each token stands for; `decode` reads those that are ordinary text in the vocabulary.
fn token_bytes(texts: &[&str], kinds: &[u64], decode: &dyn Fn(&str) -> Vec<u8>) -> Vec<Vec<u8>> {
    let kinds = kinds.iter().copied().chain(std::iter::repeat(1));
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
