//! Which adapters are one device, and which are software. Drivers help little: the same card is a discrete device with an address here,
//! and a thing without type or ids there.

use super::listing::{Adapter, DeviceType, Listing};
use shared::fleet::{Backend, Dropped};
use std::collections::BTreeSet;

/// Parts of names of software that draws on the CPU.
const SOFTWARE: [&str; 11] = [
    "llvmpipe",
    "lavapipe",
    "softpipe",
    "swrast",
    "swiftshader",
    "software rasterizer",
    "software adapter",
    "basic render driver",
    "software renderer",
    "warp)",
    "kms_swrast",
];

/// Words of names that tell nothing of the device.
const NOISE: [&str; 12] =
    ["mesa", "graphics", "corporation", "inc", "r", "tm", "pcie", "sse2", "integrated", "gpu", "adapter", "opengl"];

/// Adapters that are one device: their places in the listing, the most trusted first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Never empty.
    adapters: Vec<usize>,
}

impl Device {
    /// The adapter that is measured: that of the most trusted back end.
    #[must_use]
    pub fn first(&self) -> usize {
        self.adapters.first().copied().unwrap_or_default()
    }

    /// Its adapters in the listing.
    pub fn of<'a>(&'a self, listing: &'a Listing) -> impl Iterator<Item = &'a Adapter> {
        self.adapters.iter().filter_map(|index| listing.adapters.get(*index))
    }

    /// Whether this adapter is one of its.
    #[must_use]
    pub fn has(&self, adapter: usize) -> bool {
        self.adapters.contains(&adapter)
    }
}

/// The devices of a listing, and what is none because it is software.
#[must_use]
pub fn devices(listing: &Listing) -> (Vec<Device>, Vec<Dropped>) {
    let (mut devices, mut dropped) = (Vec::<Device>::new(), Vec::new());
    let mut order: Vec<_> = listing.adapters.iter().enumerate().collect();
    order.sort_by_key(|(index, adapter)| (adapter.backend, *index));
    for (index, adapter) in order {
        if let Some(reason) = software(adapter) {
            dropped.push(Dropped { name: adapter.name.clone(), backend: adapter.backend, reason });
            continue;
        }
        let likeness = |device: &Device| device.of(listing).map(|other| likeness(adapter, other)).min();
        let best = devices.iter_mut().map(|device| (likeness(device), device)).filter(|(how, _)| *how > Some(Likeness::No));
        // The first of equals: where a driver tells nothing, one of several equal cards is as good as another.
        match best.reduce(|best, next| if next.0 > best.0 { next } else { best }) {
            Some((_, device)) => device.adapters.push(index),
            None => devices.push(Device { adapters: vec![index] }),
        }
    }
    (devices, dropped)
}

/// Why an adapter is software, if it is.
fn software(adapter: &Adapter) -> Option<String> {
    let told = |text: &str| {
        let text = text.to_lowercase();
        SOFTWARE.iter().find(|part| text.contains(*part)).map(|part| part.trim_end_matches(')'))
    };
    let named = told(&adapter.name).or_else(|| told(&adapter.driver));
    match (named, adapter.device_type) {
        (Some(name), _) => Some(format!("a software rasteriser ({name}): it computes on the CPU")),
        (None, DeviceType::Cpu) => Some("a software rasteriser: its driver says that it computes on the CPU".to_owned()),
        (None, _) => None,
    }
}

/// Whether two adapters are one device, and how sure that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Likeness {
    No,
    /// One's name is part of the other's.
    Alike,
    /// Their names say the same.
    Named,
    /// Address or identity say so.
    Same,
}

fn likeness(a: &Adapter, b: &Adapter) -> Likeness {
    if let (Some(here), Some(there)) = (pci(&a.pci), pci(&b.pci)) {
        return if here == there { Likeness::Same } else { Likeness::No };
    }
    if let (Some(here), Some(there)) = (uuid(a.uuid.as_deref()), uuid(b.uuid.as_deref()))
        && here == there
    {
        return Likeness::Same;
    }
    let differ = |a: u32, b: u32| a != 0 && b != 0 && a != b;
    // One back end lists a device twice only where two drivers have it, and then both know its ids.
    let twice = a.backend == b.backend && (a.driver == b.driver || a.vendor == 0 || a.device == 0);
    if twice || differ(maker(a), maker(b)) || differ(a.device, b.device) {
        return Likeness::No;
    }
    let (a, b) = (words(&a.name), words(&b.name));
    match (a == b, !a.is_empty() && !b.is_empty() && (a.is_subset(&b) || b.is_subset(&a))) {
        (_, false) => Likeness::No,
        (true, true) => Likeness::Named,
        (false, true) => Likeness::Alike,
    }
}

/// An address on the PCI bus as everybody writes it: some write eight digits of domain, some capitals, and some zeroes for "none".
#[must_use]
pub fn pci(address: &str) -> Option<String> {
    let address = address.trim().to_ascii_lowercase();
    let (domain, rest) = address.split_once(':')?;
    let (domain, rest) = if rest.contains(':') { (domain, rest) } else { ("0", address.as_str()) };
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let (bus, slot) = rest.split_once(':')?;
    let (slot, function) = slot.split_once('.')?;
    let parts = [bus, slot, function].map(|part| u8::from_str_radix(part, 16).ok());
    let [Some(bus), Some(slot), Some(function)] = parts else { return None };
    ((domain, bus, slot, function) != (0, 0, 0, 0)).then(|| format!("{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"))
}

