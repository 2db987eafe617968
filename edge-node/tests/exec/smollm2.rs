//! The quick start's own model.

use crate::desk::{answer, ask, ask_with, chat, greedy, header, ready};
use edge_node::exec::llm::{Llm, LlmConfig, load};
use edge_node::exec::{Engine, ExecEvent};
use shared::wire::body::{Message, Prompt, Sampling};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// The model's file; nothing, with a note, where a developer has not fetched it.
fn path() -> Option<PathBuf> {
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

#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_prompt_gives_fixed_tokens() {
    let Some(path) = path() else { return };
    let engine = Llm::start(config(&path)).expect("starts");
    ready(&engine).await;
    println!("{:?}", engine.report());
    let answer = answer(&engine, chat("What is the capital of France?", greedy(48))).await;
    println!("{} {:?} {:?}", answer.text, answer.ids, answer.end);
    println!("{:?}", engine.report().profile);
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
    println!("{ids:?}");
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
