//! Processor, memory, load and network, as the operating system tells them.

use crate::logic::Gauges;
use shared::fleet::Machine;
use shared::units::{Bytes, Fraction};
use std::num::NonZero;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, NetworkData, Networks, RefreshKind, System};

/// A probe that remembers its last look: processor load is a difference of two.
#[derive(Debug)]
pub struct Probe {
    system: Option<System>,
    networks: Option<Networks>,
    looks: u64,
}

impl Probe {
    /// A first look.
    #[must_use]
    pub fn new() -> Self {
        let kinds = RefreshKind::nothing().with_cpu(CpuRefreshKind::everything()).with_memory(MemoryRefreshKind::everything());
        Self { system: System::new_with_specifics(kinds).ok(), networks: Networks::new_with_refreshed_list().ok(), looks: 0 }
    }

    /// What the machine is.
    #[must_use]
    pub fn machine(&self) -> Machine {
        let cpus = self.system.as_ref().map(System::cpus).unwrap_or_default();
        let brand = cpus.first().map(|cpu| cpu.brand().trim().to_owned());
        Machine {
            cpu: brand.filter(|brand| !brand.is_empty()),
            // Honours affinity and the quota of a control group, unlike the count of processors.
            cores: std::thread::available_parallelism().ok().and_then(|cores| u32::try_from(NonZero::get(cores)).ok()),
            memory: self.memory_total(),
            os: operating_system(),
            ..Machine::default()
        }
    }

    fn memory_total(&self) -> Option<Bytes> {
        let system = self.system.as_ref()?;
        let machine = Some(system.total_memory());
        let group = system.cgroup_limits().map(|limits| limits.total_memory);
        machine.into_iter().chain(group).filter(|bytes| *bytes > 0).min().map(Bytes)
    }

    /// How the machine is. Processor load is of the time since the last look, and absent at the first.
    pub fn gauges(&mut self) -> Gauges {
        if let Some(networks) = &mut self.networks {
            networks.refresh(true);
        }
        self.looks += 1;
        let (cpu, memory_available) = self.system.as_mut().map(refreshed).unwrap_or_default();
        let load = System::load_average().ok().map(|load| load.one).filter(|load| load.is_finite() && *load >= 0.0);
        Gauges {
            cpu: if self.looks > 1 { cpu } else { None },
            memory_available,
            load_1m: load,
            received: self.traffic(NetworkData::total_received),
            sent: self.traffic(NetworkData::total_transmitted),
            ..Gauges::default()
        }
    }

    fn traffic(&self, of: impl Fn(&NetworkData) -> u64) -> Option<Bytes> {
        let networks = self.networks.as_ref()?;
        let interfaces = networks.iter().filter(|(name, _)| name.to_str() != Some("lo"));
        Some(Bytes(interfaces.fold(0, |sum, (_, data)| sum.saturating_add(of(data)))))
    }
}

impl Default for Probe {
    fn default() -> Self {
        Self::new()
    }
}

/// Busy share of the processors, and memory that could be had.
fn refreshed(system: &mut System) -> (Option<Fraction>, Option<Bytes>) {
    system.refresh_cpu_usage();
    system.refresh_memory();
    let cpu = Fraction::new((f64::from(system.global_cpu_usage()) / 100.0).clamp(0.0, 1.0)).ok();
    let group = system.cgroup_limits().map(|limits| limits.free_memory);
    let available = [Some(system.available_memory()), group].into_iter().flatten().min();
    (cpu, available.filter(|bytes| *bytes > 0).map(Bytes))
}

fn operating_system() -> Option<String> {
    let parts = [System::long_os_version().ok(), System::kernel_version().ok()];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
    (!text.is_empty()).then_some(text)
}

/// The addresses of the machine's networks, by name of interface.
pub fn own_addresses() -> Vec<std::net::IpAddr> {
    let Ok(networks) = Networks::new_with_refreshed_list() else { return Vec::new() };
    let mut by_name: Vec<_> = networks.iter().collect();
    by_name.sort_by_key(|(name, _)| *name);
    by_name.into_iter().flat_map(|(_, data)| data.ip_networks().iter().map(|network| network.addr)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_processor_and_memory() {
        let mut probe = Probe::new();
        let machine = probe.machine();
        assert!(machine.cores.is_some_and(|cores| cores > 0));
        assert!(machine.memory.is_some_and(|bytes| bytes.0 > 16 * 1024 * 1024));
        assert_eq!(probe.gauges().cpu, None, "one look is no difference");
        let gauges = probe.gauges();
        assert!(gauges.memory_available.is_some_and(|bytes| Some(bytes) <= machine.memory));
    }
}
