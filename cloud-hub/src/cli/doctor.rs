//! `cloud-hub doctor`: looks at everything that a hub stands on, and says what to do about what is wrong.
//!
//! It changes nothing, and may be asked while the hub runs.

use super::{CliError, Place};
use crate::ca::HOST_LIFETIME;
use crate::clock::UnixTime;
use crate::config::Config;
use crate::state::{StateDir, StateError};
use crate::store::{Db, Meta};
use shared::ids::NodeId;
use shared_net::host::checks::{self, Port, port};
use shared_net::host::{Checkup, Finding, StateFolder, Tasks};
use shared_net::link::resolve;
use shared_net::mqtt::{MqttEvent, MqttSettings};
use shared_net::say;
use shared_net::tls::CertClock;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Those that hold a key or a secret, or tell of nodes.
const PRIVATE_FILES: [&str; 4] = ["ca.key", "admin.key", "hub.db", "reset-secret"];
/// An operator who backs up weekly has missed one.
const BACKUP_S_MAX: u64 = 8 * 86_400;
/// How many days before its end the authority should be thought of: every node must join again.
const AUTHORITY_S_MIN: u64 = 365 * 86_400;
/// How long a running hub may take to accept a connection to itself.
const CONNECT_MAX: Duration = Duration::from_secs(2);
/// How long a broker may take to take us in.
const BROKER_MAX: Duration = Duration::from_secs(8);
const RESTORE: &str = "put the newest backup into a fresh folder: cloud-hub restore FILE --state FOLDER";

/// Prints what it finds; a failed check is a failed command.
pub(super) async fn diagnose(place: &Place, json: bool) -> Result<(), CliError> {
    let checkup = match place.load(Vec::new()) {
        Ok(loaded) => examine(&loaded.value).await,
        Err(error) => {
            let remedy = "correct that key, variable or flag; deploy/hub.toml explains each";
            Checkup { checks: vec![Finding::fail("configuration", told(&error), remedy)] }
        }
    };
    if json {
        say!("{}", serde_json::to_string_pretty(&checkup).unwrap_or_default());
    } else {
        say!("{checkup}");
    }
    if checkup.failed() == 0 { Ok(()) } else { Err(CliError::Unwell(checkup.failed())) }
}

async fn examine(config: &Config) -> Checkup {
    let mut checkup = Checkup::default();
    checkup.add([configuration(config)]);
    let state = StateDir::at(&config.state);
    if let Err(StateError::NotInitialised(_)) = state.admin_key() {
        let remedy = format!("cloud-hub init --state {} --name REGION/NAME --address HOST:PORT", config.state.display());
        checkup.add([Finding::fail("name", format!("{} is no state folder of a hub", config.state.display()), remedy)]);
        return checkup;
    }
    checkup.add([checks::private_files(state.path(), &PRIVATE_FILES), checks::disk(state.path()).await]);
    let opened = Db::open(&state.database(), config.records).and_then(|db| Ok((db.meta()?, db)));
    let now = UnixTime(checks::system_secs());
    match &opened {
        Ok((meta, db)) => {
            checkup.add([name(meta).await, checks::clock(meta.clock.0, "nothing: the hub keeps it in its database")]);
            checkup.add([store(db), certificates(db, now)]);
        }
        Err(error) => checkup.add([Finding::fail("store", told(error), RESTORE)]),
    }
    checkup.add([authority(&state, now)]);
    checkup.add(ports(config, &state).await);
    if let Ok((meta, _)) = &opened
        && !config.mqtt.external.is_empty()
    {
        checkup.add([broker(config, &state, meta).await]);
    }
    checkup.add([backup(&state, now)]);
    checkup
}

fn told(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}

fn configuration(config: &Config) -> Finding {
    match config.validate_to_serve() {
        Ok(()) => Finding::ok("configuration", "can work"),
        Err(error) => Finding::fail("configuration", told(&error), "correct it; deploy/hub.toml explains each key"),
    }
}

/// Join tokens carry the address, so every node depends on it.
async fn name(meta: &Meta) -> Finding {
    let (hub, address) = (&meta.hub, &meta.address);
    let remedy = "nodes dial it: give the name an address (DNS), or print tokens with `cloud-hub token --address HOST:PORT`";
    let found = resolve(address).await;
    let loopback = |all: &[SocketAddr]| all.iter().all(|at| at.ip().is_loopback());
    match found {
        Err(error) => Finding::fail("name", format!("{hub}, at {address}: {}", told(&error)), remedy),
        Ok(all) if loopback(&all) => {
            Finding::warn("name", format!("{hub}, at {address}: only this machine reaches that"), remedy)
        }
        Ok(_) => Finding::ok("name", format!("{hub}, at {address}")),
    }
}

fn store(db: &Db) -> Finding {
    match db.faults() {
        Ok(faults) if faults.is_empty() => Finding::ok("store", "whole"),
        Ok(faults) => Finding::fail("store", format!("damaged: {}", faults.join("; ")), RESTORE),
        Err(error) => Finding::fail("store", told(&error), RESTORE),
    }
}

fn certificates(db: &Db, now: UnixTime) -> Finding {
    let (Ok(expiries), Ok(nodes)) = (db.expiries(), db.nodes()) else {
        return Finding::fail("certificates", "the registry of nodes cannot be read", RESTORE);
    };
    let ended: Vec<String> = nodes
        .iter()
        .filter(|row| row.revoked.is_none())
        .filter(|row| expiries.get(&row.node).is_some_and(|expires| *expires <= now))
        .map(|row| row.node.to_string())
        .collect();
    if ended.is_empty() {
        return Finding::ok("certificates", format!("{} nodes, none with a certificate that has run out", nodes.len()));
    }
    Finding::warn(
        "certificates",
        format!("run out: {}", ended.join(", ")),
        "those nodes were away too long: on each, `edge-node join --replace` with a fresh token; `cloud-hub revoke` those that are gone",
    )
}

