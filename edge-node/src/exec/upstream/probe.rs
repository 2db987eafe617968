//! One look at an upstream, for people who ask what is wrong with it.

use super::{CONNECT_TIMEOUT, UpstreamConfig};
use reqwest::StatusCode;
use std::time::Duration;

/// How long its list of models may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// Why an upstream would not serve.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// Its URL is none.
    #[error(transparent)]
    Config(#[from] crate::exec::StartError),
    /// There is no such program to start.
    #[error("the program `{0}` cannot be found: install it, or give its path")]
    Command(String),
    /// Nobody answers there.
    #[error("{0} cannot be reached")]
    Unreachable(String, #[source] reqwest::Error),
    /// It wants another key.
    #[error("{0} refuses the key ({1})")]
    Key(String, StatusCode),
    /// It answers with an error, or with something that is no list of models.
    #[error("{0} answers {1} when it is asked for its models")]
    Answer(String, StatusCode),
    /// It has other models.
    #[error("{url} does not list `{model}`, but {}", if .listed.is_empty() { "nothing".to_owned() } else { .listed.join(", ") })]
    Model {
        /// Where.
        url: String,
        /// The wanted one.
        model: String,
        /// Those that it lists.
        listed: Vec<String>,
    },
}

/// Asks the upstream for its models; of a managed one, looks whether it can be started. Sends nothing but the key.
///
/// # Errors
/// [`ProbeError`] says what is in the way.
pub async fn probe(config: &UpstreamConfig) -> Result<(), ProbeError> {
    if let Some(managed) = &config.managed {
        // It runs only while an agent does, and where, that agent alone knows.
        return if managed.found() { Ok(()) } else { Err(ProbeError::Command(managed.command.display().to_string())) };
    }
    let url = config.call("models", 0)?;
    let at = url.to_string();
    let unreachable = |error: reqwest::Error| ProbeError::Unreachable(at.clone(), error.without_url());
    let client = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ANSWER_TIME_MAX)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .map_err(unreachable)?;
    let request = client.get(url);
    let request = match &config.api_key {
        Some(key) => request.bearer_auth(key.expose()),
        None => request,
    };
    let answer = request.send().await.map_err(unreachable)?;
    match answer.status() {
        status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => Err(ProbeError::Key(at, status)),
        status if !status.is_success() => Err(ProbeError::Answer(at, status)),
        status => {
            let document: serde_json::Value = answer.json().await.map_err(|_| ProbeError::Answer(at.clone(), status))?;
            let entries = document["data"].as_array().map(Vec::as_slice).unwrap_or_default();
            let listed: Vec<String> = entries.iter().filter_map(|entry| entry["id"].as_str().map(str::to_owned)).collect();
            if listed.contains(&config.model) {
                Ok(())
            } else {
                Err(ProbeError::Model { url: at, model: config.model.clone(), listed })
            }
        }
    }
}
