//! Faults are planted in real state folders and processes; `doctor` finds each of them and names the remedy.

use scenarios::emulate::fleet::FleetError;
use scenarios::emulate::process::{ProcessError, Program, beside};
use scenarios::emulate::wait::until;
use serde_json::Value;
use shared::ids::NodeId;
use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use tests::{Pace, SOON, World, profiled, service};

const COMMAND_WITHIN: Duration = Duration::from_secs(60);

/// What a doctor said.
struct Told {
    well: bool,
    checks: Vec<Value>,
}

impl Told {
    fn of(answer: Result<String, FleetError>) -> Self {
        let (well, text) = match answer {
            Ok(text) => (true, text),
            Err(FleetError::Process(ProcessError::Ended { tail, .. })) => (false, tail),
            Err(other) => panic!("{other}"),
        };
        // After a failure, the words on standard error follow.
        let first = serde_json::Deserializer::from_str(&text).into_iter::<Value>().next();
        let document = first.and_then(Result::ok).unwrap_or_else(|| panic!("no JSON: {text}"));
        let checks = document["checks"].as_array().cloned().unwrap_or_else(|| panic!("no checks: {document}"));
        Self { well, checks }
    }

    /// All is well.
    fn healthy(&self) {
        let failed: Vec<_> = self.checks.iter().filter(|check| check["verdict"] == "fail").collect();
        assert!(self.well && failed.is_empty(), "{failed:?}");
    }

    /// This check failed, with these words in what was seen, and these in the remedy.
    fn fails(&self, check: &str, seen: &str, remedy: &str) {
        assert!(!self.well, "a failed check is a failed command");
        self.says("fail", check, seen, remedy);
    }

    fn says(&self, verdict: &str, check: &str, seen: &str, remedy: &str) {
        let has = |one: &Value, key: &str, words: &str| one[key].as_str().unwrap_or_default().contains(words);
        let found = self.checks.iter().any(|one| {
            one["check"] == check && one["verdict"] == verdict && has(one, "seen", seen) && has(one, "remedy", remedy)
        });
        assert!(found, "no {verdict} `{check}` with `{seen}` and `{remedy}` in {:#?}", self.checks);
    }
}

/// A fleet with one agent that has spoken with its hub, and was then stopped.
struct Ward {
    world: World,
    node: NodeId,
}

impl Ward {
    async fn new(config: &str) -> Self {
        let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
        let node = world.agent("bay/edge-1", &format!("{}{config}", profiled("v", Pace::default()))).await;
        let file = world.fleet.agent(&node).expect("there").folder().join("state/agent.json");
        let known = until("the hub's word on its broker, on disk", SOON, || async {
            let text = fs::read_to_string(&file).unwrap_or_default();
            if text.contains("\"broker\"") { Ok(()) } else { Err(text) }
        });
        known.await.unwrap_or_else(|late| panic!("{late}"));
        world.fleet.agent_mut(&node).expect("there").stop();
        Self { world, node }
    }

    fn agent(&self, more: &[&str]) -> Told {
        let arguments: Vec<&str> = ["doctor", "--json"].iter().chain(more).copied().collect();
        Told::of(self.world.fleet.agent(&self.node).expect("there").command(&arguments))
    }

    fn hub(&self, more: &[&str]) -> Told {
        let arguments: Vec<&str> = ["doctor", "--json"].iter().chain(more).copied().collect();
        Told::of(self.world.fleet.hub().command(&arguments))
    }

    fn state(&self) -> PathBuf {
        self.world.fleet.agent(&self.node).expect("there").folder().join("state")
    }
}

/// Puts other bytes into a file while `look` looks.
fn with_file(path: &Path, bytes: &[u8], look: impl FnOnce()) {
    let before = fs::read(path).ok();
    fs::write(path, bytes).expect("planted");
    look();
    match before {
        Some(before) => fs::write(path, before).expect("mended"),
        None => fs::remove_file(path).expect("mended"),
    }
}

