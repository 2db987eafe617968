//! Accelerators of a machine: what each can do by measurement, what was taken for one and is none, and how the last look went.
//!
//! Nothing here is believed because a driver says so: a rate is a [`Fact`] with its instrument, and what is not known is absent. An
//! accelerator without memory cannot be written down.

use super::{Fact, ReportFault};
use crate::units::{ByteRate, Bytes, FlopRate, Micros};
use serde::{Deserialize, Serialize};
use std::num::NonZero;

/// How the memory of an accelerator relates to the machine's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceleratorKind {
    /// A card with memory of its own.
    Discrete,
    /// In the package of a PC's processor; borrows the machine's memory.
    Integrated,
    /// A system on a chip whose processors share one memory on equal terms.
    Unified,
    /// Lent by a hypervisor, or reached through another system's driver.
    Virtual,
    /// Nobody says. It is taken to share the machine's memory, since the opposite mistake ends in swapping.
    #[default]
    #[serde(other)]
    Unknown,
}

impl AcceleratorKind {
    /// As people call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Discrete => "discrete",
            Self::Integrated => "integrated",
            Self::Unified => "unified memory",
            Self::Virtual => "virtual",
            Self::Unknown => "kind unknown",
        }
    }

    /// Whether what it uses is taken from the machine's memory.
    #[must_use]
    pub const fn shares_memory(self) -> bool {
        !matches!(self, Self::Discrete)
    }
}

/// A programming interface through which a device was seen, most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// Direct3D 12.
    Dx12,
    /// OpenGL or OpenGL ES.
    Gl,
    /// Another one, of a newer agent.
    #[serde(other)]
    Other,
}

impl Backend {
    /// As people call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vulkan => "Vulkan",
            Self::Metal => "Metal",
            Self::Dx12 => "D3D12",
            Self::Gl => "GL",
            Self::Other => "other",
        }
    }
}

/// Memory that work may take on an accelerator, in bytes. Never zero: what is not known has no budget at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct MemoryBudget(NonZero<u64>);

/// A number of bytes that is no memory budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} B is no memory budget: want 1 to {max} B, and nothing where it is not known", max = MemoryBudget::MAX.0)]
pub struct NoBudget(pub u64);

impl MemoryBudget {
    /// The largest one that is believed: 64 TiB. Drivers say "all ones" where they mean "no idea".
    pub const MAX: Bytes = Bytes(1 << 46);

    /// A budget of so many bytes.
    ///
    /// # Errors
    /// [`NoBudget`] for zero and for what no machine has.
    pub fn new(bytes: Bytes) -> Result<Self, NoBudget> {
        NonZero::new(bytes.0).filter(|_| bytes <= Self::MAX).map(Self).ok_or(NoBudget(bytes.0))
    }

    /// How much it is.
    #[must_use]
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0.get())
    }
}

impl TryFrom<u64> for MemoryBudget {
    type Error = NoBudget;
    fn try_from(bytes: u64) -> Result<Self, NoBudget> {
        Self::new(Bytes(bytes))
    }
}

impl From<MemoryBudget> for u64 {
    fn from(budget: MemoryBudget) -> Self {
        budget.0.get()
    }
}

/// What a device does at the probe's kernels. What could not be measured is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceRates {
    /// Multiply-adds out of registers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fma: Option<Fact<FlopRate>>,
    /// A tiled product of matrices in single precision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matmul_f32: Option<Fact<FlopRate>>,
    /// The same with matrices in half precision and sums in single.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matmul_f16: Option<Fact<FlopRate>>,
    /// Bytes read and written in the device's memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Fact<ByteRate>>,
    /// From the machine's memory to the device's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload: Option<Fact<ByteRate>>,
    /// From the device's memory to the machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub download: Option<Fact<ByteRate>>,
    /// From handing over a tiny piece of work until it is known to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch: Option<Fact<Micros>>,
}

impl DeviceRates {
    /// The same after `passed`.
    #[must_use]
    pub fn aged(self, passed: Micros) -> Self {
        Self {
            fma: self.fma.map(|fact| fact.aged(passed)),
            matmul_f32: self.matmul_f32.map(|fact| fact.aged(passed)),
            matmul_f16: self.matmul_f16.map(|fact| fact.aged(passed)),
            bandwidth: self.bandwidth.map(|fact| fact.aged(passed)),
            upload: self.upload.map(|fact| fact.aged(passed)),
            download: self.download.map(|fact| fact.aged(passed)),
            launch: self.launch.map(|fact| fact.aged(passed)),
        }
    }

    /// The instruments' names, for whoever judges a report.
    fn instruments(&self) -> impl Iterator<Item = &String> {
        let flops = [&self.fma, &self.matmul_f32, &self.matmul_f16].into_iter().flatten().map(|fact| &fact.by);
        let bytes = [&self.bandwidth, &self.upload, &self.download].into_iter().flatten().map(|fact| &fact.by);
        flops.chain(bytes).chain(self.launch.iter().map(|fact| &fact.by))
    }
}

/// Something that measured faster than the CPU at the probe's kernels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Accelerator {
    /// Names it on this machine: `pci:0000:01:00.0`, `uuid:…`, or `name:…` where a driver tells nothing better.
    pub id: String,
    /// As its driver calls it.
    pub name: String,
    /// Who made it, such as `NVIDIA`; empty where nobody says.
    #[serde(default)]
    pub vendor: String,
    /// How its memory relates to the machine's.
    #[serde(default)]
    pub kind: AcceleratorKind,
    /// Back ends that list it, most trusted first; the first of them was measured.
    #[serde(default)]
    pub backends: Vec<Backend>,
    /// Address on the PCI bus, such as `0000:01:00.0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// Lasting identity, as 32 digits in hex.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Memory that work may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Fact<MemoryBudget>>,
    /// What it does.
    #[serde(default)]
    pub rates: DeviceRates,
}

