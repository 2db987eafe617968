//! How much a client of the broker may take. Every field of the crate's limits is set: its defaults allow a packet of 256 MiB
//! before authentication, and a thousand messages a minute, dropping the rest in silence.

use mqtt5::broker::BrokerConfig;
use mqtt5::broker::config::{StorageBackend, StorageConfig};
use mqtt5::broker::resource_monitor::ResourceLimits;
use mqtt5::broker::router::MessageRouter;
use shared::wire::mqtt::PAYLOAD_BYTES_MAX;
use std::path::Path;
use std::time::Duration;

/// Connected clients; more are dropped before the TLS handshake and try again. As many as the QUIC endpoint takes.
pub const CLIENTS_MAX: usize = 4_096;
/// A TLS handshake takes a few milliseconds of work and two round trips; who needs longer is silent or slow, and is dropped.
pub const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// TLS handshakes at a time. At the limit the oldest is dropped: it is the likeliest to be a silent socket.
pub(super) const HANDSHAKES_MAX: usize = 512;
/// The same from one address. A site of a hundred nodes behind one NAT gets in within a second, 64 at a time.
pub(super) const HANDSHAKES_PER_ADDRESS_MAX: usize = 64;
/// After a failed accept (no descriptors left) nothing is accepted for so long, rather than failing in a loop.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Topic and properties on top of the largest payload.
const PACKET_OVERHEAD: usize = 8 * 1024;
/// Messages on the way to one client. The hub reads telemetry of the whole fleet, 2,000 nodes in five seconds; at the limit
/// readings are dropped and the rest is queued, below.
const OUTBOUND_MAX: usize = 2_048;
/// Messages that must arrive and wait for one slow client, and their bytes; more are dropped, and come anew in the next round.
pub(super) const QUEUED_MAX: usize = 2_048;
pub(super) const QUEUED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Unacknowledged messages in each direction.
const INFLIGHT_MAX: u16 = 64;
/// A node subscribes to seven plans and one view.
const SUBSCRIPTIONS_MAX: usize = 32;
/// Two kept messages of each node and seven plans for it, for [`CLIENTS_MAX`] nodes; more are refused.
const RETAINED_MAX: usize = 9 * CLIENTS_MAX;
/// Messages a second of one client: the hub publishes a view for each of 2,000 nodes every second. More are dropped.
const MESSAGES_PER_SECOND_MAX: u32 = 20_000;
/// Bytes a second of one client. More are dropped.
const BYTES_PER_SECOND_MAX: u64 = 64 * 1024 * 1024;
/// Prescribed to every client: one heartbeat, so that a vanished one is noticed after one and a half.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Not used: sessions end with their connection, since clients restore their subscriptions themselves.
const SESSION_EXPIRY: Duration = Duration::ZERO;

pub(super) fn config(store: &Path) -> BrokerConfig {
    BrokerConfig {
        bind_addresses: Vec::new(),
        max_clients: CLIENTS_MAX,
        session_expiry_interval: SESSION_EXPIRY,
        max_packet_size: PAYLOAD_BYTES_MAX + PACKET_OVERHEAD,
        topic_alias_maximum: 0,
        maximum_qos: 1,
        subscription_identifier_available: false,
        shared_subscription_available: false,
        max_subscriptions_per_client: SUBSCRIPTIONS_MAX,
        max_retained_messages: RETAINED_MAX,
        max_retained_message_size: PAYLOAD_BYTES_MAX,
        client_channel_capacity: OUTBOUND_MAX,
        max_outbound_inflight: INFLIGHT_MAX,
        server_keep_alive: Some(KEEP_ALIVE),
        server_receive_maximum: Some(INFLIGHT_MAX),
        max_message_rate_per_client: MESSAGES_PER_SECOND_MAX,
        max_bandwidth_per_client: BYTES_PER_SECOND_MAX,
        sys_topics_enabled: false,
        storage_config: StorageConfig {
            backend: StorageBackend::File,
            base_dir: store.to_owned(),
            max_queued_messages_per_client: QUEUED_MAX,
            max_queued_bytes_per_client: QUEUED_BYTES_MAX,
            ..StorageConfig::default()
        },
        ..BrokerConfig::default()
    }
}

/// Connections are limited by our own accept loop, which also sees those that never send CONNECT; the crate's own limits on
/// them only stand at the same values.
pub(super) fn resources() -> ResourceLimits {
    ResourceLimits {
        max_connections: CLIENTS_MAX,
        max_connections_per_ip: CLIENTS_MAX,
        max_message_rate_per_client: MESSAGES_PER_SECOND_MAX,
        max_bandwidth_per_client: BYTES_PER_SECOND_MAX,
        max_connection_rate: u32::MAX,
        rate_limit_window: Duration::from_secs(1),
    }
}

pub(super) fn limit_router(router: MessageRouter) -> MessageRouter {
    router.with_retained_limits(RETAINED_MAX, PAYLOAD_BYTES_MAX)
}
