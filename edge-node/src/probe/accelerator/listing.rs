//! What the probe's child saw, as plain values that can be written down and read again.

use serde::{Deserialize, Deserializer, Serialize};
use shared::fleet::Backend;

/// Everything that one look brought.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Listing {
    /// What each back end lists, in the order in which they were asked.
    pub adapters: Vec<Adapter>,
    /// What was measured, at most once for each adapter.
    pub measured: Vec<Measured>,
    /// The CPU at the same kernels.
    pub cpu: Option<RawRates>,
    /// What a vendor's own library says.
    pub vendor: Vec<VendorReading>,
    /// What the system shows without opening a device.
    pub signs: Signs,
    /// The most memory that the child held, in bytes.
    pub peak_memory: Option<u64>,
}

/// What a driver says that a device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceType {
    /// A card.
    Discrete,
    /// Beside the processor.
    Integrated,
    /// Lent by a hypervisor.
    Virtual,
    /// Software.
    Cpu,
    /// Nothing.
    #[default]
    Other,
}

/// One device as one back end lists it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adapter {
    /// As the driver calls it.
    pub name: String,
    /// Maker, as on the PCI bus; zero where the driver does not say.
    #[serde(default)]
    pub vendor: u32,
    /// Model, as on the PCI bus; zero where the driver does not say.
    #[serde(default)]
    pub device: u32,
    /// What the driver says that it is.
    #[serde(default)]
    pub device_type: DeviceType,
    /// Who lists it.
    pub backend: Backend,
    /// Address on the PCI bus; empty where the driver does not say.
    #[serde(default)]
    pub pci: String,
    /// Lasting identity in hex; absent where the driver does not say.
    #[serde(default)]
    pub uuid: Option<String>,
    /// The driver.
    #[serde(default)]
    pub driver: String,
    /// Memory as the driver divides it.
    #[serde(default)]
    pub heaps: Vec<Heap>,
}

/// A heap of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heap {
    /// How large it is, in bytes.
    pub size: u64,
    /// How much of it this process may take now, where the driver says so.
    #[serde(default)]
    pub budget: Option<u64>,
    /// Whether it is the device's own.
    pub device_local: bool,
}

/// Repeated measurements of one device. An empty list: not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RawRates {
    /// Operations per second.
    #[serde(deserialize_with = "with_nothing")]
    pub fma: Vec<f64>,
    /// Operations per second.
    #[serde(deserialize_with = "with_nothing")]
    pub matmul_f32: Vec<f64>,
    /// Operations per second.
    #[serde(deserialize_with = "with_nothing")]
    pub matmul_f16: Vec<f64>,
    /// Bytes per second.
    #[serde(deserialize_with = "with_nothing")]
    pub bandwidth: Vec<f64>,
    /// Bytes per second.
    #[serde(deserialize_with = "with_nothing")]
    pub upload: Vec<f64>,
    /// Bytes per second.
    #[serde(deserialize_with = "with_nothing")]
    pub download: Vec<f64>,
    /// Seconds.
    #[serde(deserialize_with = "with_nothing")]
    pub launch: Vec<f64>,
}

/// JSON has no word for what is not a number, and writes `null`.
fn with_nothing<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let samples = Vec::<Option<f64>>::deserialize(deserializer)?;
    Ok(samples.into_iter().map(|sample| sample.unwrap_or(f64::NAN)).collect())
}

/// What measuring one adapter brought.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measured {
    /// Its place in [`Listing::adapters`].
    pub adapter: usize,
    /// What was measured.
    pub rates: RawRates,
    /// Why it was given up: a wrong result, or a driver that failed.
    pub fault: Option<String>,
}

/// What a vendor's own library says of one device. What it does not say is absent, never zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VendorReading {
    /// As the vendor calls it.
    pub name: String,
    /// Address on the PCI bus; empty where it has none.
    pub pci: String,
    /// Lasting identity in hex.
    pub uuid: Option<String>,
    /// Memory of its own.
    pub total: Option<u64>,
    /// Memory of its own that nobody uses.
    pub free: Option<u64>,
}

/// What the system shows without opening a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Signs {
    /// Model of a board, as its firmware says.
    pub board: Option<String>,
    /// Memory of the machine.
    pub memory: Option<MemoryInfo>,
    /// Devices on the PCI bus that draw or compute.
    pub pci: Vec<PciDevice>,
    /// Device files that a driver would have to open, and whether this user may.
    pub files: Vec<DeviceFile>,
    /// Whether this is a Linux beside Windows, which lends its devices.
    pub dxg: bool,
    /// Whether the loader of Vulkan drivers is there; absent where nobody looked.
    pub vulkan: Option<bool>,
    /// Whether this program was built without what looks for accelerators.
    pub blind: bool,
}

/// `/proc/meminfo`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryInfo {
    /// All.
    pub total: u64,
    /// What could be had without swapping. It counts what caches would give back.
    pub available: u64,
}

/// A device on the PCI bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PciDevice {
    /// Where, such as `0000:01:00.0`.
    pub address: String,
    /// Maker.
    pub vendor: u32,
    /// Model.
    pub device: u32,
    /// The kernel's driver for it.
    pub driver: Option<String>,
    /// Memory that the firmware took from the machine for it, in bytes.
    pub carve_out: Option<u64>,
}

/// A device file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFile {
    /// Its path.
    pub path: String,
    /// Whether this user may open it.
    pub open: bool,
}
