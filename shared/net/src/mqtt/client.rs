//! What a program sees of its connection to the broker.

use super::run::Connection;
use crate::host::Tasks;
use crate::tls::{CertClock, Identity};
use bytes::Bytes;
use rumqttc::v5::AsyncClient;
use rumqttc::v5::mqttbytes::QoS;
use shared::ids::NodeId;
use shared::wire::mqtt::PAYLOAD_BYTES_MAX;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, mpsc};

/// Events that wait for the program. The last quarter is kept for messages that must not be lost: when it is full as well, the
/// connection is dropped, and what is retained comes anew. 4,096 messages of a usual size are a few megabytes.
pub(super) const EVENTS_MAX: usize = 4_096;

/// Where and as whom to connect.
#[derive(Clone, Debug)]
pub struct MqttSettings {
    /// `host:port` of the broker.
    pub address: String,
    /// Whose certificate the broker has: the hub's for the embedded one.
    pub expected: NodeId,
    /// [`NodeId::topic_level`] of this member; the hub appends `~` and a word, so that several of its parts can connect.
    pub client_id: String,
    /// What the broker shall publish when this client vanishes.
    pub will: Option<Note>,
    /// Filters, subscribed anew at each connect.
    pub subscriptions: Vec<String>,
}

/// One message.
#[derive(Clone, PartialEq, Eq)]
pub struct Note {
    /// Where.
    pub topic: String,
    /// What.
    pub payload: Vec<u8>,
    /// Whether the broker keeps it for those who subscribe later.
    pub retain: bool,
    /// Whether it must arrive (quality of service 1), or the next one is as good (0).
    pub certain: bool,
}

impl Note {
    /// A state: kept by the broker, and must arrive.
    #[must_use]
    pub const fn state(topic: String, payload: Vec<u8>) -> Self {
        Self { topic, payload, retain: true, certain: true }
    }

    /// An answer: must arrive, and concerns nobody later.
    #[must_use]
    pub const fn answer(topic: String, payload: Vec<u8>) -> Self {
        Self { topic, payload, retain: false, certain: true }
    }

    /// A reading: the next one is as good.
    #[must_use]
    pub const fn reading(topic: String, payload: Vec<u8>) -> Self {
        Self { topic, payload, retain: false, certain: false }
    }

    pub(super) const fn qos(&self) -> QoS {
        if self.certain { QoS::AtLeastOnce } else { QoS::AtMostOnce }
    }
}

impl fmt::Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Note").field("topic", &self.topic).field("bytes", &self.payload.len()).finish_non_exhaustive()
    }
}

/// What happened.
#[derive(Clone, PartialEq, Eq)]
pub enum MqttEvent {
    /// Connected and subscribed: publish what there is to know.
    Connected,
    /// Not connected any more, or an attempt failed; the next follows by itself.
    Disconnected {
        /// What went wrong.
        why: String,
    },
    /// A message came.
    Message {
        /// Where.
        topic: String,
        /// What.
        payload: Bytes,
    },
}

impl fmt::Debug for MqttEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("Connected"),
            Self::Disconnected { why } => f.debug_struct("Disconnected").field("why", why).finish(),
            Self::Message { topic, payload } => {
                f.debug_struct("Message").field("topic", topic).field("bytes", &payload.len()).finish()
            }
        }
    }
}

/// Why a message was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MqttError {
    /// There is no connection. Publish what still matters on [`MqttEvent::Connected`].
    #[error("not connected to the MQTT broker")]
    NotConnected,
    /// Too much waits to be sent.
    #[error("the queue to the MQTT broker is full")]
    Busy,
    /// Longer than anybody accepts.
    #[error("a payload of {0} bytes: at most {PAYLOAD_BYTES_MAX}")]
    TooLong(usize),
    /// The address of the broker is none.
    #[error("`{0}` is no address of an MQTT broker: want `host:port`")]
    Address(String),
    /// There is no usable identity.
    #[error("setting up TLS for MQTT: {0}")]
    Tls(String),
}

