//! The official Python client against the front. The same script runs against a real agent and hub; here it shows that the
//! front alone keeps the API, and that the script itself is right.

use crate::client::PATIENCE;
use crate::fake::{Fake, Line, assigned, fail, start, tokens};
use shared::plan::{Failure, Finish, Usage};
use shared::units::Tokens;
use shared_net::openai::{Answer, Ask, Exposure, FrontConfig, key_sha256};

const WORDS: [&str; 8] = [" tide", " gate", " sea", " moon", " ebb", " salt", " buoy", " reef"];
const CONTEXT: u32 = 2_048;
/// Longer streams than this pause in the middle for ever, as a slow engine would: their client leaves before the end, and the sockets
/// between could otherwise hold all of it.
const PAUSE_AFTER: u32 = 1_000;

/// An engine of eight words: draws by seed, ends at stop texts and at the limit, and counts.
fn babble(ask: &Ask) -> Vec<Line> {
    let (sampling, prompt) = (&ask.body.sampling, ask.request.prompt);
    if prompt.0 > CONTEXT {
        return vec![fail(Failure::PromptTooLong { prompt, context: Tokens(CONTEXT) })];
    }
    let mut state = sampling.seed;
    let (mut text, mut lines) = (String::new(), vec![assigned(0, "one")]);
    let (mut finish, mut output) = (Finish::Length, 0);
    while output < sampling.max_tokens {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = WORDS[usize::try_from(state >> 61).expect("three bits")];
        output += 1;
        let longer = format!("{text}{word}");
        if sampling.stop.iter().any(|stop| longer.contains(stop.as_str())) {
            finish = Finish::Stop;
            break;
        }
        text = longer;
        lines.push(tokens(word));
        if ask.request.stream && output == PAUSE_AFTER {
            lines.push(Line::Silence);
        }
    }
    lines.push(Line::Say(Answer::Finish(finish, Usage { prompt, output: Tokens(output), cached: Tokens(0) })));
    lines
}

/// Wants an interpreter with the `openai` package in `TIDEGATE_PYTHON`.
#[tokio::test]
#[ignore = "needs an interpreter with the `openai` package, named by TIDEGATE_PYTHON"]
async fn the_official_client_is_content() {
    let python = std::env::var("TIDEGATE_PYTHON").expect("TIDEGATE_PYTHON names an interpreter that has the `openai` package");
    let config = FrontConfig { api_keys_sha256: vec![key_sha256("sk-test")], ..FrontConfig::default() };
    let fake = Fake::new(|ask| Ok(babble(ask)));
    let served = start(&fake, config, Exposure::Network).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/python/openai_client.py");
    let base = format!("http://{}/v1", served.address);
    let running = tokio::process::Command::new(python)
        .args([script, "--base-url", &base, "--api-key", "sk-test", "--model", "assistant", "--expect-key"])
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE * 6, running).await.expect("the script ends").expect("the script starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    // The script leaves one stream in the middle.
    fake.wait_for(|ends| ends.abandoned == 1).await;
}
