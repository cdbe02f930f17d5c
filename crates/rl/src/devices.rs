//! Which device a run uses, and opening it with an arena for the run's regions.

use crate::plan::PlanReport;
use crate::runfile::{Auto, RunDevice, RunFile};
use crate::shape::RunShape;
use plimsoll_base::{Bytes, Result};
use plimsoll_device::cpu::{CpuDevice, Isa};
use plimsoll_device::cuda::{self, CudaDevice, CudaMemory, CudaOptions};
use plimsoll_device::{Device, DeviceKind};
use plimsoll_memory::{Arena, ArenaMap, Limit, Limits};

/// The kind of device that a run file names. `"auto"` is CUDA where a device limit is given or a card can be used.
pub fn kind_of(run: &RunFile, limits: &Limits) -> DeviceKind {
    match run.run.device {
        Auto::Value(RunDevice::Cpu) => DeviceKind::Cpu,
        Auto::Value(RunDevice::Cuda) => DeviceKind::Cuda,
        Auto::Auto if limits.device.is_some() || cuda::probe().is_ok() => DeviceKind::Cuda,
        Auto::Auto => DeviceKind::Cpu,
    }
}

/// Requires a card that can be used, where the run file names one: before a model is opened or a file is written.
///
/// Errors: those of `cuda::probe`.
pub fn check(device: Auto<RunDevice>) -> Result<()> {
    match device {
        Auto::Value(RunDevice::Cuda) => cuda::probe().map(|_| ()),
        _ => Ok(()),
    }
}

/// The device memory that a run may use on this machine: what is free on the card now. `None` without a card.
pub fn device_limit() -> Option<Limit> {
    let (free, source) = cuda::free_memory()?;
    Some(Limit { bytes: free, source })
}

/// A device with an arena for the regions of `shape`.
///
/// Errors: `host-allocation-failed`, `size-overflow`; on CUDA those of `CudaDevice::new`.
pub fn open(shape: &RunShape, options: CudaOptions) -> Result<(Box<dyn Device>, Arena)> {
    let mut arena = Arena::new(ArenaMap::new(&shape.layout()?, 0));
    let (bytes, offloaded) = (Bytes(arena.map().used_bytes()), Bytes(arena.map().offloaded_bytes()));
    let dev: Box<dyn Device> = match shape.target.kind {
        DeviceKind::Cpu => {
            let mut dev = CpuDevice::new(bytes, shape.target.threads, Isa::detect())?;
            if offloaded > Bytes(0) {
                dev.take_offloaded(offloaded)?;
            }
            if let Some(scratch) = arena.split().0.get("device.scratch") {
                dev.bind_scratch(scratch);
            }
            Box::new(dev)
        }
        DeviceKind::Cuda => {
            let mut dev = CudaDevice::new(bytes, options)?;
            if offloaded > Bytes(0) {
                dev.take_offloaded(offloaded)?;
            }
            dev.bind_scratch(arena.split().0.buf("device.scratch"));
            dev.name_regions(arena.map());
            Box::new(dev)
        }
    };
    Ok((dev, arena))
}

/// How a run file wants a card to be opened.
pub fn options(run: &RunFile) -> CudaOptions {
    CudaOptions { checked: run.run.checked, profile: false }
}

/// The plan with what the device's libraries were measured to take, once every shape has run: from then on nothing is
/// taken. On the CPU the plan as it is.
///
/// Errors: `device-pool-exceeded` where they take more than the card has left.
pub fn with_measured_libraries(report: &PlanReport, card: Option<CudaMemory>) -> Result<PlanReport> {
    let mut report = report.clone();
    let Some(memory) = card else { return Ok(report) };
    for region in &mut report.plan.layout.regions {
        if region.name == "device.libraries" {
            (region.bytes, region.shape) = (memory.libraries, vec![memory.libraries.0]);
        }
    }
    report.plan.refusal()?;
    Ok(report)
}
