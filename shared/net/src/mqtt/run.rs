//! The task that owns the connection.

use super::client::{EVENTS_MAX, MqttError, MqttEvent, MqttSettings, Shared};
use crate::tls::{self, CertClock};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{ConnectProperties, Filter, LastWill, Packet, Publish, SubscribeReasonCode as Code};
use rumqttc::v5::{AsyncClient, Event, EventLoop, MqttOptions};
use rumqttc::{TlsConfiguration, Transport};
use shared::backoff::Backoff;
use shared::units::Micros;
use shared::wire::mqtt::PAYLOAD_BYTES_MAX;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Requests that wait for the network. Each carries at most one payload; beyond it, publishing answers `Busy`.
const REQUESTS_MAX: usize = 256;
/// Messages of quality 1 that wait for their acknowledgement.
const INFLIGHT_MAX: u16 = 64;
/// One heartbeat: the broker notices a vanished client after one and a half.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// TCP, TLS and CONNECT together.
const CONNECT_SECS_MAX: u64 = 5;
/// Topic and properties on top of the largest payload.
const PACKET_OVERHEAD: usize = 8 * 1024;
/// How long a connection that ends properly may take to send what was published.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(1);
/// How long the program may leave the news of a connection unread before the connection is given up.
const NEWS_TIME_MAX: Duration = Duration::from_secs(2);
/// Above this many waiting events, readings are dropped; the rest is for messages that must not be lost.
const READINGS_MAX: usize = EVENTS_MAX / 4 * 3;

/// First window between two tries.
const WINDOW_FIRST: Micros = Micros::from_millis(250);
/// Largest window between two tries. Below one heartbeat, so that a broker that comes back has its clients back within one.
const WINDOW_MAX: Micros = Micros::from_secs(4);

