//! Measuring a freshly loaded model, or the layers of it that are held, so that decisions have a speed to go by from the first request on.

use super::config::{CacheForm, ModelError};
use super::model::{Model, States};
use super::worker::CHUNK_TOKENS_MAX;
use crate::exec::rates::{Learner, Observation};
use shared::fleet::{Profile, ProfileSource};
use std::time::Instant;

/// Tokens of the measured prompt: four pieces as real prompts are computed.
const PROMPT_TOKENS: usize = 4 * CHUNK_TOKENS_MAX;
/// Tokens generated after it.
const DECODE_TOKENS: usize = 16;
/// Tokens of each kind in the round before, which warms memory and threads and is thrown away.
const WARM_TOKENS: usize = 2;

/// Runs a short sequence and says how fast it was.
pub(super) fn measure(model: &Model, form: CacheForm, go_on: &dyn Fn() -> bool) -> Result<Profile, ModelError> {
    round(model, form, WARM_TOKENS, WARM_TOKENS, go_on)?;
    let seen = round(model, form, PROMPT_TOKENS, DECODE_TOKENS, go_on)?;
    let mut learner = Learner::default();
    learner.observe(&seen);
    let profile = learner.profile().ok_or_else(|| candle_core::Error::Msg("no time was measured".to_owned()))?;
    Ok(Profile { source: ProfileSource::WarmUp, ..profile })
}

fn round(
    model: &Model,
    form: CacheForm,
    prompt: usize,
    decode: usize,
    go_on: &dyn Fn() -> bool,
) -> Result<Observation, ModelError> {
    let shape = model.shape();
    let layers = model.layers();
    let mut cache = model.cache(form);
    let id = |position: usize| u32::try_from(position * 7_919 % shape.vocabulary).unwrap_or(0);
    let ids: Vec<u32> = (0..prompt.min(shape.context / 2).max(1)).map(id).collect();

    let mut position = 0;
    let began = Instant::now();
    for chunk in ids.chunks(CHUNK_TOKENS_MAX) {
        if !go_on() {
            return Err(ModelError::Stopped);
        }
        model.forward(layers.clone(), &enter(model, chunk)?, position, &mut cache)?;
        position += chunk.len();
    }
    let prompt_seconds = began.elapsed().as_secs_f64();

    let began = Instant::now();
    let mut head_seconds = 0.0;
    let mut decoded = 0;
    while decoded < decode && position < shape.context {
        if !go_on() {
            return Err(ModelError::Stopped);
        }
        let hidden = model.forward(layers.clone(), &enter(model, &[id(position)])?, position, &mut cache)?;
        let head = Instant::now();
        if model.held().is_last() {
            model.logits(&hidden)?;
        }
        head_seconds += head.elapsed().as_secs_f64();
        (position, decoded) = (position + 1, decoded + 1);
    }
    Ok(Observation {
        prompt_tokens: u32::try_from(ids.len()).unwrap_or(u32::MAX),
        prompt_seconds,
        decode_tokens: u32::try_from(decoded).unwrap_or(u32::MAX),
        decode_seconds: began.elapsed().as_secs_f64(),
        // The first token costs the prompt, and once the head.
        overhead_seconds: Some(head_seconds / decoded.max(1) as f64),
    })
}

/// Hidden states of tokens; where the first layer is held elsewhere, some numbers of the same kind: speed does not depend on them.
fn enter(model: &Model, ids: &[u32]) -> candle_core::Result<States> {
    if model.held().is_first() {
        return model.embed(ids);
    }
    let width = model.shape().hidden;
    let numbers = (0..ids.len() * width).map(|i| (i * 7_919 % 2_048) as f32 / 1_024.0 - 1.0).collect();
    Ok(States::new(numbers, width))
}
