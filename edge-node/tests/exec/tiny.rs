//! A tiny llama-family model in f32, written as a GGUF file, and a forward pass of its own in naive loops to judge by.

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use std::collections::BTreeMap;
use std::path::Path;

pub(crate) const LAYERS: usize = 3;
pub(crate) const HIDDEN: usize = 32;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const HEAD: usize = 8;
pub(crate) const INNER: usize = 64;
pub(crate) const CONTEXT: usize = 4_096;
pub(crate) const ROPE_BASE: f64 = 10_000.0;
pub(crate) const EPSILON: f64 = 1e-5;

const MERGES: [(&str, &str); 8] =
    [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "t"), ("Ġt", "he"), ("o", "n"), ("Ġ", "o")];
pub(crate) const CONTROLS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}\
     {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// All weights by the name that they have in the file: shape and values.
pub(crate) struct Tiny {
    weights: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    pub(crate) vocabulary: Vec<String>,
}

impl Tiny {
    pub(crate) fn new(seed: u64) -> Self {
        let vocabulary = vocabulary();
        let mut tiny = Self { weights: BTreeMap::new(), vocabulary };
        let mut state = seed;
        let words = tiny.vocabulary.len();
        tiny.add("token_embd.weight", &[words, HIDDEN], 1.0, 0.0, &mut state);
        tiny.add("output.weight", &[words, HIDDEN], 1.0, 0.0, &mut state);
        tiny.add("output_norm.weight", &[HIDDEN], 0.3, 1.0, &mut state);
        for layer in 0..LAYERS {
            let shapes: [(&str, &[usize], f32, f32); 9] = [
                ("attn_norm", &[HIDDEN], 0.3, 1.0),
                ("attn_q", &[HEADS * HEAD, HIDDEN], 0.4, 0.0),
                ("attn_k", &[KV_HEADS * HEAD, HIDDEN], 0.4, 0.0),
                ("attn_v", &[KV_HEADS * HEAD, HIDDEN], 0.4, 0.0),
                ("attn_output", &[HIDDEN, HEADS * HEAD], 0.4, 0.0),
                ("ffn_norm", &[HIDDEN], 0.3, 1.0),
                ("ffn_gate", &[INNER, HIDDEN], 0.4, 0.0),
                ("ffn_up", &[INNER, HIDDEN], 0.4, 0.0),
                ("ffn_down", &[HIDDEN, INNER], 0.4, 0.0),
            ];
            for (name, shape, spread, middle) in shapes {
                tiny.add(&format!("blk.{layer}.{name}.weight"), shape, spread, middle, &mut state);
            }
        }
        tiny
    }

    fn add(&mut self, name: &str, shape: &[usize], spread: f32, middle: f32, state: &mut u64) {
        let count = shape.iter().product();
        let values = (0..count).map(|_| middle + spread * (next(state) * 2.0 - 1.0)).collect();
        self.weights.insert(name.to_owned(), (shape.to_vec(), values));
    }

    /// Writes the model. Matrices are stored as `form`, vectors in f32.
    pub(crate) fn write(&self, path: &Path, form: GgmlDType) {
        let tensors: Vec<(&str, QTensor)> = self
            .weights
            .iter()
            .map(|(name, (shape, values))| {
                let tensor = Tensor::from_vec(values.clone(), shape.as_slice(), &Device::Cpu).expect("a tensor");
                let form = if shape.len() == 1 { GgmlDType::F32 } else { form };
                (name.as_str(), QTensor::quantize(&tensor, form).expect("quantises"))
            })
            .collect();
        let text = |text: &str| Value::String(text.to_owned());
        let count = |count: usize| Value::U32(count as u32);
        let kinds = (0..self.vocabulary.len()).map(|id| Value::I32(if id < CONTROLS.len() { 3 } else { 1 })).collect();
        let merges = MERGES.iter().map(|(left, right)| text(&format!("{left} {right}"))).collect();
        let metadata = [
            ("general.architecture", text("llama")),
            ("llama.block_count", count(LAYERS)),
            ("llama.context_length", count(CONTEXT)),
            ("llama.embedding_length", count(HIDDEN)),
            ("llama.feed_forward_length", count(INNER)),
            ("llama.attention.head_count", count(HEADS)),
            ("llama.attention.head_count_kv", count(KV_HEADS)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(EPSILON as f32)),
            ("llama.rope.dimension_count", count(HEAD)),
            ("llama.rope.freq_base", Value::F32(ROPE_BASE as f32)),
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text("smollm")),
            ("tokenizer.ggml.tokens", Value::Array(self.vocabulary.iter().map(|token| text(token)).collect())),
            ("tokenizer.ggml.token_type", Value::Array(kinds)),
            ("tokenizer.ggml.merges", Value::Array(merges)),
            ("tokenizer.ggml.eos_token_id", count(2)),
            ("tokenizer.chat_template", text(TEMPLATE)),
        ];
        let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (*key, value)).collect();
        let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let mut file = std::fs::File::create(path).expect("a file");
        gguf_file::write(&mut file, &metadata, &tensors).expect("written");
    }

    fn weight(&self, name: &str) -> &[f32] {
        &self.weights[name].1
    }

    /// Logits after each of these tokens.
    pub(crate) fn logits(&self, ids: &[u32]) -> Vec<Vec<f64>> {
        let embedding = self.weight("token_embd.weight");
        let row = |id: u32| embedding[id as usize * HIDDEN..][..HIDDEN].iter().map(|x| f64::from(*x)).collect();
        let mut states: Vec<Vec<f64>> = ids.iter().map(|id| row(*id)).collect();
        for layer in 0..LAYERS {
            self.layer(layer, &mut states);
        }
        let head = self.weight("output.weight");
        states.iter().map(|state| product(head, &norm(state, self.weight("output_norm.weight")))).collect()
    }

    fn layer(&self, layer: usize, states: &mut [Vec<f64>]) {
        let weight = |part: &str| self.weight(&format!("blk.{layer}.{part}.weight"));
        let normed: Vec<Vec<f64>> = states.iter().map(|state| norm(state, weight("attn_norm"))).collect();
        let part = |name: &str, turned: bool| -> Vec<Vec<f64>> {
            let rows = normed.iter().enumerate().map(|(position, x)| {
                let y = product(weight(name), x);
                if turned { turn(&y, position) } else { y }
            });
            rows.collect()
        };
        let (queries, keys, values) = (part("attn_q", true), part("attn_k", true), part("attn_v", false));
        for (position, state) in states.iter_mut().enumerate() {
            let mut mixed = vec![0.0; HEADS * HEAD];
            for head in 0..HEADS {
                let shared = head / (HEADS / KV_HEADS);
                let query = &queries[position][head * HEAD..][..HEAD];
                let scores: Vec<f64> = (0..=position)
                    .map(|other| dot(query, &keys[other][shared * HEAD..][..HEAD]) / (HEAD as f64).sqrt())
                    .collect();
                let largest = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                for (other, weight) in weights.iter().enumerate() {
                    for i in 0..HEAD {
                        mixed[head * HEAD + i] += weight / total * values[other][shared * HEAD + i];
                    }
                }
            }
            add(state, &product(weight("attn_output"), &mixed));
            let normed = norm(state, weight("ffn_norm"));
            let (gate, up) = (product(weight("ffn_gate"), &normed), product(weight("ffn_up"), &normed));
            let inner: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            add(state, &product(weight("ffn_down"), &inner));
        }
    }

    /// Greedy continuation until an end token or `count` tokens.
    pub(crate) fn greedy(&self, prompt: &[u32], count: usize) -> Vec<u32> {
        let mut ids = prompt.to_vec();
        while ids.len() < prompt.len() + count {
            let logits = self.logits(&ids).pop().expect("a prompt");
            let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(id, _)| id);
            if best == 0 || best == 2 {
                break;
            }
            ids.push(best as u32);
        }
        ids.split_off(prompt.len())
    }
}

