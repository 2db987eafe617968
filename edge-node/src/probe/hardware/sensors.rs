//! Sensors of a machine: temperatures, power, throttling. Found once, read often, each for itself: one that is broken, absent or
//! answers nonsense takes nothing from the others, and is absent itself, never zero.

use super::rapl::Domain;
use super::root::{Root, number, text};
use shared::fleet::{Fact, Origin};
use shared::units::{Celsius, Fraction, Joules, Micros, Watts};
use std::path::{Path, PathBuf};

/// Most sensors that are read. They are read at each heartbeat, and some take a millisecond each.
const SENSORS_MAX: usize = 64;
/// What sensors on a bus answer when nobody is there: all ones, in thousandths or in units, and the least of 16 bits.
const SENTINELS: [f64; 5] = [65_535.0, 65_535_000.0, -32_768.0, -256_000.0, 4_294_967_295.0];
/// Rails through which a whole board is fed, by the names that its makers print on them.
const INPUT_RAILS: [&str; 4] = ["VDD_IN", "POM_5V_IN", "VIN", "VDD_INPUT"];
/// Bits of a Raspberry Pi's firmware for what is so now: low voltage, capped clock, throttled, hot.
const THROTTLED_NOW: u64 = 0xf;

/// One sensor.
#[derive(Clone, Debug)]
pub(super) enum Sensor {
    /// Thousandths of a degree.
    Temperature(PathBuf),
    /// Thousandths of volts and of amperes.
    Rail { label: String, voltage: PathBuf, current: PathBuf },
    /// Millionths of a watt, of the whole machine.
    Meter(PathBuf),
    /// A battery's folder.
    Battery(PathBuf),
    /// The state of a device that cools by slowing the processor down.
    Cooling(PathBuf),
    /// What a firmware says of throttling, in hex.
    Firmware(PathBuf),
    /// A counter of energy.
    Energy(Domain),
}

/// What one sensor said.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reading {
    Temperature(Celsius),
    Rail {
        label: String,
        power: Watts,
    },
    Meter(Watts),
    Battery(Watts),
    Throttled(bool),
    /// What a counter rose since it was last read.
    Energy(Joules),
}

/// How the machine is, as far as its sensors say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sensed {
    /// Of the hottest part.
    pub temperature: Option<Celsius>,
    /// Whether it is slowed down.
    pub throttled: Option<bool>,
    /// What it draws.
    pub power: Option<Fact<Watts>>,
    /// What its counters rose since they were last read.
    pub energy: Option<Joules>,
}

/// The sensors that there are.
pub(super) fn find(root: &Root) -> Vec<Sensor> {
    let mut found = Vec::new();
    for chip in root.entries("sys/class/hwmon") {
        of_chip(&chip, &mut found);
    }
    for zone in root.entries("sys/class/thermal") {
        let name = zone.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("thermal_zone") {
            found.push(Sensor::Temperature(zone.join("temp")));
        } else if name.starts_with("cooling_device") && slows(&zone) {
            found.push(Sensor::Cooling(zone.join("cur_state")));
        }
    }
    for supply in root.entries("sys/class/power_supply") {
        if text(&supply.join("type")).as_deref() == Some("Battery") {
            found.push(Sensor::Battery(supply));
        }
    }
    let firmware = root.path("sys/devices/platform/soc/soc:firmware/get_throttled");
    if firmware.exists() {
        found.push(Sensor::Firmware(firmware));
    }
    found.truncate(SENSORS_MAX);
    found.extend(super::rapl::domains(root).into_iter().map(Sensor::Energy));
    found
}

fn slows(device: &Path) -> bool {
    let kind = text(&device.join("type")).unwrap_or_default().to_lowercase();
    kind.contains("processor") || kind.contains("cpu")
}

fn of_chip(chip: &Path, found: &mut Vec<Sensor>) {
    let name = text(&chip.join("name")).unwrap_or_default();
    for index in 1..=16_u32 {
        let input = |what: &str, suffix: &str| chip.join(format!("{what}{index}_{suffix}"));
        if input("temp", "input").exists() {
            found.push(Sensor::Temperature(input("temp", "input")));
        }
        let (voltage, current) = (input("in", "input"), input("curr", "input"));
        if name.starts_with("ina") && voltage.exists() && current.exists() {
            let label = text(&input("in", "label")).unwrap_or_else(|| format!("{name} {index}"));
            // The fourth of an INA3221 is the sum of the others.
            if !label.to_lowercase().contains("sum") {
                found.push(Sensor::Rail { label, voltage, current });
            }
        }
        if name.contains("power_meter") && input("power", "average").exists() {
            found.push(Sensor::Meter(input("power", "average")));
        }
    }
}

/// Power that a running machine can draw: nothing at all is no reading.
fn watts(value: f64) -> Option<Watts> {
    Watts::new(value).ok().filter(|watts| watts.get() > 0.0)
}

fn sane(path: &Path) -> Option<f64> {
    number(path).filter(|value| !SENTINELS.contains(value))
}

