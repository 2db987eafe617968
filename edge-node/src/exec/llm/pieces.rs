//! Cuts text into the words inside which byte-pair merges may happen. Hand-written scanners: the published patterns need
//! look-ahead, and a backtracking matcher could be made to run for minutes by a long run of spaces.

use regex_syntax::hir::{Class, HirKind};
use std::iter::Peekable;
use std::str::CharIndices;

/// Which published pattern cuts the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// GPT-2's.
    Gpt2,
    /// GPT-2's, after each digit was cut off on its own.
    Gpt2SingleDigits,
    /// Llama 3's.
    Llama3,
    /// Qwen 2's: Llama 3's with single digits.
    Qwen2,
}

impl Cut {
    /// By its name in a GGUF file.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "gpt-2" => Some(Self::Gpt2),
            "smollm" => Some(Self::Gpt2SingleDigits),
            "qwen2" => Some(Self::Qwen2),
            "llama-bpe" | "llama-v3" | "llama3" => Some(Self::Llama3),
            _ => None,
        }
    }
}

/// Letters by general category: the standard library knows only the wider property `Alphabetic`.
#[derive(Debug)]
pub(super) struct Letters(Vec<(char, char)>);

impl Letters {
    pub(super) fn new() -> Self {
        let ranges = regex_syntax::parse(r"\p{L}").map(|hir| match hir.into_kind() {
            HirKind::Class(Class::Unicode(class)) => class.iter().map(|range| (range.start(), range.end())).collect(),
            _ => Vec::new(),
        });
        Self(ranges.unwrap_or_default())
    }

    fn contains(&self, c: char) -> bool {
        if c.is_ascii() {
            return c.is_ascii_alphabetic();
        }
        let after = self.0.partition_point(|(start, _)| *start <= c);
        after.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|(_, end)| c <= *end)
    }

    fn kind(&self, c: char) -> Kind {
        match c {
            _ if c.is_whitespace() => Kind::Space,
            _ if self.contains(c) => Kind::Letter,
            _ if c.is_numeric() => Kind::Digit,
            _ => Kind::Other,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Space,
    Letter,
    Digit,
    Other,
}

/// Walks over the words of a text.
#[derive(Debug)]
pub(super) struct Pieces<'a> {
    letters: &'a Letters,
    cut: Cut,
    text: &'a str,
}

impl<'a> Pieces<'a> {
    pub(super) fn new(letters: &'a Letters, cut: Cut, text: &'a str) -> Self {
        Self { letters, cut, text }
    }
}

impl<'a> Iterator for Pieces<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let first = self.text.chars().next()?;
        let length = match self.cut {
            Cut::Gpt2 => gpt2(self.letters, self.text, false),
            Cut::Gpt2SingleDigits if first.is_numeric() => first.len_utf8(),
            Cut::Gpt2SingleDigits => gpt2(self.letters, self.text, true),
            Cut::Llama3 => llama3(self.letters, self.text, 3),
            Cut::Qwen2 => llama3(self.letters, self.text, 1),
        };
        let (piece, rest) = self.text.split_at_checked(length.max(first.len_utf8()))?;
        self.text = rest;
        Some(piece)
    }
}

