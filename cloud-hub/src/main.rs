//! The program `cloud-hub`.

use clap::Parser;
use cloud_hub::cli::{Arguments, run};
use std::error::Error;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cloud-hub: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error with its causes; a cause that is already part of the text is not repeated.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}
