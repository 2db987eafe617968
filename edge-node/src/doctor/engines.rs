//! What executes requests: models in this process, and servers beside it.

use super::Patient;
use crate::exec::EngineConfig;
use crate::exec::upstream::{ProbeError, UpstreamConfig, probe};
use crate::io::store::chain;
use shared::fleet::ReplicaState;
use shared::ids::VariantId;
use shared_net::host::Finding;

impl Patient<'_> {
    pub(super) async fn engines(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for engine in &self.config.engines {
            findings.extend(match engine {
                #[cfg(feature = "llm")]
                EngineConfig::Llm(config) => Some(model(config, self.runs).await),
                #[cfg(feature = "llm")]
                EngineConfig::LlamaCpp(config) => Some(llama_cpp(config)),
                EngineConfig::Upstream(config) => Some(upstream(config).await),
                EngineConfig::Profiled(_) => None,
            });
            findings.extend(self.failed(engine.variant()));
        }
        findings
    }

    /// What the running agent says of an engine that does not serve.
    fn failed(&self, variant: &VariantId) -> Option<Finding> {
        let replicas = &self.status.as_ref()?.replicas;
        let replica = replicas.iter().find(|replica| replica.variant == *variant)?;
        match &replica.state {
            ReplicaState::Failed(why) => {
                let remedy = "mend what it says, and restart the agent";
                Some(Finding::fail("engine", format!("`{variant}` does not serve: {why}"), remedy))
            }
            _ => None,
        }
    }
}

/// The hash of a large file takes a while; nothing else is loaded.
#[cfg(feature = "llm")]
async fn model(config: &crate::exec::llm::LlmConfig, runs: bool) -> Finding {
    use crate::exec::llm::{ModelError, examine};
    let (variant, mut config) = (config.variant.clone(), config.clone());
    if runs && config.memory_max.is_none() {
        // The running agent holds it already, or says itself why not.
        config.memory_max = Some(shared::units::Bytes(u64::MAX));
    }
    let looked = tokio::task::spawn_blocking(move || examine(&config));
    let fail = |seen: String, remedy: &str| Finding::fail("model", format!("`{variant}`: {seen}"), remedy);
    match looked.await {
        Ok(Ok(takes)) => Finding::ok("model", format!("`{variant}` can be loaded and takes {takes}")),
        Ok(Err(error @ ModelError::Missing { .. })) => {
            fail(error.to_string(), "bring the file, or correct `path` of that engine")
        }
        Ok(Err(error @ ModelError::Unreadable { .. })) => {
            fail(error.to_string(), "let the user of the service read it (`chmod`, `chown`), or copy it again")
        }
        Ok(Err(error @ (ModelError::Hash { .. } | ModelError::Damaged { .. }))) => {
            fail(error.to_string(), "copy the file again, or correct `sha256` of that engine if it is meant to be this one")
        }
        Ok(Err(error @ ModelError::Unsupported { .. })) => {
            fail(error.to_string(), "take a model of a kind that this engine runs, or serve it by an `upstream` engine")
        }
        Ok(Err(error @ ModelError::Memory { .. })) => {
            fail(error.to_string(), "lower `slots` or `context` of that engine, take a smaller model, or free memory")
        }
        Ok(Err(error)) => fail(error.to_string(), "read the log of the agent"),
        Err(error) => fail(error.to_string(), "report this: the check itself failed"),
    }
}

/// What llama.cpp makes of a file only loading it tells.
#[cfg(feature = "llm")]
fn llama_cpp(config: &crate::exec::llm::llamacpp::LlamaCppConfig) -> Finding {
    let variant = &config.variant;
    if cfg!(not(feature = "llama-cpp")) {
        let seen = format!("`{variant}`: this program was built without `llama-cpp`");
        return Finding::fail("model", seen, "build it with `--features llama-cpp`, or use the engine `llm`");
    }
    match config.check_file() {
        Ok(()) => Finding::ok("model", format!("`{variant}`: {} is there", config.path.display())),
        Err(error) => Finding::fail("model", error.to_string(), "bring the file, or correct `path` of that engine"),
    }
}

async fn upstream(config: &UpstreamConfig) -> Finding {
    let variant = &config.variant;
    let fail = |error: &ProbeError, remedy: &str| Finding::fail("upstream", format!("`{variant}`: {}", chain(error)), remedy);
    match (probe(config).await, &config.managed) {
        (Ok(()), Some(managed)) => {
            Finding::ok("upstream", format!("`{variant}`: the agent starts {}", managed.command.display()))
        }
        (Ok(()), None) => Finding::ok("upstream", format!("`{variant}`: {} lists `{}`", config.url, config.model)),
        (Err(error @ ProbeError::Command(_)), _) => {
            fail(&error, "install that server, or correct `managed.command` of that engine")
        }
        (Err(error @ ProbeError::Unreachable(..)), _) => fail(&error, "start that server, or correct `url` of that engine"),
        (Err(error @ ProbeError::Key(..)), _) => fail(&error, "correct `api_key` of that engine"),
        (Err(error @ ProbeError::Answer(..)), _) => fail(
            &error,
            "read that server's log; `url` must be the base of an OpenAI-compatible API, such as http://host:8000/v1",
        ),
        (Err(error @ ProbeError::Model { .. }), _) => {
            let seen = format!("`{variant}`: {error}");
            Finding::warn("upstream", seen, "correct `model` of that engine, unless the server takes names that it does not list")
        }
        (Err(error @ ProbeError::Config(_)), _) => fail(&error, "correct `url` of that engine"),
    }
}
