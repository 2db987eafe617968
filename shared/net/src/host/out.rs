//! Standard output: the answers of commands. Everything else goes to the log.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

/// Prints one line, or several, on standard output. Where nobody reads any more (`… | head`) the process ends quietly with code 0,
/// at any other error (a full disk) with a message and code 1: a command whose answer cannot be had has nothing left to do.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::host::say(::core::format_args!($($text)*)) };
}

/// What [`say!`](crate::say) does.
pub fn say(text: Arguments<'_>) {
    let Err(error) = try_say(text) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    // Where standard error is gone too, the exit code has to do.
    let _ = writeln!(io::stderr(), "writing to standard output: {error}");
    std::process::exit(1);
}

/// The same for a program that goes on whether or not somebody reads, such as one that serves.
///
/// # Errors
/// What the system said.
pub fn try_say(text: Arguments<'_>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}")?;
    out.flush()
}
