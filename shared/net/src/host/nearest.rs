//! What a misspelt key was probably meant to be.

/// The candidate that needs the fewest edits to become `given`, if that is few enough to be a slip.
pub(super) fn nearest<'a>(given: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (given.chars().count() / 3).max(2);
    candidates.map(|candidate| (edits(given, candidate), candidate)).min().filter(|(edits, _)| *edits <= limit).map(|(_, c)| c)
}

/// Levenshtein's distance.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, a_char) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b_char) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(a_char != *b_char);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let keys = ["quic.listen", "http.listen", "log.filter"];
        assert_eq!(nearest("quik.listen", keys.into_iter()), Some("quic.listen"));
        assert_eq!(nearest("log.fliter", keys.into_iter()), Some("log.filter"));
        assert_eq!(nearest("something.else", keys.into_iter()), None);
        assert_eq!(edits("kitten", "sitting"), 3);
    }
}