fn vocabulary() -> Vec<String> {
    let mut tokens: Vec<String> = CONTROLS.iter().map(|control| (*control).to_owned()).collect();
    // The printable stand-ins of the 256 bytes, in no particular order.
    let printable = (0x21..=0x7e).chain(0xa1..=0xac).chain(0xae..=0xff);
    let others = 0x100..0x100 + (256 - (0x7f - 0x21) - (0xad - 0xa1) - (0x100 - 0xae));
    tokens.extend(printable.chain(others).filter_map(char::from_u32).map(String::from));
    tokens.extend(MERGES.iter().map(|(left, right)| format!("{left}{right}")));
    tokens
}

fn next(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 40) as f32 / (1 << 24) as f32
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(a: &mut [f64], b: &[f64]) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
}

fn product(matrix: &[f32], x: &[f64]) -> Vec<f64> {
    matrix.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
}

fn norm(x: &[f64], weight: &[f32]) -> Vec<f64> {
    let scale = (dot(x, x) / x.len() as f64 + EPSILON).sqrt().recip();
    x.iter().zip(weight).map(|(x, w)| x * scale * f64::from(*w)).collect()
}

/// Rotates neighbouring pairs of each head by their position.
fn turn(x: &[f64], position: usize) -> Vec<f64> {
    let mut turned = x.to_vec();
    for head in turned.chunks_exact_mut(HEAD) {
        for (i, pair) in head.chunks_exact_mut(2).enumerate() {
            let angle = position as f64 * ROPE_BASE.powf(-2.0 * i as f64 / HEAD as f64);
            let (a, b) = (pair[0], pair[1]);
            pair[0] = a * angle.cos() - b * angle.sin();
            pair[1] = a * angle.sin() + b * angle.cos();
        }
    }
    turned
}

/// Copies a model with another chat template.
pub(crate) fn with_template(from: &Path, to: &Path, template: &str) {
    let mut file = std::fs::File::open(from).expect("is there");
    let content = gguf_file::Content::read(&mut file).expect("a model");
    let template = Value::String(template.to_owned());
    let replaced = |(key, value)| if key == "tokenizer.chat_template" { (key, &template) } else { (key, value) };
    let metadata: Vec<(&str, &Value)> = content.metadata.iter().map(|(key, value)| replaced((key.as_str(), value))).collect();
    let tensors: Vec<(&str, QTensor)> = content
        .tensor_infos
        .keys()
        .map(|name| (name.as_str(), content.tensor(&mut file, name, &Device::Cpu).expect("a tensor")))
        .collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let mut file = std::fs::File::create(to).expect("a file");
    gguf_file::write(&mut file, &metadata, &tensors).expect("written");
}