fn now_secs() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs()
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_an_agents_state_are_found() {
    let ward = Ward::new("").await;
    ward.agent(&[]).healthy();
    let state = ward.state();

    ward.agent(&["--set", "http.lisen=127.0.0.1:1"]).fails("configuration", "http.listen", "config show");
    ward.agent(&["--set", "policies.dispatch.policy=guess"]).fails("configuration", "min-latency", "config show");
    // Half a membership.
    let member = state.join("member.json");
    let kept = state.join("member.kept");
    fs::rename(&member, &kept).expect("planted");
    ward.agent(&[]).fails("identity", "half a membership", "join --replace");
    fs::rename(&kept, &member).expect("mended");
    with_file(&state.join("identity.pem"), b"rubbish", || ward.agent(&[]).fails("identity", "identity", "join --replace"));
    // A key that everybody may read.
    let key = state.join("identity.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("planted");
    ward.agent(&[]).fails("files", "identity.pem", "chmod go=");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("mended");
    // A clock that went back, and one that is beyond the certificate's end.
    let (days, years) = (now_secs() + 3 * 86_400, now_secs() + 20 * 365 * 86_400);
    with_file(&state.join("last-time"), days.to_string().as_bytes(), || {
        ward.agent(&[]).fails("clock", "behind the latest time", "timedatectl set-ntp true");
    });
    with_file(&state.join("last-time"), years.to_string().as_bytes(), || {
        ward.agent(&[]).fails("certificate", "run out", "join --replace");
    });
    // The certificate of one fleet with the authority of another.
    let other = World::new(Vec::new(), "").await;
    let foreign = fs::read_to_string(other.fleet.hub().state().join("ca.pem")).expect("read");
    let own = fs::read_to_string(&key).expect("read");
    let cut = own.rfind("-----BEGIN CERTIFICATE-----").expect("the authority comes last");
    with_file(&key, format!("{}{foreign}", &own[..cut]).as_bytes(), || {
        ward.agent(&[]).fails("certificate", "others would refuse it", "join --replace");
    });
    ward.agent(&[]).healthy();
}

/// A way to `to` that carries TCP and nothing else, as long as the test runs.
async fn tcp_only(to: SocketAddr) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let at = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let Ok(mut far) = tokio::net::TcpStream::connect(to).await else { continue };
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
    at
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_an_agents_network_are_found() {
    let mut ward = Ward::new("").await;
    // Ports that others hold.
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = tcp.local_addr().expect("an address").to_string();
    ward.agent(&["--listen", &at]).fails("http.listen", "held by another program", "ss -ltnp");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let set = format!("quic.listen={}", udp.local_addr().expect("an address"));
    ward.agent(&["--set", &set]).fails("quic.listen", "held by another program", "ss -lunp");
    ward.agent(&["--listen", "192.0.2.1:80", "--set", "http.front.api_keys_sha256=ab"]).fails(
        "http.listen",
        "no address of this machine",
        "ip address",
    );
    // Something else answers there; the hub does, but only over TCP; nobody knows the name.
    ward.agent(&["--set", &format!("hub.address={at}")]).fails("hub", "does not answer as the hub", "hub.address");
    let narrow = tcp_only(ward.world.fleet.hub().quic()).await;
    ward.agent(&["--set", &format!("hub.address={narrow}")]).says("warn", "hub", "UDP blocked", "let UDP");
    ward.agent(&["--set", "hub.address=no-such-host.invalid:7443"]).fails("hub", "no-such-host.invalid", "hub.address");
    // A broker that is not there.
    let file = ward.state().join("agent.json");
    let mut known: Value = serde_json::from_slice(&fs::read(&file).expect("read")).expect("JSON");
    let free = UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    known["broker"] = Value::from(format!("127.0.0.1:{}", free.port()));
    with_file(&file, known.to_string().as_bytes(), || ward.agent(&[]).fails("broker", "MQTT at 127.0.0.1", "let TCP"));
    ward.agent(&[]).healthy();
    // Thrown out: the broker refuses the certificate, and a running agent knows it.
    ward.world.fleet.hub().command(&["revoke", ward.node.as_str()]).expect("revoked");
    ward.agent(&[]).fails("broker", "MQTT at", "revoked");
    ward.world.fleet.agent_mut(&ward.node).expect("there").start().await.expect("starts");
    let told = until("the agent to hear that it was thrown out", SOON, || async {
        let status = ward.world.status(&ward.node).await;
        if status["uplink"]["revoked"] == true { Ok(()) } else { Err(status["uplink"].to_string()) }
    });
    told.await.unwrap_or_else(|late| panic!("{late}"));
    ward.agent(&[]).fails("certificate", "thrown out", "join --replace");
    // No hub at all.
    ward.world.fleet.agent_mut(&ward.node).expect("there").stop();
    ward.world.fleet.hub_mut().stop();
    ward.agent(&[]).fails("hub", "no way to", "is the hub up");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_agent_and_hub_are_not_disturbed() {
    let mut ward = Ward::new("").await;
    ward.world.fleet.agent_mut(&ward.node).expect("there").start().await.expect("starts");
    let up = until("the agent's connections", SOON, || async {
        let status = ward.world.status(&ward.node).await;
        if status["uplink"]["broker"] == true { Ok(status["uplink"]["session"].clone()) } else { Err(status.to_string()) }
    });
    let (session, _) = up.await.unwrap_or_else(|late| panic!("{late}"));
    let told = ward.agent(&[]);
    told.healthy();
    for (check, seen) in
        [("http.listen", "runs and answers"), ("hub", "answers"), ("broker", "connected"), ("contact", "connected")]
    {
        told.says("ok", check, seen, "");
    }
    let hub = ward.hub(&[]);
    hub.healthy();
    hub.says("ok", "http.listen", "the running hub", "");
    hub.says("warn", "backup", "never was one", "cloud-hub backup");
    assert_eq!(ward.world.status(&ward.node).await["uplink"]["session"], session, "the session went on");
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_models_and_upstreams_are_found() {
    let folder = tempfile::tempdir().expect("folder");
    let look = |name: &str, engine: &str| {
        let config = folder.path().join(format!("{name}.toml"));
        let state = folder.path().join("state");
        let text = format!("state = {state:?}\n\n[http]\nlisten = \"127.0.0.1:0\"\n\n[[engines]]\n{engine}\n");
        fs::write(&config, text).expect("written");
        let program = Program::new("edge-node", beside("edge-node").expect("built"), folder.path().join("log"));
        Told::of(program.args(["doctor", "--json", "--config"]).arg(config).run(COMMAND_WITHIN).map_err(FleetError::Process))
    };
    let llm = |path: &Path, more: &str| format!("engine = \"llm\"\nvariant = \"m\"\ncontext = 512\npath = {path:?}\n{more}");
    let (model, garbage) = (tests::model(), folder.path().join("garbage.gguf"));
    fs::write(&garbage, "no model at all").expect("written");
    look("good", &llm(&model, "")).healthy();
    look("missing", &llm(&folder.path().join("none.gguf"), "")).fails("model", "is missing", "bring the file");
    look("garbage", &llm(&garbage, "")).fails("model", "no GGUF header", "copy the file again");
    let hash = format!("sha256 = \"{}\"", "0".repeat(64));
    look("hash", &llm(&model, &hash)).fails("model", "its SHA-256 is", "sha256");
    look("large", &llm(&model, "memory_max = 1000000")).fails("model", "not enough memory", "slots");

    let upstream = |at: &str| format!("engine = \"upstream\"\nvariant = \"u\"\nmodel = \"m\"\nurl = \"http://{at}/v1\"");
    let closed = UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    look("closed", &upstream(&closed.to_string())).fails("upstream", "cannot be reached", "start that server");
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = server.local_addr().expect("an address").to_string();
    let answer = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = server.accept().expect("asked");
        let mut bytes = [0; 4096];
        let _ = stream.read(&mut bytes).expect("read");
        stream.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").expect("answered");
    });
    look("key", &upstream(&at)).fails("upstream", "refuses the key", "api_key");
    answer.join().expect("was asked");
}

/// In a name space of its own, where a small disk can be mounted without disturbing anybody.
fn on_small_disk(script: &str, folder: &Path) -> Option<Told> {
    let isolated = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--user", "--mount", "sh", "-euc", script, "sh"]).arg(folder);
        command.arg(beside("edge-node").expect("built"));
        command
    };
    if !isolated("mount -t tmpfs -o size=1m none \"$1\"").status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: this system lets nobody mount a disk of his own");
        return None;
    }
    let output = isolated(script).output().expect("runs");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    });
    Some(Told { well: output.status.success(), checks: document["checks"].as_array().cloned().unwrap_or_default() })
}

