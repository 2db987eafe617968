//! Watches the machine: what it is, measured once and kept; how it is, at each heartbeat.

use super::driver::Handle;
use crate::config::Config;
use crate::logic::{AgentEvent, Gauges};
use crate::probe::hardware::{self, MachineSection, Root, Sensors};
use crate::probe::machine::Probe;
use crate::release::running_sha256;
use shared::fleet::{Hardware, Machine};
use shared_net::host::Tasks;
use std::path::PathBuf;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

/// How often the machine's gauges are read: once for each heartbeat's report.
const GAUGES_EVERY: Duration = Duration::from_secs(5);

/// Where and how to measure.
#[derive(Clone, Debug)]
pub(super) struct Watch {
    state: PathBuf,
    models: PathBuf,
    section: MachineSection,
}

/// Where models lie: the folder of the first engine's file, else the state folder.
pub(crate) fn models_folder(config: &Config) -> PathBuf {
    let model = config.engines.iter().find_map(|engine| engine.file()?.parent().map(PathBuf::from));
    // A file without a folder lies in the present one.
    let model = model.map(|folder| if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder });
    model.unwrap_or_else(|| config.state.clone())
}

impl Watch {
    /// As configured; the folder of models is that of the first engine's file, else the state folder.
    pub(super) fn new(config: &Config) -> Self {
        Self { state: config.state.clone(), models: models_folder(config), section: config.machine.clone() }
    }

    /// What is known without measuring: what the system says, and the last measurement.
    fn known(&self, machine: &Machine) -> (Hardware, bool) {
        let now = hardware::look(&Root::live());
        let usable = now.usable.as_ref().map(|fact| fact.value);
        match hardware::load(&self.state, machine.cpu.as_deref(), usable, self.section.good_for()) {
            Some(kept) => (
                Hardware { usable: now.usable, memory_available: now.memory_available, power_mode: now.power_mode, ..kept },
                true,
            ),
            None => (now, false),
        }
    }

    /// Measures and keeps it. Absent when it was stopped or no thread could be had.
    fn measure(&self, cpu: Option<&str>, stop: &CancellationToken) -> Option<Hardware> {
        let measured = hardware::measure_gently(&self.models, &|| !stop.is_cancelled());
        let measured = measured.inspect_err(|error| tracing::warn!(%error, "the machine was not measured")).ok()?;
        if stop.is_cancelled() {
            return None;
        }
        if let Err(error) = hardware::store(&self.state, cpu, &measured) {
            tracing::warn!(%error, "the measurement of the machine was not kept, and is made again at the next start");
        }
        Some(measured)
    }
}

pub(super) async fn watch_machine(watch: Watch, handle: Handle, tasks: Tasks) {
    let stop = tasks.cancelled();
    let mut probe = Probe::new();
    let machine = probe.machine();
    let (hardware, kept) = watch.known(&machine);
    let machine = Machine { hardware, ..machine };
    if handle.tell(AgentEvent::Machine(machine.clone())).await.is_err() {
        return;
    }
    // A file of a hundred megabytes takes a moment to read.
    let hashed = spawn_blocking(running_sha256).await;
    if let Ok(Some(sha256)) = hashed
        && handle.tell(AgentEvent::Binary(sha256)).await.is_err()
    {
        return;
    }
    if watch.section.measure && !kept {
        tasks.spawn("measuring the machine", measure(watch, machine, handle.clone(), stop.clone()));
    }
    let mut sensors = Sensors::new(Root::live());
    loop {
        // Sensors may keep one waiting for half a second.
        let Ok((sensed, back)) = spawn_blocking(move || (sensors.read(), sensors)).await else { return };
        sensors = back;
        let gauges =
            Gauges { temperature: sensed.temperature, throttled: sensed.throttled, power: sensed.power, ..probe.gauges() };
        if handle.tell(AgentEvent::Gauges(gauges)).await.is_err() {
            return;
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(GAUGES_EVERY) => {}
        }
    }
}

async fn measure(watch: Watch, machine: Machine, handle: Handle, stop: CancellationToken) {
    let cpu = machine.cpu.clone();
    if let Ok(Some(hardware)) = spawn_blocking(move || watch.measure(cpu.as_deref(), &stop)).await {
        // Without an agent nobody wants to know.
        let _ = handle.tell(AgentEvent::Machine(Machine { hardware, ..machine })).await;
    }
}
