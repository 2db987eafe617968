//! The agent's own looks: at its start, when devices come or go, after a period, and when an operator asks. It tells the agent what they
//! bring, and keeps it in the state folder for the next start.

use super::budget::Kept;
use super::run::{Orders, look};
use super::signs::fingerprint;
use super::{judge, judge::shorten};
use crate::io::Handle;
use crate::io::store::chain;
use crate::logic::AgentEvent;
use crate::probe::ProbeSection;
use shared::fleet::{ProbeState, Survey};
use shared::units::Micros;
use shared_net::host::{StateFolder, write_private};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

/// The file in the state folder.
const FILE: &str = "accelerators.json";
/// How often it is looked whether devices came or went: two short lists, and nobody plugs a card in and wants it within seconds.
const HARDWARE_EVERY: Duration = Duration::from_secs(60);
/// Where the system's files begin.
const ROOT: &str = "/";

/// What the task needs.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) section: ProbeSection,
    pub(crate) handle: Handle,
    pub(crate) folder: Arc<StateFolder>,
    /// Rung by an operator.
    pub(crate) wanted: Arc<Notify>,
}

impl Watch {
    /// Runs until `cancel`; a look that runs then is killed.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            () = self.go_on() => {}
        }
    }

    async fn go_on(&self) {
        if !self.section.enabled {
            return self.tell(Survey { state: ProbeState::Off, ..Survey::default() }).await;
        }
        let mut kept = load(&self.folder);
        self.tell_kept(&kept).await;
        loop {
            let hardware = fingerprint(Path::new(ROOT));
            self.look(&mut kept, hardware).await;
            if self.until_due(hardware).await {
                kept.budget.forgive();
            }
        }
    }

    /// What an earlier life found, until this one knows better. Other hardware, or another program, may find something else.
    async fn tell_kept(&self, kept: &Kept) {
        let same = kept.hardware == fingerprint(Path::new(ROOT)) && kept.version == env!("CARGO_PKG_VERSION");
        if same && kept.survey.state == ProbeState::Done {
            let age = Duration::from_secs(now().saturating_sub(kept.at));
            self.tell(kept.survey.clone().aged(Micros(u64::try_from(age.as_micros()).unwrap_or(u64::MAX)))).await;
        }
    }

    async fn look(&self, kept: &mut Kept, hardware: u64) {
        if !kept.budget.allows(hardware) {
            return self.tell(kept.failed(format!("probe {}", kept.budget.verdict()))).await;
        }
        // Written before it begins: a driver may take the whole machine with it.
        kept.budget.begin(hardware);
        save(&self.folder, kept);
        let orders =
            Orders { program: Orders::own_program(), limit: self.section.limit(), always_cpu: false, drill: self.section.drill };
        let mut pending = CalledOff { kept: Some(kept), folder: &self.folder };
        let looked = look(&orders).await;
        let Some(kept) = pending.kept.take() else { return };
        match looked {
            Ok(look) => {
                kept.budget.succeed();
                kept.survey = judge(&look.listing);
                (kept.at, kept.hardware, kept.version) = (now(), hardware, env!("CARGO_PKG_VERSION").to_owned());
                let (found, dropped) = (kept.survey.accelerators.len(), kept.survey.dropped.len());
                tracing::info!(found, dropped, took = ?look.wall, "looked for accelerators");
                save(&self.folder, kept);
                self.tell(kept.survey.clone()).await;
            }
            Err(failure) => {
                let mut why = format!("probe failed ({}): {}", kept.budget.verdict(), chain(&failure));
                shorten(&mut why);
                tracing::warn!(%why, "accelerators are not known; everything else goes on");
                self.tell(kept.failed(why)).await;
            }
        }
    }

    /// Waits until a look is due; true when an operator asked for it.
    async fn until_due(&self, hardware: u64) -> bool {
        let due = Instant::now() + self.section.period();
        loop {
            let next = due.min(Instant::now() + HARDWARE_EVERY);
            if timeout_at(next, self.wanted.notified()).await.is_ok() {
                return true;
            }
            sleep_until(next).await;
            if Instant::now() >= due || fingerprint(Path::new(ROOT)) != hardware {
                return false;
            }
        }
    }

    async fn tell(&self, survey: Survey) {
        // An agent that has stopped needs to know nothing.
        drop(self.handle.tell(AgentEvent::Surveyed(Box::new(survey))).await);
    }
}

/// Takes the failure back that a look counts as until its end, when the agent stops in its midst.
struct CalledOff<'a> {
    kept: Option<&'a mut Kept>,
    folder: &'a StateFolder,
}

impl Drop for CalledOff<'_> {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            kept.budget.called_off();
            save(self.folder, kept);
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// What an earlier life kept. A damaged file is none: the next look replaces it.
fn load(folder: &StateFolder) -> Kept {
    let text = std::fs::read(folder.join(FILE)).unwrap_or_default();
    let kept: Kept = serde_json::from_slice(&text).unwrap_or_default();
    if kept.survey.validate().is_ok() { kept } else { Kept::default() }
}

fn save(folder: &StateFolder, kept: &Kept) {
    let text = serde_json::to_vec(kept).unwrap_or_default();
    if let Err(error) = write_private(&folder.join(FILE), &text) {
        tracing::warn!(%error, "what is known of accelerators was not kept");
    }
}
