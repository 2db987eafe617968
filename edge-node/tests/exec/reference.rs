//! The engine against a well-known library: tiny models of each family, whose files and answers lie in `tests/reference`.

use edge_node::exec::llm::{CacheForm, LlmConfig, load};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Largest difference of a logit that is rounding: both sides compute in f32, in another order. Logits lie within about ±10.
const DIFFERENCE_MAX: f32 = 2e-3;
/// A greedy choice is compared only where the two likeliest tokens are further apart than rounding could move them.
const MARGIN_MIN: f32 = 2.0 * DIFFERENCE_MAX;

/// What the library said.
#[derive(Deserialize)]
struct Reference {
    texts: Vec<Text>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Text {
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    logits: Vec<f32>,
    greedy: Vec<u32>,
    margins: Vec<f32>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference")
}

fn reference(name: &str) -> Reference {
    let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).expect("is committed");
    serde_json::from_str(&text).expect("as the recipe writes it")
}

fn config(name: &str) -> LlmConfig {
    let path = folder().join(format!("{name}.gguf"));
    serde_json::from_value(serde_json::json!({ "variant": name, "path": path })).expect("good")
}

fn check_logits(name: &str) {
    let (model, _) = load(&config(name)).expect("loads");
    for case in reference(name).cases {
        let (mut cache, mut ids, mut start) = (model.cache(CacheForm::F32), case.prompt.clone(), 0);
        let mut likeliest = Vec::new();
        for (step, margin) in case.margins.iter().enumerate() {
            let hidden = model.embed(ids.get(start..).expect("within")).expect("embeds");
            let hidden = model.forward(0..model.shape().layers, &hidden, start, &mut cache).expect("runs");
            let logits = model.logits(&hidden).expect("logits");
            if step == 0 {
                let differences = logits.iter().zip(&case.logits).map(|(own, theirs)| (own - theirs).abs());
                let largest = differences.fold(0.0, f32::max);
                assert_eq!(logits.len(), case.logits.len());
                assert!(largest <= DIFFERENCE_MAX, "{name}, {} tokens: a logit differs by {largest}", case.prompt.len());
            }
            let best = logits.iter().zip(0..).max_by(|a, b| a.0.total_cmp(b.0)).expect("some").1;
            if *margin < MARGIN_MIN {
                break;
            }
            likeliest.push(best);
            start = ids.len();
            ids.push(best);
        }
        assert_eq!(likeliest, case.greedy.get(..likeliest.len()).expect("as many"), "{name}");
        assert!(!likeliest.is_empty(), "{name}: no choice was clear enough to compare");
    }
}

fn check_ids(name: &str) {
    let (_, texts) = load(&config(name)).expect("loads");
    let tokenizer = texts.tokenizer();
    for Text { text, ids } in reference(name).texts {
        let mut own = Vec::new();
        let controls = tokenizer.control_texts().any(|control| text.contains(control));
        if controls {
            own = template(&texts, &text);
        } else {
            tokenizer.encode(&text, &mut || true, &mut own).expect("goes on");
        }
        assert_eq!(own, ids, "{name}: {text:?}");
        let bytes: Vec<u8> = own.iter().flat_map(|id| tokenizer.bytes(*id).to_vec()).collect();
        let plain = String::from_utf8(bytes).expect("the text again");
        assert!(controls || plain.trim_start() == text.trim_start(), "{name}: {text:?} comes back as {plain:?}");
    }
}

/// The one text with control tokens is what the template makes of one message.
fn template(texts: &edge_node::exec::llm::Texts, text: &str) -> Vec<u32> {
    use shared::wire::body::{Message, Prompt};
    let content = text.split_once("user\n").and_then(|(_, rest)| rest.split_once("<|im_end|>")).expect("of this form").0;
    let message = Message { role: "user".to_owned(), content: content.to_owned() };
    texts.encode(&Prompt::Chat(vec![message]), &mut || true).expect("encodes").expect("goes on")
}

#[test]
fn llama_equals_the_reference() {
    check_logits("llama");
    check_ids("llama");
}

#[test]
fn qwen2_equals_the_reference() {
    check_logits("qwen2");
    check_ids("qwen2");
}

#[test]
fn qwen3_equals_the_reference() {
    check_logits("qwen3");
    check_ids("qwen3");
}

#[test]
fn sentence_pieces_equal_the_reference() {
    check_logits("sentencepiece");
    check_ids("sentencepiece");
}

/// The wish for a form is followed: fewer bits take less memory and say something a little different.
#[test]
fn wished_forms_of_weights_differ() {
    let with = |form: &str| {
        let path = folder().join("qwen2.gguf");
        let json = serde_json::json!({ "variant": "qwen2", "path": path, "weights": form });
        load(&serde_json::from_value(json).expect("good")).expect("loads").0
    };
    let logits = |form: &str| {
        let model = with(form);
        let hidden = model.embed(&[5, 9, 17]).expect("embeds");
        let mut cache = model.cache(CacheForm::F32);
        model.logits(&model.forward(0..model.shape().layers, &hidden, 0, &mut cache).expect("runs")).expect("logits")
    };
    let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
    let (exact, eight, four) = (logits("f32"), logits("q8_0"), logits("q4_0"));
    assert_eq!(exact, logits("auto"), "the file is in f32");
    assert!(distance(&exact, &eight) > 0.0 && distance(&exact, &eight) < distance(&exact, &four));
}

/// What templates of these families do beyond plain loops: reversed slices, namespaces, tests of types, methods of strings.
#[test]
fn templates_may_use_what_those_of_qwen3_use() {
    use shared::wire::body::{Message, Prompt};
    const TEMPLATE: &str = concat!(
        "{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}",
        "{%- set ns = namespace(last=messages|length - 1) %}",
        "{%- for message in messages[::-1] %}",
        "{%- set index = (messages|length - 1) - loop.index0 %}",
        "{%- if message.role == 'user' and message.content is string and not message.content.startswith('<tool') %}",
        "{%- set ns.last = index %}{%- endif %}{%- endfor %}",
        "{%- for message in messages %}{%- if not loop.first or message.role != 'system' %}",
        "{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}",
        "{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}{%- endif %}{%- endfor %}",
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}",
        "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}",
    );
    let folder_ = tempfile::tempdir().expect("a folder");
    let path = folder_.path().join("templated.gguf");
    crate::tiny::with_template(&folder().join("qwen3.gguf"), &path, TEMPLATE);
    let json = serde_json::json!({ "variant": "qwen3", "path": path });
    let (_, texts) = load(&serde_json::from_value(json).expect("good")).expect("loads");
    let message = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
    let turns = vec![
        message("system", "Be brief."),
        message("user", "When?"),
        message("assistant", "<think>hm</think>\nAt six."),
        message("user", "Sure?"),
    ];
    let ids = texts.encode(&Prompt::Chat(turns), &mut || true).expect("encodes").expect("goes on");
    let tokenizer = texts.tokenizer();
    let shown =
        |id: &u32| tokenizer.control_text(*id).map_or_else(|| tokenizer.bytes(*id).to_vec(), |text| text.as_bytes().to_vec());
    let rendered = String::from_utf8(ids.iter().flat_map(shown).collect()).expect("text");
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhen?<|im_end|>\n\
         <|im_start|>assistant\nAt six.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rendered, expected);
}
