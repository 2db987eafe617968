//! What the agent adds to a call, beside HAProxy and vllm-router in front of the same canned server: `make bench-gateway`.
//!
//! Everything is on loopback of one machine. The agent keeps its records, has one engine of the kind `upstream`, and as many threads
//! as there are processors, as both peers take for themselves (`--threads` gives it another number).

#[path = "kit/canned.rs"]
mod canned;
#[path = "kit/process.rs"]
mod process;
#[path = "kit/wire.rs"]
mod wire;

use canned::Canned;
use process::{Program, free, ours, resident, spent, theirs};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tests::report::{Bound, Report, Spread, number, option};
use tokio::runtime::Runtime;
use wire::{Run, Took, chat, load};

/// How long a program may take until it answers.
const UP_WITHIN: Duration = Duration::from_secs(30);
/// Requests of each target before it is measured in a round: connections, caches and the processor's clock are then warm.
const WARM: usize = 100;
/// Bytes of a short prompt, a question with a little context.
const SHORT: usize = 400;
/// Bytes of a long one: a document. At this size gateways were reported to get slower with each further client.
const LONG: usize = 220_000;
const LEVELS: [usize; 4] = [20, 50, 100, 150];
/// Throughput of two levels that differ by less is the same: closed loops of a second on a machine that does other things too
/// differ by this much between two runs of one level.
const LEVEL_TOLERANCE: f64 = 0.95;

/// What is asked, in the order of a round.
const TARGETS: [&str; 4] = ["direct", "HAProxy", "vllm-router", "agent"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let upstream = Canned::start()?;
    if let Some(kind) = option("--profile") {
        return Ok(profile(folder.path(), &upstream, &runtime, &kind)?);
    }
    let (haproxy, haproxy_at) = start_haproxy(folder.path(), upstream.address, &runtime)?;
    let (router, router_at) = start_router(folder.path(), upstream.address, &runtime)?;
    let (agent, agent_at) = start_agent(folder.path(), upstream.address, &runtime)?;
    let addresses = [upstream.address, haproxy_at, router_at, agent_at];

    let mut report = Report::begin("gateway", "added time over the direct call to a canned server, and long prompts by many");
    for connections in [1, 16] {
        for stream in [false, true] {
            added(&mut report, &runtime, addresses, connections, stream)?;
        }
    }
    long_prompts(&mut report, &runtime, addresses)?;
    used(&mut report, [&haproxy, &router, &agent])?;
    report.end()?;
    Ok(())
}

/// Only loads the agent, for whoever looks at it with a profiler meanwhile: `whole`, `stream` or `long`, with `--connections`.
fn profile(folder: &Path, upstream: &Canned, runtime: &Runtime, kind: &str) -> io::Result<()> {
    let (agent, address) = start_agent(folder, upstream.address, runtime)?;
    let request = Arc::new(chat(if kind == "long" { LONG } else { SHORT }, kind != "whole"));
    println!("process {}", agent.id());
    for _ in 0..number("--rounds", 7) {
        let before = spent(agent.id())?;
        let run = runtime.block_on(load(address, &request, number("--connections", 1), number("--requests", 6_000)))?;
        let each = (spent(agent.id())? - before).as_secs_f64() * 1e6 / run.lasted.as_secs_f64() / run.rate();
        println!("p50 {:.1} us, {:.0} req/s, {each:.1} us of CPU each", run.p50(|took| took.whole), run.rate());
    }
    Ok(())
}

