//! A first look at a freshly loaded model, or the layers of it that are held, so that decisions have a speed to go by from the first
//! request on. It is short, because nothing is served meanwhile; the survey finds the rest.

use super::config::{CacheForm, ModelError};
use super::model::{Model, States};
use super::worker::CHUNK_TOKENS_MAX;
use shared::estimate::Guess;
use std::time::Instant;

/// Tokens of the measured prompt: two pieces as real prompts are computed.
const PROMPT_TOKENS: usize = 2 * CHUNK_TOKENS_MAX;
/// Tokens generated after it.
const DECODE_TOKENS: usize = 8;
/// Tokens of each kind in the round before, which warms memory and threads and is thrown away.
const WARM_TOKENS: usize = 2;

/// Warms memory and threads.
pub(super) fn touch(model: &Model, form: CacheForm, go_on: &dyn Fn() -> bool) -> Result<(), ModelError> {
    round(model, form, WARM_TOKENS, WARM_TOKENS, go_on).map(|_| ())
}

/// Runs a short sequence and says how fast it was.
pub(super) fn measure(model: &Model, form: CacheForm, go_on: &dyn Fn() -> bool) -> Result<Guess, ModelError> {
    touch(model, form, go_on)?;
    round(model, form, PROMPT_TOKENS, DECODE_TOKENS, go_on)
}

fn round(model: &Model, form: CacheForm, prompt: usize, decode: usize, go_on: &dyn Fn() -> bool) -> Result<Guess, ModelError> {
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
    let prompt_seconds = began.elapsed().as_secs_f64() / ids.len() as f64;

    let began = Instant::now();
    let mut decoded = 0;
    while decoded < decode && position < shape.context {
        if !go_on() {
            return Err(ModelError::Stopped);
        }
        let hidden = model.forward(layers.clone(), &enter(model, &[id(position)])?, position, &mut cache)?;
        if model.held().is_last() {
            model.logits(&hidden)?;
        }
        (position, decoded) = (position + 1, decoded + 1);
    }
    // A context of one token has no room for an answer; the prompt's pace is then all there is.
    let decode_seconds = if decoded == 0 { prompt_seconds } else { began.elapsed().as_secs_f64() / decoded as f64 };
    let chunk = u32::try_from(CHUNK_TOKENS_MAX).unwrap_or(u32::MAX);
    Ok(Guess { prompt: prompt_seconds, decode: decode_seconds, chunk })
}

/// Hidden states of tokens; where the first layer is held elsewhere, some numbers of the same kind: speed does not depend on them.
pub(super) fn enter(model: &Model, ids: &[u32]) -> candle_core::Result<States> {
    if model.held().is_first() {
        return model.embed(ids);
    }
    let width = model.shape().hidden;
    let numbers = (0..ids.len() * width).map(|i| (i * 7_919 % 2_048) as f32 / 1_024.0 - 1.0).collect();
    Ok(States::new(numbers, width))
}