impl Accelerator {
    /// The same after `passed`.
    #[must_use]
    pub fn aged(self, passed: Micros) -> Self {
        Self { memory: self.memory.map(|fact| fact.aged(passed)), rates: self.rates.aged(passed), ..self }
    }
}

/// What a back end listed and is no accelerator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// As its driver calls it.
    pub name: String,
    /// The back end that listed it.
    pub backend: Backend,
    /// Why not, for people.
    pub reason: String,
}

/// How the last look for accelerators went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeState {
    /// None has ended yet.
    #[default]
    Pending,
    /// The operator wants none.
    Off,
    /// It ended well.
    Done,
    /// It did not; what is known is from an earlier one.
    Failed(String),
}

/// What is known of a machine's accelerators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Survey {
    /// How the last look went.
    pub state: ProbeState,
    /// What there is, fastest first.
    pub accelerators: Vec<Accelerator>,
    /// What was listed and is none.
    pub dropped: Vec<Dropped>,
    /// What an operator could do about devices that cannot be used.
    pub hints: Vec<String>,
}

impl Survey {
    /// Most accelerators that are told of: no machine takes more cards.
    pub const ACCELERATORS_MAX: usize = 16;
    /// Most that is told of what was dropped: each card under a few back ends, and some software.
    pub const DROPPED_MAX: usize = 32;
    /// Most hints: one for each thing that can be wrong.
    pub const HINTS_MAX: usize = 8;
    /// Longest text in it, in characters: a name, a reason, a hint.
    pub const TEXT_MAX: usize = 400;

    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }

    /// The same after `passed`.
    #[must_use]
    pub fn aged(self, passed: Micros) -> Self {
        let accelerators = self.accelerators.into_iter().map(|one| one.aged(passed)).collect();
        Self { accelerators, ..self }
    }

    /// Checks what the types cannot: counts and lengths.
    ///
    /// # Errors
    /// [`ReportFault`] names the field.
    pub fn validate(&self) -> Result<(), ReportFault> {
        for (field, count, max) in [
            ("survey.accelerators", self.accelerators.len(), Self::ACCELERATORS_MAX),
            ("survey.dropped", self.dropped.len(), Self::DROPPED_MAX),
            ("survey.hints", self.hints.len(), Self::HINTS_MAX),
        ] {
            if count > max {
                return Err(ReportFault::TooMany { field, count, max });
            }
        }
        if self.accelerators.iter().any(|one| one.backends.len() > Self::TEXT_MAX) || self.texts().any(|text| is_long(text)) {
            return Err(ReportFault::Value { field: "survey".to_owned(), why: "want texts of at most 400 characters" });
        }
        Ok(())
    }

    fn texts(&self) -> impl Iterator<Item = &String> {
        let failed = match &self.state {
            ProbeState::Failed(why) => Some(why),
            _ => None,
        };
        let accelerators = self.accelerators.iter().flat_map(|one| {
            let named = [&one.id, &one.name, &one.vendor].into_iter().chain(&one.pci).chain(&one.uuid);
            named.chain(one.memory.iter().map(|fact| &fact.by)).chain(one.rates.instruments())
        });
        let dropped = self.dropped.iter().flat_map(|one| [&one.name, &one.reason]);
        failed.into_iter().chain(accelerators).chain(dropped).chain(&self.hints)
    }
}

fn is_long(text: &str) -> bool {
    text.chars().nth(Survey::TEXT_MAX).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accelerator_without_memory_cannot_be_written_down() {
        for bad in ["0", "-1", "0.5", "70368744177665", "18446744073709551615", "null", "\"N/A\""] {
            assert!(serde_json::from_str::<MemoryBudget>(bad).is_err(), "{bad}");
        }
        assert_eq!(MemoryBudget::new(Bytes(0)), Err(NoBudget(0)));
        let one: MemoryBudget = serde_json::from_str("8589934592").expect("8 GiB");
        assert_eq!(one.bytes(), Bytes(8 << 30));
        assert_eq!(size_of::<Option<MemoryBudget>>(), 8, "zero is the niche: it is no value");
    }

    #[test]
    fn what_a_newer_agent_knows_is_unknown_here() {
        assert_eq!(serde_json::from_str::<AcceleratorKind>("\"chiplet\"").ok(), Some(AcceleratorKind::Unknown));
        assert_eq!(serde_json::from_str::<Backend>("\"webgpu\"").ok(), Some(Backend::Other));
    }

    #[test]
    fn long_texts_and_crowds_are_refused_by_name() {
        let dropped = Dropped { name: "x".repeat(401), backend: Backend::Gl, reason: String::new() };
        let survey = Survey { dropped: vec![dropped.clone()], ..Survey::default() };
        assert!(survey.validate().is_err_and(|fault| fault.to_string().contains("survey")));
        let crowd = Survey { dropped: vec![Dropped { name: String::new(), ..dropped }; 33], ..Survey::default() };
        assert!(crowd.validate().is_err_and(|fault| fault.to_string().contains("survey.dropped")));
        let failed = Survey { state: ProbeState::Failed("y".repeat(401)), ..Survey::default() };
        assert!(failed.validate().is_err());
    }
}
