//! Spans of time as people write them in commands.

/// Seconds of a text such as `90s`, `15m`, `1h` or `7d`.
///
/// # Errors
/// The sentence to show.
pub fn parse_span(text: &str) -> Result<u64, String> {
    let want = || "want a number with `s`, `m`, `h` or `d`, such as `1h`".to_owned();
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(want)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(want()),
    };
    match number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds)).ok_or_else(want)? {
        0 => Err("want at least one second: what ends at once is of no use".to_owned()),
        seconds => Ok(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        assert_eq!(parse_span("90s"), Ok(90));
        assert_eq!(parse_span("7d"), Ok(604_800));
        for bad in ["", "h", "1", "-1h", "1w", "1é", "99999999999999999999d", "9999999999999999d", "0s", "0d"] {
            assert!(parse_span(bad).is_err(), "{bad}");
        }
    }
}
