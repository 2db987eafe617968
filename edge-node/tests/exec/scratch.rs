use edge_node::exec::llm::{CacheForm, LlmConfig, load};
use shared::wire::body::{Message, Prompt};
#[test]
fn margins() {
    let json =
        serde_json::json!({ "variant": "smollm2", "path": std::env::var("TIDEGATE_TEST_MODEL").expect("x"), "context": 4096 });
    let config: LlmConfig = serde_json::from_value(json).expect("good");
    let (model, texts) = load(&config).expect("loads");
    for prompt in [
        "What is the capital of France?",
        "Say hello.",
        "Write a short poem about the sea.",
        "Count from one to ten.",
        "What is 2 + 2?",
    ] {
        let message = Message { role: "user".to_owned(), content: prompt.to_owned() };
        let ids = texts.encode(&Prompt::Chat(vec![message]), &mut || true).unwrap().unwrap();
        let mut cache = model.cache(CacheForm::F32);
        let mut out = Vec::new();
        let mut margins = Vec::new();
        let mut chunk = ids.clone();
        let mut at = 0;
        for _ in 0..24 {
            let h = model.embed(&chunk).unwrap();
            let h = model.forward(0..model.shape().layers, &h, at, &mut cache).unwrap();
            at += chunk.len();
            let l = model.logits(&h).unwrap();
            let mut order: Vec<usize> = (0..l.len()).collect();
            order.sort_by(|a, b| l[*b].total_cmp(&l[*a]));
            margins.push((l[order[0]] - l[order[1]]).to_string().chars().take(5).collect::<String>());
            out.push(order[0] as u32);
            chunk = vec![order[0] as u32];
        }
        let bytes: Vec<u8> = out.iter().flat_map(|id| texts.tokenizer().bytes(*id)).copied().collect();
        println!("{prompt}\n{} {out:?}\n{}", String::from_utf8_lossy(&bytes), margins.join(" "));
    }
}

#[test]
fn drift() {
    let json =
        serde_json::json!({ "variant": "smollm2", "path": std::env::var("TIDEGATE_TEST_MODEL").expect("x"), "context": 4096 });
    let config: LlmConfig = serde_json::from_value(json).expect("good");
    let (model, texts) = load(&config).expect("loads");
    let message = Message { role: "user".to_owned(), content: "What is the capital of France?".to_owned() };
    let ids = texts.encode(&Prompt::Chat(vec![message]), &mut || true).unwrap().unwrap();
    println!("{ids:?}");
    for chunk in [37, 37, 16, 16, 1, 1, 7] {
        let mut cache = model.cache(CacheForm::F32);
        let mut at = 0;
        let mut l = Vec::new();
        for c in ids.chunks(chunk) {
            let h = model.embed(c).unwrap();
            let h = model.forward(0..model.shape().layers, &h, at, &mut cache).unwrap();
            at += c.len();
            l = model.logits(&h).unwrap();
        }
        println!(
            "chunk {chunk}: The {} [60] {} 0:{} 1000:{} sum {}",
            l[504],
            l[60],
            l[0],
            l[1000],
            l.iter().map(|x| f64::from(*x)).sum::<f64>()
        );
    }
}
