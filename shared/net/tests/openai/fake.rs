//! A host that plays back a script: what the front makes of each answer is then its own doing.

use crate::client::PATIENCE;
use axum::Router;
use shared::fleet::Hop;
use shared::ids::{AttemptId, NodeId, PlanEpoch, RequestId, ServiceId, VariantId};
use shared::plan::{Candidate, Choice, Decision, Failure, Finish, Reason, Split, Usage, Verdict};
use shared::units::{Bytes, Fraction, Micros, Moment, Quality, Tokens};
use shared::wire::frame::TokenBatch;
use shared::work::{Capability, Catalogue, Residency, Service, Variant};
use shared_net::openai::{Answer, Ask, Exposure, FrontConfig, FrontCounters, Ingress, KeyRing, Refusal, router_keyed, serve};
use shared_net::tls::CertClock;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};

/// One line of a script.
#[derive(Clone, Debug)]
pub(crate) enum Line {
    /// Say this.
    Say(Answer),
    /// Say this for as long as there is room and a reader.
    Repeat(Answer),
    /// Say nothing for so long.
    Wait(std::time::Duration),
    /// Say nothing more until the client is gone.
    Silence,
}

/// What the host does with a request.
pub(crate) type Script = dyn Fn(&Ask) -> Result<Vec<Line>, Refusal> + Send + Sync;

/// How plays ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ends {
    /// To the last line.
    pub(crate) played: usize,
    /// The receiver was dropped before.
    pub(crate) abandoned: usize,
}

#[derive(Clone)]
pub(crate) struct Fake(Arc<Inner>);

struct Inner {
    script: Box<Script>,
    asks: Mutex<Vec<Ask>>,
    plays: Mutex<JoinSet<()>>,
    ends: watch::Sender<Ends>,
    hub: bool,
}

impl Fake {
    pub(crate) fn new(script: impl Fn(&Ask) -> Result<Vec<Line>, Refusal> + Send + Sync + 'static) -> Self {
        Self::standing_as(false, script)
    }

    /// A hub takes no request that must stay at a site.
    pub(crate) fn hub(script: impl Fn(&Ask) -> Result<Vec<Line>, Refusal> + Send + Sync + 'static) -> Self {
        Self::standing_as(true, script)
    }

    fn standing_as(hub: bool, script: impl Fn(&Ask) -> Result<Vec<Line>, Refusal> + Send + Sync + 'static) -> Self {
        let ends = watch::Sender::new(Ends::default());
        Self(Arc::new(Inner { script: Box::new(script), asks: Mutex::default(), plays: Mutex::default(), ends, hub }))
    }

    /// Always the same lines.
    pub(crate) fn saying(lines: Vec<Line>) -> Self {
        Self::new(move |_| Ok(lines.clone()))
    }

    /// What was asked so far.
    pub(crate) fn asks(&self) -> Vec<Ask> {
        self.0.asks.lock().expect("no panic").clone()
    }

    /// Waits until plays have ended so.
    pub(crate) async fn wait_for(&self, wanted: impl Fn(&Ends) -> bool) {
        let mut ends = self.0.ends.subscribe();
        let reached = tokio::time::timeout(PATIENCE, ends.wait_for(wanted)).await.is_ok();
        assert!(reached, "plays ended so: {:?}", self.0.ends.borrow());
    }
}

async fn play(lines: Vec<Line>, sender: mpsc::Sender<Answer>) -> bool {
    for line in lines {
        let heard = match line {
            Line::Say(answer) => sender.send(answer).await.is_ok(),
            Line::Repeat(answer) => {
                while sender.send(answer.clone()).await.is_ok() {}
                false
            }
            Line::Wait(span) => tokio::time::timeout(span, sender.closed()).await.is_err(),
            Line::Silence => {
                sender.closed().await;
                false
            }
        };
        if !heard {
            return false;
        }
    }
    true
}

impl Ingress for Fake {
    fn node(&self) -> NodeId {
        NodeId::new("eu/site-1/gate").expect("good")
    }

    fn catalogue(&self) -> Arc<Catalogue> {
        let variant = |id: &str| Variant {
            id: VariantId::new(id).expect("good"),
            weights_sha256: None,
            quantisation: "q8_0".to_owned(),
            context: Tokens(2_048),
            memory: Bytes(1),
            quality: Quality::new(0.5).expect("good"),
            quality_source: "a test".to_owned(),
        };
        let service = Service {
            id: ServiceId::new("assistant").expect("good"),
            aliases: vec![ServiceId::new("team/helper").expect("good")],
            variants: vec![variant("small-q8")],
        };
        Arc::new(Catalogue::new([service]).expect("good"))
    }

    fn residency_allowed(&self, residency: Residency) -> Result<(), String> {
        if self.0.hub && residency != Residency::Anywhere {
            return Err("the hub stands outside every site: send it to an agent of the site".to_owned());
        }
        Ok(())
    }

