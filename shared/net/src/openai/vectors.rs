//! A whole answer of vectors. Engines send each as the object that the client will see; it is carried as text, since a number that is
//! read and written again costs much and may change.

use super::progress::Story;
use super::shape::Envelope;
use serde::Serialize;
use serde_json::value::RawValue;
use shared::plan::{Failure, Usage};
use shared::wire::frame::TokenBatch;

/// Largest answer that is put together in memory: two thousand vectors of some thousand numbers.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The vectors of one answer so far.
#[derive(Debug, Default)]
pub(super) struct Vectors {
    data: Vec<Box<RawValue>>,
    bytes: usize,
}

#[derive(Serialize)]
struct Answer<'a> {
    object: &'static str,
    data: &'a [Box<RawValue>],
    model: &'a str,
    usage: Counted,
    tidegate: &'a Story<'a>,
}

#[derive(Serialize)]
struct Counted {
    prompt_tokens: u32,
    total_tokens: u32,
}

impl Vectors {
    /// Adds one; batches without any are signs of life.
    pub(super) fn add(&mut self, batch: TokenBatch) -> Result<(), Failure> {
        let Some(text) = batch.delta else { return Ok(()) };
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes > ANSWER_BYTES_MAX {
            return Err(Failure::Engine(format!("an answer of more than {ANSWER_BYTES_MAX} bytes")));
        }
        let vector = RawValue::from_string(text).map_err(|_| Failure::Engine("a vector that is no JSON".to_owned()))?;
        self.data.push(vector);
        Ok(())
    }

    /// The body of the answer.
    pub(super) fn body(&self, envelope: &Envelope, usage: Usage, tidegate: &Story<'_>) -> Result<Vec<u8>, Failure> {
        let counted = Counted { prompt_tokens: usage.prompt.0, total_tokens: usage.prompt.0 };
        let answer = Answer { object: "list", data: &self.data, model: &envelope.model, usage: counted, tidegate };
        serde_json::to_vec(&answer).map_err(|_| Failure::Engine("vectors that cannot be written".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::progress::Progress;
    use super::*;
    use shared::ids::RequestId;
    use shared::units::Tokens;
    use shared::work::PromptKind;
    use std::time::Instant;

    fn batch(delta: &str) -> TokenBatch {
        TokenBatch { count: 0, ids: Vec::new(), text: String::new(), delta: Some(delta.to_owned()) }
    }

    #[test]
    fn numbers_stay_as_they_were_written() {
        let mut vectors = Vectors::default();
        vectors.add(batch(r#"{"object":"embedding","index":0,"embedding":[0.10000000000000000001,1e-9]}"#)).expect("good");
        assert!(vectors.add(batch("{")).is_err());
        let envelope = Envelope { kind: PromptKind::Embedding, id: RequestId(1), created: 0, model: "m".to_owned() };
        let usage = Usage { prompt: Tokens(3), ..Usage::default() };
        let progress = Progress::new(RequestId(1), Instant::now(), None);
        let story = progress.object(Instant::now(), false);
        let body = String::from_utf8(vectors.body(&envelope, usage, &story).expect("written")).expect("text");
        assert!(body.contains("[0.10000000000000000001,1e-9]") && body.contains(r#""prompt_tokens":3"#), "{body}");
    }
}