/// Added time of one kind of call.
fn added(report: &mut Report, runtime: &Runtime, at: [SocketAddr; 4], connections: usize, stream: bool) -> io::Result<()> {
    let request = Arc::new(chat(SHORT, stream));
    let count = if connections == 1 { 1_500 } else { 6_000 };
    let mut rounds: Vec<Vec<Run>> = Vec::new();
    for _ in 0..number("--rounds", 7) {
        rounds.push(round(runtime, at, &request, connections, count)?);
    }
    let end: fn(&Took) -> Duration = |took| took.whole;
    let first: fn(&Took) -> Duration = |took| took.first;
    let moments = if stream { vec![("first chunk", first), ("end", end)] } else { vec![("whole", end)] };
    for (moment, pick) in moments {
        let p50 = |target: usize| rounds.iter().map(|round| round[target].p50(pick)).collect::<Vec<_>>();
        let direct = p50(0);
        let over = |target: usize| p50(target).iter().zip(&direct).map(|(through, direct)| through - direct).collect::<Vec<_>>();
        let what =
            format!("{connections} connection(s), {}", if stream { format!("stream, {moment}") } else { moment.to_owned() });
        let row = |target: usize| {
            let name = TARGETS[target].to_owned();
            let rate = Spread::of(&rounds.iter().map(|round| round[target].rate()).collect::<Vec<_>>());
            let added = if target == 0 { "-".to_owned() } else { Spread::of(&over(target)).shown(1) };
            vec![name, Spread::of(&p50(target)).shown(1), added, format!("{:.0}", rate.median)]
        };
        report.table(&what, &["", "p50 us", "added us", "req/s"], &(0..4).map(row).collect::<Vec<_>>());
        report.floor(
            &format!("added p50, agent / vllm-router ({what})"),
            Spread::of_ratios(&over(3), &over(2)),
            Bound::AtMost(1.0),
        );
        report.floor(&format!("added p50, agent / HAProxy ({what})"), Spread::of_ratios(&over(3), &over(1)), Bound::AtMost(3.0));
    }
    Ok(())
}

fn round(
    runtime: &Runtime,
    at: [SocketAddr; 4],
    request: &Arc<Vec<u8>>,
    connections: usize,
    count: usize,
) -> io::Result<Vec<Run>> {
    let one = |(address, name): (SocketAddr, &str)| {
        let ran = runtime.block_on(async {
            load(address, request, connections, WARM.min(count)).await?;
            load(address, request, connections, count).await
        });
        ran.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
    };
    at.into_iter().zip(TARGETS).map(one).collect()
}

/// Throughput with long prompts as more and more ask at once.
fn long_prompts(report: &mut Report, runtime: &Runtime, at: [SocketAddr; 4]) -> io::Result<()> {
    let request = Arc::new(chat(LONG, true));
    let mut rounds: Vec<Vec<Vec<Run>>> = Vec::new();
    for _ in 0..number("--long-rounds", 5) {
        rounds.push(LEVELS.iter().map(|level| round(runtime, at, &request, *level, 1_200)).collect::<io::Result<_>>()?);
    }
    let rates = |target: usize, level: usize| rounds.iter().map(|round| round[level][target].rate()).collect::<Vec<_>>();
    let first = |target: usize, level: usize| {
        Spread::of(&rounds.iter().map(|round| round[level][target].p50(|took| took.first) / 1e3).collect::<Vec<_>>())
    };
    let mut rows = Vec::new();
    for (target, name) in TARGETS.iter().enumerate() {
        for (level, concurrent) in LEVELS.iter().enumerate() {
            let before = if level == 0 {
                "-".to_owned()
            } else {
                Spread::of_ratios(&rates(target, level), &rates(target, level - 1)).shown(2)
            };
            let rate = Spread::of(&rates(target, level)).shown(0);
            rows.push(vec![format!("{name}, {concurrent} at once"), rate, before, first(target, level).shown(1)]);
        }
    }
    report.table("prompts of 220 KB, streamed", &["", "req/s", "of the level before", "first chunk p50 ms"], &rows);
    for level in 1..LEVELS.len() {
        let what = format!("agent, 220 KB prompts, req/s at {} / at {}", LEVELS[level], LEVELS[level - 1]);
        report.floor(&what, Spread::of_ratios(&rates(3, level), &rates(3, level - 1)), Bound::AtLeast(LEVEL_TOLERANCE));
    }
    // What the machine does without anything between falls as well, as more prompts than its caches hold are on their way.
    let share = |level: usize| rates(3, level).iter().zip(rates(0, level)).map(|(own, direct)| own / direct).collect::<Vec<_>>();
    for (level, concurrent) in LEVELS.iter().enumerate().skip(1) {
        let kept = Spread::of_ratios(&share(level), &share(0)).shown(2);
        report.note(&format!("agent's req/s as a share of the direct ones, at {concurrent} / at {}: {kept}", LEVELS[0]));
    }
    Ok(())
}

