//! Which adapters there are, and what only their drivers' own interfaces tell.

use super::super::listing::{Adapter, DeviceType, Heap, VendorReading};
use ash::vk;
use shared::fleet::Backend;
use wgpu::{Backends, Instance, InstanceDescriptor};

/// Asked one after another, so that a crash tells whose driver it was.
pub(super) const BACKENDS: [(&str, Backends); 4] =
    [("Vulkan", Backends::VULKAN), ("Metal", Backends::METAL), ("D3D12", Backends::DX12), ("GL", Backends::GL)];

/// What a back end lists.
pub(super) fn list(backends: Backends) -> Vec<(wgpu::Adapter, Adapter)> {
    let mut descriptor = InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    descriptor.flags = wgpu::InstanceFlags::empty();
    listed(&Instance::new(descriptor), backends)
}

/// What an instance lists.
pub(super) fn listed(instance: &Instance, backends: Backends) -> Vec<(wgpu::Adapter, Adapter)> {
    let adapters = pollster::block_on(instance.enumerate_adapters(backends));
    let described = |handle| {
        let adapter = described(&handle);
        (handle, adapter)
    };
    adapters.into_iter().map(described).collect()
}

fn described(handle: &wgpu::Adapter) -> Adapter {
    let info = handle.get_info();
    let (heaps, uuid) = vulkan(handle).unwrap_or_default();
    Adapter {
        vendor: info.vendor,
        device: info.device,
        device_type: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => DeviceType::Discrete,
            wgpu::DeviceType::IntegratedGpu => DeviceType::Integrated,
            wgpu::DeviceType::VirtualGpu => DeviceType::Virtual,
            wgpu::DeviceType::Cpu => DeviceType::Cpu,
            wgpu::DeviceType::Other => DeviceType::Other,
        },
        backend: match info.backend {
            wgpu::Backend::Vulkan => Backend::Vulkan,
            wgpu::Backend::Metal => Backend::Metal,
            wgpu::Backend::Dx12 => Backend::Dx12,
            wgpu::Backend::Gl => Backend::Gl,
            wgpu::Backend::Noop | wgpu::Backend::BrowserWebGpu => Backend::Other,
        },
        pci: info.device_pci_bus_id,
        uuid,
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        heaps,
        name: info.name,
    }
}

/// Heaps with what is left of them, and the device's identity; wgpu itself tells neither.
#[expect(unsafe_code, reason = "the only way to the driver's memory heaps: plain questions to it")]
fn vulkan(handle: &wgpu::Adapter) -> Option<(Vec<Heap>, Option<String>)> {
    // SAFETY: the handle is only asked, and nothing of it outlives this function.
    let adapter = unsafe { handle.as_hal::<wgpu::hal::vulkan::Api>() }?;
    let (instance, device) = (adapter.shared_instance().raw_instance(), adapter.raw_physical_device());
    // SAFETY: `device` is one of `instance`, and both live as long as `adapter`.
    unsafe {
        if instance.get_physical_device_properties(device).api_version < vk::API_VERSION_1_1 {
            return None;
        }
        let names = instance.enumerate_device_extension_properties(device).unwrap_or_default();
        let tells = names.iter().any(|one| one.extension_name_as_c_str() == Ok(ash::ext::memory_budget::NAME));
        let mut budgets = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut memory = vk::PhysicalDeviceMemoryProperties2::default();
        if tells {
            memory = memory.push_next(&mut budgets);
        }
        instance.get_physical_device_memory_properties2(device, &mut memory);
        let memory = memory.memory_properties;
        let heaps = memory.memory_heaps_as_slice().iter().zip(budgets.heap_budget).map(|(heap, budget)| Heap {
            size: heap.size,
            budget: tells.then_some(budget),
            device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
        });
        let heaps = heaps.collect();
        let mut id = vk::PhysicalDeviceIDProperties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut id);
        instance.get_physical_device_properties2(device, &mut properties);
        let uuid = id.device_uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        Some((heaps, Some(uuid)))
    }
}

/// Whether there is a loader of Vulkan drivers at all.
#[expect(unsafe_code, reason = "loading a library runs its initialisers")]
pub(super) fn vulkan_loader() -> bool {
    // SAFETY: the library is the system's own loader, and wgpu loads it next anyway.
    unsafe { ash::Entry::load() }.is_ok()
}

/// What NVIDIA's management library says. Where it has no word, neither have we.
pub(super) fn vendor() -> Vec<VendorReading> {
    let Ok(nvml) = nvml_wrapper::Nvml::init() else { return Vec::new() };
    let count = nvml.device_count().unwrap_or_default();
    let devices = (0..count).filter_map(|index| nvml.device_by_index(index).ok());
    let readings = devices.map(|device| {
        let memory = device.memory_info().ok();
        VendorReading {
            name: device.name().unwrap_or_default(),
            pci: device.pci_info().map(|info| info.bus_id).unwrap_or_default(),
            uuid: device.uuid().ok(),
            total: memory.as_ref().map(|memory| memory.total),
            free: memory.as_ref().map(|memory| memory.free),
        }
    });
    readings.collect()
}
