//! The play: start, calm, conversation, burst, cut, restore.

use super::cast::Cast;
use super::report::{Report, Told};
use super::script::{self, Ask, Promise};
use super::stage::Stage;
use super::{DemoError, Options};
use crate::emulate::client::{Client, Reply};
use crate::emulate::fleet::{Fleet, FleetError};
use crate::emulate::wait::{Late, until};
use futures_util::future::join_all;
use shared::ids::NodeId;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long models may take to load and be measured, and the news of it to go round.
const LOADED_WITHIN: Duration = Duration::from_secs(90);
/// How long an edge may take to notice that its cable was cut, or is back. Three heartbeats and the idle limit of the uplink,
/// with room for a machine under load.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);

/// Plays it, and ends every process.
pub(super) async fn run(options: &Options, stage: &Stage) -> Result<Report, DemoError> {
    let begun = Instant::now();
    let model = std::path::absolute(&options.model).ok().filter(|path| path.is_file());
    let model = model.ok_or_else(|| DemoError::NoModel(options.model.clone()))?;
    let folder = std::path::absolute(&options.folder)
        .map_err(|source| DemoError::System { doing: "finding the folder of the demo", source })?;
    let cast = Cast::new()?;
    let mut play = Play {
        fleet: start(&cast, &model, &folder, stage).await?,
        client: Client::new().map_err(FleetError::Client)?,
        cast,
        stage,
        told: Vec::new(),
    };
    play.load().await?;
    play.acts().await?;
    play.fleet.check()?;
    let uplinks = play.uplinks();
    let explained = play.explain();
    stage.act("Curtain");
    let waiting = stage.wait("every process ends when asked");
    let killed = play.fleet.stop();
    waiting.done(&if killed.is_empty() { String::new() } else { format!("but {} had to be killed", killed.join(", ")) });
    Ok(Report { told: play.told, uplinks, explained, killed, took: begun.elapsed() })
}

async fn start(cast: &Cast, model: &Path, folder: &Path, stage: &Stage) -> Result<Fleet, DemoError> {
    stage.act("A hub, a cloud agent and two edges start; each joins with a token and gets its certificate");
    let waiting = stage.wait(&format!("{} is the fleet's authority", cast.hub));
    let mut fleet = Fleet::start(folder, cast.hub_plan()?).await?;
    waiting.done("");
    let edges = [&cast.edge_1, &cast.edge_2].map(|edge| cast.edge_plan(edge, model));
    for plan in std::iter::once(cast.cloud_plan(model)).chain(edges) {
        let waiting = stage.wait(&format!("{}/{} has joined", plan.site, plan.name));
        fleet.join(plan).await?;
        waiting.done("");
    }
    Ok(fleet)
}

struct Play<'a> {
    fleet: Fleet,
    client: Client,
    cast: Cast,
    stage: &'a Stage,
    told: Vec<Told>,
}

