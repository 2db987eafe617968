//! Fleets that are tried out: the demo, and later simulated and emulated scenarios.

use clap::{Parser, Subcommand};
use scenarios::demo;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(version, about = "Fleets that are tried out")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A hub, a cloud agent and two edges on this machine, real prompts, and a cable that is cut.
    Demo {
        /// The GGUF file; `make model` brings it.
        #[arg(long, default_value = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf")]
        model: PathBuf,
        /// Where state and logs go; emptied first.
        #[arg(long, default_value = "demo-run")]
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let Command::Demo { model, folder } = Arguments::parse().command;
    // The play runs on this thread, which starts every process: they end with it, whatever happens.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    match runtime.block_on(demo::play(demo::Options { model, folder })) {
        Ok(code) => code,
        Err(error) => failed(&error),
    }
}

/// The error with its causes, once.
fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
    ExitCode::FAILURE
}
