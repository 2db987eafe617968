//! A client that leaves while its long prompt is being computed by a real model, and another whose stream goes on meanwhile.

use futures_util::StreamExt;
use scenarios::emulate::wait::until;
use serde_json::{Value, json};
use shared::units::Tokens;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tests::{SOON, World, llm, service};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// One token each.
const PROMPT_WORDS: usize = 2_000;
/// Wide enough for the guess of a prompt's length that is made before anybody counts.
const CONTEXT: u32 = 8_192;
/// From the issue, for a machine with nothing else to do.
const FREE_WITHIN: Duration = Duration::from_millis(500);
/// What holds on a busy machine too. A step gives the other stream one token and computes a small piece of the prompt; the cancel
/// is seen between steps. A few more may pass until the close is noticed and the status is asked.
const FREE_WITHIN_TOKENS: u64 = 8;
/// The rest of the prompt when the client leaves would take far more steps than this.
const TOKENS_BEFORE: u64 = 3;

fn chat(content: &str, max_tokens: u32) -> Value {
    json!({"model": "s", "stream": true, "max_tokens": max_tokens, "seed": 1, "messages": [{"role": "user", "content": content}]})
}

/// A request on a connection of its own, so that it is known when it closes.
async fn leave_open(base: &str, body: &Value) -> TcpStream {
    let address = base.trim_start_matches("http://");
    let body = body.to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.expect("connects");
    stream.write_all(format!("{head}{body}").as_bytes()).await.expect("written");
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn row_23_a_long_prompt_is_given_up_at_once_and_the_other_stream_goes_on() {
    let mut wide = service("s", &[("v", 50)]);
    wide.variants.iter_mut().for_each(|variant| variant.context = Tokens(CONTEXT));
    let mut world = World::new(vec![wide], "").await;
    let engine = llm("v", 2).replace("context = 2048", &format!("context = {CONTEXT}"));
    let edge = world.agent("bay/edge-1", &engine).await;
    world.until_ready(&edge, "s").await;
    let base = world.base(&edge);
    let response = world.client.http().post(format!("{base}/v1/chat/completions")).json(&chat("Write a long story.", 1_500));
    let mut steady = response.send().await.expect("sent").bytes_stream();
    let tokens = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&tokens);
    let reader = tokio::spawn(async move {
        while let Some(bytes) = steady.next().await {
            let text = String::from_utf8_lossy(&bytes.expect("the steady stream")).into_owned();
            counted.fetch_add(text.matches("\"content\"").count() as u64, Ordering::Relaxed);
        }
    });
    let seen = || tokens.load(Ordering::Relaxed);
    reach(&tokens, 2).await;
    let long = leave_open(&base, &chat(&"the ".repeat(PROMPT_WORDS), 5)).await;
    let both = until("both requests on the engine", SOON, || async {
        let active = world.active(&edge).await;
        if active == 2 { Ok(()) } else { Err(format!("{active} active after {} tokens of the steady stream", seen())) }
    });
    both.await.unwrap_or_else(|late| panic!("{late}"));
    reach(&tokens, seen() + TOKENS_BEFORE).await;
    assert_eq!(world.active(&edge).await, 2, "its prompt is not through yet");
    let (before, left) = (seen(), Instant::now());
    drop(long);
    let freed = until("a free slot", SOON, || async {
        let active = world.active(&edge).await;
        if active == 1 { Ok(left.elapsed()) } else { Err(format!("{active} active")) }
    });
    let (took, _) = freed.await.unwrap_or_else(|late| panic!("{late}"));
    let between = seen() - before;
    println!("free {took:?} after the close, {between} tokens of the other stream between");
    assert!(took < FREE_WITHIN || between <= FREE_WITHIN_TOKENS, "{took:?}, {between} tokens");
    reach(&tokens, seen() + 3).await;
    assert!(!reader.is_finished(), "the other stream goes on");
    reader.abort();
}

async fn reach(tokens: &AtomicU64, count: u64) {
    let reached = until(format!("{count} tokens of the steady stream"), SOON, || async {
        let now = tokens.load(Ordering::Relaxed);
        if now >= count { Ok(()) } else { Err(format!("{now} tokens")) }
    });
    reached.await.unwrap_or_else(|late| panic!("{late}"));
}
