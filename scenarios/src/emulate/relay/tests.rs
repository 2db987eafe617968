use super::*;
use crate::emulate::addresses::SiteNet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

fn cable(delay_ms: u64) -> (UdpSocket, TcpListener, Relay) {
    let datagrams = UdpSocket::bind("127.0.0.1:0").expect("free port");
    let streams = TcpListener::bind("127.0.0.1:0").expect("free port");
    let delay = Duration::from_millis(delay_ms);
    let (quic, mqtt) = (datagrams.local_addr().expect("bound"), streams.local_addr().expect("bound"));
    let here = Ipv4Addr::new(127, 0, 0, 2).into();
    let relay = Relay::lay("test", here, quic, mqtt, Delays { up: delay, down: delay }).expect("laid");
    datagrams.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    (datagrams, streams, relay)
}

fn client(relay: &Relay) -> UdpSocket {
    let client = UdpSocket::bind("127.0.0.1:0").expect("free port");
    client.connect(relay.quic()).expect("connected");
    client.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    client
}

#[test]
fn datagrams_take_their_time_both_ways_and_find_back() {
    let (server, _streams, relay) = cable(30);
    let (one, other) = (client(&relay), client(&relay));
    let begun = Instant::now();
    let mut buffer = [0; 64];
    for (client, text) in [(&one, b"first"), (&other, b"other")] {
        client.send(text).expect("sent");
        let (length, from) = server.recv_from(&mut buffer).expect("arrives");
        server.send_to(&buffer[..length], from).expect("sent");
        let length = client.recv(&mut buffer).expect("comes back to who asked");
        assert_eq!(&buffer[..length], text);
    }
    assert!(begun.elapsed() >= Duration::from_millis(120), "two round trips of 60 ms took {:?}", begun.elapsed());
    let up = relay.passed(Way::Up);
    assert_eq!(up, Passed { bytes: 10, dropped: 0 });
}

#[test]
fn a_cut_drops_datagrams_and_a_restore_lets_them_pass() {
    let (server, _streams, relay) = cable(0);
    let client = client(&relay);
    let mut buffer = [0; 64];
    relay.cut();
    client.send(b"lost").expect("sent");
    while relay.passed(Way::Up).dropped == 0 {
        thread::yield_now();
    }
    relay.restore();
    client.send(b"kept").expect("sent");
    let (length, _) = server.recv_from(&mut buffer).expect("arrives");
    assert_eq!(&buffer[..length], b"kept");
}

#[test]
fn a_cut_stalls_a_stream_without_loss() {
    let (_datagrams, streams, relay) = cable(5);
    let mut client = TcpStream::connect(relay.mqtt()).expect("connected");
    client.write_all(b"before ").expect("written");
    let (mut server, _) = streams.accept().expect("accepted");
    let mut buffer = [0; 7];
    server.read_exact(&mut buffer).expect("read");
    relay.cut();
    client.write_all(b"during ").expect("written");
    server.set_read_timeout(Some(Duration::from_millis(200))).expect("set");
    assert!(silent(&server.read_exact(&mut buffer).expect_err("nothing passes")), "the stream is stalled, not broken");
    relay.restore();
    client.write_all(b"after").expect("written");
    client.shutdown(std::net::Shutdown::Write).expect("shut");
    server.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    let mut rest = String::new();
    server.read_to_string(&mut rest).expect("the end crosses, too");
    assert_eq!(rest, "during after");
}

#[test]
fn the_end_of_the_cable_ends_its_threads() {
    let (_datagrams, streams, relay) = cable(5);
    let client = TcpStream::connect(relay.mqtt()).expect("connected");
    let _server = streams.accept().expect("accepted");
    drop(relay);
    let mut byte = [0];
    client.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    assert_eq!((&client).read(&mut byte).expect("closed, not silent"), 0);
}

#[test]
fn a_gate_lets_neighbours_in_and_nobody_else() {
    let site = SiteNet::new(100).expect("a number");
    let node = UdpSocket::bind((site.node(1), 0)).expect("free port");
    node.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    let to = node.local_addr().expect("bound");
    let gate = Gate::open("test", (site.gate(1), to.port()).into(), to, site).expect("opened");
    let stranger = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("free port");
    stranger.send_to(b"let me in", gate.address()).expect("sent");
    while gate.passed().dropped == 0 {
        thread::yield_now();
    }
    let neighbour = UdpSocket::bind((site.node(2), 0)).expect("free port");
    neighbour.send_to(b"hello", gate.address()).expect("sent");
    let mut buffer = [0; 64];
    let (length, from) = node.recv_from(&mut buffer).expect("arrives");
    assert_eq!(&buffer[..length], b"hello");
    node.send_to(b"you", from).expect("sent");
    neighbour.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    assert_eq!(neighbour.recv(&mut buffer).expect("comes back"), 3);
}
