//! What `edge-node probe --json` prints. `edge-node/schema/probe.schema.json` describes it, and `probe --schema` prints that.

use super::accelerator::{self, Failure, Look, Orders, look};
use super::hardware::{self, Root, Sensors};
use super::machine::Probe;
use serde::{Deserialize, Serialize};
use shared::fleet::{Accelerator, DeviceRates, Dropped, Fact, Machine, ProbeState};
use shared::units::{Bytes, Celsius, Micros, Watts};
use std::path::PathBuf;

/// The published description of [`ProbeReport`].
pub const SCHEMA: &str = include_str!("../../schema/probe.schema.json");

/// A section for each thing that is measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeReport {
    /// Version of the program.
    pub version: String,
    /// What the machine is, and what it was measured to do.
    pub machine: Machine,
    /// Temperature of its hottest part, in degrees Celsius.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Celsius>,
    /// Whether it is slowed down, for heat or want of power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<bool>,
    /// What it draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Fact<Watts>>,
    /// How the look for accelerators went.
    pub probe: ProbeState,
    /// The CPU at the probe's kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<DeviceRates>,
    /// What is faster than the CPU, fastest first.
    pub accelerators: Vec<Accelerator>,
    /// What was listed and is none.
    pub dropped: Vec<Dropped>,
    /// What could be done about devices that cannot be used.
    pub hints: Vec<String>,
    /// What the look for accelerators took.
    pub cost: Cost,
}

/// What a look took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// From starting its process to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall: Option<Micros>,
    /// The most memory that its process held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
}

impl ProbeReport {
    /// Measures this machine, with the disk under the folder `models`, and reads its sensors. One after the other, so that none
    /// disturbs the next.
    pub async fn make(orders: &Orders, models: PathBuf) -> Self {
        let measured = tokio::task::spawn_blocking(move || {
            let mut sensors = Sensors::new(Root::live());
            // Power from counters is that of the time between two looks.
            drop(sensors.read());
            let hardware = hardware::measure_gently(&models, &|| true).unwrap_or_else(|_| hardware::look(&Root::live()));
            (Machine { hardware, ..Probe::new().machine() }, sensors.read())
        });
        // Fails only when it panics: then nothing is known of the machine.
        let (machine, sensed) = measured.await.unwrap_or_default();
        let report = Self::of(machine, look(orders).await);
        Self { temperature: sensed.temperature, throttled: sensed.throttled, power: sensed.power, ..report }
    }

    /// What a look says.
    #[must_use]
    pub fn of(machine: Machine, looked: Result<Look, Failure>) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let (survey, cpu, cost) = match looked {
            Ok(Look { listing, wall }) => {
                let wall = u64::try_from(wall.as_micros()).ok().map(Micros);
                let cost = Cost { wall, memory: listing.peak_memory.map(Bytes) };
                (accelerator::judge(&listing), accelerator::judge::cpu(&listing), cost)
            }
            Err(failure) => {
                let why = crate::io::store::chain(&failure);
                (shared::fleet::Survey { state: ProbeState::Failed(why), ..Default::default() }, None, Cost::default())
            }
        };
        let shared::fleet::Survey { state, accelerators, dropped, hints } = survey;
        let (temperature, throttled, power) = (None, None, None);
        Self { version, machine, temperature, throttled, power, probe: state, cpu, accelerators, dropped, hints, cost }
    }
}
