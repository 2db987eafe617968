//! The only code that opens a device to measure it. It runs in the probe's child and nowhere else.

mod adapters;
mod cpu;
mod device;
mod kernels;
#[cfg(test)]
mod tests;

use super::child::{Line, Task, Told};
use super::listing::{Measured, Signs};
use super::merge::devices;
use std::path::Path;
use std::time::{Duration, Instant};

/// Repetitions of each measurement; they give the spread.
const REPEATS: usize = 5;

/// Looks at everything, and measures each device once, as long as there is time.
pub(super) fn all(task: Task, told: &mut Told<'_>) {
    let until = Instant::now() + task.time;
    let mut signs = Signs::read(Path::new("/"));
    told.doing("looking for the Vulkan loader");
    signs.vulkan = Some(adapters::vulkan_loader());
    told.line(Line::Signs(signs));
    told.doing("asking NVML");
    for reading in adapters::vendor() {
        told.line(Line::Vendor(reading));
    }
    let mut handles = Vec::new();
    for (name, backends) in adapters::BACKENDS {
        told.doing(format!("listing adapters of {name}"));
        for (handle, adapter) in adapters::list(backends) {
            handles.push(handle);
            told.line(Line::Adapter(adapter));
        }
    }
    let (found, _) = devices(&told.listing);
    if task.always_cpu || !found.is_empty() {
        told.doing("measuring the CPU");
        told.line(Line::Cpu(cpu::rates()));
    }
    for (index, device) in found.iter().enumerate() {
        let left = u32::try_from(found.len() - index).unwrap_or(u32::MAX);
        let share = until.saturating_duration_since(Instant::now()) / left;
        let adapter = device.first();
        let Some(handle) = handles.get(adapter).filter(|_| share > Duration::from_millis(100)) else { continue };
        told.doing(format!("measuring `{}`", handle.get_info().name));
        let (rates, fault) = device::measure(handle, Instant::now() + share);
        told.line(Line::Measured(Measured { adapter, rates, fault }));
    }
}
