//! How much a connection may take, and how long it may be silent.

use quinn::{IdleTimeout, TransportConfig, VarInt};
use std::sync::Arc;
use std::time::Duration;

/// Keeps NAT mappings open and finds a dead peer; four of them may be lost before the connection counts as dead.
pub const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// A connection that is silent for so long is dead. Being a candidate needs a live connection, so this bounds how long work is
/// sent to a node that is gone.
pub const IDLE_TIME_MAX: Duration = Duration::from_secs(5);
/// Requests in flight on one connection; more wait at the sender for a free stream. A node runs far fewer at a time, and its
/// queue holds about as many.
pub const STREAMS_MAX: u32 = 256;
/// Connections of one endpoint, with and without a certificate; more are refused at the handshake. A hub's fleet of 2,000 nodes
/// fits twice, for nodes that come back before their old connection has timed out.
pub const CONNECTIONS_MAX: usize = 4_096;
/// Handshakes at a time. From half of it on, clients must first prove their address, so that forged ones cost nothing; at the
/// limit they are refused and try again. 256 on two cores take about a quarter of a second.
pub(super) const HANDSHAKES_MAX: usize = 256;
/// Of these on TCP: a silent TCP client holds its place until the time is over, and must not keep others from QUIC.
pub(super) const TCP_HANDSHAKES_MAX: usize = HANDSHAKES_MAX / 2;
/// First packets that wait to be looked at; quinn ignores more, and the client sends them again.
const INCOMING_MAX: usize = 1_024;
/// Buffered bytes of one, and of all, connections that were not looked at yet.
const INCOMING_BYTES_MAX: u64 = 64 * 1024;
const INCOMING_BYTES_TOTAL_MAX: u64 = 8 * 1024 * 1024;
/// Handshake time: three round trips of a satellite link with losses fit, a silent client does not.
pub const DIAL_TIME_MAX: Duration = Duration::from_secs(5);
/// A client without a certificate is closed after this: joining takes two round trips and one signature.
pub const JOIN_TIME_MAX: Duration = Duration::from_secs(15);
/// Clients without a certificate at a time; more are closed at once and try again. They are strangers.
pub(super) const JOINERS_MAX: usize = 64;
/// Bytes on the way on one stream: fills 100 ms at 20 Mbit/s, and bounds what a slow reader makes the other side keep.
pub(super) const STREAM_WINDOW: u32 = 256 * 1024;
/// Bytes on the way on one connection, in and out, all streams together.
pub(super) const CONNECTION_WINDOW: u32 = 2 * 1024 * 1024;
/// Streams and bytes of a client without a certificate: a join request has less than a kilobyte.
pub(super) const JOINER_STREAMS_MAX: u32 = 1;
pub(super) const JOINER_WINDOW: u32 = 16 * 1024;

/// Settings of connections that were dialled: the other end is known before anything is taken from it.
pub(super) fn dialled() -> Arc<TransportConfig> {
    Arc::new(transport())
}

/// Settings of connections that were accepted: those of a stranger, until [`trust`] widens them for a member.
pub(super) fn accepted() -> Arc<TransportConfig> {
    let mut config = transport();
    config.max_concurrent_bidi_streams(VarInt::from_u32(JOINER_STREAMS_MAX)).receive_window(VarInt::from_u32(JOINER_WINDOW));
    Arc::new(config)
}

/// Gives a connection what a member may take.
pub(super) fn trust(connection: &quinn::Connection) {
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(STREAMS_MAX));
    connection.set_receive_window(VarInt::from_u32(CONNECTION_WINDOW));
}

fn transport() -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(IdleTimeout::try_from(IDLE_TIME_MAX).ok())
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS_MAX))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(u64::from(CONNECTION_WINDOW))
        .datagram_receive_buffer_size(None);
    config
}

pub(super) fn limit_incoming(config: &mut quinn::ServerConfig) {
    config
        .migration(true)
        .max_incoming(INCOMING_MAX)
        .incoming_buffer_size(INCOMING_BYTES_MAX)
        .incoming_buffer_size_total(INCOMING_BYTES_TOTAL_MAX);
}
