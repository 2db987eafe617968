//! `scenarios demo`: a fleet on this machine, real prompts with different needs, a cable that is cut, and the proof.
//!
//! Reads as it runs: [`cast`] is who takes part, [`script`] is what is asked, [`run`] is the play, [`report`] is the end.

mod cast;
mod report;
mod run;
mod script;
mod stage;

use crate::emulate::fleet::FleetError;
use stage::Stage;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// How the demo is wanted.
#[derive(Clone, Debug)]
pub struct Options {
    /// The GGUF file.
    pub model: PathBuf,
    /// Where state and logs go; emptied first.
    pub folder: PathBuf,
}

/// Why the demo could not be played to its end.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The model is not there.
    #[error("no model at {0}: `make model` brings it")]
    NoModel(PathBuf),
    /// The fleet.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// Something did not happen in time.
    #[error(transparent)]
    Late(#[from] crate::emulate::wait::Late),
    /// Signals cannot be caught, or the folder not be named.
    #[error("{doing}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

/// Plays the demo. Every process that it starts has ended when this returns, also after Ctrl-C.
///
/// # Errors
/// [`DemoError`] says what stood in the way. A request that failed although it should not have is no error but an exit code.
pub async fn play(options: Options) -> Result<ExitCode, DemoError> {
    let catch = |kind| signal(kind).map_err(|source| DemoError::System { doing: "catching signals", source });
    let (mut interrupt, mut terminate) = (catch(SignalKind::interrupt())?, catch(SignalKind::terminate())?);
    let stage = Stage::new();
    tokio::select! {
        biased;
        _ = interrupt.recv() => Ok(interrupted(&stage)),
        _ = terminate.recv() => Ok(interrupted(&stage)),
        played = run::run(&options, &stage) => {
            let report = played?;
            let verdict = report.show(&stage);
            stage.say(&format!("Logs of every process: {}", options.folder.join("logs").display()));
            Ok(if verdict { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// The fleet was dropped with the play, and its processes with it.
fn interrupted(stage: &Stage) -> ExitCode {
    stage.say("Interrupted: every process of the demo has been ended.");
    ExitCode::from(130)
}
