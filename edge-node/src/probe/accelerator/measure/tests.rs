//! The measuring code without hardware: on wgpu's driver that does nothing, which must be found out.

use super::adapters;
use super::device::measure;
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
