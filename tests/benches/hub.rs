//! What telemetry costs the hub, beside bare Mosquitto, and what a thousand agents cost it: `make bench-hub`.
//!
//! Publishers are the agents' own MQTT client with real certificates and real reports. The thousand agents are whole ones, each with
//! its QUIC connection, its broker connection and its own state; they run in this one process, and are called so.

#[path = "kit/fleet.rs"]
mod fleet;
#[path = "kit/page.rs"]
mod page;
#[path = "kit/process.rs"]
mod process;
#[path = "kit/stream.rs"]
mod stream;

use edge_node::config::Config;
use edge_node::io::Running;
use edge_node::io::store::Member;
use fleet::Hub;
use page::{metric, page};
use process::{Program, free, resident, spent, theirs};
use shared::wire::JoinToken;
use shared_net::join::{Joined, join};
use shared_net::tls::{CertClock, Identity};
use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use stream::{Listener, Publishers};
use tests::report::{Bound, Report, Spread, number};
use tokio::task::JoinSet;

/// Nodes that publish in the comparison with Mosquitto.
const PUBLISHERS: usize = 40;
/// Messages a second of all publishers in that comparison: 20,000 nodes at the usual heartbeat.
const RATE: usize = 4_000;
/// How long each side publishes in a round.
const ROUND: Duration = Duration::from_secs(4);
/// Rates at which the knee is looked for, in messages a second.
const RATES: [usize; 7] = [2_000, 4_000, 8_000, 16_000, 24_000, 32_000, 48_000];
/// Agents at one site. Those of a site may talk to each other while the hub is away.
const PER_SITE: usize = 20;
/// Agents that join or start at once: more would wait for each other's handshakes.
const AT_ONCE: usize = 16;
/// A tier of agents is looked at for so long, after it has settled.
const LOOKED_AT: Duration = Duration::from_secs(10);
const SETTLED_AFTER: Duration = Duration::from_secs(10);

type Fault = Box<dyn Error>;

fn main() -> Result<(), Fault> {
    drop(rustls::crypto::ring::default_provider().install_default());
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut report = Report::begin("hub", "telemetry for each second of processor time, and a thousand agents");
    runtime.block_on(async {
        telemetry(&mut report, &folder.path().join("telemetry")).await?;
        thousand(&mut report, &folder.path().join("thousand")).await
    })?;
    report.end()?;
    Ok(())
}

