//! What a person sees while the demo runs: spinners on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Where lines go.
#[derive(Debug)]
pub(super) struct Stage {
    terminal: bool,
}

/// Something that takes a while.
#[derive(Debug)]
pub(super) struct Waiting {
    text: String,
    spinner: Option<ProgressBar>,
}

/// Where nobody reads any more the play goes on, and its exit code still tells: it must stop what it started.
fn print(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

impl Stage {
    pub(super) fn new() -> Self {
        Self { terminal: std::io::stdout().is_terminal() && std::io::stderr().is_terminal() }
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// One line.
    #[expect(clippy::unused_self, reason = "lines belong to the stage, wherever they go")]
    pub(super) fn say(&self, line: &str) {
        print(line);
    }

    /// A new act.
    pub(super) fn act(&self, title: &str) {
        self.say(&format!("\n── {title}"));
    }

    /// Shows that something is being waited for.
    pub(super) fn wait(&self, text: &str) -> Waiting {
        let spinner = self.terminal.then(|| {
            let spinner = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg} … {elapsed}") {
                spinner.set_style(style);
            }
            spinner.set_message(text.to_owned());
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        });
        Waiting { text: text.to_owned(), spinner }
    }
}

impl Waiting {
    /// It came.
    pub(super) fn done(self, detail: &str) {
        self.clear();
        print(&format!("  ✓ {}{}{detail}", self.text, if detail.is_empty() { "" } else { ": " }));
    }

    /// It is replaced by this line.
    pub(super) fn replace(self, line: &str) {
        self.clear();
        print(&format!("  {line}"));
    }

    fn clear(&self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.clear();
    }
}