    async fn ask(&self, ask: Ask) -> Result<mpsc::Receiver<Answer>, Refusal> {
        let lines = (self.0.script)(&ask);
        self.0.asks.lock().expect("no panic").push(ask);
        let (sender, receiver) = mpsc::channel(4);
        let (lines, ends) = (lines?, self.0.ends.clone());
        self.0.plays.lock().expect("no panic").spawn(async move {
            let heard = play(lines, sender).await;
            ends.send_modify(|ends| if heard { ends.played += 1 } else { ends.abandoned += 1 });
        });
        Ok(receiver)
    }

    fn degraded(&self) -> bool {
        true
    }

    async fn capable(&self, _: ServiceId, capability: Capability) -> Vec<VariantId> {
        let able = capability == Capability::Vision;
        if able { vec![VariantId::new("large-q8").expect("good")] } else { Vec::new() }
    }

    async fn replicas_ready(&self) -> usize {
        usize::from(!self.0.hub)
    }
}

/// A front on a socket, for as long as this lives.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    pub(crate) counters: Arc<FrontCounters>,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinSet<()>,
    _stop_on_drop: DropGuard,
}

pub(crate) async fn start(fake: &Fake, config: FrontConfig, exposure: Exposure) -> Served {
    start_beside(fake, config, exposure, Router::new()).await
}

/// With pages of the host beside the API.
pub(crate) async fn start_beside(fake: &Fake, config: FrontConfig, exposure: Exposure, pages: Router) -> Served {
    start_keyed(fake, config, exposure, pages, &KeyRing::new(CertClock::new(0))).await
}

/// With keys that the host manages.
pub(crate) async fn start_keyed(fake: &Fake, config: FrontConfig, exposure: Exposure, pages: Router, ring: &KeyRing) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let counters = Arc::new(FrontCounters::default());
    let router = router_keyed(&config, exposure, fake.clone(), Arc::clone(&counters), pages, ring).expect("good settings");
    let stop = CancellationToken::new();
    let mut task = JoinSet::new();
    task.spawn(serve(listener, router, config.limits(), Arc::clone(&counters), stop.clone()));
    Served { address, counters, stop: stop.clone(), task, _stop_on_drop: stop.drop_guard() }
}

/// On loopback with the given settings.
pub(crate) async fn start_with(fake: &Fake, config: FrontConfig) -> Served {
    start(fake, config, Exposure::Loopback).await
}

/// On loopback with default settings.
pub(crate) async fn start_default(fake: &Fake) -> Served {
    start_with(fake, FrontConfig::default()).await
}

pub(crate) fn tokens(text: &str) -> Line {
    Line::Say(Answer::Tokens(batch(text)))
}

pub(crate) fn batch(text: &str) -> TokenBatch {
    TokenBatch { count: 1, ids: vec![1], text: text.to_owned(), delta: None }
}

pub(crate) fn structured(delta: &serde_json::Value) -> Line {
    Line::Say(Answer::Tokens(TokenBatch { count: 1, ids: Vec::new(), text: String::new(), delta: Some(delta.to_string()) }))
}

pub(crate) fn finish(finish: Finish) -> Line {
    Line::Say(Answer::Finish(finish, Usage { prompt: Tokens(7), output: Tokens(2), cached: Tokens(3) }))
}

pub(crate) fn fail(failure: Failure) -> Line {
    Line::Say(Answer::Fail(failure))
}

/// A decision for attempt `number` that chose `eu/site-1/<node>`.
pub(crate) fn assigned(number: u16, node: &str) -> Line {
    let candidate = Candidate {
        node: NodeId::new(&format!("eu/site-1/{node}")).expect("good"),
        hop: Hop::Direct,
        variant: VariantId::new("small-q8").expect("good"),
        split: Split::Whole,
    };
    let estimate = shared::estimate::Estimate {
        first_token: Micros(120_500),
        wait: Micros(0),
        per_token: Micros(10_000),
        total: Micros(400_000),
        spread: Fraction::new(0.1).expect("good"),
        output: None,
        high: None,
        energy: None,
        money: None,
        quality: Quality::new(0.5).expect("good"),
    };
    decided(number, Verdict::Assign(Choice { candidate, estimate, transport: None }))
}

/// A decision to refuse.
pub(crate) fn refused(reason: Reason) -> Line {
    decided(0, Verdict::Refuse(reason))
}

fn decided(number: u16, verdict: Verdict) -> Line {
    Line::Say(Answer::Decided(Box::new(Decision {
        attempt: AttemptId::new(RequestId(1), number),
        at: Moment(0),
        policy: "min-latency".to_owned(),
        verdict,
        others: Vec::new(),
        rejected: Vec::new(),
        counts: [("stale".to_owned(), 2), ("busy".to_owned(), 1)].into(),
        fingerprint: 1,
        grant: PlanEpoch::default(),
        age: Micros(0),
        degraded: true,
    })))
}
