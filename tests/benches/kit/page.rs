//! One page of a program, as a scraper would get it.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A program that takes longer is not well.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The whole answer to a GET, its head included.
pub(crate) fn page(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(ANSWER_MAX))?;
    write!(socket, "GET {path} HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    if text.starts_with("HTTP/1.1 200") { Ok(text) } else { Err(io::Error::other(format!("{path}: {text}"))) }
}

/// The value of a metric without labels, or the sum over all of its labels.
pub(crate) fn metric(text: &str, name: &str) -> f64 {
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        if rest.starts_with([' ', '{']) { rest.rsplit(' ').next()?.parse::<f64>().ok() } else { None }
    });
    values.sum()
}
