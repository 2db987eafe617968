//! An inference server for tests, as a process of its own: it speaks as much of the OpenAI API as an upstream needs, and answers with
//! words at a steady pace. What it is told by its arguments it does wrong.
//!
//! `--port N` where to listen · `--word TEXT` what it says · `--crash` ends after a moment, each time · `--lifeline FOLDER` ends when this
//! folder is gone · `--child` starts a process of its own.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

/// Between two words: slow enough to be interrupted, fast enough for a test.
const PACE: Duration = Duration::from_millis(20);
/// A test that lost its server must not leave it behind for good.
const LIFE_MAX: Duration = Duration::from_secs(300);
/// How often it looks whether its test is still there.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Options {
    port: u16,
    word: String,
    lifeline: Option<PathBuf>,
    crash: bool,
    child: bool,
}

fn main() -> ExitCode {
    let mut options = Options { word: "word".to_owned(), ..Options::default() };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--port" => options.port = arguments.next().and_then(|port| port.parse().ok()).unwrap_or_default(),
            "--word" => options.word = arguments.next().unwrap_or_default(),
            "--lifeline" => options.lifeline = arguments.next().map(PathBuf::from),
            "--crash" => options.crash = true,
            "--child" => options.child = true,
            other => {
                eprintln!("unknown argument {other}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("started");
    if options.crash {
        return ExitCode::from(3);
    }
    if options.child {
        // Ends with its own folder's disappearance or life, like this process.
        let mut own = Command::new(env::current_exe().unwrap_or_default());
        own.args(["--port", "0"])
            .args(options.lifeline.iter().flat_map(|folder| ["--lifeline".into(), folder.clone().into_os_string()]));
        if own.spawn().is_err() {
            return ExitCode::FAILURE;
        }
    }
    let lifeline = options.lifeline.clone();
    thread::spawn(move || end_with(lifeline));
    let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)) else { return ExitCode::FAILURE };
    for client in listener.incoming().flatten() {
        let word = options.word.clone();
        thread::spawn(move || serve(&client, &word));
    }
    ExitCode::SUCCESS
}

/// Ends the process when the test's folder is gone, or when no test takes so long.
fn end_with(lifeline: Option<PathBuf>) {
    let begun = Instant::now();
    while begun.elapsed() < LIFE_MAX && lifeline.as_ref().is_none_or(|folder| folder.exists()) {
        thread::sleep(LOOK_EVERY);
    }
    std::process::exit(0);
}

/// One request a connection. Whoever goes away is not told about.
fn serve(client: &TcpStream, word: &str) -> Option<()> {
    let mut reader = BufReader::new(client);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut out = client;
    if path.ends_with("/completions") {
        let wanted = serde_json::from_slice::<serde_json::Value>(&body).ok()?;
        let words = wanted.get("max_tokens").and_then(serde_json::Value::as_u64).unwrap_or(4);
        out.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n").ok()?;
        for number in 0..words {
            let chunk = serde_json::json!({ "choices": [{ "index": 0, "delta": { "content": format!("{word}{number} ") } }] });
            out.write_all(format!("data: {chunk}\n\n").as_bytes()).ok()?;
            thread::sleep(PACE);
        }
        let usage = serde_json::json!({ "prompt_tokens": 1, "completion_tokens": words });
        let last = serde_json::json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "length" }], "usage": usage });
        return out.write_all(format!("data: {last}\n\ndata: [DONE]\n\n").as_bytes()).ok();
    }
    let body = r#"{"object":"list","data":[]}"#;
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    out.write_all((head + body).as_bytes()).ok()
}
