//! What an operator could do about devices that are there and cannot be used. A device that is silently missing costs more than one
//! that is slow.

use super::listing::{Adapter, Listing, PciDevice, Signs, VendorReading};
use super::merge::{maker_name, pci, uuid};
use shared::fleet::Accelerator;

/// Makers whose graphics devices in servers and virtual machines only show a console.
const CONSOLES: [u32; 6] = [0x1234, 0x1013, 0x102b, 0x1a03, 0x15ad, 0x1b36];
/// Virtio, whose graphics device computes only where the host passes a real one through.
const VIRTIO: u32 = 0x1af4;
/// NVIDIA.
const NVIDIA: u32 = 0x10de;

/// What could be done.
pub(super) fn hints(signs: &Signs, listing: &Listing, accelerators: &[Accelerator]) -> Vec<String> {
    if signs.blind {
        return vec!["this program was built without `wgpu`: it looks for no accelerators".to_owned()];
    }
    let mut hints = Vec::new();
    hints.extend(windows(signs, accelerators));
    hints.extend(signs.pci.iter().filter_map(|device| hidden(device, signs, listing)));
    hints.extend(listing.vendor.iter().filter_map(|reading| unlisted(reading, listing)));
    hints.extend(permissions(signs));
    hints.extend(loader(signs, &hints));
    let mut told = Vec::new();
    for hint in hints {
        if !told.contains(&hint) {
            told.push(hint);
        }
    }
    told
}

/// A Linux beside Windows has the graphics processor behind a device of its own kind.
fn windows(signs: &Signs, accelerators: &[Accelerator]) -> Option<String> {
    let hint = "WSL2: /dev/dxg is there, but no driver shows the device of Windows; install Mesa 23 or newer with its d3d12 and dzn \
                drivers (mesa-vulkan-drivers), and look whether /usr/lib/wsl/lib is there";
    (signs.dxg && accelerators.is_empty()).then(|| hint.to_owned())
}

/// A device on the bus that no back end lists.
fn hidden(device: &PciDevice, signs: &Signs, listing: &Listing) -> Option<String> {
    let address = pci(&device.address)?;
    // A listed device without address may be any of its maker's.
    let listed = |adapter: &Adapter| match pci(&adapter.pci) {
        Some(other) => other == address,
        None => adapter.vendor == 0 || adapter.vendor == device.vendor,
    };
    let hardware = |adapter: &&Adapter| adapter.device_type != super::DeviceType::Cpu;
    if CONSOLES.contains(&device.vendor) || device.vendor == VIRTIO || listing.adapters.iter().filter(hardware).any(listed) {
        return None;
    }
    let maker = match maker_name(device.vendor) {
        "" => format!("device {:04x}:{:04x}", device.vendor, device.device),
        name => format!("{name} device {:04x}", device.device),
    };
    let loader = if signs.vulkan == Some(false) { ", and the Vulkan loader (libvulkan1)" } else { "" };
    Some(match (&device.driver, device.vendor) {
        (None, NVIDIA) => format!("{maker} at {address} has no kernel driver: install NVIDIA's{loader}"),
        (None, _) => format!("{maker} at {address} has no kernel driver: its module, or its firmware, is missing{loader}"),
        (Some(driver), _) if driver.starts_with("vfio") => {
            format!("{maker} at {address} is set aside for a virtual machine (driver {driver})")
        }
        (Some(driver), NVIDIA) if driver == "nvidia" => format!(
            "{maker} at {address} has its kernel driver, but no Vulkan driver lists it: install NVIDIA's libraries for graphics{loader}; \
             in a container, NVIDIA_DRIVER_CAPABILITIES must have `graphics`"
        ),
        (Some(driver), _) => format!(
            "{maker} at {address} has the kernel driver {driver}, but no Vulkan driver lists it: install mesa-vulkan-drivers{loader}"
        ),
    })
}

/// A device that its vendor's library knows and no back end lists, where the bus does not tell (inside a container, say).
fn unlisted(reading: &VendorReading, listing: &Listing) -> Option<String> {
    let same = |adapter: &Adapter| {
        let by_address = pci(&adapter.pci).zip(pci(&reading.pci)).map(|(a, b)| a == b);
        by_address.unwrap_or_else(|| match uuid(adapter.uuid.as_deref()).zip(uuid(reading.uuid.as_deref())) {
            Some((a, b)) => a == b,
            None => super::merge::maker(adapter) == NVIDIA,
        })
    };
    let on_the_bus = pci(&reading.pci)
        .is_some_and(|address| listing.signs.pci.iter().any(|device| pci(&device.address).is_some_and(|other| other == address)));
    if on_the_bus || listing.adapters.iter().any(same) {
        return None;
    }
    let name = &reading.name;
    Some(format!(
        "NVML knows {name}, but no Vulkan driver lists it: install NVIDIA's libraries for graphics; in a container, \
         NVIDIA_DRIVER_CAPABILITIES must have `graphics`"
    ))
}

fn permissions(signs: &Signs) -> Option<String> {
    let shut: Vec<_> = signs.files.iter().filter(|file| !file.open).map(|file| file.path.as_str()).collect();
    let hint = || format!("this user may not open {}: add it to the group of these files (`render` or `video`)", shut.join(", "));
    (!shut.is_empty()).then(hint)
}

/// A board has no bus that tells, but device files that somebody should open.
fn loader(signs: &Signs, said: &[String]) -> Option<String> {
    let wanted = signs.vulkan == Some(false) && signs.files.iter().any(|file| file.path.contains("/dri/render"));
    let hint = "there is a graphics device (/dev/dri), but no Vulkan loader: install libvulkan1 and the device's Vulkan driver";
    (wanted && !said.iter().any(|hint| hint.contains("loader"))).then(|| hint.to_owned())
}
