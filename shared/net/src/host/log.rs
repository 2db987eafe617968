//! Tracing to standard error. Standard output belongs to the answers of commands.

use serde::{Deserialize, Serialize};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// The section `log` of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogSettings {
    /// `human` or `json`.
    pub format: LogFormat,
    /// What is logged, as directives of `tracing` such as `info,quinn=warn`.
    pub filter: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::Human, filter: "info".to_owned() }
    }
}

/// Who reads the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// People.
    Human,
    /// Programs: one JSON object a line.
    Json,
}

/// Logging cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be read.
    #[error("`log.filter` is `{given}`: {why}; want directives such as `info` or `info,shared_net=debug`")]
    Filter {
        /// What was given.
        given: String,
        /// What is wrong with it.
        why: String,
    },
    /// It was started before.
    #[error("tracing was already started in this process")]
    Twice,
}

/// Starts logging for the whole process.
///
/// # Errors
/// [`LogError`] for a bad filter and the second time.
pub fn init_tracing(settings: &LogSettings) -> Result<(), LogError> {
    let bad = |why: String| LogError::Filter { given: settings.filter.clone(), why };
    let filter = EnvFilter::builder().parse(&settings.filter).map_err(|error| bad(error.to_string()))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // In a file or a journal, codes of colours are only noise.
    let builder = builder.with_ansi(std::io::stderr().is_terminal());
    let done = match settings.format {
        LogFormat::Human => builder.with_target(true).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(true).try_init(),
    };
    done.map_err(|_| LogError::Twice)
}
