//! llama.cpp with nothing around it: the loop that its own examples have, over its batch interface.

use super::worker::{Answered, CONTEXT, SLOTS, Subject, Task};
use llama_cpp_2::LogOptions;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use std::error::Error;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Instant;

/// Tokens of one pass at most; llama.cpp's own default for what is computed at once.
const BATCH: usize = 512;

/// A loaded model with a context for all requests. Both live as long as the process.
pub(crate) struct Bare {
    model: &'static LlamaModel,
    context: LlamaContext<'static>,
}

impl Bare {
    pub(crate) fn load(model: &Path, threads: usize) -> Result<Self, Box<dyn Error>> {
        llama_cpp_2::send_logs_to_tracing(LogOptions::default().with_logs_enabled(false));
        let backend = LlamaBackend::init()?;
        let params = LlamaModelParams::default().with_n_gpu_layers(0);
        let model: &'static LlamaModel = Box::leak(Box::new(LlamaModel::load_from_file(&backend, model, &params)?));
        let threads = i32::try_from(threads)?;
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(CONTEXT * SLOTS as u32))
            .with_n_seq_max(SLOTS as u32)
            .with_n_batch(BATCH as u32)
            .with_n_ubatch(BATCH as u32)
            .with_n_threads(threads)
            .with_n_threads_batch(threads);
        let context = model.new_context(&backend, params)?;
        Ok(Self { model, context })
    }
}

impl Subject for Bare {
    fn run(&mut self, task: &Task) -> Result<Vec<Answered>, Box<dyn Error>> {
        let context = &mut self.context;
        context.clear_kv_cache();
        let vocabulary = self.model.vocab();
        let prompts: Vec<Vec<LlamaToken>> = task
            .prompts
            .iter()
            .map(|prompt| vocabulary.tokenize(prompt.as_bytes(), vocabulary.should_add_bos(), false))
            .collect();
        let mut run = Run { batch: LlamaBatch::new(BATCH, 1), drawn: vec![None; prompts.len()], rows: Vec::new() };
        let mut answers: Vec<Answered> = prompts
            .iter()
            .map(|prompt| Answered { prompt_tokens: u32::try_from(prompt.len()).unwrap_or(0), came: Vec::new() })
            .collect();
        for (request, prompt) in prompts.iter().enumerate() {
            for (position, token) in prompt.iter().enumerate() {
                run.add(*token, position, request, position + 1 == prompt.len())?;
                if run.full() {
                    run.pass(context, &mut answers)?;
                }
            }
        }
        run.pass(context, &mut answers)?;
        for step in 1..task.tokens as usize {
            for (request, prompt) in prompts.iter().enumerate() {
                let token = run.drawn.get(request).copied().flatten().ok_or("no token was drawn")?;
                run.add(token, prompt.len() + step - 1, request, true)?;
            }
            run.pass(context, &mut answers)?;
        }
        Ok(answers)
    }
}

/// The state of a run.
struct Run {
    batch: LlamaBatch<'static>,
    /// The last token of each request.
    drawn: Vec<Option<LlamaToken>>,
    /// Which request has its logits in which row.
    rows: Vec<(usize, i32)>,
}

impl Run {
    fn add(&mut self, token: LlamaToken, position: usize, request: usize, logits: bool) -> Result<(), Box<dyn Error>> {
        if logits {
            self.rows.push((request, self.batch.n_tokens()));
        }
        self.batch.add(token, i32::try_from(position)?, &[i32::try_from(request)?], logits)?;
        Ok(())
    }

    fn full(&self) -> bool {
        usize::try_from(self.batch.n_tokens()).is_ok_and(|tokens| tokens == BATCH)
    }

    /// Computes what was added, and takes the likeliest token of each row.
    fn pass(&mut self, context: &mut LlamaContext<'_>, answers: &mut [Answered]) -> Result<(), Box<dyn Error>> {
        if self.batch.n_tokens() == 0 {
            return Ok(());
        }
        context.decode(&mut self.batch)?;
        for (request, row) in self.rows.drain(..) {
            let logits = context.get_logits_ith(row).iter().zip(0..);
            let best = logits.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, id)| LlamaToken(id));
            if let (Some(drawn), Some(answer)) = (self.drawn.get_mut(request), answers.get_mut(request)) {
                *drawn = best;
                answer.came.push(Instant::now());
            }
        }
        self.batch.clear();
        Ok(())
    }
}