/// The same reports into the hub and into bare Mosquitto, in turn; then more and more into the hub.
async fn telemetry(report: &mut Report, folder: &Path) -> Result<(), Fault> {
    std::fs::create_dir_all(folder)?;
    let hub = Hub::start(folder, Duration::from_secs(5))?;
    let members = joined(&hub, "lab", PUBLISHERS).await?;
    let (mosquitto, address, own) = start_mosquitto(folder, &hub)?;
    let to_hub = Publishers::connect(&hub.mqtt.to_string(), &members).await?;
    let to_mosquitto = Publishers::connect(&address, &members).await?;
    let listener = Listener::connect(&address, &own).await?;
    let received = || page(hub.admin, "/metrics").map(|text| metric(&text, "tidegate_hub_mqtt_received_total"));
    let (mut by_hub, mut by_mosquitto, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..number("--rounds", 5) {
        let (before, time) = (received()?, spent(hub.program.id())?);
        let sent = to_hub.publish(RATE, ROUND).await;
        let arrived = received()? - before;
        by_hub.push(arrived / (spent(hub.program.id())? - time).as_secs_f64());
        lost.push(1.0 - arrived / sent);
        let (before, time) = (listener.heard(), spent(mosquitto.id())?);
        let sent = to_mosquitto.publish(RATE, ROUND).await;
        let arrived = listener.heard() - before;
        by_mosquitto.push(arrived / (spent(mosquitto.id())? - time).as_secs_f64());
        lost.push(1.0 - arrived / sent);
    }
    let each = |name: &str, values: &[f64]| {
        let spread = Spread::of(values);
        vec![name.to_owned(), spread.shown(0), format!("{:.1}", 1e6 / spread.median)]
    };
    let rows = [each("hub: broker, ingestion and decisions", &by_hub), each("mosquitto: to one subscriber", &by_mosquitto)];
    let what = format!("{RATE} reports of {} bytes a second from {PUBLISHERS} nodes, mutual TLS", to_hub.bytes());
    report.table(&what, &["", "messages / CPU s", "us each"], &rows);
    report.note(&format!("lost on the way: {}", Spread::of(&lost).shown(4)));
    report.floor("messages for a CPU second, hub / mosquitto", Spread::of_ratios(&by_hub, &by_mosquitto), Bound::AtLeast(0.3));
    knee(report, &hub, &to_hub).await
}

/// More and more reports, until they do not all arrive.
async fn knee(report: &mut Report, hub: &Hub, publishers: &Publishers) -> Result<(), Fault> {
    let received = || page(hub.admin, "/metrics").map(|text| metric(&text, "tidegate_hub_mqtt_received_total"));
    let (mut rows, mut reached) = (Vec::new(), 0.0_f64);
    for rate in RATES {
        let (before, time, begun) = (received()?, spent(hub.program.id())?, Instant::now());
        let sent = publishers.publish(rate, ROUND).await;
        let (arrived, lasted) = (received()? - before, begun.elapsed().as_secs_f64());
        let cpu = (spent(hub.program.id())? - time).as_secs_f64() / lasted * 100.0;
        reached = reached.max(arrived / lasted);
        let memory = resident(hub.program.id())? >> 20;
        rows.push(vec![
            rate.to_string(),
            format!("{:.0}", sent / lasted),
            format!("{:.0}", arrived / lasted),
            format!("{cpu:.0}"),
            memory.to_string(),
        ]);
        if arrived < sent * 0.99 {
            break;
        }
    }
    report.table("more and more reports", &["wanted / s", "sent / s", "taken in / s", "hub CPU %", "hub MB"], &rows);
    report.note(&format!("the hub took in at most {reached:.0} reports a second, with the publishers on the same cores"));
    Ok(())
}

/// Whole agents, a tier at a time.
async fn thousand(report: &mut Report, folder: &Path) -> Result<(), Fault> {
    std::fs::create_dir_all(folder)?;
    let hub = Hub::start(folder, Duration::from_secs(5))?;
    let most = number("--agents", 1_000);
    let (mut agents, mut rows) = (Vec::new(), Vec::new());
    for tier in [most / 4, most / 2, most] {
        while agents.len() < tier {
            // A site that a tier left half full stays so: its names are taken.
            let site = format!("site-{}", agents.len());
            let members = joined(&hub, &site, PER_SITE.min(tier - agents.len())).await?;
            agents.extend(started(folder, &hub, members).await?);
        }
        let online = online(&hub, tier).await?;
        tokio::time::sleep(SETTLED_AFTER).await;
        let received = || page(hub.admin, "/metrics").map(|text| metric(&text, "tidegate_hub_mqtt_received_total"));
        let (before, time, own) = (received()?, spent(hub.program.id())?, spent(std::process::id())?);
        tokio::time::sleep(LOOKED_AT).await;
        let seconds = LOOKED_AT.as_secs_f64();
        let share = |since: Duration, now: Duration| format!("{:.1}", (now - since).as_secs_f64() / seconds * 100.0);
        rows.push(vec![
            tier.to_string(),
            format!("{online:.1}"),
            format!("{:.0}", (received()? - before) / seconds),
            share(time, spent(hub.program.id())?),
            (resident(hub.program.id())? >> 20).to_string(),
            share(own, spent(std::process::id())?),
            (resident(std::process::id())? >> 20).to_string(),
        ]);
    }
    let head = ["agents", "online after s", "reports / s", "hub CPU %", "hub MB", "agents' CPU %", "agents' MB"];
    report.table("whole agents in one process, heartbeat 5 s, at rest", &head, &rows);
    let mut ending = JoinSet::new();
    for agent in agents {
        ending.spawn(async move { agent.shutdown().await.is_ok() });
    }
    let ended = ending.join_all().await;
    report.note(&format!("{} of {} agents ended in time", ended.iter().filter(|well| **well).count(), ended.len()));
    Ok(())
}

/// Waits until the hub counts so many nodes as online, and says how long that took.
async fn online(hub: &Hub, wanted: usize) -> Result<f64, Fault> {
    let begun = Instant::now();
    loop {
        let text = page(hub.admin, "/metrics")?;
        let line = text.lines().find_map(|line| line.strip_prefix("tidegate_hub_nodes{state=\"online\"} "));
        let there = line.and_then(|number| number.trim().parse::<usize>().ok()).unwrap_or(0);
        if there >= wanted {
            return Ok(begun.elapsed().as_secs_f64());
        }
        if begun.elapsed() > Duration::from_secs(120) {
            return Err(format!("{there} of {wanted} agents are online after two minutes").into());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Memberships with real tokens and certificates.
async fn joined(hub: &Hub, site: &str, count: usize) -> Result<Vec<(JoinToken, Joined)>, Fault> {
    let token: JoinToken = hub.token(site, count)?.parse()?;
    let (mut members, mut joining, mut next) = (Vec::new(), JoinSet::new(), 0);
    while members.len() < count {
        while next < count && joining.len() < AT_ONCE {
            let (token, name) = (token.clone(), format!("node-{next}"));
            joining.spawn(async move { join(&token, &name, &CertClock::new(0)).await.map(|joined| (token, joined)) });
            next += 1;
        }
        members.push(joining.join_next().await.ok_or("nobody joins any more")???);
    }
    Ok(members)
}

/// Agents that run, each with a state folder of its own.
async fn started(folder: &Path, hub: &Hub, members: Vec<(JoinToken, Joined)>) -> Result<Vec<Running>, Fault> {
    let mut agents = Vec::new();
    for (token, joined) in members {
        let state = folder.join(joined.identity.node().topic_level());
        std::fs::create_dir_all(&state)?;
        let lifetime = joined.expires_in;
        let member = Member { hub: joined.hub, address: token.address, labels: joined.labels, lifetime };
        member.save(&state)?;
        joined.identity.save(&state)?;
        let mut config = Config { state, ..Config::default() };
        config.http.listen.set_port(0);
        config.quic.listen = ([127, 0, 0, 1], 0).into();
        config.hub.address = hub.quic.to_string();
        agents.push(Running::start(&config, None).await?);
    }
    Ok(agents)
}

fn start_mosquitto(folder: &Path, hub: &Hub) -> Result<(Program, String, Identity), Fault> {
    let (address, dir) = (free()?, folder.join("mosquitto"));
    hub.command(&["mosquitto-conf", "--dir", &dir.display().to_string(), "--listen", &address.to_string(), "--user", "root"])?;
    let read = |name: &str| std::fs::read_to_string(dir.join(name));
    let own = Identity::new(&read("broker.pem")?, &read("broker.key")?, &read("ca.pem")?)?;
    let mut command = Command::new(theirs("mosquitto")?);
    let mut program = Program::start(command.arg("-c").arg(dir.join("mosquitto.conf")), folder.join("mosquitto.log"))?;
    program.until(Duration::from_secs(10), || std::net::TcpStream::connect(address).is_ok())?;
    Ok((program, address.to_string(), own))
}
