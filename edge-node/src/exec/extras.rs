//! What a client asks for beyond plain text, as far as an engine that computes itself can judge it.

use shared::plan::Failure;
use shared::wire::Body;
use shared::wire::body::Prompt;
use shared::work::Capability;

/// Longest part of a parameter's name that is repeated to the client.
const NAME_CHARS_MAX: usize = 64;

/// Refuses by name what is not among `capabilities`.
pub(super) fn refuse_extras(body: &Body, capabilities: &[String]) -> Result<(), Failure> {
    let bad = |param: Option<String>, message: String| Err(Failure::BadRequest { param, message });
    if let Prompt::Inputs(_) = &body.prompt {
        return bad(Some("input".to_owned()), "the model's engine does not support `embeddings`".to_owned());
    }
    let Some(extras) = &body.passthrough else { return Ok(()) };
    let Ok(serde_json::Value::Object(extras)) = serde_json::from_str(extras) else {
        return bad(None, "further parameters must be a JSON object".to_owned());
    };
    match extras.iter().find(|(name, value)| !value.is_null() && !served(name, capabilities)) {
        Some((name, _)) => {
            let name: String = name.chars().take(NAME_CHARS_MAX).collect();
            let message = format!("the model's engine does not support `{name}`");
            bad(Some(name), message)
        }
        None => Ok(()),
    }
}

/// Whether an engine with these capabilities serves the parameter.
fn served(parameter: &str, capabilities: &[String]) -> bool {
    let has = |capability: Capability| capability.is_among(capabilities);
    match parameter {
        "tools" | "functions" | "tool_choice" | "function_call" | "parallel_tool_calls" => has(Capability::Tools),
        "messages" => has(Capability::Tools) || has(Capability::Vision),
        "response_format" => has(Capability::JsonSchema),
        "logprobs" | "top_logprobs" => has(Capability::Logprobs),
        name => capabilities.iter().any(|capability| capability == name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::wire::body::Sampling;

    #[test]
    fn what_is_lacking_is_named() {
        let body = |extras: &str| Body {
            prompt: Prompt::Plain(String::new()),
            sampling: Sampling::default(),
            passthrough: Some(extras.to_owned()),
            resume: Vec::new(),
        };
        assert_eq!(refuse_extras(&body(r#"{"tools":null}"#), &[]), Ok(()));
        assert_eq!(refuse_extras(&body(r#"{"tools":[]}"#), &["tools".to_owned()]), Ok(()));
        let refused = refuse_extras(&body(r#"{"tools":[]}"#), &[]);
        assert!(matches!(refused, Err(Failure::BadRequest { param: Some(name), .. }) if name == "tools"));
        assert!(refuse_extras(&body("[1]"), &[]).is_err());
        let shaped = body(r#"{"response_format":{"type":"json_object"}}"#);
        assert!(refuse_extras(&shaped, &[]).is_err());
        assert_eq!(refuse_extras(&shaped, &["json_schema".to_owned()]), Ok(()));
        let vectors = Body { prompt: Prompt::Inputs(vec!["x".to_owned()]), ..body("{}") };
        assert!(refuse_extras(&vectors, &["embeddings".to_owned()]).is_err(), "filler is no vector");
    }
}