/// Publishes over the connection that [`start`] keeps. Clones share it.
#[derive(Clone, Debug)]
pub struct Mqtt(pub(super) Arc<Shared>);

/// What the handle and the task share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The sending side of the present connection.
    client: Mutex<Option<AsyncClient>>,
    will: Mutex<Option<Note>>,
    identity: Mutex<Identity>,
    /// Asks the task to end the connection properly and connect again.
    pub(super) reconnect: Notify,
    /// Asks the task to wait no longer.
    pub(super) retry: Notify,
    dropped: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn set_client(&self, client: Option<AsyncClient>) {
        *lock(&self.client) = client;
    }

    pub(super) fn will(&self) -> Option<Note> {
        lock(&self.will).clone()
    }

    pub(super) fn identity(&self) -> Identity {
        lock(&self.identity).clone()
    }

    pub(super) fn count_dropped(&self) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Mqtt {
    /// Publishes without waiting.
    ///
    /// # Errors
    /// [`MqttError`] when it was not taken.
    pub fn publish(&self, note: Note) -> Result<(), MqttError> {
        if note.payload.len() > PAYLOAD_BYTES_MAX {
            return Err(MqttError::TooLong(note.payload.len()));
        }
        let client = lock(&self.0.client);
        let client = client.as_ref().ok_or(MqttError::NotConnected)?;
        let qos = note.qos();
        client.try_publish(note.topic, qos, note.retain, note.payload).map_err(|_| MqttError::Busy)
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        lock(&self.0.client).is_some()
    }

    /// Leaves another last will from now on. It is part of connecting, so the connection is made anew, properly: the older will
    /// is not published.
    pub fn set_will(&self, will: Option<Note>) {
        *lock(&self.0.will) = will;
        self.0.reconnect.notify_one();
    }

    /// Uses a renewed identity from the next connection on.
    pub fn set_identity(&self, identity: &Identity) {
        *lock(&self.0.identity) = identity.clone();
    }

    /// Does not wait longer for the next attempt; for when another sign says that the broker is back.
    pub fn retry_now(&self) {
        self.0.retry.notify_one();
    }

    /// Readings that came and were dropped because the program was slow: always the newest, since those that wait are about to
    /// be read, and the next reading is as good.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }
}

/// Keeps a connection to a broker until the owner of `tasks` stops it; then what was published is sent, and the connection ends
/// without the last will.
///
/// # Errors
/// [`MqttError::Address`] or [`MqttError::Tls`]; a broker that is not there is no error.
pub fn start(
    settings: MqttSettings,
    identity: &Identity,
    clock: &CertClock,
    tasks: &Tasks,
) -> Result<(Mqtt, mpsc::Receiver<MqttEvent>), MqttError> {
    let (host, port) = host_and_port(&settings.address)?;
    let shared = Arc::new(Shared {
        client: Mutex::new(None),
        will: Mutex::new(settings.will.clone()),
        identity: Mutex::new(identity.clone()),
        reconnect: Notify::new(),
        retry: Notify::new(),
        dropped: AtomicU64::new(0),
    });
    let (sender, receiver) = mpsc::channel(EVENTS_MAX);
    let name = format!("mqtt client {}", settings.client_id);
    let connection = Connection::new(host, port, settings, clock.clone(), Arc::clone(&shared), sender)?;
    tasks.spawn(name, connection.run(tasks.cancelled()));
    Ok((Mqtt(shared), receiver))
}

/// An IPv6 address stands in brackets in front of its port, but not in the host.
fn host_and_port(address: &str) -> Result<(String, u16), MqttError> {
    let bad = || MqttError::Address(address.to_owned());
    let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
    let host = host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() {
        return Err(bad());
    }
    Ok((host.to_owned(), port.parse().map_err(|_| bad())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(host_and_port("hub:8883"), Ok(("hub".to_owned(), 8883)));
        assert_eq!(host_and_port("[::1]:8883"), Ok(("::1".to_owned(), 8883)));
        for bad in ["hub", ":1", "hub:x", ""] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }
}
