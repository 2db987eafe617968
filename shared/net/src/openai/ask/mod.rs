//! From the JSON of a client to an [`Ask`]. Pure: id, seed and catalogue are arguments. Nothing is guessed: what cannot be served
//! as asked is refused by the name of the parameter.

mod features;
mod needs;
mod sampling;
mod text;

use super::Ask;
use super::error::{ApiError, INVALID};
use super::json::Members;
use axum::http::{HeaderMap, StatusCode};
use shared::ids::{RequestId, VariantId};
use shared::units::{Bytes, Tokens};
use shared::wire::Body;
use shared::work::{Catalogue, LlmRequest, Named, PromptKind, Service};

/// A request that was understood, with what only the front needs to know.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) ask: Ask,
    /// `model` as the client named it; the answer repeats it.
    pub(super) model: String,
    /// Whether a stream ends with a chunk of usage.
    pub(super) include_usage: bool,
}

/// Chance, drawn by the caller: the request's name, and the seed of its draws when the client gave none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chance {
    pub(super) id: RequestId,
    pub(super) seed: u64,
}

/// Reads a request.
pub(super) fn read(
    kind: PromptKind,
    bytes: &[u8],
    headers: &HeaderMap,
    catalogue: &Catalogue,
    chance: Chance,
) -> Result<Call, ApiError> {
    let members = Members::of_body(bytes)?;
    let model =
        members.string("model")?.ok_or_else(|| members.wrong("model", "the name of a model: GET /v1/models lists them"))?;
    let (service, pinned) = resolve(catalogue, &model)?;
    let text = text::read(kind, &members)?;
    let asked = features::read(kind, &members, text.tool_calls, text.images)?;
    let wishes = needs::read(&members, headers)?;
    let context_max = context_max(service, pinned.as_ref());
    let drawn = sampling::read(kind, &members, context_max, chance.seed, wishes.repetition_penalty)?;
    let mut features = asked.features;
    features.penalties = drawn.penalties();
    features.stop = !drawn.sampling.stop.is_empty();
    features.unseeded = drawn.unseeded;
    let (stream, include_usage) = streaming(&members)?;
    let vectors = kind == PromptKind::Embedding;
    if vectors && stream {
        return Err(members.wrong("stream", "it left out: vectors come at once"));
    }
    let output_max = if vectors { Tokens(0) } else { Tokens(drawn.sampling.max_tokens) };
    let body = Body { prompt: text.prompt, sampling: drawn.sampling, passthrough: asked.passthrough, resume: Vec::new() };
    let request = LlmRequest {
        id: chance.id,
        service: service.id.clone(),
        pinned,
        kind,
        prompt: text.tokens,
        output_max,
        features,
        stream,
        body: size(&body)?,
        needs: wishes.needs,
        likely: shared::work::Likely::default(),
    };
    Ok(Call { ask: Ask { request, body }, model, include_usage })
}

fn resolve<'a>(catalogue: &'a Catalogue, model: &str) -> Result<(&'a Service, Option<VariantId>), ApiError> {
    match catalogue.resolve(model) {
        Some(Named::Service(service)) => Ok((service, None)),
        Some(Named::Variant(service, variant)) => Ok((service, Some(variant.id.clone()))),
        None => Err(unknown_model(model)),
    }
}

/// The error for a model that is not in the catalogue.
pub(super) fn unknown_model(model: &str) -> ApiError {
    let shown: String = model.chars().filter(|c| !c.is_control()).take(60).collect();
    let message = format!("the model `{shown}` does not exist here: GET /v1/models lists those that do");
    ApiError::new(StatusCode::NOT_FOUND, INVALID, "model_not_found", message).at("model")
}

/// The largest context that could serve: no answer is longer, whatever the client allows.
fn context_max(service: &Service, pinned: Option<&VariantId>) -> Tokens {
    let fits = service.variants.iter().filter(|variant| pinned.is_none_or(|pinned| *pinned == variant.id));
    fits.map(|variant| variant.context).max().unwrap_or_default()
}

fn streaming(members: &Members<'_>) -> Result<(bool, bool), ApiError> {
    let stream = members.boolean("stream")?.unwrap_or(false);
    let Some(options) = members.object("stream_options")? else { return Ok((stream, false)) };
    if !stream {
        return Err(members.wrong("stream_options", "`stream`: true with it"));
    }
    Ok((stream, options.boolean("include_usage")?.unwrap_or(false)))
}

/// The size that would travel. It may exceed what came in: tool calls travel as text and verbatim.
fn size(body: &Body) -> Result<Bytes, ApiError> {
    match body.encoded_len() {
        Ok(bytes) => Ok(Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))),
        Err(_) => Err(too_large(shared::wire::body::BODY_BYTES_MAX)),
    }
}

/// The error for a body beyond the limit.
pub(super) fn too_large(bytes_max: usize) -> ApiError {
    let message = format!("the request body is too large: want at most {bytes_max} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, "body_too_large", message)
}

#[cfg(test)]
mod tests;
