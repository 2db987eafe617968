//! What an agent costs that has nothing to do, beside node_exporter: `make bench-agent`.
//!
//! The agent has no model, has joined a hub, and speaks TLS with it and its broker. A second one reports many times as fast as
//! usual, first with its hub and then without.

#[path = "kit/fleet.rs"]
#[expect(dead_code, reason = "this benchmark uses a part of it")]
mod fleet;
#[path = "kit/page.rs"]
mod page;
#[path = "kit/process.rs"]
mod process;

use fleet::{Hub, run};
use page::{metric, page};
use process::{Program, free, ours, resident, spent, theirs};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tests::report::{Bound, Report, Spread, number};

/// How long a program may take until it answers.
const UP_WITHIN: Duration = Duration::from_secs(30);
/// Time after the start that is not measured: connections, the first reports, the machine's inventory.
const SETTLED_AFTER: Duration = Duration::from_secs(10);
/// How often both programs are asked for their metrics, as a Prometheus would.
const SCRAPED_EVERY: Duration = Duration::from_secs(15);
/// Heartbeats of the second agent come so often, 250 times as often as usual.
const FAST: Duration = Duration::from_millis(20);
const MEGABYTE: f64 = 1_048_576.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let mut report = Report::begin("agent", "memory and time of an agent that has nothing to do");
    idle(&mut report, &folder.path().join("idle"))?;
    heartbeats(&mut report, &folder.path().join("fast"))?;
    report.end()?;
    Ok(())
}

/// A minute of an agent and of node_exporter, side by side.
fn idle(report: &mut Report, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let hub = Hub::start(folder, Duration::from_secs(5))?;
    let (agent, agent_at) = start_agent(folder, &hub)?;
    let (exporter, exporter_at) = start_exporter(folder)?;
    sleep(SETTLED_AFTER);
    let programs = [("agent", &agent, agent_at, "/tidegate/v1/metrics"), ("node_exporter", &exporter, exporter_at, "/metrics")];
    let mut before = Vec::new();
    for (_, program, ..) in programs {
        before.push((spent(program.id())?, resident(program.id())?));
    }
    let begun = Instant::now();
    let within = Duration::from_secs(u64::try_from(number("--idle-seconds", 60)).unwrap_or(60));
    while begun.elapsed() < within {
        sleep(SCRAPED_EVERY.min(within.saturating_sub(begun.elapsed())));
        for (_, _, address, path) in programs {
            page(address, path)?;
        }
    }
    let (mut rows, mut used) = (Vec::new(), Vec::new());
    for ((name, program, ..), (time, memory)) in programs.into_iter().zip(before) {
        let share = (spent(program.id())? - time).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
        let now = resident(program.id())?;
        rows.push(vec![name.to_owned(), megabytes(memory), megabytes(now), format!("{share:.3}")]);
        used.push((in_megabytes(now), share));
    }
    let head = ["", "resident MB at first", "after a minute", "% of a core"];
    report.table("idle, joined with TLS, asked for metrics every 15 s", &head, &rows);
    report.floor("resident memory, agent / node_exporter", Spread::of(&[used[0].0 / used[1].0]), Bound::AtMost(1.0));
    report.floor("% of a core of the idle agent", Spread::of(&[used[0].1]), Bound::AtMost(0.1));
    Ok(())
}

/// Many heartbeats with the hub and its broker, and as many without.
fn heartbeats(report: &mut Report, folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let count = u32::try_from(number("--heartbeats", 3_600)).unwrap_or(3_600);
    let hub = Hub::start(folder, FAST)?;
    let (agent, _) = start_agent(folder, &hub)?;
    // Whatever is made once is there after some.
    sleep(SETTLED_AFTER);
    let received = || page(hub.admin, "/metrics").map(|text| metric(&text, "tidegate_hub_mqtt_received_total"));
    let mut memory = vec![resident(agent.id())?];
    let (begun, already) = (Instant::now(), received()?);
    let mut arrived = 0.0;
    while arrived < f64::from(count) {
        // A machine that is busy with other things delays some.
        if begun.elapsed() > FAST * count * 4 {
            return Err(io::Error::other(format!("only {arrived} of {count} heartbeats arrived")));
        }
        sleep(FAST * 5);
        arrived = received()? - already;
    }
    let lasted = begun.elapsed();
    memory.push(resident(agent.id())?);
    drop(hub);
    sleep(FAST * count);
    memory.push(resident(agent.id())?);
    let grown = |from: usize| in_megabytes(memory[from + 1]) - in_megabytes(memory[from]);
    let rows = [
        vec!["at first".to_owned(), megabytes(memory[0]), String::new()],
        vec![format!("after {count} with the broker"), megabytes(memory[1]), format!("{:+.2}", grown(0))],
        vec![format!("after {count} without"), megabytes(memory[2]), format!("{:+.2}", grown(1))],
    ];
    report.table(&format!("heartbeats, one each {} ms", FAST.as_millis()), &["", "resident MB", "grown by"], &rows);
    report.note(&format!("{arrived:.0} messages arrived at the hub in {:.0} s with the broker", lasted.as_secs_f64()));
    report.floor("MB grown with the broker up", Spread::of(&[grown(0)]), Bound::AtMost(1.0));
    report.floor("MB grown with the broker down", Spread::of(&[grown(1)]), Bound::AtMost(1.0));
    Ok(())
}

fn in_megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "memory of a process, for display")]
    let bytes = bytes as f64;
    bytes / MEGABYTE
}

fn megabytes(bytes: u64) -> String {
    format!("{:.2}", in_megabytes(bytes))
}

fn start_agent(folder: &Path, hub: &Hub) -> io::Result<(Program, SocketAddr)> {
    let (address, config, state) = (free()?, folder.join("agent.toml"), folder.join("agent"));
    let quic = free()?;
    std::fs::write(&config, format!("state = {state:?}\n[http]\nlisten = \"{address}\"\n[quic]\nlisten = \"{quic}\"\n"))?;
    let (token, config) = (hub.token("lab", 1)?, config.display().to_string());
    run(ours("edge-node")?, &["join", &token, "--name", "idle", "--config", &config])?;
    let mut command = Command::new(ours("edge-node")?);
    let mut program = Program::start(command.args(["run", "--config", &config]), folder.join("agent.log"))?;
    program.until(UP_WITHIN, || {
        // With its hub: only then it talks to the broker as well.
        page(address, "/healthz").is_ok_and(|text| text.contains("\"degraded\":false"))
    })?;
    Ok((program, address))
}

fn start_exporter(folder: &Path) -> io::Result<(Program, SocketAddr)> {
    let address = free()?;
    let mut command = Command::new(theirs("prometheus-node-exporter")?);
    let mut program = Program::start(command.arg(format!("--web.listen-address={address}")), folder.join("node-exporter.log"))?;
    program.until(UP_WITHIN, || page(address, "/metrics").is_ok())?;
    Ok((program, address))
}
