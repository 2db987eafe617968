//! A model cut by layers over several engines.

use crate::chain::{Chain, ask_chain, stages};
use crate::desk::{Answer, answer, greedy, header, plain, ready, settled};
use crate::llm::Lab;
use edge_node::exec::llm::{LayerSpan, Llm, LlmConfig, PrefixCache};
use edge_node::exec::{Engine, ExecEvent, Input, Job};
use shared::fleet::ReplicaState;
use shared::plan::{Failure, Finish, Reason};
use shared::units::{Bytes, Tokens};
use shared::wire::StageBody;
use shared::wire::body::Sampling;
use shared::wire::frame::Hidden;
use shared::work::{ExecHeader, LayerRange, Precision};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// One engine for each stretch between two cuts, with those layers alone.
async fn parts(lab: &Lab, cuts: &[u16]) -> Vec<Arc<Llm>> {
    let mut engines = Vec::new();
    for cut in cuts.windows(2) {
        let layers = Some(LayerSpan { from: cut[0], to: cut[1] });
        let engine = Llm::start(LlmConfig { layers, ..lab.config() }).expect("starts");
        ready(&engine).await;
        engines.push(Arc::new(engine));
    }
    engines
}

fn alike(split: &Answer, whole: &Answer) {
    assert_eq!(
        (&split.ids, &split.text, split.ended(), &split.failure),
        (&whole.ids, &whole.text, whole.ended(), &whole.failure)
    );
    assert_eq!(split.batches, whole.batches);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_and_three_stages_equal_the_whole_token_for_token() {
    let lab = Lab::new();
    let engine = lab.engine().await;
    let seeded = Sampling { max_tokens: 40, seed: 5, ..Sampling::default() };
    let penalised = Sampling { frequency_penalty: 0.5, repetition_penalty: 1.3, top_p: 0.9, ..seeded.clone() };
    let whole = answer(&engine, plain("hello", seeded.clone())).await;
    let chars: Vec<char> = whole.text.chars().collect();
    let stopped = Sampling { stop: vec![chars[chars.len() / 2..][..3].iter().collect()], ..seeded.clone() };
    let long = "In 2024, seventeen tides and a half; the gate stays closed until noon, hello! ".repeat(3);
    for cuts in [&[0, 1, 3][..], &[0, 2, 3], &[0, 1, 2, 3]] {
        let engines = parts(&lab, cuts).await;
        for (text, sampling) in [
            ("hello", greedy(30)),
            ("hello", seeded.clone()),
            ("the one and the other", penalised.clone()),
            ("hello", stopped.clone()),
            (long.as_str(), greedy(12)),
        ] {
            let whole = answer(&engine, plain(text, sampling.clone())).await;
            assert!(whole.end.is_some(), "{whole:?}");
            for resume in [0, whole.ids.len() / 2] {
                let mut body = plain(text, sampling.clone());
                body.resume = whole.ids[..resume].to_vec();
                let whole = answer(&engine, body.clone()).await;
                let Chain { asked, later, .. } = ask_chain(&engines, cuts, body, Precision::F32);
                alike(&asked.all().await, &whole);
                for stage in later {
                    let (finish, usage) = stage.await.expect("served").expect("an end").expect("no failure");
                    let (_, expected) = whole.end.expect("an end");
                    assert_eq!((finish, usage.prompt), (Finish::Stop, expected.prompt));
                    assert!(usage.output == expected.output || usage.output.0 == expected.output.0 + 1, "{usage:?} {expected:?}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_whole_replica_serves_stages_too_also_beside_others() {
    let lab = Lab::new();
    let engine = Arc::new(lab.engine().await);
    let body = || plain("the one and the other", Sampling { max_tokens: 40, seed: 2, ..Sampling::default() });
    let whole = answer(&*engine, body()).await;
    // Both stages and a request beside them are in the same engine.
    let Chain { asked, .. } = ask_chain(&[Arc::clone(&engine), Arc::clone(&engine)], &[0, 2, 3], body(), Precision::F32);
    let (split, beside) = tokio::join!(asked.all(), answer(&*engine, body()));
    alike(&split, &whole);
    alike(&beside, &whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn half_the_bytes_give_an_answer_too() {
    let lab = Lab::new();
    let engines = parts(&lab, &[0, 1, 3]).await;
    let Chain { asked, .. } = ask_chain(&engines, &[0, 1, 3], plain("hello the one", greedy(20)), Precision::F16);
    let answer = asked.all().await;
    assert!(answer.end.is_some() && !answer.ids.is_empty(), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_takes_only_its_layers_and_says_what_it_holds() {
    let lab = Lab::new();
    let part = &parts(&lab, &[1, 3]).await[0];
    let (whole, report) = (lab.engine().await.report(), part.report());
    let held = report.layers.expect("said");
    assert_eq!((held.range, held.hidden), (LayerRange { from: 1, to: 3, of: 3 }, Bytes(4 * crate::tiny::HIDDEN as u64)));
    assert!(report.memory < whole.memory, "{} of {}", report.memory, whole.memory);
    assert!(report.profile.is_some() && report.validate().is_ok());
    assert_eq!(whole.layers.map(|held| held.range), Some(LayerRange::whole(3)));

    let submit = |cuts: &[u16], stage: u8| {
        let body = plain("x", greedy(1));
        let header = header(&**part, &body);
        let stages = if cuts.is_empty() { Vec::new() } else { stages(cuts) };
        let header = ExecHeader { stages, attempt: header.attempt.at_stage(stage), ..header };
        let job = Job::whole(header, body, CancellationToken::new(), mpsc::channel(8).0);
        part.submit(job)
    };
    assert_eq!(submit(&[], 0), Err(Reason::Part(held.range)), "a whole request");
    assert_eq!(submit(&[0, 1, 3], 0), Err(Reason::Part(held.range)), "other layers");
    assert_eq!(submit(&[0, 1, 3], 1), Err(Reason::Capability("layers".to_owned())), "a text where hidden states belong");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_much_for_one_is_held_by_two() {
    let lab = Lab::new();
    let unshared = LlmConfig { prefix_cache: PrefixCache::Off, ..lab.config() };
    let engine = Llm::start(unshared).expect("starts");
    ready(&engine).await;
    let whole = engine.report().memory;
    let tight = |layers| LlmConfig { layers, memory_max: Some(Bytes(whole.0 * 3 / 4)), ..lab.config() };
    let ReplicaState::Failed(why) = settled(&Llm::start(tight(None)).expect("starts")).await.state else { panic!("fits") };
    assert!(why.contains(&format!("needs {whole}")) && why.contains("are configured") && why.contains("`layers`"), "{why}");
    let mut engines = Vec::new();
    for (from, to) in [(0, 2), (2, 3)] {
        let engine = Llm::start(tight(Some(LayerSpan { from, to }))).expect("starts");
        ready(&engine).await;
        engines.push(Arc::new(engine));
    }
    let Chain { asked, .. } = ask_chain(&engines, &[0, 2, 3], plain("hello", greedy(10)), Precision::F32);
    assert_eq!(asked.all().await.ids.len(), 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_layers_are_named_with_what_would_be_right() {
    let lab = Lab::new();
    let parse = |text: &str| serde_json::from_value::<LayerSpan>(serde_json::json!(text));
    assert_eq!(parse("0..15").expect("good"), LayerSpan { from: 0, to: 15 });
    for bad in ["0-15", "5..5", "..3", "-1..3", ""] {
        assert!(parse(bad).expect_err("bad").to_string().contains("want a range such as `0..15`"), "{bad}");
    }
    let engine = Llm::start(LlmConfig { layers: parse("1..4").ok(), ..lab.config() }).expect("starts");
    let ReplicaState::Failed(why) = settled(&engine).await.state else { panic!("loads") };
    assert!(why.contains("want a range within 0..3"), "{why}");
}

/// A last stage that is sent hidden states by hand.
struct ByHand {
    hidden: mpsc::Sender<Hidden>,
    events: mpsc::Receiver<ExecEvent>,
    cancel: CancellationToken,
}

fn by_hand(engine: &Llm, length_max: u32) -> ByHand {
    let (hidden, inbox) = mpsc::channel(4);
    let (sink, events) = mpsc::channel(4);
    let cancel = CancellationToken::new();
    let body = plain("x", greedy(9));
    let first = ExecHeader { stages: stages(&[0, 1, 3]), ..header(engine, &body) };
    let stage = StageBody { sampling: body.sampling, prompt: Vec::new(), resume: Vec::new(), length_max };
    let input = Input::Stage(Box::new(stage), inbox);
    let job = Job { header: first.next_stage().expect("two"), input, cancel: cancel.clone(), sink, next: None };
    engine.submit(job).expect("a slot");
    ByHand { hidden, events, cancel }
}

fn frame(start: u32, count: u16, draw: bool) -> Hidden {
    Hidden { start, count, draw, bytes: vec![0; usize::from(count) * crate::tiny::HIDDEN * 4] }
}

impl ByHand {
    async fn next(&mut self) -> Option<ExecEvent> {
        let next = async {
            loop {
                match self.events.recv().await {
                    Some(ExecEvent::Progress) => {}
                    other => return other,
                }
            }
        };
        tokio::time::timeout(crate::desk::PATIENCE, next).await.expect("an event in time")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_hidden_states_end_their_own_request_only() {
    let lab = Lab::new();
    let engine = parts(&lab, &[1, 3]).await.remove(0);
    let mut good = by_hand(&engine, 64);
    let cut = Hidden { bytes: vec![0; 5], ..frame(0, 1, true) };
    for bad in [frame(1, 1, true), frame(0, 0, true), frame(0, 17, true), cut] {
        let mut hand = by_hand(&engine, 16);
        hand.hidden.send(bad.clone()).await.expect("room");
        let event = hand.next().await;
        assert!(
            matches!(&event, Some(ExecEvent::Failed(Failure::Engine(why))) if why.contains("the stage before")),
            "{bad:?} {event:?}"
        );
        assert_eq!(hand.next().await, None);
    }
    let mut late = by_hand(&engine, 16);
    late.hidden.send(frame(0, 16, true)).await.expect("room");
    assert!(matches!(late.next().await, Some(ExecEvent::Drawn(_))));
    late.hidden.send(frame(16, 1, true)).await.expect("room");
    assert!(matches!(late.next().await, Some(ExecEvent::Failed(_))), "beyond the length that was agreed");
    good.hidden.send(frame(0, 40, true)).await.expect("room");
    assert!(matches!(good.next().await, Some(ExecEvent::Drawn(_))));
    drop(good.hidden);
    let end = tokio::time::timeout(crate::desk::PATIENCE, good.events.recv()).await.expect("in time");
    let Some(ExecEvent::End(Finish::Stop, usage)) = end else { panic!("{end:?}") };
    assert_eq!((usage.prompt, usage.output), (Tokens(40), Tokens(1)));
    let mut large = by_hand(&engine, 1 << 20);
    let (wanted, context) = (Tokens(1 << 20), Tokens(crate::tiny::CONTEXT as u32));
    assert_eq!(large.next().await, Some(ExecEvent::Failed(Failure::Refused(Reason::Context { wanted, context }))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_or_a_stop_ends_a_stage_that_waits() {
    let lab = Lab::new();
    let engine = parts(&lab, &[1, 3]).await.remove(0);
    let mut cancelled = by_hand(&engine, 64);
    cancelled.hidden.send(frame(0, 1, true)).await.expect("room");
    assert!(matches!(cancelled.next().await, Some(ExecEvent::Drawn(_))));
    cancelled.cancel.cancel();
    assert_eq!(cancelled.next().await, None);
    let mut stopped = by_hand(&engine, 64);
    stopped.hidden.send(frame(0, 1, true)).await.expect("room");
    assert!(matches!(stopped.next().await, Some(ExecEvent::Drawn(_))));
    engine.shutdown(Duration::from_secs(2)).await.expect("in time");
    assert_eq!(stopped.next().await, Some(ExecEvent::Failed(Failure::Refused(Reason::Draining))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_stage_that_is_lost_ends_the_first_with_its_word() {
    let lab = Lab::new();
    let engines = parts(&lab, &[0, 1, 3]).await;
    let body = || plain("hello", Sampling { max_tokens: 3_000, ..Sampling::default() });
    let Chain { mut asked, .. } = ask_chain(&engines, &[0, 1, 3], body(), Precision::F32);
    asked.fresh(1).await;
    engines[1].shutdown(Duration::from_secs(2)).await.expect("in time");
    let answer = asked.all().await;
    assert_eq!(answer.failure, Some(Failure::Refused(Reason::Draining)));
    // And one whose way is closed without a word.
    let Chain { asked, later, .. } = ask_chain(&engines, &[0, 1, 3], body(), Precision::F32);
    later.iter().for_each(tokio::task::JoinHandle::abort);
    assert!(matches!(asked.all().await.failure, Some(Failure::Engine(_) | Failure::Refused(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_later_stage_frees_its_slot_and_ends_the_first() {
    let lab = Lab::new();
    let engines = parts(&lab, &[0, 1, 3]).await;
    let body = plain("hello", Sampling { max_tokens: 3_000, ..Sampling::default() });
    let Chain { mut asked, later, cancels } = ask_chain(&engines, &[0, 1, 3], body, Precision::F32);
    asked.fresh(1).await;
    cancels[0].cancel();
    assert_eq!(later.into_iter().next().expect("one").await.expect("served"), None, "not a word after a cancel");
    assert!(matches!(asked.all().await.failure, Some(Failure::Engine(why)) if why.contains("next stage")));
}