/// An identity as 32 digits in hex, without the dashes and the word before it that vendors add. All zeroes are none.
#[must_use]
pub fn uuid(text: Option<&str>) -> Option<String> {
    let text = text?.trim();
    let digits = text.strip_prefix("GPU-").unwrap_or(text).replace('-', "").to_ascii_lowercase();
    let good = digits.len() == 32 && digits.chars().all(|digit| digit.is_ascii_hexdigit()) && digits.contains(|d| d != '0');
    good.then_some(digits)
}

/// The maker's id, by its name where the driver gives none.
pub(super) fn maker(adapter: &Adapter) -> u32 {
    if adapter.vendor != 0 {
        return adapter.vendor;
    }
    let words = words(&adapter.name);
    MAKERS.iter().find(|(_, _, names)| names.iter().any(|name| words.contains(*name))).map_or(0, |(id, _, _)| *id)
}

/// Ids of makers, what they are called, and words of their devices' names.
const MAKERS: [(u32, &str, &[&str]); 9] = [
    (0x10de, "NVIDIA", &["nvidia", "geforce", "tegra", "quadro"]),
    (0x8086, "Intel", &["intel", "arc", "iris"]),
    (0x1002, "AMD", &["amd", "radeon"]),
    (0x13b5, "Arm", &["mali", "immortalis"]),
    (0x5143, "Qualcomm", &["adreno", "qualcomm"]),
    (0x14e4, "Broadcom", &["v3d", "videocore"]),
    (0x1010, "Imagination", &["powervr"]),
    (0x106b, "Apple", &["apple"]),
    (0x1af4, "virtio", &["virtio"]),
];

/// What a maker is called; empty for one that is not known here.
#[must_use]
pub fn maker_name(id: u32) -> &'static str {
    MAKERS.iter().find(|(known, _, _)| *known == id).map_or("", |(_, name, _)| name)
}

/// What a name says of the device: its words in front of parentheses, which drivers fill with themselves. Drivers that pass another's
/// device on have it in the parentheses.
fn words(name: &str) -> BTreeSet<String> {
    let name = name.to_lowercase().replace("(r)", " ").replace("(tm)", " ").replace(['®', '™'], " ");
    let (before, inside) = name.split_once('(').unwrap_or((&name, ""));
    let wrapped = ["d3d12", "direct3d12", "zink", "virgl", "venus"].iter().any(|wrapper| before.contains(wrapper));
    let told = if wrapped && !inside.is_empty() { inside.split_once('(').map_or(inside, |(inner, _)| inner) } else { before };
    let words = told.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty() && !NOISE.contains(word));
    words.map(str::to_owned).collect()
}

/// Back ends that list a device, most trusted first, each once.
#[must_use]
pub fn backends<'a>(adapters: impl Iterator<Item = &'a Adapter>) -> Vec<Backend> {
    adapters.map(|adapter| adapter.backend).collect::<BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_identities_are_compared_as_one_form() {
        assert_eq!(pci("00000000:01:00.0").as_deref(), Some("0000:01:00.0"));
        assert_eq!(pci("3B:00.0").as_deref(), Some("0000:3b:00.0"));
        for none in ["", "0000:00:00.0", "N/A", "::", "01:00", "é:é:é.é"] {
            assert_eq!(pci(none), None, "{none}");
        }
        let (long, plain) = ("GPU-0A1b2c3d-0000-1111-2222-333344445555", "0a1b2c3d000011112222333344445555");
        assert_eq!(uuid(Some(long)).as_deref(), Some(plain));
        assert_eq!((uuid(Some(&"0".repeat(32))), uuid(Some("N/A")), uuid(None)), (None, None, None));
    }

    #[test]
    fn names_say_the_same_in_many_ways() {
        for (a, b) in [
            ("Intel(R) Arc(tm) A770 Graphics (DG2)", "Mesa Intel(R) Arc(tm) A770 Graphics (DG2)"),
            ("NVIDIA GeForce RTX 3080", "NVIDIA GeForce RTX 3080/PCIe/SSE2"),
            ("NVIDIA GeForce RTX 4070", "D3D12 (NVIDIA GeForce RTX 4070)"),
            ("AMD Radeon RX 6800 (RADV NAVI21)", "AMD Radeon RX 6800 (radeonsi, navi21, LLVM 15.0.7, DRM 3.49)"),
            ("NVIDIA GeForce RTX 3060", "zink Vulkan 1.3(NVIDIA GeForce RTX 3060 (NVIDIA_PROPRIETARY))"),
        ] {
            assert_eq!(words(a), words(b), "{a} / {b}");
        }
        assert_ne!(words("NVIDIA GeForce RTX 3080"), words("NVIDIA GeForce RTX 3090"));
    }
}