fn authority(state: &StateDir, now: UnixTime) -> Finding {
    let authority = match state.authority() {
        Ok(authority) => authority,
        Err(error) => return Finding::fail("authority", told(&error), RESTORE),
    };
    let Some(ends) = authority.expires() else {
        return Finding::fail("authority", "its certificate (ca.pem) cannot be read", RESTORE);
    };
    // Whether key and certificate belong together shows when something is signed.
    let Ok(tester) = NodeId::new("doctor/test") else { return Finding::ok("authority", "readable") };
    let trial = authority.issue_hub(&tester, &[], now).map_err(|error| told(&error));
    let trial = trial.and_then(|made| {
        let clock = CertClock::new(now.0);
        made.identity.check(&clock).map_err(|error| told(&error))
    });
    let left = now.until(ends).as_secs();
    match trial {
        Err(why) => Finding::fail("authority", format!("what it signs is not accepted: {why}"), RESTORE),
        Ok(()) if left == 0 => Finding::fail(
            "authority",
            "it has run out",
            "make a new fleet (`cloud-hub init` in a fresh folder) and join every node again",
        ),
        Ok(()) if left < AUTHORITY_S_MIN.max(HOST_LIFETIME.as_secs()) => Finding::warn(
            "authority",
            format!("ends in {}", checks::span(left)),
            "plan a new fleet (`cloud-hub init` in a fresh folder): every node must join it",
        ),
        Ok(()) => Finding::ok("authority", format!("good for {}", checks::span(left))),
    }
}

/// Our own ports: free, or held by the hub that runs on this folder.
async fn ports(config: &Config, state: &StateDir) -> Vec<Finding> {
    if StateFolder::is_held(state.path()) {
        return running(state).await;
    }
    let mut findings = vec![
        port(Port::Udp, "quic.listen", config.quic.listen),
        port(Port::Tcp, "quic.listen", config.quic.listen),
        port(Port::Tcp, "http.listen", config.http.listen),
        port(Port::Tcp, "admin.listen", config.admin.listen),
    ];
    if config.mqtt.external.is_empty() {
        findings.push(port(Port::Tcp, "mqtt.listen", config.mqtt.listen));
    }
    findings
}

async fn running(state: &StateDir) -> Vec<Finding> {
    let Ok(addresses) = state.addresses() else {
        let remedy = "wait a moment and ask again; if it stays so, read its log and restart it";
        return vec![Finding::warn("ports", "a hub holds the folder and does not listen yet", remedy)];
    };
    let mut findings = Vec::new();
    for (key, at) in [("http.listen", addresses.http), ("admin.listen", addresses.admin)] {
        findings.push(match timeout(CONNECT_MAX, TcpStream::connect(reachable(at))).await {
            Ok(Ok(_)) => Finding::ok(key, format!("the running hub (process {}) answers at TCP {at}", addresses.pid)),
            _ => Finding::fail(key, format!("the running hub does not answer at TCP {at}"), "read its log, and restart it"),
        });
    }
    findings
}

/// A socket on every address is reached over loopback.
fn reachable(at: SocketAddr) -> SocketAddr {
    match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), at.port()),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), at.port()),
        _ => at,
    }
}

/// Connects to the external broker as a part of the hub.
async fn broker(config: &Config, state: &StateDir, meta: &Meta) -> Finding {
    let address = &config.mqtt.external;
    match meet(address, state, meta).await {
        Ok(()) => Finding::ok("broker", format!("{address} takes the hub in")),
        Err(why) => Finding::fail(
            "broker",
            format!("MQTT at {address}: {why}"),
            "start it with the files of `cloud-hub mosquitto-conf`, and let TCP through to it; or set `mqtt.external` to nothing",
        ),
    }
}

async fn meet(address: &str, state: &StateDir, meta: &Meta) -> Result<(), String> {
    let now = UnixTime(checks::system_secs());
    let authority = state.authority().map_err(|error| told(&error))?;
    let identity = authority.issue_hub(&meta.hub, &[], now).map_err(|error| told(&error))?.identity;
    let settings = MqttSettings {
        address: address.to_owned(),
        expected: meta.hub.clone(),
        client_id: format!("{}~doctor", meta.hub.topic_level()),
        will: None,
        subscriptions: Vec::new(),
    };
    let tasks = Tasks::new();
    let started = shared_net::mqtt::start(settings, &identity, &CertClock::new(meta.clock.0), &tasks);
    let (client, mut events) = started.map_err(|error| told(&error))?;
    let met = timeout(BROKER_MAX, async {
        match events.recv().await {
            Some(MqttEvent::Disconnected { why }) => Err(why),
            Some(_) => Ok(()),
            None => Err("the connection ended".to_owned()),
        }
    });
    let met = met.await.unwrap_or_else(|_| Err(format!("no answer within {} s", BROKER_MAX.as_secs())));
    drop(client);
    // It ends with the process at the latest.
    drop(tasks.stop(CONNECT_MAX).await);
    met
}

fn backup(state: &StateDir, now: UnixTime) -> Finding {
    let remedy = "cloud-hub backup FILE, and keep the file on another machine";
    match crate::backup::made(state) {
        None => Finding::warn("backup", "there never was one: without the authority every node must join again", remedy),
        Some(made) => {
            let ago = made.until(now).as_secs();
            let seen = format!("the last one is {} old", checks::span(ago));
            if ago > BACKUP_S_MAX { Finding::warn("backup", seen, remedy) } else { Finding::ok("backup", seen) }
        }
    }
}