/// The contractions that are words of their own.
const CONTRACTIONS: [&str; 7] = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"];

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`; with `until_digit`, a digit ends the text.
fn gpt2(letters: &Letters, text: &str, until_digit: bool) -> usize {
    if let Some(found) = CONTRACTIONS.iter().find(|contraction| text.starts_with(**contraction)) {
        return found.len();
    }
    let mut chars = text.char_indices().peekable();
    chars.next_if(|(_, c)| *c == ' ');
    let ends = |c: char| until_digit && c.is_numeric();
    match chars.peek().map(|(_, c)| letters.kind(*c)) {
        Some(Kind::Digit) if until_digit => spaces(text, &ends),
        Some(kind @ (Kind::Letter | Kind::Digit | Kind::Other)) => run(&mut chars, text, |c| letters.kind(c) == kind),
        Some(Kind::Space) | None => spaces(text, &ends),
    }
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
///
/// With at most `digits_max` digits in place of three.
fn llama3(letters: &Letters, text: &str, digits_max: usize) -> usize {
    let contracted = |c: &&&str| text.get(..c.len()).is_some_and(|start| start.eq_ignore_ascii_case(c));
    if let Some(found) = CONTRACTIONS.iter().find(contracted) {
        return found.len();
    }
    let mut chars = text.char_indices().peekable();
    let is_letter = |c: char| letters.kind(c) == Kind::Letter;
    let mut ahead = text.chars();
    let (first, second) = (ahead.next().unwrap_or(' '), ahead.next());
    let kind = letters.kind(first);
    if kind == Kind::Letter {
        return run(&mut chars, text, is_letter);
    }
    if kind != Kind::Digit && !matches!(first, '\r' | '\n') && second.is_some_and(is_letter) {
        chars.next();
        return run(&mut chars, text, is_letter);
    }
    if kind == Kind::Digit {
        return text.chars().take(digits_max).take_while(|c| letters.kind(*c) == Kind::Digit).map(char::len_utf8).sum();
    }
    if kind == Kind::Other || (first == ' ' && second.is_some_and(|c| letters.kind(c) == Kind::Other)) {
        chars.next_if(|(_, c)| *c == ' ');
        let end = run(&mut chars, text, |c| letters.kind(c) == Kind::Other);
        return end + text.get(end..).unwrap_or_default().chars().take_while(|c| matches!(c, '\r' | '\n')).count();
    }
    let blank_end = run(&mut chars, text, char::is_whitespace);
    let blanks = text.get(..blank_end).unwrap_or_default();
    blanks.rfind(['\r', '\n']).map_or_else(|| spaces(text, &|_| false), |at| at + 1)
}

/// `\s+(?!\S)|\s+`: all the white space up to the end of the text, else all but the last of it, which goes with what follows.
fn spaces(text: &str, ends: &dyn Fn(char) -> bool) -> usize {
    let mut chars = text.char_indices().peekable();
    let end = run(&mut chars, text, char::is_whitespace);
    let run = text.get(..end).unwrap_or_default();
    let at_end = text.get(end..).and_then(|rest| rest.chars().next()).is_none_or(ends);
    match run.char_indices().next_back() {
        Some((last, _)) if !at_end && last > 0 => last,
        _ => end,
    }
}

/// Byte offset at which the run of characters that satisfy `is` ends.
fn run(chars: &mut Peekable<CharIndices<'_>>, text: &str, is: impl Fn(char) -> bool) -> usize {
    while chars.next_if(|(_, c)| is(*c)).is_some() {}
    chars.peek().map_or(text.len(), |(at, _)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(cut: Cut, text: &str) -> Vec<String> {
        let letters = Letters::new();
        Pieces::new(&letters, cut, text).map(str::to_owned).collect()
    }

    #[test]
    fn gpt2_words() {
        assert_eq!(
            cut(Cut::Gpt2, "Hello world's  end\n\n x 123!?"),
            ["Hello", " world", "'s", " ", " end", "\n\n", " x", " 123", "!?"]
        );
        assert_eq!(cut(Cut::Gpt2, "a\n b  "), ["a", "\n", " b", "  "]);
    }

    #[test]
    fn single_digits_stand_alone_and_end_the_text_before_them() {
        assert_eq!(cut(Cut::Gpt2SingleDigits, "in 2024  7"), ["in", " ", "2", "0", "2", "4", "  ", "7"]);
    }

    #[test]
    fn llama3_words() {
        assert_eq!(cut(Cut::Llama3, "It'S (ok) 12345\n\nx"), ["It", "'S", " (", "ok", ")", " ", "123", "45", "\n\n", "x"]);
    }

    #[test]
    fn qwen2_words() {
        assert_eq!(cut(Cut::Qwen2, "It'S 12345\n\nx"), ["It", "'S", " ", "1", "2", "3", "4", "5", "\n\n", "x"]);
    }

    #[test]
    fn nothing_is_lost_and_marks_are_no_letters() {
        for text in ["नमस्ते दुनिया", "e\u{301}t\u{e9} 🙂🙂 \u{a0}\t\u{2028}x", "١٢٣ Ⅷ ½", "   ", "\r\n\r\n \n"]
        {
            for way in [Cut::Gpt2, Cut::Gpt2SingleDigits, Cut::Llama3, Cut::Qwen2] {
                assert_eq!(cut(way, text).concat(), text);
            }
        }
        assert!(!Letters::new().contains('\u{93e}'), "a vowel sign is alphabetic, but no letter");
        assert!(Letters::new().contains('न'));
    }
}
