//! A device of wgpu, opened to be measured: buffers, pipelines, and the time that handed-over work takes.

use super::super::listing::RawRates;
use super::kernels;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wgpu::{Buffer, BufferUsages, ComputePipeline, Features, PollType};

/// Longest that one piece of work may take. Pieces are made for hundredths of a second; a driver that needs this long hangs.
const WORK_MAX: Duration = Duration::from_secs(2);

/// Why a device was given up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("its driver does not open it: {0}")]
    Open(String),
    #[error("its driver failed in {kernel}: {why}")]
    Driver { kernel: &'static str, why: String },
    #[error("it computes wrong results in {0}")]
    Wrong(&'static str),
    #[error("it did not end {0} within two seconds")]
    Hangs(&'static str),
}

/// An open device.
pub(super) struct Bench {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    error: Arc<Mutex<Option<String>>>,
    pub(super) until: Instant,
}

/// Measures what there is time for; a fault ends it.
pub(super) fn measure(adapter: &wgpu::Adapter, until: Instant) -> (RawRates, Option<String>) {
    let mut rates = RawRates::default();
    let measured = Bench::open(adapter, until).and_then(|bench| kernels::all(&bench, &mut rates));
    (rates, measured.err().map(|fault| fault.to_string()))
}

impl Bench {
    pub(super) fn open(adapter: &wgpu::Adapter, until: Instant) -> Result<Self, Fault> {
        let descriptor = wgpu::DeviceDescriptor {
            required_features: adapter.features() & Features::SHADER_F16,
            required_limits: adapter.limits(),
            ..wgpu::DeviceDescriptor::default()
        };
        let opened = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|error| Fault::Open(error.to_string()))?;
        let error = Arc::new(Mutex::new(None));
        let heard = Arc::clone(&error);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            heard.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| error.to_string());
        }));
        Ok(Self { device, queue, error, until })
    }

    pub(super) fn has_time(&self) -> bool {
        Instant::now() < self.until
    }

    pub(super) fn halves(&self) -> bool {
        self.device.features().contains(Features::SHADER_F16)
    }

    pub(super) fn buffer(&self, bytes: u64, usage: BufferUsages) -> Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size: bytes, usage, mapped_at_creation: false })
    }

    /// A buffer that kernels use.
    pub(super) fn storage(&self, bytes: u64) -> Buffer {
        self.buffer(bytes, BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST)
    }

    /// The four numbers that a kernel is told.
    pub(super) fn params(&self, numbers: [u32; 4]) -> Buffer {
        let buffer = self.buffer(16, BufferUsages::UNIFORM | BufferUsages::COPY_DST);
        self.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(&numbers));
        buffer
    }

    pub(super) fn pipeline(&self, source: &str) -> ComputePipeline {
        let source = wgpu::ShaderSource::Wgsl(source.into());
        let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
        self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        })
    }

    /// Buffers at the bindings 0, 1, 2 and so on.
    pub(super) fn bind(&self, pipeline: &ComputePipeline, buffers: &[&Buffer]) -> wgpu::BindGroup {
        let numbered = (0..).zip(buffers.iter().copied());
        let entries: Vec<_> = numbered
            .map(|(binding, buffer): (u32, &Buffer)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        let layout = pipeline.get_bind_group_layout(0);
        self.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries })
    }

    /// Hands over a kernel `times` times, and takes the time until it is done.
    pub(super) fn run(&self, kernel: &Kernel<'_>, times: u32) -> Result<f64, Fault> {
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(kernel.pipeline);
            pass.set_bind_group(0, kernel.group, &[]);
            for _ in 0..times {
                pass.dispatch_workgroups(kernel.groups.0, kernel.groups.1, 1);
            }
        }
        let begun = Instant::now();
        self.queue.submit([encoder.finish()]);
        self.done(kernel.name)?;
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Waits until everything handed over is done.
    pub(super) fn done(&self, kernel: &'static str) -> Result<(), Fault> {
        let ended = self.device.poll(PollType::Wait { submission_index: None, timeout: Some(WORK_MAX) });
        if let Some(why) = self.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let why = why.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect();
            return Err(Fault::Driver { kernel, why });
        }
        match ended {
            Ok(_) => Ok(()),
            Err(wgpu::PollError::Timeout) => Err(Fault::Hangs(kernel)),
            Err(error) => Err(Fault::Driver { kernel, why: error.to_string() }),
        }
    }

    /// Copies a part of a buffer to `staging`, and reads it from there.
    pub(super) fn read(
        &self,
        kernel: &'static str,
        from: &Buffer,
        at: u64,
        staging: &Buffer,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        let bytes = u64::try_from(out.len()).unwrap_or_default();
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(from, at, staging, 0, bytes);
        self.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, 0..bytes, |_| {});
        self.done(kernel)?;
        let failed = |error: wgpu::MapRangeError| Fault::Driver { kernel, why: error.to_string() };
        {
            let view = staging.get_mapped_range(0..bytes).map_err(failed)?;
            out.copy_from_slice(&view);
        }
        staging.unmap();
        Ok(())
    }

    /// A buffer that [`Self::read`] reads through.
    pub(super) fn staging(&self, bytes: u64) -> Buffer {
        self.buffer(bytes, BufferUsages::MAP_READ | BufferUsages::COPY_DST)
    }
}

/// Work that can be handed over.
pub(super) struct Kernel<'a> {
    pub(super) name: &'static str,
    pub(super) pipeline: &'a ComputePipeline,
    pub(super) group: &'a wgpu::BindGroup,
    pub(super) groups: (u32, u32),
}