fn micros(time: Duration) -> Micros {
    Micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

/// Why a connection ended.
enum Ended {
    /// The owner wants no more.
    Stopped,
    /// A new one shall be made at once, with another will.
    Renewed,
    /// Something went wrong.
    Failed(String),
}

/// Everything that the task needs.
pub(super) struct Connection {
    host: String,
    port: u16,
    settings: MqttSettings,
    clock: CertClock,
    shared: Arc<Shared>,
    events: mpsc::Sender<MqttEvent>,
}

impl Connection {
    pub(super) fn new(
        host: String,
        port: u16,
        settings: MqttSettings,
        clock: CertClock,
        shared: Arc<Shared>,
        events: mpsc::Sender<MqttEvent>,
    ) -> Result<Self, MqttError> {
        let connection = Self { host, port, settings, clock, shared, events };
        // A bad identity is told at once, not at the first attempt.
        connection.options()?;
        Ok(connection)
    }

    pub(super) async fn run(self, stop: CancellationToken) {
        let mut backoff = Backoff::new(rand::random(), WINDOW_FIRST, WINDOW_MAX);
        loop {
            let (ended, lasted) = self.connect_once(&stop).await;
            self.shared.set_client(None);
            let why = match ended {
                Ended::Stopped => return,
                Ended::Renewed => continue,
                Ended::Failed(why) => why,
            };
            let wait = Duration::from_micros(backoff.after_failure(micros(lasted)).0);
            tracing::debug!(broker = %self.settings.address, %why, wait_ms = wait.as_millis(), "no MQTT connection");
            let told = self.events.send(MqttEvent::Disconnected { why });
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                told = told => if told.is_err() { return },
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.shared.retry.notified() => {}
                () = sleep(wait) => {}
            }
        }
    }

    fn options(&self) -> Result<MqttOptions, MqttError> {
        let tls = tls::client_config(&self.shared.identity(), &self.clock, &self.settings.expected, b"")
            .map_err(|error| MqttError::Tls(error.to_string()))?;
        let mut options = MqttOptions::new(&self.settings.client_id, &self.host, self.port);
        let packet_bytes_max = u32::try_from(PAYLOAD_BYTES_MAX + PACKET_OVERHEAD).ok();
        let properties = ConnectProperties { max_packet_size: packet_bytes_max, ..ConnectProperties::new() };
        options
            .set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(Arc::new(tls))))
            .set_keep_alive(KEEP_ALIVE)
            .set_clean_start(true)
            .set_connect_properties(properties)
            .set_outgoing_inflight_upper_limit(INFLIGHT_MAX)
            .set_connection_timeout(CONNECT_SECS_MAX);
        let mut network = options.network_options();
        network.set_tcp_nodelay(true);
        options.set_network_options(network);
        if let Some(will) = self.shared.will() {
            let qos = will.qos();
            options.set_last_will(LastWill::new(will.topic, will.payload, qos, will.retain, None));
        }
        Ok(options)
    }

    /// One connection from its beginning to its end, and how long it was up.
    async fn connect_once(&self, stop: &CancellationToken) -> (Ended, Duration) {
        let options = match self.options() {
            Ok(options) => options,
            Err(error) => return (Ended::Failed(error.to_string()), Duration::ZERO),
        };
        let (client, mut event_loop) = AsyncClient::new(options, REQUESTS_MAX);
        let mut up_since = None;
        let ended = loop {
            match self.next(&client, &mut event_loop, stop).await {
                Ok(event) => {
                    if let Err(ended) = self.handle(event, &client, &mut up_since).await {
                        break ended;
                    }
                }
                Err(ended) => break ended,
            }
        };
        (ended, up_since.map_or(Duration::ZERO, |since: Instant| since.elapsed()))
    }

    /// The next event. The future of one poll is never dropped half-way while the connection is still wanted: the message in
    /// its hand would be lost.
    async fn next(&self, client: &AsyncClient, event_loop: &mut EventLoop, stop: &CancellationToken) -> Result<Event, Ended> {
        let ended = {
            let poll = event_loop.poll();
            tokio::pin!(poll);
            let ended = tokio::select! {
                biased;
                () = stop.cancelled() => Ended::Stopped,
                () = self.shared.reconnect.notified() => Ended::Renewed,
                event = &mut poll => return event.map_err(|error| Ended::Failed(error.to_string())),
            };
            self.shared.set_client(None);
            if client.try_disconnect().is_err() {
                return Err(ended);
            }
            // A farewell is over when the broker hangs up. Who hangs up first, with answers unread, may cut off what the broker
            // has not read yet, and with it the goodbye.
            match timeout(FAREWELL_TIME_MAX, poll).await {
                Ok(Ok(_)) => ended,
                _ => return Err(ended),
            }
        };
        let farewell = async { while event_loop.poll().await.is_ok() {} };
        // What could not be sent by then is lost, like the rest when the machine dies.
        drop(timeout(FAREWELL_TIME_MAX, farewell).await);
        Err(ended)
    }

    async fn handle(&self, event: Event, client: &AsyncClient, up_since: &mut Option<Instant>) -> Result<(), Ended> {
        match event {
            Event::Incoming(Packet::ConnAck(_)) if self.settings.subscriptions.is_empty() => {
                self.announce(client, up_since).await
            }
            Event::Incoming(Packet::ConnAck(_)) => {
                let filters = self.settings.subscriptions.iter().map(|filter| Filter::new(filter.clone(), QoS::AtLeastOnce));
                client.try_subscribe_many(filters).map_err(|error| Ended::Failed(format!("subscribing: {error}")))
            }
            Event::Incoming(Packet::SubAck(ack)) => match ack.return_codes.iter().find(|code| !is_granted(code)) {
                Some(code) => Err(Ended::Failed(format!("the broker refuses a subscription: {code:?}"))),
                None => self.announce(client, up_since).await,
            },
            Event::Incoming(Packet::Publish(publish)) => self.deliver(publish),
            _ => Ok(()),
        }
    }

    async fn announce(&self, client: &AsyncClient, up_since: &mut Option<Instant>) -> Result<(), Ended> {
        *up_since = Some(Instant::now());
        self.shared.set_client(Some(client.clone()));
        match timeout(NEWS_TIME_MAX, self.events.send(MqttEvent::Connected)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Ended::Stopped),
            Err(_) => Err(Ended::Failed("the program does not read its messages".to_owned())),
        }
    }

    /// Hands a message on without waiting: a slow program must not delay the keep-alive.
    fn deliver(&self, publish: Publish) -> Result<(), Ended> {
        let reading = publish.qos == QoS::AtMostOnce && !publish.retain;
        let waiting = EVENTS_MAX - self.events.capacity();
        let Ok(topic) = String::from_utf8(publish.topic.to_vec()) else { return Ok(()) };
        if publish.payload.len() > PAYLOAD_BYTES_MAX || (reading && waiting >= READINGS_MAX) {
            self.shared.count_dropped();
            return Ok(());
        }
        match self.events.try_send(MqttEvent::Message { topic, payload: publish.payload }) {
            Ok(()) => Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Ended::Stopped),
            Err(mpsc::error::TrySendError::Full(_)) => {
                Err(Ended::Failed("the program does not read its messages; what is retained will come anew".to_owned()))
            }
        }
    }
}

const fn is_granted(code: &Code) -> bool {
    matches!(code, Code::Success(_))
}
