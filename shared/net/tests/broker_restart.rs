//! The real broker restarts under many real clients, each with the fleet's own rule of waiting: they come back, and not as one wave.
#![cfg(feature = "broker")]

#[expect(dead_code, reason = "this story uses a part of it")]
mod fleet;

use fleet::{Fleet, node};
use shared::backoff::{Backoff, mix};
use shared::ids::NodeId;
use shared::units::Micros;
use shared_net::broker::{Admission, Broker, BrokerSettings};
use shared_net::host::Tasks;
use shared_net::mqtt::{MqttEvent, MqttSettings, start};
use shared_net::tls::{Identity, Role};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The agents' windows.
const WINDOWS: (Micros, Micros) = (Micros::from_secs(2), Micros::from_secs(8));
/// How long everything may take, also while a compiler has the machine.
const SOON: Duration = Duration::from_secs(120);

struct Everybody;

impl Admission for Everybody {
    fn admits(&self, _node: &NodeId, _serial: &str) -> bool {
        true
    }
}

/// What all clients count.
#[derive(Default)]
struct Counts {
    attempts: Mutex<Vec<Instant>>,
    connected: AtomicUsize,
    lost: AtomicUsize,
}

impl Counts {
    async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let wait = async {
            while !holds(self) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let counts = || (self.connected.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed));
        tokio::time::timeout(SOON, wait).await.unwrap_or_else(|_| panic!("not in time: {what}; now {:?}", counts()));
    }

    fn busiest_second(&self, from: Instant) -> usize {
        let mut attempts = self.attempts.lock().expect("not poisoned").clone();
        attempts.retain(|at| *at >= from);
        attempts.sort_unstable();
        let within =
            |begin: usize| attempts[begin..].iter().take_while(|at| **at < attempts[begin] + Duration::from_secs(1)).count();
        (0..attempts.len()).map(within).max().unwrap_or_default()
    }
}

/// One client for ever: connects, notes, waits as the rule says, connects again.
async fn client(
    name: String,
    identity: Identity,
    settings: MqttSettings,
    clock: shared_net::tls::CertClock,
    counts: Arc<Counts>,
) {
    let seed = name.bytes().fold(7, |seed, byte| mix(seed, u64::from(byte)));
    let mut backoff = Backoff::new(seed, WINDOWS.0, WINDOWS.1);
    loop {
        let tasks = Tasks::new();
        counts.attempts.lock().expect("not poisoned").push(Instant::now());
        let (_mqtt, mut events) = start(settings.clone(), &identity, &clock, &tasks).expect("started");
        let mut up: Option<Instant> = None;
        while let Some(event) = events.recv().await {
            match event {
                MqttEvent::Connected => {
                    up = Some(Instant::now());
                    counts.connected.fetch_add(1, Ordering::Relaxed);
                }
                MqttEvent::Disconnected { .. } => break,
                MqttEvent::Message { .. } => {}
            }
        }
        if up.is_some() {
            counts.connected.fetch_sub(1, Ordering::Relaxed);
        }
        counts.lost.fetch_add(1, Ordering::Relaxed);
        drop(tasks.stop(Duration::from_secs(1)).await);
        let lasted = up.map_or(Micros::ZERO, |up| Micros(u64::try_from(up.elapsed().as_micros()).unwrap_or(u64::MAX)));
        tokio::time::sleep(Duration::from_micros(backoff.after_failure(lasted).0)).await;
    }
}

async fn broker(fleet: &Fleet, store: &Path, listen: SocketAddr) -> Broker {
    let settings = BrokerSettings { listen, store: store.to_owned(), hub: node("hub/main") };
    Broker::start(settings, &fleet.member("hub/main", Role::Hub), &fleet.clock, Arc::new(Everybody)).await.expect("a broker")
}

async fn restart_under(clients: usize) {
    let (fleet, store, counts) = (Fleet::new(), tempfile::tempdir().expect("folder"), Arc::new(Counts::default()));
    let first = broker(&fleet, store.path(), fleet::local()).await;
    let address = first.local_addr();
    let mut running = tokio::task::JoinSet::new();
    for number in 0..clients {
        let name = format!("site-{}/edge-{number}", number / 10);
        let settings = MqttSettings {
            address: address.to_string(),
            expected: node("hub/main"),
            client_id: node(&name).topic_level(),
            will: None,
            subscriptions: Vec::new(),
        };
        let identity = fleet.member(&name, Role::Node);
        running.spawn(client(name, identity, settings, fleet.clock.clone(), Arc::clone(&counts)));
    }
    let all_are_there = |counts: &Counts| counts.connected.load(Ordering::Relaxed) == clients;
    counts.until("all are connected", all_are_there).await;
    let gone = Instant::now();
    let before = counts.lost.load(Ordering::Relaxed);
    first.stop(SOON).await.expect("stopped");
    // Each has noticed, and most have tried in vain once.
    counts.until("most have tried in vain", |counts| counts.lost.load(Ordering::Relaxed) >= before + clients + clients / 2).await;
    let _second = broker(&fleet, store.path(), address).await;
    counts.until("all are back", all_are_there).await;
    let busiest = counts.busiest_second(gone);
    println!("{clients} clients: at most {busiest} attempts in a second, all back after {:?}", gone.elapsed());
    // Half of the clients in the busiest second, and what chance and a late scheduler add. All at once would be more than all.
    assert!(busiest <= clients * 8 / 10, "{busiest}");
    running.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_clients_come_back_one_by_one() {
    restart_under(100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes the machine for half a minute: run by hand"]
async fn five_hundred_clients_come_back_one_by_one() {
    restart_under(500).await;
}
