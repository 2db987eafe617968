//! A hub on loopback with a state folder of its own.

use cloud_hub::Handle;
use cloud_hub::clock::UnixTime;
use cloud_hub::config::Config;
use cloud_hub::logic::NodeRow;
use cloud_hub::state::{Addresses, StateDir};
use serde_json::Value;
use shared::fleet::NodeState;
use shared::ids::NodeId;
use shared::wire::JoinToken;
use shared_net::tls::CertClock;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Conditions are waited for, and this is how long until a test gives up: far longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    hub: Option<Handle>,
    /// `host:port` of a broker outside the hub.
    external: String,
    pub(crate) http: reqwest::Client,
}

fn anywhere() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

impl World {
    pub(crate) async fn start() -> Self {
        let mut world = Self::prepare();
        world.start_hub().await;
        world
    }

    /// A hub that uses this broker, for which `prepare` may write files first.
    pub(crate) async fn start_with(mut self, external: String) -> Self {
        self.external = external;
        self.start_hub().await;
        self
    }

    /// A state folder, and no hub yet.
    pub(crate) fn prepare() -> Self {
        let folder = tempfile::tempdir().expect("temp");
        let name = NodeId::new("cloud/hub").expect("good");
        let now = UnixTime::now(&CertClock::new(0));
        StateDir::at(folder.path()).init(&name, "127.0.0.1:0", now).expect("made");
        cloud_hub::io::use_ring();
        let http = reqwest::Client::builder().no_proxy().build().expect("a client");
        Self { folder, hub: None, external: String::new(), http }
    }

    pub(crate) async fn start_hub(&mut self) {
        let mut config = Config { state: self.folder.path().to_owned(), ..Config::default() };
        config.quic.listen = anywhere();
        config.http.listen = anywhere();
        config.admin.listen = anywhere();
        config.mqtt.listen = anywhere();
        config.mqtt.external = self.external.clone();
        config.policies.heartbeat_ms = 500;
        self.hub = Some(cloud_hub::start(config).await.expect("started"));
    }

    pub(crate) async fn stop_hub(&mut self) {
        self.hub.take().expect("it runs").shutdown().await.expect("stops cleanly");
    }

    pub(crate) fn addresses(&self) -> &Addresses {
        self.hub.as_ref().expect("it runs").addresses()
    }

    pub(crate) fn state(&self) -> StateDir {
        StateDir::at(self.folder.path())
    }

    pub(crate) fn admin(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let key = self.state().admin_key().expect("made by init");
        self.http.request(method, format!("http://{}/admin/v1/{path}", self.addresses().admin)).bearer_auth(key)
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        self.admin(reqwest::Method::GET, path).send().await.expect("answered").json().await.expect("JSON")
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.admin(reqwest::Method::POST, path).json(body).send().await.expect("answered");
        (answer.status().as_u16(), answer.json().await.expect("JSON"))
    }

    pub(crate) async fn token(&self, site: &str, count: u32) -> JoinToken {
        let order = serde_json::json!({"site": site, "count": count, "lifetime_s": 3_600, "labels": {"made": "by-test"}});
        let (status, made) = self.post("tokens", &order).await;
        assert_eq!(status, 200, "{made}");
        made["token"].as_str().expect("a text").parse().expect("a token")
    }

    pub(crate) async fn put_service(&self, service: &str, variant: &str) {
        let body = serde_json::json!({"id": service, "variants": [{
            "id": variant, "context": 2_048, "quality": 0.5, "quality_source": "a test",
        }]});
        let answer = self.admin(reqwest::Method::PUT, "services").json(&body).send().await.expect("answered");
        assert_eq!(answer.status(), 200);
    }

    pub(crate) async fn nodes(&self) -> Vec<NodeRow> {
        serde_json::from_value(self.get("nodes").await).expect("rows")
    }

    /// Waits until a node satisfies `wanted`.
    pub(crate) async fn until(&self, node: &NodeId, what: &str, wanted: impl Fn(&NodeRow) -> bool) -> NodeRow {
        let mut last = None;
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                let row = self.nodes().await.into_iter().find(|row| row.node == *node);
                match row {
                    Some(row) if wanted(&row) => return row,
                    row => last = row,
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        found.await.unwrap_or_else(|_| panic!("{node} never was {what}: {last:?}"))
    }

    pub(crate) async fn until_state(&self, node: &NodeId, state: NodeState) {
        self.until(node, &format!("{state:?}"), |row| row.state == state).await;
    }

    async fn page(&self) -> String {
        let page = self.http.get(format!("http://{}/metrics", self.addresses().admin)).send().await.expect("answered");
        page.text().await.expect("text")
    }

    /// Waits until the page of metrics holds a line, and returns the page.
    pub(crate) async fn page_with(&self, wanted: &str) -> String {
        let mut last = String::new();
        let found = tokio::time::timeout(PATIENCE, async {
            loop {
                last = self.page().await;
                if last.contains(wanted) {
                    return last.clone();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let found = found.await.ok();
        found.unwrap_or_else(|| panic!("`{wanted}` never came: {last}"))
    }

    pub(crate) async fn metric(&self, name: &str) -> f64 {
        let page = self.page().await;
        let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in\n{page}"));
        line.rsplit_once(' ').expect("a value").1.parse().expect("a number")
    }
}
