//! The program's commands as processes: what they print, where to, and their exit codes.

use std::process::{Command, Stdio};

fn edge_node(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_edge-node"));
    command.args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn a_reader_that_is_gone_ends_a_command_quietly() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = edge_node(&["policies"]).stdout(writer).stderr(Stdio::piped()).output().expect("runs");
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_with_a_message() {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("the full device");
    let output = edge_node(&["policies"]).stdout(full).stderr(Stdio::piped()).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("standard output") && !said.contains("panicked"), "{said}");
}

#[cfg(feature = "llm")]
#[test]
fn a_missing_model_fails_the_check() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("agent.toml");
    let text = "[[engines]]\nengine = \"llm\"\nvariant = \"small\"\npath = \"no/such.gguf\"\nhint = \"make model\"\n";
    std::fs::write(&file, text).expect("written");
    let output = edge_node(&["config", "check", "--config"]).arg(&file).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("no/such.gguf") && said.contains("make model"), "{said}");
}