/// What each program took for all of the above.
fn used(report: &mut Report, programs: [&Program; 3]) -> io::Result<()> {
    let mut rows = Vec::new();
    for (program, name) in programs.into_iter().zip(&TARGETS[1..]) {
        let (memory, time) = (resident(program.id())?, spent(program.id())?);
        rows.push(vec![(*name).to_owned(), format!("{:.1}", time.as_secs_f64()), format!("{}", memory >> 20)]);
    }
    report.table("taken in all", &["", "CPU s", "resident MB"], &rows);
    Ok(())
}

fn answers(runtime: &Runtime, address: SocketAddr) -> bool {
    let both = [false, true].map(|stream| Arc::new(chat(SHORT, stream)));
    both.iter().all(|request| runtime.block_on(load(address, request, 1, 1)).is_ok())
}

fn start_haproxy(folder: &Path, upstream: SocketAddr, runtime: &Runtime) -> io::Result<(Program, SocketAddr)> {
    let (address, file) = (free()?, folder.join("haproxy.cfg"));
    // As fast as it can be: idle connections are shared, and small parts leave at once.
    std::fs::write(
        &file,
        format!(
            "global\n  maxconn 4096\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  \
             option http-no-delay\n  http-reuse always\nfrontend front\n  bind {address}\n  default_backend canned\nbackend canned\n  \
             server canned {upstream}\n"
        ),
    )?;
    let mut command = Command::new(theirs("haproxy")?);
    let mut program = Program::start(command.arg("-db").arg("-f").arg(file), folder.join("haproxy.log"))?;
    program.until(UP_WITHIN, || answers(runtime, address))?;
    Ok((program, address))
}

fn start_router(folder: &Path, upstream: SocketAddr, runtime: &Runtime) -> io::Result<(Program, SocketAddr)> {
    let (address, metrics) = (free()?, free()?);
    let path = std::env::var_os("TIDEGATE_VLLM_ROUTER").map_or_else(|| theirs("vllm-router"), |path| Ok(path.into()))?;
    let mut command = Command::new(path);
    command.args(["--host", "127.0.0.1", "--port", &address.port().to_string(), "--worker-urls", &format!("http://{upstream}")]);
    command.args(["--policy", "round_robin", "--log-level", "warning", "--prometheus-port", &metrics.port().to_string()]);
    let mut program = Program::start(&mut command, folder.join("vllm-router.log"))?;
    program.until(UP_WITHIN, || answers(runtime, address))?;
    Ok((program, address))
}

fn start_agent(folder: &Path, upstream: SocketAddr, runtime: &Runtime) -> io::Result<(Program, SocketAddr)> {
    let (address, file) = (free()?, folder.join("agent.toml"));
    let state = folder.join("agent");
    let threads = number("--threads", std::thread::available_parallelism().map_or(1, usize::from));
    std::fs::write(
        &file,
        format!(
            "state = {state:?}\nthreads = {threads}\n\n[http]\nlisten = \"{address}\"\n\n[[engines]]\nengine = \"upstream\"\nvariant = \"canned\"\n\
             url = \"http://{upstream}/v1\"\nmodel = \"canned\"\nslots = 512\ncontext = 131072\n"
        ),
    )?;
    let mut command = Command::new(ours("edge-node")?);
    let mut program = Program::start(command.arg("run").arg("--config").arg(file), folder.join("agent.log"))?;
    program.until(UP_WITHIN, || answers(runtime, address))?;
    Ok((program, address))
}
