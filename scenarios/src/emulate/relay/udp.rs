//! Datagrams: each client address gets a socket of its own towards the target, so that answers find their way back.

use super::{Cable, Inlet, LOOK_UP_EVERY, Way, named, silent};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Client addresses at a time. A node has one or two; more would be a loop of reconnects, and theirs are dropped.
const FLOWS_MAX: usize = 32;
/// Larger than any datagram.
const DATAGRAM_BYTES_MAX: usize = 65_536;

struct Flow {
    towards: Arc<UdpSocket>,
    answers: JoinHandle<()>,
    /// How often the cable had changed its ports when this began.
    rebound: u64,
    over: Arc<AtomicBool>,
}

/// Carries the datagrams of clients that it admits, until the cable ends.
pub(super) fn relay(cable: &Arc<Cable>, clients: &UdpSocket, target: SocketAddr, admits: impl Fn(IpAddr) -> bool) {
    let (up_in, up_out) = cable.line::<(Arc<UdpSocket>, Vec<u8>)>(Way::Up);
    let (down_in, down_out) = cable.line::<(SocketAddr, Vec<u8>)>(Way::Down);
    thread::scope(|scope| {
        scope.spawn(move || {
            while let Some((towards, datagram)) = up_out.next() {
                deliver(cable, Way::Up, datagram.len(), || towards.send(&datagram));
            }
        });
        scope.spawn(move || {
            while let Some((client, datagram)) = down_out.next() {
                deliver(cable, Way::Down, datagram.len(), || clients.send_to(&datagram, client));
            }
        });
        take_in(cable, clients, target, admits, &up_in, &down_in);
        drop((up_in, down_in));
    });
}

/// A cut takes what is under way, too. A refused datagram is a lost one, which datagrams may be.
fn deliver(cable: &Cable, way: Way, bytes: usize, send: impl FnOnce() -> io::Result<usize>) {
    if !cable.is_cut() && !cable.trouble.takes_one() && send().is_ok() {
        cable.carried(way, bytes);
    } else {
        cable.dropped(way);
    }
}

fn take_in(
    cable: &Arc<Cable>,
    clients: &UdpSocket,
    target: SocketAddr,
    admits: impl Fn(IpAddr) -> bool,
    up: &Inlet<(Arc<UdpSocket>, Vec<u8>)>,
    down: &Inlet<(SocketAddr, Vec<u8>)>,
) {
    let mut flows: BTreeMap<SocketAddr, Flow> = BTreeMap::new();
    let mut ended: Vec<Flow> = Vec::new();
    each_datagram(cable, &AtomicBool::new(false), clients, |datagram, client| {
        if flows.get(&client).is_some_and(|flow| flow.rebound != cable.trouble.rebound())
            && let Some(flow) = flows.remove(&client)
        {
            flow.over.store(true, Ordering::Release);
            ended.push(flow);
            ended.retain(|flow| !flow.answers.is_finished());
        }
        if !flows.contains_key(&client)
            && admits(client.ip())
            && flows.len() < FLOWS_MAX
            && let Ok(flow) = open(cable, client, target, down.clone())
        {
            flows.insert(client, flow);
        }
        let taken =
            !cable.is_cut() && flows.get(&client).is_some_and(|flow| up.offer((Arc::clone(&flow.towards), datagram.to_vec())));
        if !taken {
            cable.dropped(Way::Up);
        }
    });
    for flow in flows.into_values().chain(ended) {
        let _ = flow.answers.join();
    }
}

fn open(cable: &Arc<Cable>, client: SocketAddr, target: SocketAddr, down: Inlet<(SocketAddr, Vec<u8>)>) -> io::Result<Flow> {
    let towards = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?);
    towards.connect(target)?;
    let (rebound, over) = (cable.trouble.rebound(), Arc::new(AtomicBool::new(false)));
    let (cable, socket, ends) = (Arc::clone(cable), Arc::clone(&towards), Arc::clone(&over));
    let answers = named(format!("answers-{}", client.port()), move || {
        each_datagram(&cable, &ends, &socket, |datagram, _| {
            if cable.is_cut() || !down.offer((client, datagram.to_vec())) {
                cable.dropped(Way::Down);
            }
        });
    })?;
    Ok(Flow { towards, answers, rebound, over })
}

/// Reads a socket until it is over or the cable ends. Errors of a socket whose other end is away for now (ICMP refusals) are passed over.
fn each_datagram(cable: &Cable, over: &AtomicBool, socket: &UdpSocket, mut take: impl FnMut(&[u8], SocketAddr)) {
    if socket.set_read_timeout(Some(LOOK_UP_EVERY)).is_err() {
        return;
    }
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    while !cable.has_ended() && !over.load(Ordering::Acquire) {
        match socket.recv_from(&mut buffer) {
            Ok((length, from)) => take(buffer.get(..length).unwrap_or_default(), from),
            Err(error) if silent(&error) || error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => thread::sleep(LOOK_UP_EVERY),
        }
    }
}
