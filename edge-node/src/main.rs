//! The program `edge-node`: parses its arguments, carries out one command, and says in one line why it could not.

use clap::Parser;
use edge_node::commands::{Cli, run};
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = error.source();
            while let Some(inner) = cause {
                text = format!("{text}: {inner}");
                cause = inner.source();
            }
            eprintln!("edge-node: {text}");
            ExitCode::FAILURE
        }
    }
}
