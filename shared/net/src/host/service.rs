//! What a service manager is told: that the program serves, that it lives, that it stops.
//!
//! The protocol is systemd's: a datagram to the socket that `NOTIFY_SOCKET` names. Without one nothing is sent, so that a program
//! started by hand does the same.

use std::env;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The one who started the program, if it wants to know.
#[derive(Debug, Default)]
pub struct ServiceManager {
    #[cfg(target_os = "linux")]
    socket: Option<(std::os::unix::net::UnixDatagram, std::os::unix::net::SocketAddr)>,
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// As the environment says. A socket that cannot be used counts as none: the program shall serve all the same.
    #[must_use]
    pub fn from_environment() -> Self {
        let own = env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let micros = env::var("WATCHDOG_USEC").ok().filter(|_| own).and_then(|text| text.parse().ok());
        Self {
            #[cfg(target_os = "linux")]
            socket: env::var("NOTIFY_SOCKET").ok().and_then(|name| connect(&name)),
            watchdog: micros.filter(|micros| *micros > 0).map(Duration::from_micros),
        }
    }

    /// The program serves.
    pub fn ready(&self) {
        self.tell("READY=1");
    }

    /// The program is about to end.
    pub fn stopping(&self) {
        self.tell("STOPPING=1");
    }

    /// As long as `alive` answers, says so three times in the time that the manager waits for it. An answer that does not come is
    /// waited for: the manager's patience ends by itself, and it starts the program anew. Ends with `stop`.
    pub async fn report<F: Future<Output = bool>>(&self, alive: impl Fn() -> F, stop: CancellationToken) {
        let Some(every) = self.watchdog.map(|limit| limit / 3) else { return stop.cancelled().await };
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                lives = alive() => if lives { self.tell("WATCHDOG=1") },
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn tell(&self, word: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(word.as_bytes(), address)
        {
            tracing::debug!(%error, word, "the service manager was not told");
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn tell(&self, _word: &str) {}
}

/// A name that begins with `@` is one of the kernel's, without a file.
#[cfg(target_os = "linux")]
fn connect(name: &str) -> Option<(std::os::unix::net::UnixDatagram, std::os::unix::net::SocketAddr)> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let address = match name.strip_prefix('@') {
        Some(bare) => SocketAddr::from_abstract_name(bare).ok()?,
        None => SocketAddr::from_pathname(name).ok()?,
    };
    let socket = UnixDatagram::unbound().ok()?;
    // A manager that does not read must not stop the program.
    socket.set_nonblocking(true).ok()?;
    Some((socket, address))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[tokio::test]
    async fn the_manager_hears_that_the_program_serves_and_lives() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("notify");
        let heard = UnixDatagram::bind(&path).expect("bound");
        let manager = ServiceManager { socket: connect(&path.to_string_lossy()), watchdog: Some(Duration::from_millis(30)) };
        manager.ready();
        let stop = CancellationToken::new();
        let next = || {
            let mut bytes = [0; 32];
            let length = heard.recv(&mut bytes).expect("heard");
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        assert_eq!(next(), "READY=1");
        heard.set_nonblocking(true).expect("set");
        let listened = async {
            loop {
                let mut bytes = [0; 32];
                match heard.recv(&mut bytes) {
                    Ok(length) => break assert_eq!(&bytes[..length], b"WATCHDOG=1"),
                    Err(_) => tokio::task::yield_now().await,
                }
            }
            stop.cancel();
        };
        tokio::join!(manager.report(|| async { true }, stop.clone()), listened);
        manager.stopping();
        heard.set_nonblocking(false).expect("set");
        assert!(std::iter::repeat_with(next).take(100).any(|word| word == "STOPPING=1"));
        ServiceManager::default().ready();
    }
}