impl Sensor {
    /// What it says now; absent where it says nothing that can be.
    pub(super) fn read(&mut self) -> Option<Reading> {
        match self {
            Self::Temperature(path) => Celsius::new(sane(path)? / 1e3).ok().map(Reading::Temperature),
            Self::Rail { label, voltage, current } => {
                let power = watts(sane(voltage)? * sane(current)? / 1e6)?;
                Some(Reading::Rail { label: label.clone(), power })
            }
            Self::Meter(path) => watts(sane(path)? / 1e6).map(Reading::Meter),
            Self::Battery(folder) => discharge(folder).map(Reading::Battery),
            Self::Cooling(path) => sane(path).filter(|state| *state >= 0.0).map(|state| Reading::Throttled(state > 0.0)),
            Self::Firmware(path) => {
                let bits = u64::from_str_radix(text(path)?.trim_start_matches("0x"), 16).ok()?;
                Some(Reading::Throttled(bits & THROTTLED_NOW != 0))
            }
            Self::Energy(domain) => domain.risen().map(Reading::Energy),
        }
    }
}

/// What a battery gives; absent while it is charged, since nobody knows then what the machine draws.
fn discharge(folder: &Path) -> Option<Watts> {
    if text(&folder.join("status")).as_deref() != Some("Discharging") {
        return None;
    }
    let direct = sane(&folder.join("power_now")).map(|microwatts| microwatts.abs() / 1e6);
    let product = || Some(sane(&folder.join("voltage_now"))? / 1e6 * sane(&folder.join("current_now"))?.abs() / 1e6);
    watts(direct.or_else(product)?)
}

/// What all sensors together say. `passed` is the time since the counters were last read.
pub(super) fn sum_up(readings: &[Reading], passed: Option<Micros>) -> Sensed {
    let mut sensed = Sensed::default();
    let (mut energy, mut meter, mut battery) = (None::<f64>, None, None::<f64>);
    for reading in readings {
        match reading {
            Reading::Temperature(one) => {
                sensed.temperature = Some(sensed.temperature.map_or(*one, |hottest| if *one > hottest { *one } else { hottest }));
            }
            Reading::Throttled(one) => sensed.throttled = Some(sensed.throttled.unwrap_or(false) || *one),
            Reading::Energy(joules) => energy = Some(energy.unwrap_or_default() + joules.get()),
            Reading::Meter(watts) => meter = Some(watts.get()),
            Reading::Battery(watts) => battery = Some(battery.unwrap_or_default() + watts.get()),
            Reading::Rail { .. } => {}
        }
    }
    sensed.energy = energy.and_then(|joules| Joules::new(joules).ok());
    let seconds = passed.map(Micros::as_secs_f64).filter(|seconds| *seconds > 0.0);
    let counted = energy.zip(seconds).map(|(joules, seconds)| joules / seconds);
    // Of the whole machine first; the counters of a processor see only itself and its memory.
    let sources =
        [(meter, "power meter", 0.95), (rails(readings), "rails", 0.95), (battery, "battery", 0.9), (counted, "rapl", 0.8)];
    sensed.power = sources.into_iter().find_map(|(value, by, trust)| {
        let value = watts(value?)?;
        let confidence = Fraction::new(trust).unwrap_or_default();
        Some(Fact { value, origin: Origin::Measured, by: by.to_owned(), age: Micros::ZERO, confidence })
    });
    sensed
}

/// The rail that feeds all others where there is one, else the sum.
fn rails(readings: &[Reading]) -> Option<f64> {
    let all = readings.iter().filter_map(|reading| match reading {
        Reading::Rail { label, power } => Some((label, power.get())),
        _ => None,
    });
    let input = all.clone().find(|(label, _)| INPUT_RAILS.contains(&label.as_str())).map(|(_, watts)| watts);
    input.or_else(|| all.map(|(_, watts)| watts).reduce(|sum, one| sum + one))
}

/// The power mode, and who says so: a board's own modes first, then the system's profile, then the governor.
#[must_use]
pub fn power_mode(root: &Root) -> Option<(String, &'static str)> {
    let board = || {
        let status = root.text("var/lib/nvpmodel/status")?;
        let id: u32 = status.rsplit(':').next()?.trim().parse().ok()?;
        let config = root.text("etc/nvpmodel.conf").unwrap_or_default();
        let named = config.lines().find_map(|line| {
            let rest = line.split("POWER_MODEL ID=").nth(1)?;
            let (number, rest) = rest.split_once(' ')?;
            let name = rest.split("NAME=").nth(1)?.split(['>', ' ']).next()?;
            (number.parse::<u32>().ok()? == id).then(|| name.to_owned())
        });
        Some((named.unwrap_or_else(|| format!("mode {id}")), "nvpmodel"))
    };
    let profile = || Some((root.text("sys/firmware/acpi/platform_profile")?, "platform profile"));
    let governor = || Some((root.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")?, "governor"));
    let (mode, by) = board().or_else(profile).or_else(governor)?;
    (mode.len() <= shared::fleet::Hardware::TEXT_MAX && mode != "N/A").then_some((mode, by))
}
