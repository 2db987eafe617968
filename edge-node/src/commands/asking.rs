//! Questions to the agent that runs on a state folder.

use super::CommandError;
use crate::config::Config;
use crate::io::store::http_address_of;
use reqwest::Method;
use serde::de::DeserializeOwned;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

/// Holds an API key, where the agent wants one.
const KEY_VARIABLE: &str = "TIDEGATE_API_KEY";
/// How long a running agent may take to answer a question about itself.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Asks the running agent for one of its pages.
pub(super) async fn ask<T: DeserializeOwned>(config: &Config, page: &str) -> Result<T, CommandError> {
    speak(config, page, Method::GET).await
}

/// Tells the running agent to do something.
pub(super) async fn order(config: &Config, what: &str) -> Result<serde_json::Value, CommandError> {
    speak(config, what, Method::POST).await
}

async fn speak<T: DeserializeOwned>(config: &Config, page: &str, method: Method) -> Result<T, CommandError> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut address = http_address_of(&config.state).unwrap_or(config.http.listen);
    if address.ip().is_unspecified() {
        address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    let url = format!("http://{address}/tidegate/v1/{page}");
    let no_agent = |error| CommandError::NoAgent(address.to_string(), error);
    let client = reqwest::Client::builder().no_proxy().timeout(ANSWER_MAX).build().map_err(no_agent)?;
    let mut request = client.request(method, url);
    if let Ok(key) = std::env::var(KEY_VARIABLE) {
        request = request.bearer_auth(key);
    }
    let response = request.send().await.map_err(no_agent)?;
    if response.status().is_success() {
        return response.json().await.map_err(no_agent);
    }
    let body: serde_json::Value = response.json().await.map_err(no_agent)?;
    Err(CommandError::Answer(body["error"]["message"].as_str().unwrap_or("something unreadable").to_owned()))
}
