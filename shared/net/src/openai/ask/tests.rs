use super::*;
use axum::http::HeaderValue;
use serde_json::{Value, json};
use shared::ids::ServiceId;
use shared::units::{Micros, Quality};
use shared::wire::body::Prompt;
use shared::work::{Priority, Residency, Variant};

fn catalogue() -> Catalogue {
    let variant = |id: &str, context| Variant {
        id: VariantId::new(id).expect("good"),
        weights_sha256: None,
        quantisation: "q8_0".to_owned(),
        context: Tokens(context),
        memory: Bytes(0),
        quality: Quality::new(0.5).expect("good"),
        quality_source: "test".to_owned(),
    };
    let service = Service {
        id: ServiceId::new("assistant").expect("good"),
        aliases: vec![ServiceId::new("gpt-4o").expect("good")],
        variants: vec![variant("small", 2_048), variant("large", 8_192)],
    };
    Catalogue::new([service]).expect("good")
}

const CHANCE: Chance = Chance { id: RequestId(7), seed: 99 };

fn read_with(kind: PromptKind, body: &Value, headers: &[(&'static str, &str)]) -> Result<Call, ApiError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_str(value).expect("a header can hold it"));
    }
    read(kind, body.to_string().as_bytes(), &map, &catalogue(), CHANCE)
}

/// A chat with more members.
fn chat(more: Value) -> Result<Call, ApiError> {
    read_with(
        PromptKind::Chat,
        &merged(json!({"model": "assistant", "messages": [{"role": "user", "content": "hi"}]}), more),
        &[],
    )
}

fn completion(more: Value) -> Result<Call, ApiError> {
    read_with(PromptKind::Completion, &merged(json!({"model": "assistant", "prompt": "hi"}), more), &[])
}

fn merged(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn param(result: Result<Call, ApiError>) -> String {
    let error = result.expect_err("refused");
    assert_eq!(error.status.as_u16(), 400, "{error}");
    error.param.expect("a parameter is named")
}

#[test]
fn defaults_are_openais() {
    let call = chat(json!({})).expect("good");
    let (request, body) = (&call.ask.request, &call.ask.body);
    assert_eq!((request.id, request.service.as_str(), &request.pinned), (RequestId(7), "assistant", &None));
    assert_eq!((request.output_max, body.sampling.max_tokens), (Tokens(256), 256));
    assert_eq!((body.sampling.temperature, body.sampling.top_p, body.sampling.seed), (1.0, 1.0, 99));
    assert!(request.features.unseeded && !request.features.penalties && !request.features.stop && !request.stream);
    assert_eq!(request.prompt, Tokens(1 + 4 + 3));
    assert!(request.body.0 > 0);
    assert_eq!(body.passthrough, None);
}

#[test]
fn models_are_resolved() {
    let call = chat(json!({"model": "gpt-4o"})).expect("an alias");
    assert_eq!((call.model.as_str(), call.ask.request.service.as_str()), ("gpt-4o", "assistant"));
    let call = chat(json!({"model": "large"})).expect("a variant");
    assert_eq!(call.ask.request.pinned.as_ref().map(VariantId::as_str), Some("large"));
    let error = chat(json!({"model": "no\u{1b}pe"})).expect_err("unknown");
    assert_eq!((error.status.as_u16(), error.code), (404, "model_not_found"));
    assert!(error.message.contains("`nope`"), "control characters do not come back: {error}");
    assert_eq!(param(chat(json!({"model": 3}))), "model");
    assert_eq!(param(chat(json!({"model": null}))), "model");
}

#[test]
fn messages_are_text_in_known_roles() {
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let call = chat(json!({"messages": [{"role": "developer", "content": parts}]})).expect("good");
    let Prompt::Chat(messages) = &call.ask.body.prompt else { panic!("a chat") };
    assert_eq!((messages[0].role.as_str(), messages[0].content.as_str()), ("system", "a\nb"));
    let image = json!([{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {"data": "x"}}]);
    for (messages, at) in [
        (json!([]), "messages"),
        (json!("hi"), "messages"),
        (json!(null), "messages"),
        (json!([3]), "messages[0]"),
        (json!([{"role": "user"}]), "messages[0].content"),
        (json!([{"role": "user", "content": null}]), "messages[0].content"),
        (json!([{"role": "user", "content": []}]), "messages[0].content"),
        (json!([{"role": "user", "content": {"a": 1}}]), "messages[0].content"),
        (json!([{"role": "king", "content": "x"}]), "messages[0].role"),
        (json!([{"role": "user", "content": "x"}, {"role": "user", "content": image}]), "messages[1].content[1].type"),
    ] {
        assert_eq!(param(chat(json!({"messages": messages}))), at);
    }
}

#[test]
fn prompts_are_one_text() {
    let call = completion(json!({"prompt": ["one"]})).expect("an array of one");
    assert!(matches!(&call.ask.body.prompt, Prompt::Plain(text) if text == "one"));
    for prompt in [json!(null), json!(""), json!([]), json!(["a", "b"]), json!([1, 2]), json!([[1]]), json!([3]), json!(3)] {
        assert_eq!(param(completion(json!({"prompt": prompt}))), "prompt");
    }
}

#[test]
fn numbers_have_bounds() {
    for (name, bad) in [
        ("temperature", json!([-0.1, 2.1, 1e300, "1", [1]])),
        ("top_p", json!([-0.1, 1.1, "1"])),
        ("frequency_penalty", json!([-2.1, 2.1])),
        ("presence_penalty", json!([-2.1, 2.1])),
        ("max_tokens", json!([0, -1, 1.5, 1e18, "9"])),
        ("max_completion_tokens", json!([0, 1e300])),
        ("n", json!([0, 129, 1.5])),
        ("seed", json!([1.5, 1e300, "x"])),
        ("top_logprobs", json!([21, -1])),
        ("stream", json!([1, "true"])),
    ] {
        for value in bad.as_array().expect("an array") {
            assert_eq!(param(chat(json!({name: value}))), name, "{value}");
        }
    }
    let call =
        chat(json!({"temperature": 0, "top_p": 0, "seed": -1, "max_tokens": 5, "max_completion_tokens": 6})).expect("good");
    let sampling = &call.ask.body.sampling;
    assert_eq!((sampling.seed, sampling.max_tokens), (u64::MAX, 6));
    assert!(sampling.top_p > 0.0, "engines want a mass above zero");
    assert!(!call.ask.request.features.unseeded);
}

#[test]
fn answers_are_no_longer_than_the_context() {
    assert_eq!(chat(json!({"max_tokens": 1_000_000})).expect("good").ask.request.output_max, Tokens(8_192));
    let pinned = chat(json!({"model": "small", "max_tokens": 1_000_000})).expect("good");
    assert_eq!((pinned.ask.request.output_max, pinned.ask.body.sampling.max_tokens), (Tokens(2_048), 2_048));
}

#[test]
fn stop_texts_are_few_and_short() {
    assert_eq!(chat(json!({"stop": "x"})).expect("good").ask.body.sampling.stop, ["x"]);
    let call = chat(json!({"stop": ["a", "b"]})).expect("good");
    assert!(call.ask.request.features.stop);
    assert_eq!(call.ask.body.sampling.stop, ["a", "b"]);
    for bad in [json!(""), json!(["a", ""]), json!(["a", "b", "c", "d", "e"]), json!(3), json!([3]), json!("x".repeat(600))] {
        assert_eq!(param(chat(json!({"stop": bad}))), "stop");
    }
}

#[test]
fn features_travel_by_flag_and_text() {
    let tool = json!([{"type": "function", "function": {"name": "clock"}}]);
    let call = chat(json!({"tools": tool, "tool_choice": "auto", "n": 2, "logprobs": true, "top_logprobs": 3,
        "response_format": {"type": "json_object"}, "presence_penalty": 1}))
    .expect("good");
    let features = call.ask.request.features;
    assert!(features.tools && features.many && features.logprobs && features.constrained && features.penalties);
    let passed: Value = serde_json::from_str(call.ask.body.passthrough.as_deref().expect("passed on")).expect("JSON");
    assert_eq!((&passed["tools"], &passed["n"], &passed["top_logprobs"]), (&tool, &json!(2), &json!(3)));
    assert_eq!(passed["messages"][0]["content"], "hi", "calls in messages have no other way");

    let called = json!([{"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}, {"role": "tool", "content": "4"}]);
    assert!(chat(json!({"messages": called})).expect("good").ask.request.features.tools);
    assert!(completion(json!({"logprobs": 0})).expect("good").ask.request.features.logprobs);
}

#[test]
fn neutral_values_ask_for_nothing() {
    let call = chat(json!({"n": 1, "logprobs": false, "top_logprobs": 0, "tools": [], "tool_choice": "none",
        "response_format": {"type": "text"}, "logit_bias": {}, "modalities": ["text"], "user": "me", "store": true,
        "service_tier": "auto", "metadata": {"a": "b"}, "stop": null, "unheard_of": 1}))
    .expect("good");
    let features = call.ask.request.features;
    assert!(!(features.tools || features.many || features.logprobs || features.constrained));
    assert_eq!(call.ask.body.passthrough, None);
    assert!(completion(json!({"suffix": "", "echo": false, "best_of": 1})).is_ok());
}

#[test]
fn what_no_engine_serves_is_refused_by_name() {
    for (name, value) in [
        ("logit_bias", json!({"50256": -100})),
        ("suffix", json!("end")),
        ("echo", json!(true)),
        ("best_of", json!(3)),
        ("modalities", json!(["text", "audio"])),
        ("audio", json!({"voice": "x"})),
        ("web_search_options", json!({})),
    ] {
        let error = completion(json!({name: value})).expect_err("refused");
        assert_eq!((error.code, error.param.as_deref()), ("unsupported_parameter", Some(name)));
        assert!(error.message.contains(name), "{error}");
    }
    assert_eq!(param(chat(json!({"response_format": {"type": "xml"}}))), "response_format.type");
    assert_eq!(param(chat(json!({"tool_choice": "required"}))), "tool_choice");
    assert_eq!(param(chat(json!({"top_logprobs": 2}))), "top_logprobs");
    assert_eq!(param(chat(json!({"stream_options": {"include_usage": true}}))), "stream_options");
}

#[test]
fn usage_is_asked_for_with_a_stream() {
    let call = chat(json!({"stream": true, "stream_options": {"include_usage": true}})).expect("good");
    assert!(call.ask.request.stream && call.include_usage);
    assert!(!chat(json!({"stream": true})).expect("good").include_usage);
}

#[test]
fn needs_come_from_the_body() {
    let call = chat(json!({"tidegate": {"first_token_ms": 250, "per_token_ms": 12.5, "deadline_ms": 4_000, "priority": 9,
        "energy_joules": 3.5, "money_microdollars": 20, "min_quality": 0.4, "residency": "site", "session": "tea",
        "repetition_penalty": 1.1}}))
    .expect("good");
    let needs = &call.ask.request.needs;
    assert_eq!(needs.slo.first_token, Some(Micros::from_millis(250)));
    assert_eq!(needs.slo.per_token, Some(Micros(12_500)));
    assert_eq!(needs.slo.end_to_end, Some(Micros::from_secs(4)));
    assert_eq!(needs.slo.priority, Priority::new(9).expect("good"));
    assert_eq!(needs.slo.energy.map(shared::units::Joules::get), Some(3.5));
    assert_eq!(needs.slo.money.map(|money| money.0), Some(20));
    assert_eq!(needs.slo.min_quality.get(), 0.4);
    assert_eq!(needs.residency, Residency::Site);
    assert_eq!(needs.session, Some(0xa9f7_4d1e_c36e_bdeb), "the first eight bytes of SHA-256 of `tea`");
    assert_eq!(call.ask.body.sampling.repetition_penalty, 1.1);
    assert!(call.ask.request.features.penalties);
}

#[test]
fn needs_come_from_headers_and_the_body_wins() {
    let body = json!({"model": "assistant", "prompt": "hi", "tidegate": {"priority": 7}});
    let headers = [
        ("x-tidegate-deadline-ms", "1500"),
        ("x-tidegate-priority", "2"),
        ("x-tidegate-residency", "node"),
        ("x-tidegate-session", "42"),
        ("x-tidegate-min-quality", " 0.25 "),
    ];
    let needs = read_with(PromptKind::Completion, &body, &headers).expect("good").ask.request.needs;
    assert_eq!(needs.slo.end_to_end, Some(Micros::from_millis(1_500)));
    assert_eq!(needs.slo.priority, Priority::new(7).expect("good"));
    assert_eq!((needs.residency, needs.slo.min_quality.get()), (Residency::Node, 0.25));
    assert!(needs.session.is_some(), "a session of digits is a text all the same");
}

#[test]
fn of_two_residencies_the_stricter_wins() {
    for (header, body, wins) in
        [("node", "anywhere", Residency::Node), ("site", "node", Residency::Node), ("node", "site", Residency::Node)]
    {
        let body = json!({"model": "assistant", "prompt": "hi", "tidegate": {"residency": body}});
        let read = read_with(PromptKind::Completion, &body, &[("x-tidegate-residency", header)]).expect("good");
        assert_eq!(read.ask.request.needs.residency, wins, "{header}");
    }
}

#[test]
fn bad_needs_name_their_field() {
    for (name, bad) in [
        ("deadline_ms", json!([0, -1, 1e12, "9", 1e-9])),
        ("priority", json!([10, -1, 1.5])),
        ("energy_joules", json!([-1, 1e300])),
        ("money_microdollars", json!([-1, 1.5])),
        ("min_quality", json!([1.5, -0.1])),
        ("residency", json!(["moon", 3])),
        ("session", json!(["", 3])),
        ("repetition_penalty", json!([0, 11, -1])),
        ("deadline", json!([5])),
    ] {
        for value in bad.as_array().expect("an array") {
            assert_eq!(param(chat(json!({"tidegate": {name: value}}))), format!("tidegate.{name}"), "{value}");
        }
    }
    assert_eq!(param(chat(json!({"tidegate": 3}))), "tidegate");
    let body = json!({"model": "assistant", "prompt": "hi"});
    for (name, value) in [
        ("x-tidegate-deadline-ms", "soon"),
        ("x-tidegate-deadline-ms", "-3"),
        ("x-tidegate-deadline-ms", "NaN"),
        ("x-tidegate-deadline-ms", "1, 2"),
        ("x-tidegate-priority", "\"3\""),
        ("x-tidegate-residency", "{}"),
        ("x-tidegate-residencey", "node"),
    ] {
        assert_eq!(param(read_with(PromptKind::Completion, &body, &[(name, value)])), name, "{value}");
    }
    let twice = [("x-tidegate-priority", "1"), ("x-tidegate-priority", "2")];
    assert_eq!(param(read_with(PromptKind::Completion, &body, &twice)), "x-tidegate-priority");
}

/// Bodies with a few bytes changed, cut or doubled: each is read or refused, and none is a panic. Deterministic; the seed is printed.
#[test]
fn mutilated_bodies_are_read_or_refused() {
    let whole = json!({"model": "assistant", "messages": [{"role": "user", "content": [{"type": "text", "text": "é\u{1f30a}"}]},
        {"role": "assistant", "tool_calls": [{"id": "1"}]}], "tools": [{"type": "function"}], "stop": ["a"], "seed": 1e3, "n": 2,
        "temperature": 0.5, "stream": true, "stream_options": {"include_usage": true}, "response_format": {"type": "json_object"},
        "tidegate": {"deadline_ms": 1, "priority": 3, "residency": "site", "session": "s"}})
    .to_string()
    .into_bytes();
    let seed = 0x7469_6465_u64;
    println!("seed {seed:#x}");
    let mut state = seed;
    let mut draw = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).expect("31 bits") % below
    };
    let (headers, catalogue) = (HeaderMap::new(), catalogue());
    let mut good = 0;
    for _ in 0..20_000 {
        let mut body = whole.clone();
        for _ in 0..=draw(3) {
            let at = draw(body.len());
            match draw(4) {
                0 => body[at] = u8::try_from(draw(256)).expect("a byte"),
                1 => body[at] = b"{}[]\",:0-e"[draw(10)],
                2 => drop(body.drain(at..(at + 1 + draw(4)).min(body.len()))),
                _ => body.extend_from_within(at..),
            }
            if body.is_empty() {
                break;
            }
        }
        match read(PromptKind::Chat, &body, &headers, &catalogue, CHANCE) {
            Ok(_) => good += 1,
            Err(error) => assert!(matches!(error.status.as_u16(), 400 | 404), "{error}"),
        }
    }
    assert!((1..20_000).contains(&good), "{good} were read: the changes are neither always nor never harmless");
}

#[test]
fn no_error_repeats_the_text() {
    let canary = "canary-8472";
    for body in [
        json!({"model": "assistant", "messages": [{"role": canary, "content": canary}]}),
        json!({"model": "assistant", "messages": canary}),
        json!({"model": "assistant", "messages": [canary]}),
        json!({"model": "assistant", "messages": [{"role": "user", "content": [{"type": canary, "text": canary}]}]}),
        json!({"model": "assistant", "messages": [{"role": "user", "content": canary}], "temperature": canary}),
        json!({"model": "assistant", "messages": [{"role": "user", "content": canary}], "stop": [canary, ""]}),
        json!({"model": "assistant", "messages": [{"role": "user", "content": canary}], "tools": canary}),
    ] {
        let error = read_with(PromptKind::Chat, &body, &[]).expect_err("refused");
        assert!(!error.to_string().contains(canary) && !error.param.as_deref().unwrap_or("").contains(canary), "{error}");
    }
}

#[test]
fn pictures_travel_with_their_messages_and_are_reckoned_with() {
    let picture = |url: Value| json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": url}}]);
    let body = |content: Value| json!({"model": "assistant", "messages": [{"role": "user", "content": content}]});
    let plain = read_with(PromptKind::Chat, &body(json!("a")), &[]).expect("good");
    let call = read_with(PromptKind::Chat, &body(picture(json!("data:image/png;base64,AA"))), &[]).expect("good");
    assert!(call.ask.request.features.vision && !plain.ask.request.features.vision);
    assert!(call.ask.request.prompt.0 > plain.ask.request.prompt.0 + 500);
    let passed = call.ask.body.passthrough.expect("messages as they were written");
    assert!(passed.contains("data:image/png;base64,AA"), "{passed}");
    for bad in [json!(""), json!(7), json!(null)] {
        let error = read_with(PromptKind::Chat, &body(picture(bad)), &[]).expect_err("no address");
        assert_eq!(error.param.as_deref(), Some("messages[0].content[1].image_url.url"));
    }
}

#[test]
fn calls_for_vectors_are_read() {
    let read = |more: Value| read_with(PromptKind::Embedding, &merged(json!({"model": "assistant", "input": "a"}), more), &[]);
    let call = read(json!({"input": ["a", "b"], "dimensions": 8, "encoding_format": "base64", "user": "me"})).expect("good");
    assert!(matches!(&call.ask.body.prompt, Prompt::Inputs(texts) if texts == &["a", "b"]));
    assert_eq!(call.ask.body.passthrough.as_deref(), Some(r#"{"dimensions":8,"encoding_format":"base64"}"#));
    assert!(call.ask.request.features.embeddings && call.ask.request.output_max == Tokens(0));
    for (more, parameter) in [
        (json!({"input": []}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": [1, 2]}), "input"),
        (json!({"input": ["a", ""]}), "input"),
        (json!({"input": null}), "input"),
        (json!({"encoding_format": "hex"}), "encoding_format"),
        (json!({"dimensions": 0}), "dimensions"),
        (json!({"stream": true}), "stream"),
        (json!({"tidegate": {"residence": "site"}}), "tidegate.residence"),
    ] {
        assert_eq!(read(more.clone()).expect_err("refused").param.as_deref(), Some(parameter), "{more}");
    }
}
