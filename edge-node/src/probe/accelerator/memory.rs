//! What kind of device it is, and how much memory work may take on it. The two belong together: what borrows the machine's memory may
//! not count it as its own, and what a driver shows as free there leaves out what caches would give back.

use super::listing::{Adapter, DeviceType, Listing, PciDevice, Signs, VendorReading};
use super::merge::{Device, maker, pci, uuid};
use shared::fleet::{AcceleratorKind, Backend, Fact, MemoryBudget, Origin};
use shared::units::{Bytes, Fraction, Micros};

/// What stays with the system where memory is shared: a sixteenth of it, and at least this much. Below it desktops and agents begin
/// to swap.
const RESERVE_MIN: u64 = 512 << 20;
/// That sixteenth.
const RESERVE_SHARE: u64 = 16;
/// The largest number of bytes that is believed. Drivers say "all ones" where they mean "no idea".
const BELIEVED_MAX: u64 = MemoryBudget::MAX.0;
/// NVIDIA, on the PCI bus.
const NVIDIA: u32 = 0x10de;

/// Trust in what a driver or the system counts at this moment, in per cent: others take memory the next.
const COUNTED: f64 = 0.9;
/// Trust in a size of which nobody says how much is taken.
const SIZE_ONLY: f64 = 0.5;

/// A number of bytes that means something.
fn believed(bytes: Option<u64>) -> Option<u64> {
    bytes.filter(|bytes| (1..=BELIEVED_MAX).contains(bytes))
}

/// What the vendor's library says of a device.
pub(super) fn reading<'a>(listing: &'a Listing, device: &Device) -> Option<&'a VendorReading> {
    let same = |reading: &&VendorReading| {
        device.of(listing).any(|adapter| {
            let address = pci(&adapter.pci).is_some_and(|address| pci(&reading.pci) == Some(address));
            address || uuid(adapter.uuid.as_deref()).is_some_and(|id| uuid(reading.uuid.as_deref()) == Some(id))
        })
    };
    // A board's graphics processor is on no bus; its only reading is its own.
    let only = || match &listing.vendor[..] {
        [one] if pci(&one.pci).is_none() && device.of(listing).any(|adapter| maker(adapter) == NVIDIA) => Some(one),
        _ => None,
    };
    listing.vendor.iter().find(same).or_else(only)
}

/// The kind of a device.
#[must_use]
pub fn kind(listing: &Listing, device: &Device) -> AcceleratorKind {
    let told = device.of(listing).map(|adapter| adapter.device_type).find(|kind| *kind != DeviceType::Other);
    let adapters = || device.of(listing);
    let nvidia = adapters().any(|adapter| maker(adapter) == NVIDIA);
    // What has memory of its own can say how much. Where the vendor's tool cannot, there is none.
    let no_own = nvidia && reading(listing, device).is_some_and(|reading| believed(reading.total).is_none());
    let board = listing.signs.board.is_some();
    let apple = adapters().any(|adapter| adapter.backend == Backend::Metal);
    match told {
        Some(DeviceType::Virtual) => AcceleratorKind::Virtual,
        // A card may stand in a board's slot: only what says that it is one, with memory of its own, is one.
        Some(DeviceType::Discrete) if !no_own => AcceleratorKind::Discrete,
        _ if no_own || board => AcceleratorKind::Unified,
        Some(DeviceType::Integrated) if apple => AcceleratorKind::Unified,
        Some(DeviceType::Integrated) => AcceleratorKind::Integrated,
        _ => AcceleratorKind::Unknown,
    }
}

/// How much memory work may take on a device, from the best source that there is.
#[must_use]
pub fn budget(listing: &Listing, device: &Device, kind: AcceleratorKind) -> Option<Fact<MemoryBudget>> {
    let (bytes, by, trust) = if kind.shares_memory() { shared(listing, device)? } else { own(listing, device)? };
    Some(Fact {
        value: MemoryBudget::new(Bytes(bytes)).ok()?,
        origin: Origin::Reported,
        by,
        age: Micros::ZERO,
        confidence: Fraction::new(trust).unwrap_or_default(),
    })
}

type Found = (u64, String, f64);

/// Of a card: what its vendor's library says is free, then what its driver gives this process, then its size.
fn own(listing: &Listing, device: &Device) -> Option<Found> {
    let reading = reading(listing, device);
    if let Some(free) = reading.and_then(|reading| believed(reading.free)) {
        return Some((free, "NVML free memory".to_owned(), COUNTED));
    }
    let heaps = || device.of(listing).flat_map(|adapter| &adapter.heaps).filter(|heap| heap.device_local);
    // The largest: beside it there may be a small window onto the same memory.
    let largest = heaps().filter(|heap| believed(Some(heap.size)).is_some()).max_by_key(|heap| heap.size);
    if let Some(heap) = largest {
        let left = believed(heap.budget).filter(|budget| *budget <= heap.size);
        return Some(match left {
            Some(budget) => (budget, "Vulkan heap budget".to_owned(), COUNTED),
            None => (heap.size, "Vulkan heap size".to_owned(), SIZE_ONLY),
        });
    }
    let total = reading.and_then(|reading| believed(reading.total))?;
    Some((total, "NVML total memory".to_owned(), SIZE_ONLY))
}

/// Of what borrows the machine's memory: what its driver would let it have, but never more than the machine can give and keep a
/// reserve. What the firmware took away for it beforehand comes on top.
fn shared(listing: &Listing, device: &Device) -> Option<Found> {
    let memory = listing.signs.memory?;
    let (total, available) = (believed(Some(memory.total))?, believed(Some(memory.available))?);
    let carved = carve_out(&listing.signs, device.of(listing)).unwrap_or(0);
    let reserve = RESERVE_MIN.max(total / RESERVE_SHARE);
    let spare = available.min(total).saturating_sub(reserve).saturating_add(carved);
    let pool = device.of(listing).map(pool).max().and_then(|pool| believed(Some(pool)));
    let board = listing.signs.board.as_ref().map(|board| format!("device tree ({board}), "));
    let by = |driver: &str| {
        let carved = if carved > 0 { " + carve-out" } else { "" };
        format!("{}{driver}MemAvailable - reserve{carved}", board.clone().unwrap_or_default())
    };
    Some(match pool {
        Some(pool) => (pool.min(spare), by("Vulkan heaps, "), COUNTED),
        None => (spare, by(""), SIZE_ONLY),
    })
}

/// All heaps that the device may draw from. Their budgets are not asked: they leave out what caches would give back.
fn pool(adapter: &Adapter) -> u64 {
    adapter.heaps.iter().filter_map(|heap| believed(Some(heap.size))).fold(0, u64::saturating_add)
}

fn carve_out<'a>(signs: &Signs, mut adapters: impl Iterator<Item = &'a Adapter>) -> Option<u64> {
    let address = adapters.find_map(|adapter| pci(&adapter.pci))?;
    let known = |device: &&PciDevice| pci(&device.address).is_some_and(|other| other == address);
    believed(signs.pci.iter().find(known)?.carve_out)
}
