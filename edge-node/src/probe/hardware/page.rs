//! The machine's part of what a probe prints.

use super::Sensed;
use serde::Serialize;
use shared::fleet::{Fact, Hardware, Machine};
use shared::units::{Celsius, Watts};
use std::fmt::Write;

/// What is known of the machine, for programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MachineReport {
    /// What it is, with what it was measured to do.
    pub machine: Machine,
    /// Temperature of its hottest part, in degrees Celsius.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Celsius>,
    /// Whether it is slowed down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throttled: Option<bool>,
    /// What it draws.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub power: Option<Fact<Watts>>,
}

impl MachineReport {
    /// Of a machine and what its sensors say.
    #[must_use]
    pub fn new(machine: Machine, sensed: Sensed) -> Self {
        Self { machine, temperature: sensed.temperature, throttled: sensed.throttled, power: sensed.power }
    }
}

/// For people: a line for each fact, with its instrument; `not known` where there is none.
#[must_use]
pub fn section(report: &MachineReport) -> String {
    let Hardware {
        usable,
        f32_thread,
        f32_all,
        int8_thread,
        int8_all,
        memory_thread,
        memory_all,
        memory_available,
        disk_read,
        power_mode,
    } = &report.machine.hardware;
    let giga = |value: f64| format!("{:.1}", value / 1e9);
    let mut text = String::from("Machine\n");
    let mut line = |name: &str, value: Option<String>| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<18} {}", value.as_deref().unwrap_or("not known"));
    };
    line("processor", report.machine.cpu.clone());
    line("usable cores", shown(usable.as_ref(), |cores| format!("{:.2}", cores.get())));
    line("f32, one thread", shown(f32_thread.as_ref(), |rate| giga(rate.get()) + " GFLOP/s"));
    line("f32, all", shown(f32_all.as_ref(), |rate| giga(rate.get()) + " GFLOP/s"));
    line("int8, one thread", shown(int8_thread.as_ref(), |rate| giga(rate.get()) + " Gop/s"));
    line("int8, all", shown(int8_all.as_ref(), |rate| giga(rate.get()) + " Gop/s"));
    line("memory, one thread", shown(memory_thread.as_ref(), |rate| giga(rate.get()) + " GB/s"));
    line("memory, all", shown(memory_all.as_ref(), |rate| giga(rate.get()) + " GB/s"));
    line("memory to be had", shown(memory_available.as_ref(), |bytes| giga(bytes.as_f64()) + " GB"));
    line("disk, cold reads", shown(disk_read.as_ref(), |rate| format!("{:.0} MB/s", rate.get() / 1e6)));
    line("power mode", shown(power_mode.as_ref(), Clone::clone));
    line("temperature", report.temperature.map(|one| one.to_string()));
    line("throttled", report.throttled.map(|one| if one { "yes" } else { "no" }.to_owned()));
    line("power", shown(report.power.as_ref(), |watts| format!("{:.1} W", watts.get())));
    text
}

fn shown<T>(fact: Option<&Fact<T>>, value: impl Fn(&T) -> String) -> Option<String> {
    fact.map(|fact| {
        let trust = 100.0 * fact.confidence.get();
        format!("{:<16} {} by {}, trust {trust:.0} %", value(&fact.value), fact.origin.name(), fact.by)
    })
}
