//! The measuring code without hardware: on wgpu's driver that does nothing, which must be found out.

use super::adapters;
use super::device::measure;
use crate::probe::accelerator::DeviceType;
use std::time::{Duration, Instant};
use wgpu::{Backends, Instance, InstanceDescriptor};

#[test]
fn a_device_that_computes_nothing_is_found_out() {
    let mut descriptor = InstanceDescriptor::new_without_display_handle();
    descriptor.backends = Backends::NOOP;
    descriptor.backend_options.noop.enable = true;
    // Its own limits are endless, which wgpu's bookkeeping does not take.
    descriptor.backend_options.noop.limits = Some(wgpu::Limits::default());
    let listed = adapters::listed(&Instance::new(descriptor), Backends::NOOP);
    let [(handle, adapter)] = &listed[..] else { panic!("one adapter: {listed:?}") };
    assert!(adapter.heaps.is_empty(), "nobody knows its memory");
    let (rates, fault) = measure(handle, Instant::now() + Duration::from_secs(5));
    let fault = fault.expect("found out");
    assert!(fault.contains("wrong results in matmul f32"), "{fault}");
    assert!(rates.matmul_f32.is_empty(), "a wrong result has no speed: {rates:?}");
}

/// The kernels on a driver that does compute, where there is one of software: slow, but its results are checked like any other's.
#[test]
fn every_kernel_computes_what_it_should_on_a_software_rasteriser() {
    let listed: Vec<_> = adapters::BACKENDS.into_iter().flat_map(|(_, backends)| adapters::list(backends)).collect();
    let software = || listed.iter().filter(|(_, adapter)| adapter.device_type == DeviceType::Cpu);
    if software().next().is_none() {
        println!("no software rasteriser here (Debian: mesa-vulkan-drivers): nothing could be computed");
    }
    for (handle, adapter) in software() {
        let (rates, fault) = measure(handle, Instant::now() + Duration::from_secs(60));
        println!("{} by {:?}: {rates:?}", adapter.name, adapter.backend);
        assert_eq!(fault, None, "{} by {:?}", adapter.name, adapter.backend);
        for samples in [&rates.matmul_f32, &rates.fma, &rates.bandwidth, &rates.upload, &rates.download, &rates.launch] {
            assert!(!samples.is_empty() && samples.iter().all(|sample| sample.is_finite() && *sample > 0.0), "{rates:?}");
        }
    }
}
