//! The quick start's own model.

use crate::chain::ask_chain;
use crate::desk::{answer, ask, chat, greedy, plain, ready};
use edge_node::exec::llm::{CacheForm, LayerSpan, Llm, LlmConfig, load};
use edge_node::exec::{Engine, ExecEvent};
use shared::wire::body::{Message, Prompt, Sampling};
use shared::work::Precision;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
pub(crate) const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// The model's file; nothing, with a note, where a developer has not fetched it.
pub(crate) fn path() -> Option<PathBuf> {
    let named = std::env::var_os("TIDEGATE_TEST_MODEL").map(PathBuf::from);
    let path = named.clone().unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache/models").join(FILE));
    if path.exists() {
        return Some(path);
    }
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(named.is_none() && !ci, "{} is missing: `make model` brings it", path.display());
    eprintln!("skipped: {} is missing, `make model` brings it", path.display());
    None
}

fn config(path: &Path) -> LlmConfig {
    let json = serde_json::json!({ "variant": "smollm2", "path": path, "sha256": SHA256, "hint": "make model", "context": 4096 });
    serde_json::from_value(json).expect("good")
}

fn message(role: &str, content: &str) -> Message {
    Message { role: role.to_owned(), content: content.to_owned() }
}

/// These beginnings were the same in an independent engine (llama.cpp) on the file as shipped, and each token in them leads
/// the next best by half a logit or more: rounding on another CPU does not change them.
#[tokio::test(flavor = "multi_thread")]
async fn fixed_prompts_begin_with_fixed_tokens() {
    let Some(path) = path() else { return };
    let engine = Llm::start(config(&path)).expect("starts");
    ready(&engine).await;
    let profile = engine.report().profile.expect("measured");
    println!("prompt {} decode {}, {}", profile.prompt, profile.decode, engine.report().memory);
    for (text, expected) in [
        ("What is Rust?", &[66, 467, 314, 253, 2148, 28, 904, 29, 22373, 28, 284][..]),
        ("What are the days of the week?", &[504, 2009, 282, 260, 2605, 359]),
    ] {
        let count = u32::try_from(expected.len()).expect("short");
        assert_eq!(answer(&engine, chat(text, greedy(count))).await.ids, expected, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn row_25_a_resumed_stream_is_the_unbroken_one() {
    let Some(path) = path() else { return };
    let engine = Llm::start(config(&path)).expect("starts");
    ready(&engine).await;
    let warm =
        Sampling { max_tokens: 24, seed: 8, temperature: 0.8, top_p: 0.95, repetition_penalty: 1.1, ..Sampling::default() };
    for sampling in [greedy(24), warm] {
        let whole = answer(&engine, chat("Tell me about the tide.", sampling.clone())).await;
        for cut in [1, 13] {
            let mut body = chat("Tell me about the tide.", sampling.clone());
            body.resume = whole.ids[..cut].to_vec();
            let rest = answer(&engine, body).await;
            assert_eq!((rest.ids.as_slice(), rest.ended()), (&whole.ids[cut..], whole.ended()), "cut at {cut} with {sampling:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn four_requests_at_once_get_the_tokens_of_each_alone() {
    let Some(path) = path() else { return };
    let engine = Llm::start(LlmConfig { slots: 4, ..config(&path) }).expect("starts");
    ready(&engine).await;
    let warm = |seed| Sampling { temperature: 0.9, seed, repetition_penalty: 1.1, ..greedy(40) };
    let bodies = [
        chat(PROMPTS[0], greedy(40)),
        plain(&PROMPTS.join(" "), warm(1)),
        chat(PROMPTS[10], warm(2)),
        plain(PROMPTS[7], greedy(40)),
    ];
    let mut alone = Vec::new();
    for body in &bodies {
        alone.push(answer(&engine, body.clone()).await);
    }
    let asked = bodies.map(|body| ask(&engine, body));
    for (asked, alone) in asked.into_iter().zip(alone) {
        let together = asked.all().await;
        assert_eq!((&together.ids, together.ended()), (&alone.ids, alone.ended()));
    }
}

/// Prompts of different lengths and kinds.
const PROMPTS: [&str; 16] = [
    "What is Rust?",
    "What are the days of the week?",
    "Tell me about the tide.",
    "Count from one to twenty.",
    "Translate into French: the gate is open.",
    "def fibonacci(n):",
    "Why is the sky blue? Answer in one sentence.",
    "List three fruits, then three vegetables, then three kinds of bread.",
    "2 + 2 =",
    "Grüße aus Köln! Wie heißt der Fluss?",
    "Write a haiku about a lighthouse.",
    "Explain to a child how a lock on a canal lifts a boat from low water to high water, and why no pump is needed for it.",
    "hello hello hello hello hello hello hello hello",
    "Who wrote the play about the prince of Denmark?",
    "🙂🙃 what do these mean?",
    "Give me a JSON object with the keys `name` and `age`.",
];

#[tokio::test(flavor = "multi_thread")]
async fn split_in_two_it_equals_the_whole_on_sixteen_prompts_at_three_cuts() {
    let Some(path) = path() else { return };
    let part = async |layers| {
        let engine = Llm::start(LlmConfig { layers, ..config(&path) }).expect("starts");
        ready(&engine).await;
        Arc::new(engine)
    };
    let body = |number: usize, text: &str| {
        let warm = Sampling { temperature: 0.8, top_p: 0.95, seed: number as u64, repetition_penalty: 1.1, ..greedy(12) };
        chat(text, if number.is_multiple_of(2) { greedy(12) } else { warm })
    };
    let whole = part(None).await;
    let mut expected = Vec::new();
    for (number, text) in PROMPTS.into_iter().enumerate() {
        expected.push(answer(&*whole, body(number, text)).await);
    }
    drop(whole);
    for cut in [7, 15, 24] {
        let span = |from, to| Some(LayerSpan { from, to });
        let engines = [part(span(0, cut)).await, part(span(cut, 30)).await];
        for ((number, text), whole) in PROMPTS.into_iter().enumerate().zip(&expected) {
            let split = ask_chain(&engines, &[0, cut, 30], body(number, text), Precision::F32).asked.all().await;
            assert_eq!((&split.ids, split.ended()), (&whole.ids, whole.ended()), "cut at {cut}: {text}");
            assert!(!split.ids.is_empty());
        }
    }
}

#[test]
fn logits_do_not_depend_on_how_the_prompt_is_cut() {
    let Some(path) = path() else { return };
    let (model, _) = load(&config(&path)).expect("loads");
    let ids: Vec<u32> = (0..37).map(|i| i * 7_919 % 49_152).collect();
    let logits = |chunk: usize, cut: usize| {
        let (mut cache, mut start, mut logits) = (model.cache(CacheForm::F32), 0, Vec::new());
        for ids in ids.chunks(chunk) {
            let hidden = model.embed(ids).expect("embeds");
            let hidden = model.forward(0..cut, &hidden, start, &mut cache).expect("runs");
            let hidden = model.forward(cut..model.shape().layers, &hidden, start, &mut cache).expect("runs");
            start += ids.len();
            logits = model.logits(&hidden).expect("logits");
        }
        logits
    };
    let whole = logits(37, 0);
    for (chunk, cut) in [(16, 0), (7, 11), (1, 30), (37, 15)] {
        assert!(logits(chunk, cut) == whole, "in pieces of {chunk}, layers cut at {cut}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_in_a_long_prompt_takes_two_steps_while_another_keeps_its_pace() {
    let Some(path) = path() else { return };
    let engine = Llm::start(config(&path)).expect("starts");
    ready(&engine).await;
    let mut steady = ask(&engine, chat("Write a long story.", Sampling { max_tokens: 2_000, seed: 1, ..Sampling::default() }));
    assert!(matches!(steady.next_real().await, Some(ExecEvent::Tokens(_))));
    let mut long = ask(&engine, plain(&"the tide ".repeat(1_000), greedy(5)));
    // Its first sign of life comes when its prompt has been computed on for a while; the other stream's tokens keep coming.
    let mut between = 0;
    loop {
        tokio::select! {
            Some(event) = long.events.recv() => {
                assert_eq!(event, ExecEvent::Progress);
                break;
            }
            Some(event) = steady.events.recv() => between += u32::from(matches!(event, ExecEvent::Tokens(_))),
        }
    }
    assert!(between > 0, "the other stream stood still");
    steady.fresh(2).await;
    let began = Instant::now();
    long.cancel.cancel();
    let mut tokens = 0;
    loop {
        tokio::select! {
            biased;
            event = long.events.recv() => match event {
                None => break,
                Some(event) => assert_eq!(event, ExecEvent::Progress, "its prompt was not computed yet"),
            },
            Some(event) = steady.events.recv() => tokens += u32::from(matches!(event, ExecEvent::Tokens(_))),
        }
    }
    // Steps are what the engine answers for; how long one takes is the machine's affair, about a fifteenth of a second here.
    println!("free after {:?}, {tokens} tokens of the other stream", began.elapsed());
    assert!(tokens <= 3, "{tokens} tokens of the other stream before the slot was free");
    steady.fresh(1).await;
}

#[test]
fn tokens_equal_those_of_another_tokenizer() {
    let Some(path) = path() else { return };
    let (_, texts) = load(&config(&path)).expect("loads");
    let other = another_tokenizer(&path);
    let samples = [
        "Hello, world! It's 2024-11-30, isn't it?  Two  spaces\n\n\tand tabs.  ",
        "def f(x):\n    return x**2 + 1_000  # 3.14159\r\n",
        "Grüße aus Köln – 1½ ℃, №7, Ⅷ; 日本語のテキスト、한국어 텍스트, नमस्ते दुनिया, שלום, العربية ١٢٣",
        "🙂🙃👩‍👩‍👧‍👦 e\u{301} \u{a0}\u{2003}x\u{feff}",
        "   leading and trailing   ",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "'s 't 're don't DON'T we'll I'd've",
    ];
    for sample in samples.into_iter().chain([include_str!("llm.rs")]) {
        let ours = texts.encode(&Prompt::Plain(sample.to_owned()), &mut || true).expect("encodes").expect("whole");
        let theirs = other.encode(sample, false).expect("encodes");
        assert_eq!(ours, theirs.get_ids(), "{}", sample.chars().take(60).collect::<String>());
    }
    let conversation = vec![message("user", "Hi"), message("assistant", "Hello."), message("user", "Count to 12.")];
    let ids = texts.encode(&Prompt::Chat(conversation), &mut || true).expect("encodes").expect("whole");
    // As the publisher's own tokenizer and template give them.
    let system =
        [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2, 198];
    let turns = [1, 4093, 198, 26843, 2, 198, 1, 520, 9531, 198, 19556, 30, 2, 198];
    let last = [1, 4093, 198, 9825, 288, 216, 33, 34, 30, 2, 198, 1, 520, 9531, 198];
    assert_eq!(ids, [&system[..], &turns, &last].concat());
}

/// The same vocabulary in the public `tokenizers` crate, set up as the model's publisher does.
fn another_tokenizer(path: &Path) -> tokenizers::Tokenizer {
    let mut file = std::fs::File::open(path).expect("opens");
    let content = candle_core::quantized::gguf_file::Content::read(&mut file).expect("reads");
    let texts = |key: &str| -> Vec<String> {
        let values = content.metadata[key].to_vec().expect("a list");
        values.iter().map(|value| value.to_string().expect("a text").clone()).collect()
    };
    let vocabulary: Vocab = texts("tokenizer.ggml.tokens").into_iter().zip(0..).collect();
    let merges = texts("tokenizer.ggml.merges")
        .iter()
        .filter_map(|merge| merge.split_once(' '))
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .collect();
    let model = BPE::builder().vocab_and_merges(vocabulary, merges).build().expect("a model");
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![Digits::new(true).into(), ByteLevel::new(false, true, true).into()])));
    tokenizer
}
