//! What the client needs of the answer: the `tidegate` object of the body, and the same as `x-tidegate-*` headers. The body
//! wins, except that of two residencies the stricter does: a gateway that sets the header can rely on it.
//!
//! Unknown names are errors here, unlike in the rest of the API: a residency with a slip in its name must not be ignored.

use crate::openai::error::ApiError;
use crate::openai::json::{HEADER_PREFIX, Members, Shape, shape};
use axum::http::HeaderMap;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use shared::units::{Joules, MicroDollars, Micros, Quality};
use shared::work::{Needs, Priority, Residency, Slo};
use std::collections::BTreeMap;

/// Longest time that a client may ask for: a day. No answer takes longer; a larger number is a slip of units.
const TIME_MS_MAX: f64 = 86_400_000.0;
/// Most money that a client may name: a million dollars.
const MONEY_MICRODOLLARS_MAX: i64 = 1_000_000_000_000;
/// Largest repetition penalty. Useful ones lie between 1 and 2.
const REPETITION_PENALTY_MAX: f64 = 10.0;
/// Longest name of a session. It is hashed, and kept nowhere.
const SESSION_BYTES_MAX: usize = 512;

/// Every name, and whether its value is a text.
const NAMES: [(&str, bool); 10] = [
    ("first_token_ms", false),
    ("per_token_ms", false),
    ("deadline_ms", false),
    ("priority", false),
    ("energy_joules", false),
    ("money_microdollars", false),
    ("min_quality", false),
    ("residency", true),
    ("session", true),
    ("repetition_penalty", false),
];

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Wishes {
    pub(super) needs: Needs,
    pub(super) repetition_penalty: Option<f64>,
}

pub(super) fn read(body: &Members<'_>, headers: &HeaderMap) -> Result<Wishes, ApiError> {
    let from_headers = header_json(headers)?;
    let mut wishes = Wishes::default();
    if let Some(json) = from_headers.as_deref() {
        overlay(&mut wishes, &Members::of_headers(json)?)?;
    }
    if let Some(members) = body.object("tidegate")? {
        overlay(&mut wishes, &members)?;
    }
    Ok(wishes)
}

/// The headers as a JSON object, so that both sources are read by the same code.
fn header_json(headers: &HeaderMap) -> Result<Option<Box<RawValue>>, ApiError> {
    let mut members: BTreeMap<String, Box<RawValue>> = BTreeMap::new();
    for (header, value) in headers {
        let Some(dashed) = header.as_str().strip_prefix(HEADER_PREFIX) else { continue };
        let wrong = |want: &str| ApiError::value(header.as_str(), format!("`{header}`: want {want}"));
        let name = dashed.replace('-', "_");
        let textual = NAMES.iter().find(|(known, _)| *known == name).map(|(_, textual)| *textual);
        let text = value.to_str().map_err(|_| wrong("plain ASCII"))?.trim();
        let raw = match textual {
            Some(false) if is_number(text) => RawValue::from_string(text.to_owned()),
            _ => serde_json::value::to_raw_value(text),
        };
        if members.insert(name, raw.map_err(|_| wrong("a plain value"))?).is_some() {
            return Err(wrong("one such header, not several"));
        }
    }
    if members.is_empty() { Ok(None) } else { Ok(serde_json::value::to_raw_value(&members).ok()) }
}

fn is_number(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok_and(|raw| shape(raw) == Shape::Other)
}

/// Lays what `members` say over what is there.
fn overlay(wishes: &mut Wishes, members: &Members<'_>) -> Result<(), ApiError> {
    if let Some(unknown) = members.names().find(|name| !NAMES.iter().any(|(known, _)| known == name)) {
        let known: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        return Err(members.wrong(unknown, &format!("one of {}", known.join(", "))));
    }
    slo(&mut wishes.needs.slo, members)?;
    if let Some(word) = members.string("residency")? {
        let wished = match word.as_str() {
            "anywhere" => Residency::Anywhere,
            "site" => Residency::Site,
            "node" => Residency::Node,
            _ => return Err(members.wrong("residency", "`anywhere`, `site` or `node`")),
        };
        wishes.needs.residency = wishes.needs.residency.max(wished);
    }
    if let Some(name) = members.string("session")? {
        if name.is_empty() || name.len() > SESSION_BYTES_MAX {
            return Err(members.wrong("session", &format!("1 to {SESSION_BYTES_MAX} bytes")));
        }
        wishes.needs.session = Some(hashed(&name));
    }
    if let Some(penalty) = members.number("repetition_penalty", f64::MIN_POSITIVE, REPETITION_PENALTY_MAX)? {
        wishes.repetition_penalty = Some(penalty);
    }
    Ok(())
}

fn slo(slo: &mut Slo, members: &Members<'_>) -> Result<(), ApiError> {
    for (name, field) in
        [("first_token_ms", &mut slo.first_token), ("per_token_ms", &mut slo.per_token), ("deadline_ms", &mut slo.end_to_end)]
    {
        if let Some(time) = span(members, name)? {
            *field = Some(time);
        }
    }
    if let Some(level) = members.integer("priority", 0, 9)? {
        let level = u8::try_from(level).ok().and_then(|level| Priority::new(level).ok());
        slo.priority = level.ok_or_else(|| members.wrong("priority", "0 to 9"))?;
    }
    if let Some(most) = members.number("energy_joules", 0.0, Joules::MAX)? {
        slo.energy = Some(Joules::new(most).map_err(|_| members.wrong("energy_joules", "a number of joules"))?);
    }
    if let Some(most) = members.integer("money_microdollars", 0, MONEY_MICRODOLLARS_MAX)? {
        slo.money = Some(MicroDollars(most.unsigned_abs()));
    }
    if let Some(least) = members.number("min_quality", 0.0, 1.0)? {
        slo.min_quality = Quality::new(least).map_err(|_| members.wrong("min_quality", "0 to 1"))?;
    }
    Ok(())
}

/// A time in milliseconds, above zero: nothing is done in no time, and a deadline of zero is a forgotten one.
fn span(members: &Members<'_>, name: &str) -> Result<Option<Micros>, ApiError> {
    let wrong = || members.wrong(name, &format!("milliseconds, above 0 and at most {TIME_MS_MAX}"));
    let Some(ms) = members.number(name, 0.0, TIME_MS_MAX).map_err(|_| wrong())? else { return Ok(None) };
    let time = Micros::from_secs_f64(ms / 1e3);
    if time == Micros::ZERO { Err(wrong()) } else { Ok(Some(time)) }
}

/// The first eight bytes of SHA-256: tells conversations apart, and does not tell their names.
fn hashed(name: &str) -> u64 {
    Sha256::digest(name.as_bytes()).iter().take(8).fold(0, |hash, byte| (hash << 8) | u64::from(*byte))
}
