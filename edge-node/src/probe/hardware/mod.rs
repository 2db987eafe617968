//! What the machine can do: processor, memory, disk; and what its sensors say. Each fact comes with its instrument and how far it
//! is to be trusted. One that fails is absent and takes no other with it.
//!
//! All files of the system are read below a [`Root`], so that tests can show this code machines that nobody here has.

mod config;
pub mod cores;
mod disk;
mod kept;
mod page;
mod rapl;
pub mod rates;
mod root;
mod sensors;
mod watch;

pub use config::MachineSection;
pub use kept::{Kept, load, store};
pub use page::{MachineReport, section};
pub use root::Root;
pub use sensors::{Sensed, power_mode};
pub use watch::Sensors;

use rates::{Plan, Rate};
use shared::fleet::{Fact, Hardware, Origin};
use shared::units::{ByteRate, FlopRate, Fraction, Micros, OpRate};
use std::path::Path;

/// Niceness of the threads that measure: they give way to whatever else runs.
const NICE: i32 = 10;

/// Trust in what the system says of itself.
const REPORTED: f64 = 0.95;

fn reported<T>((value, by): (T, &str)) -> Fact<T> {
    let confidence = Fraction::new(REPORTED).unwrap_or_default();
    Fact { value, origin: Origin::Reported, by: by.to_owned(), age: Micros::ZERO, confidence }
}

fn measured<T, E>(rate: Option<Rate>, by: &str, unit: impl Fn(f64) -> Result<T, E>) -> Option<Fact<T>> {
    let Rate { value, confidence } = rate?;
    Some(Fact { value: unit(value).ok()?, origin: Origin::Measured, by: by.to_owned(), age: Micros::ZERO, confidence })
}

/// What can be told without measuring.
#[must_use]
pub fn look(root: &Root) -> Hardware {
    Hardware {
        usable: cores::usable(root).map(reported),
        memory_available: cores::memory_available(root).map(reported),
        power_mode: power_mode(root).map(reported),
        ..Hardware::default()
    }
}

/// Measures, on this thread and some more, for at most some six seconds and within 400 MB. `models` is where models lie. Ends early
/// when `go_on` says so; then what was not measured is absent.
#[must_use]
pub fn measure(root: &Root, models: &Path, go_on: &dyn Fn() -> bool) -> Hardware {
    let plan = Plan::of(root);
    let (f32, int8, memory) = (plan.f32(go_on), plan.int8(go_on), plan.memory(go_on));
    let disk = disk::read_rate(models, go_on);
    Hardware {
        f32_thread: measured(f32.thread, "multiply-adds in registers", FlopRate::new),
        f32_all: measured(f32.all, "multiply-adds in registers", FlopRate::new),
        int8_thread: measured(int8.thread, "byte products in registers", OpRate::new),
        int8_all: measured(int8.all, "byte products in registers", OpRate::new),
        memory_thread: measured(memory.thread, "triad", ByteRate::new),
        memory_all: measured(memory.all, "triad", ByteRate::new),
        disk_read: disk.and_then(|(rate, by)| measured(Some(rate), by, ByteRate::new)),
        ..look(root)
    }
}

/// As [`measure`], at low priority on a thread of its own, which has ended when this returns. Blocks.
///
/// # Errors
/// When no thread can be had.
pub fn measure_gently(models: &Path, go_on: &(dyn Fn() -> bool + Sync)) -> std::io::Result<Hardware> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("measure".to_owned());
        let measuring = thread.spawn_scoped(scope, || {
            // Of this thread alone, and of those that it starts. Without the right to it, it is measured at the usual priority.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            measure(&Root::live(), models, go_on)
        })?;
        measuring.join().map_err(|_| std::io::Error::other("the thread that measures the machine panicked"))
    })
}
