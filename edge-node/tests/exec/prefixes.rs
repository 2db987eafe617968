//! Prompts that begin like earlier ones.

use crate::desk::{Answer, answer, ask, greedy, plain, ready};
use crate::llm::Lab;
use edge_node::exec::llm::{Llm, LlmConfig, PrefixCache};
use edge_node::exec::{Engine, ExecEvent};
use shared::units::{Bytes, Tokens};
use shared::wire::body::Sampling;

/// Tokens that are kept together.
const BLOCK: u32 = 32;

async fn start(config: LlmConfig) -> Llm {
    let engine = Llm::start(config).expect("starts");
    ready(&engine).await;
    engine
}

fn cached(answer: &Answer) -> u32 {
    answer.end.expect("an end").1.cached.0
}

/// What a client sees, but for how much of it was computed.
fn seen(answer: &Answer) -> (&[u32], &str, Tokens) {
    (&answer.ids, &answer.text, answer.end.expect("an end").1.prompt)
}

const STORY: &str = "The tide comes in and the tide goes out, and the gate opens and closes with the water; hello! ";

#[tokio::test(flavor = "multi_thread")]
async fn a_known_beginning_is_not_computed_again_and_changes_nothing() {
    let lab = Lab::new();
    let fresh = start(LlmConfig { prefix_cache: PrefixCache::Off, ..lab.config() }).await;
    let engine = lab.engine().await;
    let seeded = Sampling { max_tokens: 50, seed: 4, repetition_penalty: 1.2, ..Sampling::default() };
    let first = answer(&engine, plain(STORY, seeded.clone())).await;
    assert_eq!(cached(&first), 0);
    // The next turn: all of the conversation, and something new. Then the same once more, and a prompt that parts early.
    let next = format!("{STORY}{}And what then?", first.text);
    let other = format!("{}quite another thing", &STORY[..50]);
    for (text, least) in [(next.as_str(), STORY.len() as u32), (next.as_str(), STORY.len() as u32), (other.as_str(), BLOCK)] {
        let (again, alone) =
            (answer(&engine, plain(text, seeded.clone())).await, answer(&fresh, plain(text, seeded.clone())).await);
        assert_eq!(seen(&again), seen(&alone));
        assert_eq!(cached(&alone), 0);
        assert!(cached(&again) + BLOCK > least * 3 / 4, "{} of {least}", cached(&again));
        assert!(cached(&again) < again.end.expect("an end").1.prompt.0, "the last token is computed");
    }
    let reuse = engine.reuse().expect("known");
    assert_eq!((reuse.hits, reuse.misses, reuse.evicted), (3, 1, 0));
    assert!(reuse.blocks > 0 && reuse.tokens >= u64::from(BLOCK));
    assert_eq!(fresh.reuse().map(|reuse| (reuse.hits, reuse.misses, reuse.blocks)), Some((0, 0, 0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_once_share_a_beginning_and_a_resumed_one_finds_it() {
    let lab = Lab::new();
    let engine = lab.engine().await;
    let body = |seed| plain(STORY, Sampling { max_tokens: 40, seed, ..Sampling::default() });
    let mut running = ask(&engine, body(1));
    let Some(ExecEvent::Tokens(_)) = running.next_real().await else { panic!("no token") };
    // The other's prompt is known as soon as it is computed, while its answer still grows.
    let beside = answer(&engine, body(2)).await;
    assert!(cached(&beside) >= 2 * BLOCK, "{}", cached(&beside));
    running.all().await;
    let mut resumed = body(2);
    resumed.resume = beside.ids[..10].to_vec();
    let rest = answer(&engine, resumed).await;
    assert_eq!(rest.ids, beside.ids[10..]);
    assert!(cached(&rest) > 0 && cached(&rest) <= rest.end.expect("an end").1.prompt.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_counted_and_what_is_old_gives_way() {
    let lab = Lab::new();
    let off = start(LlmConfig { prefix_cache: PrefixCache::Off, ..lab.config() }).await.report().memory;
    let sized = |mb| LlmConfig { prefix_cache_mb: Some(mb), ..lab.config() };
    let engine = start(sized(1)).await;
    assert_eq!(engine.report().memory, off + Bytes(1 << 20));
    // Three layers of two heads, keys and values of eight numbers: 12 KiB a block, so 85 blocks.
    for seed in 0..12_u64 {
        let text = format!("{seed} {}", STORY.repeat(5));
        assert_eq!(answer(&engine, plain(&text, greedy(1))).await.end.expect("an end").1.cached, Tokens(0));
    }
    let reuse = engine.reuse().expect("known");
    assert!(reuse.evicted > 0 && reuse.blocks <= 85, "{reuse:?}");
    let recent = answer(&engine, plain(&format!("11 {}", STORY.repeat(5)), greedy(1))).await;
    let old = answer(&engine, plain(&format!("0 {}", STORY.repeat(5)), greedy(1))).await;
    assert!(cached(&recent) > 0 && cached(&old) == 0);

    // Asked for by name it must fit; else it takes what is left.
    let tight = Some(off + Bytes(1 << 19));
    let refused = Llm::start(LlmConfig { memory_max: tight, ..sized(1) }).expect("starts");
    let why = format!("{:?}", crate::desk::settled(&refused).await.state);
    assert!(why.contains("not enough memory") && why.contains("beginnings of prompts"), "{why}");
    let spare = start(LlmConfig { memory_max: tight, ..lab.config() }).await;
    assert_eq!(spare.report().memory, off + Bytes(1 << 18));
}
