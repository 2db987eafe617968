//! The one error that clients see, in OpenAI's shape.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use shared::work::PromptKind;

/// An answer that is none: status, and the `error` object of the body. Its message never holds text of a prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status} {code}: {message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// A stable code, one of a small closed set (it is a metric's label).
    pub code: &'static str,
    /// The parameter at fault, as the client named it.
    pub param: Option<String>,
    /// What is wrong and what would be right.
    pub message: String,
    /// Seconds after which another try makes sense.
    pub retry_after_s: Option<u32>,
    /// Whether clients shall be told not to try again although the status suggests it.
    pub retry_useless: bool,
}

/// OpenAI's `type` of an error that is the client's.
pub(super) const INVALID: &str = "invalid_request_error";
/// OpenAI's `type` of an error about too many requests.
pub(super) const RATE: &str = "rate_limit_error";
/// OpenAI's `type` of an error that is ours.
pub(super) const SERVER: &str = "server_error";
/// OpenAI's `type` of an error about what is not allowed.
pub(super) const PERMISSION: &str = "permission_error";

impl ApiError {
    pub(super) fn new(status: StatusCode, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code, param: None, message: message.into(), retry_after_s: None, retry_useless: false }
    }

    /// A parameter with a wrong value.
    pub(super) fn value(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, "invalid_value", message).at(param)
    }

    /// A parameter that nothing here serves.
    pub(super) fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID, "unsupported_parameter", message).at(param)
    }

    pub(super) fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub(super) const fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_s = Some(seconds);
        self
    }

    pub(super) const fn no_retry(mut self) -> Self {
        self.retry_useless = true;
        self
    }

    /// The same for a call of this kind: a text that is too long is in `messages` or in `prompt`.
    pub(super) fn in_call(mut self, kind: PromptKind) -> Self {
        if self.param.as_deref() == Some("messages") {
            let text = match kind {
                PromptKind::Chat => "messages",
                PromptKind::Completion => "prompt",
                PromptKind::Embedding => "input",
            };
            self.param = Some(text.to_owned());
        }
        self
    }

    /// The `{"error": …}` object.
    #[must_use]
    pub fn body(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

/// Left in a response, so that the outer layer can count and log it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorCode(pub(super) &'static str);

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body().to_string()));
        *response.status_mut() = self.status;
        response.extensions_mut().insert(ErrorCode(self.code));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.retry_useless {
            // Read by the official clients, which otherwise try every 5xx again.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
