//! What a machine was measured to do, beside what it is called.

use super::{Fact, ReportFault};
use crate::units::{ByteRate, Bytes, Cores, FlopRate, Micros, OpRate};
use serde::{Deserialize, Serialize};

/// Rates and limits of a machine, found by its own agent. What could not be measured is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hardware {
    /// Processors that the agent may use: by affinity and by the quota of its control groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usable: Option<Fact<Cores>>,
    /// Multiply-adds in single precision out of registers, by one thread; each counts for two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub f32_thread: Option<Fact<FlopRate>>,
    /// The same by all usable threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub f32_all: Option<Fact<FlopRate>>,
    /// Products of bytes summed in 32 bits, by one thread; a product and its sum are two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_thread: Option<Fact<OpRate>>,
    /// The same by all usable threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_all: Option<Fact<OpRate>>,
    /// `a = b + s * c` over memory, by one thread: the bytes of the three arrays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_thread: Option<Fact<ByteRate>>,
    /// The same by all usable threads at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_all: Option<Fact<ByteRate>>,
    /// Memory that could be had when this was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_available: Option<Fact<Bytes>>,
    /// Reading from the folder of models, not from the page cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_read: Option<Fact<ByteRate>>,
    /// Power mode or governor, as the system calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power_mode: Option<Fact<String>>,
}

impl Hardware {
    /// Longest name of an instrument or mode, in bytes.
    pub const TEXT_MAX: usize = 64;

    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }

    /// The same after `passed`.
    #[must_use]
    pub fn aged(self, passed: Micros) -> Self {
        fn aged<T>(fact: Option<Fact<T>>, passed: Micros) -> Option<Fact<T>> {
            fact.map(|fact| fact.aged(passed))
        }
        Self {
            usable: aged(self.usable, passed),
            f32_thread: aged(self.f32_thread, passed),
            f32_all: aged(self.f32_all, passed),
            int8_thread: aged(self.int8_thread, passed),
            int8_all: aged(self.int8_all, passed),
            memory_thread: aged(self.memory_thread, passed),
            memory_all: aged(self.memory_all, passed),
            memory_available: aged(self.memory_available, passed),
            disk_read: aged(self.disk_read, passed),
            power_mode: aged(self.power_mode, passed),
        }
    }

    /// Checks what the types cannot: lengths, and that a rate is not zero. A machine that computes nothing sends no reports.
    ///
    /// # Errors
    /// [`ReportFault`] names the field.
    pub fn validate(&self) -> Result<(), ReportFault> {
        if self.instruments().any(|by| by.len() > Self::TEXT_MAX)
            || self.power_mode.as_ref().is_some_and(|mode| mode.value.len() > Self::TEXT_MAX)
        {
            return Err(fault("hardware", "want texts of at most 64 bytes"));
        }
        for (field, value) in self.rates() {
            if value <= 0.0 {
                return Err(fault(field, "want more than zero, and nothing where it is not known"));
            }
        }
        Ok(())
    }

    fn rates(&self) -> impl Iterator<Item = (&'static str, f64)> {
        [
            ("hardware.usable", self.usable.as_ref().map(|fact| fact.value.get())),
            ("hardware.f32_thread", self.f32_thread.as_ref().map(|fact| fact.value.get())),
            ("hardware.f32_all", self.f32_all.as_ref().map(|fact| fact.value.get())),
            ("hardware.int8_thread", self.int8_thread.as_ref().map(|fact| fact.value.get())),
            ("hardware.int8_all", self.int8_all.as_ref().map(|fact| fact.value.get())),
            ("hardware.memory_thread", self.memory_thread.as_ref().map(|fact| fact.value.get())),
            ("hardware.memory_all", self.memory_all.as_ref().map(|fact| fact.value.get())),
            ("hardware.disk_read", self.disk_read.as_ref().map(|fact| fact.value.get())),
        ]
        .into_iter()
        .filter_map(|(field, value)| value.map(|value| (field, value)))
    }

    fn instruments(&self) -> impl Iterator<Item = &String> {
        let flops = [&self.f32_thread, &self.f32_all].into_iter().flatten().map(|fact| &fact.by);
        let ops = [&self.int8_thread, &self.int8_all].into_iter().flatten().map(|fact| &fact.by);
        let bytes = [&self.memory_thread, &self.memory_all, &self.disk_read].into_iter().flatten().map(|fact| &fact.by);
        let usable = self.usable.iter().map(|fact| &fact.by);
        let memory = self.memory_available.iter().map(|fact| &fact.by);
        flops.chain(ops).chain(bytes).chain(usable).chain(memory).chain(self.power_mode.iter().map(|fact| &fact.by))
    }
}

fn fault(field: &str, why: &'static str) -> ReportFault {
    ReportFault::Value { field: field.to_owned(), why }
}