impl Play<'_> {
    /// Waits until every model is loaded and every edge knows the cloud's.
    async fn load(&self) -> Result<(), DemoError> {
        let waiting = self.stage.wait("SmolLM2-135M is loaded and measured on three nodes, and all know it");
        let begun = Instant::now();
        let Cast { cloud, edge_1, edge_2, .. } = &self.cast;
        let first = [cloud, edge_1, edge_2].map(script::own_model).into_iter();
        for ask in first.chain([edge_1, edge_2, &self.cast.hub].map(script::cloud_model)) {
            let base = self.base(&ask.at)?;
            until(format!("{} at {}", ask.label, ask.at), LOADED_WITHIN, || async {
                match self.client.ask(&base, &ask.question).await {
                    Ok(reply) if reply.answered() => Ok(()),
                    Ok(reply) => Err(reply.error.map(|error| error.message).unwrap_or_default()),
                    Err(error) => Err(error.to_string()),
                }
            })
            .await?;
        }
        waiting.done(&format!("{:.1} s", begun.elapsed().as_secs_f64()));
        Ok(())
    }

    async fn acts(&mut self) -> Result<(), DemoError> {
        self.stage.act("Needs: every request may say what it wants");
        for ask in script::needs(&self.cast) {
            self.ask(ask).await?;
        }
        self.stage.act("A conversation of three turns");
        let mut said = Vec::new();
        for turn in script::turns(&self.cast) {
            let ask = script::after(turn, &said);
            said.clone_from(&ask.question.messages);
            let reply = self.ask(ask).await?;
            said.push(("assistant", reply.text));
        }
        self.stage.act("A burst: six at once at one edge that can do two");
        self.ask_at_once(script::burst(&self.cast)).await?;
        self.cut().await
    }

    /// Cuts the first edge off, asks there, and puts the plug back.
    async fn cut(&mut self) -> Result<(), DemoError> {
        let edge = self.cast.edge_1.clone();
        self.stage.act(&format!("The cable of {edge} is cut"));
        self.plug(&edge, false)?;
        self.notice(&edge, true).await?;
        for ask in script::cut_off(&self.cast) {
            self.ask(ask).await?;
        }
        self.stage.act("The cable is back");
        self.plug(&edge, true)?;
        self.notice(&edge, false).await?;
        let knows = script::cloud_model(&edge);
        let base = self.base(&edge)?;
        let waiting = self.stage.wait("the cloud is in reach again");
        until("the cloud in reach again", NOTICED_WITHIN, || async {
            match self.client.ask(&base, &knows.question).await {
                Ok(reply) if reply.answered() => Ok(()),
                Ok(reply) => Err(reply.error.map(|error| error.message).unwrap_or_default()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
        waiting.done("");
        for ask in script::restored(&self.cast) {
            self.ask(ask).await?;
        }
        Ok(())
    }

    fn plug(&self, edge: &NodeId, in_place: bool) -> Result<(), DemoError> {
        if let Some(relay) = self.fleet.agent(edge)?.relay() {
            if in_place { relay.restore() } else { relay.cut() }
        }
        Ok(())
    }

    /// Waits until the edge says that it is cut off, or is not any more.
    async fn notice(&self, edge: &NodeId, degraded: bool) -> Result<(), Late> {
        let text = if degraded { "it notices that it is alone" } else { "it notices that it is not alone" };
        let waiting = self.stage.wait(text);
        let url = self.base(edge).map(|base| format!("{base}/healthz")).unwrap_or_default();
        let ((), took) = until(text, NOTICED_WITHIN, || async {
            let response = self.client.http().get(&url).send().await.map_err(|error| error.to_string())?;
            let health: serde_json::Value = response.json().await.map_err(|error| error.to_string())?;
            let now = health.get("degraded").and_then(serde_json::Value::as_bool);
            if now == Some(degraded) { Ok(()) } else { Err(health.to_string()) }
        })
        .await?;
        waiting.done(&format!("after {:.1} s", took.as_secs_f64()));
        Ok(())
    }

    async fn ask(&mut self, ask: Ask) -> Result<Reply, DemoError> {
        let base = self.base(&ask.at)?;
        let waiting = self.stage.wait(&format!("{} at {}", ask.label, ask.at));
        let outcome = self.client.ask(&base, &ask.question).await;
        let told = Told::new(ask, outcome);
        waiting.replace(&told.line());
        let reply = told.reply.clone();
        self.told.push(told);
        Ok(reply)
    }

    async fn ask_at_once(&mut self, asks: Vec<Ask>) -> Result<(), DemoError> {
        let waiting = self.stage.wait("all are under way");
        let bases = asks.iter().map(|ask| self.base(&ask.at)).collect::<Result<Vec<_>, _>>()?;
        let outcomes = join_all(asks.iter().zip(&bases).map(|(ask, base)| self.client.ask(base, &ask.question))).await;
        waiting.done("and over");
        for (ask, outcome) in asks.into_iter().zip(outcomes) {
            let told = Told::new(ask, outcome);
            self.stage.say(&format!("  {}", told.line()));
            self.told.push(told);
        }
        Ok(())
    }

    fn base(&self, at: &NodeId) -> Result<String, FleetError> {
        if *at == self.cast.hub { Ok(self.fleet.hub().api()) } else { Ok(self.fleet.agent(at)?.api()) }
    }

    fn uplinks(&self) -> Vec<super::report::Uplink> {
        let agents = self.fleet.agents();
        agents.filter_map(|agent| Some(super::report::Uplink::of(agent.node().clone(), agent.relay()?))).collect()
    }

    /// What the agent itself says of the request with the quality floor.
    fn explain(&self) -> Option<(String, String)> {
        let told = self.told.iter().find(|told| matches!(told.ask.promise, Promise::Quality(_)))?;
        let id = told.reply.request.as_deref()?;
        let agent = self.fleet.agent(&told.ask.at).ok()?;
        let explained = agent.command(&["explain", id]).unwrap_or_else(|error| format!("(no explanation: {error})"));
        Some((format!("edge-node explain {id}"), explained))
    }
}