#[test]
fn a_full_disk_and_one_that_takes_nothing_are_found() {
    let folder = tempfile::tempdir().expect("folder");
    let mounted = "mount -t tmpfs -o size=1m,mode=700 none \"$1\"";
    let full =
        format!("{mounted}; head -c 2000000 /dev/zero >\"$1/filler\" 2>/dev/null || true; \"$2\" doctor --json --state \"$1\"");
    if let Some(told) = on_small_disk(&full, folder.path()) {
        told.fails("disk", "full", "make room");
    }
    let small = format!("{mounted}; \"$2\" doctor --json --state \"$1\"");
    if let Some(told) = on_small_disk(&small, folder.path()) {
        told.fails("disk", "1 MiB free", "make room");
    }
    let fixed = format!("{mounted}; mount -o remount,ro \"$1\"; \"$2\" doctor --json --state \"$1\"");
    if let Some(told) = on_small_disk(&fixed, folder.path()) {
        told.fails("disk", "takes no files", "mount its disk for writing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_of_a_hub_are_found() {
    let mut ward = Ward::new("").await;
    ward.world.fleet.hub_mut().stop();
    let state = ward.world.fleet.hub().state();
    ward.hub(&[]).healthy();

    ward.hub(&["--set", "quic.lisen=[::]:1"]).fails("configuration", "quic.listen", "deploy/hub.toml");
    ward.hub(&["--set", "policies.placement.policy=guess"]).fails("configuration", "guess", "deploy/hub.toml");
    let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let set = format!("quic.listen={}", udp.local_addr().expect("an address"));
    ward.hub(&["--set", &set]).fails("quic.listen", "held by another program", "ss -lunp");
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let set = format!("mqtt.listen={}", tcp.local_addr().expect("an address"));
    ward.hub(&["--set", &set]).fails("mqtt.listen", "held by another program", "ss -ltnp");
    let closed = UdpSocket::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    ward.hub(&["--set", &format!("mqtt.external={closed}")]).fails("broker", "MQTT at", "mosquitto-conf");
    // A key that everybody may read, and one that is another's.
    let key = state.join("ca.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).expect("planted");
    ward.hub(&[]).fails("files", "ca.key", "chmod go=");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("mended");
    let other = World::new(Vec::new(), "").await;
    let foreign = fs::read(other.fleet.hub().state().join("ca.key")).expect("read");
    with_file(&key, &foreign, || ward.hub(&[]).fails("authority", "not accepted", "cloud-hub restore"));
    // A backup, and then a damaged database.
    let backup = ward.world.folder().join("hub.backup");
    ward.world.fleet.hub().command(&["backup", &backup.to_string_lossy()]).expect("backed up");
    ward.hub(&[]).says("ok", "backup", "old", "");
    with_file(&state.join("last-backup"), b"1700000000", || ward.hub(&[]).says("warn", "backup", "days old", "cloud-hub backup"));
    let database = state.join("hub.db");
    let mut bytes = fs::read(&database).expect("read");
    for page in bytes.chunks_mut(4_096).skip(1).step_by(2) {
        page.fill(0xa5);
    }
    with_file(&database, &bytes, || ward.hub(&[]).fails("store", "", "cloud-hub restore"));
    ward.hub(&[]).healthy();
    let empty = ward.world.folder().join("empty");
    let program = Program::new("cloud-hub", beside("cloud-hub").expect("built"), ward.world.folder().join("log"));
    let told = program.args(["doctor", "--json", "--state"]).arg(empty).run(COMMAND_WITHIN).map_err(FleetError::Process);
    Told::of(told).fails("name", "no state folder", "cloud-hub init");
}
