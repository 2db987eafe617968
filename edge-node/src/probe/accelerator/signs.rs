//! What the system shows of its devices without anybody opening one: directories, and files of text.

use super::listing::{DeviceFile, MemoryInfo, PciDevice, Signs};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// Devices and files that are looked at. The largest servers have some hundreds on their bus, of which some dozens compute.
const ENTRIES_MAX: usize = 4_096;
/// Those that are told of.
const TOLD_MAX: usize = 64;
/// Classes on the PCI bus, by their first byte: displays, and accelerators for computing.
const CLASSES: [u32; 2] = [0x03, 0x12];

impl Signs {
    /// Looks at the system whose files begin at `root`, which is `/` but for tests.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        Self {
            board: board(root),
            memory: fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| memory(&text)),
            pci: pci(root),
            files: files(root),
            dxg: root.join("dev/dxg").exists(),
            vulkan: None,
            blind: cfg!(not(feature = "wgpu")),
        }
    }
}

/// The model of a board. PCs have no device tree.
fn board(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("sys/firmware/devicetree/base/model")).ok()?;
    let model = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
    (!model.is_empty()).then(|| model.chars().take(100).collect())
}

fn memory(text: &str) -> Option<MemoryInfo> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1_024)
    };
    Some(MemoryInfo { total: field("MemTotal")?, available: field("MemAvailable")? })
}

fn pci(root: &Path) -> Vec<PciDevice> {
    let number = |path: &Path| {
        let text = fs::read_to_string(path).ok()?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    let devices = names(&root.join("sys/bus/pci/devices")).into_iter().filter_map(|address| {
        let folder = root.join("sys/bus/pci/devices").join(&address);
        number(&folder.join("class")).filter(|class| CLASSES.contains(&(class >> 16)))?;
        let driver = fs::read_link(folder.join("driver")).ok();
        let carved = fs::read_to_string(folder.join("mem_info_vram_total")).ok();
        Some(PciDevice {
            vendor: number(&folder.join("vendor")).unwrap_or_default(),
            device: number(&folder.join("device")).unwrap_or_default(),
            driver: driver.and_then(|link| link.file_name()?.to_str().map(str::to_owned)),
            carve_out: carved.and_then(|text| text.trim().parse().ok()),
            address,
        })
    });
    devices.take(TOLD_MAX).collect()
}

/// The files that drivers open for computing. `nvidiactl` and the like come with them.
fn files(root: &Path) -> Vec<DeviceFile> {
    let render = names(&root.join("dev/dri")).into_iter().filter(|name| name.starts_with("renderD"));
    let render = render.map(|name| format!("dev/dri/{name}"));
    let card = |name: &String| {
        name.strip_prefix("nvidia").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let nvidia = names(&root.join("dev")).into_iter().filter(card).map(|name| format!("dev/{name}"));
    let told = render.chain(nvidia).take(TOLD_MAX);
    told.map(|name| DeviceFile { open: may_open(&root.join(&name)), path: format!("/{name}") }).collect()
}

/// Asked, not tried: opening one may wake the device up.
fn may_open(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(path, Access::READ_OK | Access::WRITE_OK).is_ok()
}

/// The names in a folder, in order; none where there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES_MAX);
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Stands for the hardware that a probe might see: it changes when a device, its driver's file, or the board itself does. Listing two
/// folders costs microseconds.
pub(super) fn fingerprint(root: &Path) -> u64 {
    let mut hash = DefaultHasher::new();
    names(&root.join("sys/bus/pci/devices")).hash(&mut hash);
    names(&root.join("dev/dri")).hash(&mut hash);
    let devices = names(&root.join("dev")).into_iter().filter(|name| name.starts_with("nvidia") || name == "dxg");
    devices.collect::<Vec<_>>().hash(&mut hash);
    board(root).hash(&mut hash);
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system of some files.
    fn system(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("in the folder")).expect("made");
            fs::write(path, text).expect("written");
        }
        root
    }

    #[test]
    fn a_system_is_read_without_opening_a_device() {
        let root = system(&[
            ("proc/meminfo", "MemTotal:       32659892 kB\nMemFree:  1 kB\nMemAvailable:   23121440 kB\n"),
            ("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n"),
            ("sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n"),
            ("sys/bus/pci/devices/0000:00:02.0/device", "0x46a6\n"),
            ("sys/bus/pci/devices/0000:00:02.0/mem_info_vram_total", "536870912\n"),
            ("sys/bus/pci/devices/0000:00:1f.3/class", "0x040300\n"),
            ("sys/firmware/devicetree/base/model", "NVIDIA Jetson Orin Nano Developer Kit\0"),
            ("dev/dri/renderD128", ""),
            ("dev/dri/card0", ""),
            ("dev/nvidia0", ""),
            ("dev/nvidiactl", ""),
        ]);
        let signs = Signs::read(root.path());
        assert_eq!(signs.memory, Some(MemoryInfo { total: 32_659_892 * 1_024, available: 23_121_440 * 1_024 }));
        let device = PciDevice {
            address: "0000:00:02.0".to_owned(),
            vendor: 0x8086,
            device: 0x46a6,
            driver: None,
            carve_out: Some(512 << 20),
        };
        assert_eq!(signs.pci, [device], "a sound card computes nothing");
        assert_eq!(signs.board.as_deref(), Some("NVIDIA Jetson Orin Nano Developer Kit"));
        let files: Vec<_> = signs.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(files, ["/dev/dri/renderD128", "/dev/nvidia0"]);
        assert!(!signs.dxg);
        assert_eq!(Signs::read(Path::new("/no/such/system")).memory, None, "nothing is known of what is not there");
    }

    #[test]
    fn new_hardware_has_another_fingerprint() {
        let root = system(&[("sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n")]);
        let before = fingerprint(root.path());
        assert_eq!(before, fingerprint(root.path()));
        fs::create_dir_all(root.path().join("sys/bus/pci/devices/0000:01:00.0")).expect("made");
        let card = fingerprint(root.path());
        assert_ne!(before, card);
        fs::create_dir_all(root.path().join("dev")).expect("made");
        fs::write(root.path().join("dev/nvidia0"), "").expect("made");
        assert_ne!(card, fingerprint(root.path()), "its driver came");
    }
}
