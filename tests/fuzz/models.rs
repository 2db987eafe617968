//! Damaged model files: the sizes, lists and texts in their headers come from wherever the file came from.

use crate::dice::Run;
use edge_node::exec::llm::{CacheForm, LlmConfig, load};
use serde_json::json;
use shared::wire::body::{Message, Prompt};
use std::fs;
use std::path::Path;

/// Most of the header of the reference files lies before this.
const HEADER: usize = 16 * 1024;

fn seeds() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../edge-node/tests/reference");
    ["llama", "qwen2", "qwen3", "sentencepiece"]
        .map(|name| fs::read(folder.join(format!("{name}.gguf"))).expect("is committed"))
        .into()
}

fn config(path: &Path) -> LlmConfig {
    // No model here needs more: a file that claims to is refused by its figures.
    serde_json::from_value(json!({ "variant": "damaged", "path": path, "memory_max": 64 << 20, "slots": 1 })).expect("good")
}

/// A file that still loads must also run.
fn try_out(path: &Path) -> bool {
    let Ok((model, texts)) = load(&config(path)) else { return false };
    let message = Message { role: "user".to_owned(), content: "tide <|im_end|> 123".to_owned() };
    for prompt in [Prompt::Plain("The tide  rises\n".to_owned()), Prompt::Chat(vec![message])] {
        let ids = texts.encode(&prompt, &mut || true).ok().flatten().unwrap_or_default();
        let mut cache = model.cache(CacheForm::F32);
        if let Ok(hidden) = model.embed(ids.get(..ids.len().min(8)).unwrap_or_default())
            && let Ok(hidden) = model.forward(0..model.shape().layers, &hidden, 0, &mut cache)
        {
            let _logits = model.logits(&hidden);
        }
    }
    true
}

#[test]
fn damaged_model_files_are_refused_or_run() {
    let (mut run, seeds) = (Run::new("models"), seeds());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("damaged.gguf");
    let mut loaded = 0;
    while run.again() {
        let mut bytes = seeds[run.rounds % seeds.len()].clone();
        // The first round takes each file as it is, so that a target which refuses everything is found out.
        if run.rounds > seeds.len() {
            run.damage(&mut bytes, HEADER);
        }
        fs::write(&path, &bytes).expect("written");
        loaded += usize::from(try_out(&path));
    }
    assert!(loaded > 0, "nothing was loaded at all");
}
