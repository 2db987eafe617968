//! How tokens shall be drawn, and how many.

use crate::openai::error::ApiError;
use crate::openai::json::{Members, Shape, shape};
use shared::units::Tokens;
use shared::wire::body::Sampling;
use shared::work::PromptKind;

/// Tokens of an answer when the client sets no limit. Two or three paragraphs: an open end would hold a slot of a small board for minutes,
/// and the prediction reckons with every token that may come.
const OUTPUT_DEFAULT: i64 = 256;
/// Most tokens that a client may name. No context is longer; a larger number is a slip. What exceeds the context is cut to it.
const OUTPUT_MAX: i64 = 10_000_000;
/// Most stop texts, as in OpenAI's API: each is looked for at every token.
const STOPS_MAX: usize = 4;
/// Longest stop text: the engine holds back as much output as it could still match.
const STOP_BYTES_MAX: usize = 512;

/// What was read.
pub(super) struct Drawn {
    pub(super) sampling: Sampling,
    /// Neither temperature zero nor a seed.
    pub(super) unseeded: bool,
}

impl Drawn {
    /// Whether any penalty is not neutral.
    #[expect(clippy::float_cmp, reason = "exactly the neutral values")]
    pub(super) fn penalties(&self) -> bool {
        let sampling = &self.sampling;
        sampling.frequency_penalty != 0.0 || sampling.presence_penalty != 0.0 || sampling.repetition_penalty != 1.0
    }
}

pub(super) fn read(
    kind: PromptKind,
    members: &Members<'_>,
    context_max: Tokens,
    drawn_seed: u64,
    repetition_penalty: Option<f64>,
) -> Result<Drawn, ApiError> {
    let neutral = Sampling::default();
    let temperature = members.number("temperature", 0.0, 2.0)?.unwrap_or(neutral.temperature);
    let seed = members.integer("seed", i64::MIN, i64::MAX)?;
    let sampling = Sampling {
        max_tokens: output_max(kind, members)?.min(context_max.0.max(1)),
        temperature,
        // Zero means the likeliest token alone; engines want a mass above zero.
        top_p: members.number("top_p", 0.0, 1.0)?.map_or(neutral.top_p, |p| p.max(f64::EPSILON)),
        seed: seed.map_or(drawn_seed, i64::cast_unsigned),
        stop: stop(members)?,
        frequency_penalty: members.number("frequency_penalty", -2.0, 2.0)?.unwrap_or(neutral.frequency_penalty),
        presence_penalty: members.number("presence_penalty", -2.0, 2.0)?.unwrap_or(neutral.presence_penalty),
        repetition_penalty: repetition_penalty.unwrap_or(neutral.repetition_penalty),
    };
    Ok(Drawn { sampling, unseeded: seed.is_none() && temperature > 0.0 })
}

/// The newer name wins where both are given.
fn output_max(kind: PromptKind, members: &Members<'_>) -> Result<u32, ApiError> {
    let old = members.integer("max_tokens", 1, OUTPUT_MAX)?;
    let new = if kind == PromptKind::Chat { members.integer("max_completion_tokens", 1, OUTPUT_MAX)? } else { None };
    Ok(u32::try_from(new.or(old).unwrap_or(OUTPUT_DEFAULT)).unwrap_or(u32::MAX))
}

fn stop(members: &Members<'_>) -> Result<Vec<String>, ApiError> {
    let wrong = || members.wrong("stop", &format!("a string or up to {STOPS_MAX} strings, each of 1 to {STOP_BYTES_MAX} bytes"));
    let stops: Vec<String> = match members.raw("stop") {
        None => Vec::new(),
        Some(raw) if shape(raw) == Shape::Text => members.string("stop")?.into_iter().collect(),
        Some(_) => {
            let entries = members.array("stop").map_err(|_| wrong())?.unwrap_or_default();
            entries.into_iter().map(|raw| serde_json::from_str(raw.get()).map_err(|_| wrong())).collect::<Result<_, _>>()?
        }
    };
    if stops.len() > STOPS_MAX || stops.iter().any(|stop| stop.is_empty() || stop.len() > STOP_BYTES_MAX) {
        return Err(wrong());
    }
    Ok(stops)
}
