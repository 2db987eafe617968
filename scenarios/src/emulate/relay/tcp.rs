//! Streams: two lines a connection. A cut stalls them; bytes are never lost, since a stream that lost some would be broken.

use super::{Cable, Inlet, LOOK_UP_EVERY, Outlet, Way, named, silent};
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Connections at a time. A node has one; more wait to be accepted.
const CONNECTIONS_MAX: usize = 16;
/// Most bytes of a stream in one parcel.
const CHUNK_BYTES_MAX: usize = 16 * 1024;
/// How long a new connection may take on loopback.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// Carries connections of clients that it admits, until the cable ends.
pub(super) fn relay(cable: &Arc<Cable>, clients: &TcpListener, target: SocketAddr, admits: impl Fn(IpAddr) -> bool) {
    let mut connections: Vec<JoinHandle<()>> = Vec::new();
    if clients.set_nonblocking(true).is_err() {
        return;
    }
    while !cable.has_ended() {
        connections.retain(|connection| !connection.is_finished());
        if cable.is_cut() || connections.len() >= CONNECTIONS_MAX {
            thread::sleep(LOOK_UP_EVERY);
            continue;
        }
        let Ok((client, from)) = clients.accept() else {
            thread::sleep(LOOK_UP_EVERY);
            continue;
        };
        if !admits(from.ip()) {
            cable.dropped(Way::Up);
            continue;
        }
        let cable = Arc::clone(cable);
        if let Ok(handle) = named(format!("stream-{}", from.port()), move || connection(&cable, &client, target)) {
            connections.push(handle);
        }
    }
    for connection in connections {
        let _ = connection.join();
    }
}

fn connection(cable: &Cable, client: &TcpStream, target: SocketAddr) {
    let Ok(server) = TcpStream::connect_timeout(&target, CONNECT_WITHIN) else {
        return; // dropping the client's end tells it
    };
    let timed = [client, &server].iter().all(|end| {
        end.set_nonblocking(false).is_ok() && end.set_read_timeout(Some(LOOK_UP_EVERY)).is_ok() && end.set_nodelay(true).is_ok()
    });
    if !timed {
        return;
    }
    let over = AtomicBool::new(false);
    let (up_in, up_out) = cable.line(Way::Up);
    let (down_in, down_out) = cable.line(Way::Down);
    let over = &over;
    let server = &server;
    thread::scope(|scope| {
        scope.spawn(move || take_in(cable, over, client, &up_in));
        scope.spawn(move || put_out(cable, over, Way::Up, server, &up_out));
        scope.spawn(move || take_in(cable, over, server, &down_in));
        scope.spawn(move || put_out(cable, over, Way::Down, client, &down_out));
    });
}

/// Reads one end until it closes, the other cannot be written, or the cable ends.
fn take_in(cable: &Cable, over: &AtomicBool, mut from: &TcpStream, line: &Inlet<Vec<u8>>) {
    let mut buffer = vec![0; CHUNK_BYTES_MAX];
    while !cable.has_ended() && !over.load(Ordering::Acquire) {
        if cable.is_cut() {
            thread::sleep(LOOK_UP_EVERY);
            continue;
        }
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                if !line.push(buffer.get(..length).unwrap_or_default().to_vec()) {
                    return;
                }
            }
            Err(error) if silent(&error) => {}
            Err(_) => return,
        }
    }
}

/// Writes the other end; when the line ends, so does that end's stream.
fn put_out(cable: &Cable, over: &AtomicBool, way: Way, mut to: &TcpStream, line: &Outlet<Vec<u8>>) {
    while let Some(chunk) = line.next() {
        while cable.is_cut() && !cable.has_ended() {
            thread::sleep(LOOK_UP_EVERY);
        }
        if cable.has_ended() || to.write_all(&chunk).is_err() {
            over.store(true, Ordering::Release);
            break;
        }
        cable.carried(way, chunk.len());
    }
    // Fails only where the other side was faster.
    let _ = to.shutdown(Shutdown::Write);
}
