//! A hub of the real program, and nodes that joined it with real tokens.

use super::process::{Program, free, ours};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a program may take until it answers.
const UP_WITHIN: Duration = Duration::from_secs(30);

/// The hub.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) program: Program,
    /// Where its QUIC endpoint listens.
    pub(crate) quic: SocketAddr,
    /// Where its broker listens.
    pub(crate) mqtt: SocketAddr,
    /// Where its metrics are.
    pub(crate) admin: SocketAddr,
    state: PathBuf,
}

impl Hub {
    /// Makes a hub in `folder` and starts it.
    pub(crate) fn start(folder: &Path, heartbeat: Duration) -> io::Result<Self> {
        let state = folder.join("hub");
        let (quic, mqtt, http, admin) = (free()?, free()?, free()?, free()?);
        run(ours("cloud-hub")?, &["init", "--name", "bench/hub", "--address", &quic.to_string(), "--state", &shown(&state)])?;
        let config = folder.join("hub.toml");
        std::fs::write(
            &config,
            format!(
                "state = {state:?}\n[quic]\nlisten = \"{quic}\"\n[mqtt]\nlisten = \"{mqtt}\"\n[http]\nlisten = \"{http}\"\n\
                 [admin]\nlisten = \"{admin}\"\n[policies]\nheartbeat_ms = {}\n[log]\nfilter = \"warn\"\n",
                heartbeat.as_millis()
            ),
        )?;
        let mut command = Command::new(ours("cloud-hub")?);
        let mut program = Program::start(command.arg("serve").arg("--config").arg(config), folder.join("hub.log"))?;
        let listens = |address| TcpStream::connect(address).is_ok();
        program.until(UP_WITHIN, || listens(admin) && listens(mqtt) && state.join("addresses.json").is_file())?;
        Ok(Self { program, quic, mqtt, admin, state })
    }

    /// A token for so many nodes of a site.
    pub(crate) fn token(&self, site: &str, count: usize) -> io::Result<String> {
        let arguments = ["token", "--site", site, "--count", &count.to_string(), "--state", &shown(&self.state)];
        let printed = run(ours("cloud-hub")?, &arguments)?;
        let line = printed.lines().map(str::trim).find(|line| line.starts_with("tidegate"));
        line.map(str::to_owned).ok_or_else(|| io::Error::other(format!("no token: {printed}")))
    }

    /// Runs one of its commands.
    pub(crate) fn command(&self, arguments: &[&str]) -> io::Result<String> {
        run(ours("cloud-hub")?, &[arguments, &["--state", &shown(&self.state)]].concat())
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Runs a program to its end, and returns what it printed.
pub(crate) fn run(program: PathBuf, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(&program).args(arguments).output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // Not the arguments: a token among them is a secret, be it of a fleet that lives for a minute.
    Err(io::Error::other(format!("{} {}: {said}", program.display(), arguments.first().unwrap_or(&""))))
}
