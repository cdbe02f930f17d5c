//! The device of a run, and opening it with an arena for the run's regions.

use crate::{PlanReport, shape::RunShape};
use plimsoll_base::{Bytes, Result};
use plimsoll_config::{Auto, Exchange, SamplerSpec};
use plimsoll_device::{Device, DriverMemory, OpenOptions};
use plimsoll_devices::{DeviceRow, Opening};
use plimsoll_memory::host::{Host, Rss};
use plimsoll_memory::{Limits, Place};
use plimsoll_model::Target;

/// Allowance for what driver and libraries hold of a card beyond what was planned for them; without NCCL, recorded
/// passes and other ranks' arenas they held 0.6 GiB on an H200. More is a process that came to the card since.
const LIBRARIES_MORE: u64 = 1 << 30;

/// Host memory that driver and libraries may still touch after the measurement: code pages that only a first step runs.
const SETTLING: u64 = 8 << 20;
/// Card memory that the driver may still take, in pieces of 2 MiB: 2 of 20 runs took one more piece.
const CARD_SETTLING: u64 = 4 << 20;

/// Returns the device of a run file. `"auto"` is the first that has a given limit, or that works on this machine.
pub fn row_of(run: &SamplerSpec, limits: &Limits) -> &'static DeviceRow {
    match run.run.device {
        Auto::Value(device) => plimsoll_devices::named(device.name()),
        Auto::Auto => plimsoll_devices::auto(limits.device.is_some()),
    }
}

/// Requires that the run file's device works, before a model is opened or a file is written.
///
/// Errors: those of its driver.
pub fn check(name: Option<&str>) -> Result<()> {
    name.map_or(Ok(()), |name| (plimsoll_devices::named(name).probe)().map(|_| ()))
}

/// Returns the options for opening the device of `shape` on its own.
pub fn opening(shape: &RunShape, options: OpenOptions) -> Opening<'static> {
    let by_library = shape.training.as_ref().and_then(|training| match training.exchange {
        Auto::Value(exchange) => Some(exchange != Exchange::Sockets),
        Auto::Auto => None,
    });
    let grads = shape.training.as_ref().map(|training| training.dtypes.grads);
    let Target { kind, threads, .. } = shape.target;
    Opening { grads, by_library, ..Opening::alone(kind, threads, options) }
}

pub fn options(run: &SamplerSpec) -> OpenOptions {
    OpenOptions { checked: run.run.checked, profile: false }
}

/// Returns the plan with the measured memory of the driver and its libraries, once every shape has run: nothing more is
/// allocated afterwards. `before`: the process's memory before the card was opened. With `note`, later plans use the
/// measurement; a checked run has other kernels. On the CPU the plan is unchanged.
///
/// Errors: `device-pool-exceeded`, `host-pool-exceeded` if they take more than is left.
pub fn with_measured(report: &PlanReport, dev: &dyn Device, before: Rss, note: bool) -> Result<PlanReport> {
    let mut report = report.clone();
    let Some(memory) = dev.card_memory() else { return Ok(report) };
    let offloaded = report.plan.layout.sum(|r| r.place == Place::Offloaded);
    let planned = report.plan.layout.sum(|r| r.name == "device.libraries");
    // The tables for other ranks' arenas have their own row: their size depends on the number of ranks.
    let peers = report.plan.layout.sum(|r| r.name == "device.peers");
    // So have recorded passes, whose number differs from run to run.
    let graphs = report.plan.layout.sum(|r| r.name == "device.graphs");
    let nccl = dev.network();
    let nccl_card = nccl.as_ref().map_or(Bytes(0), |nccl| nccl.card);
    let libraries = match memory.libraries {
        // If ranks share a card, only the arena's bytes are known.
        Bytes(0) => Bytes(planned.0.saturating_sub(CARD_SETTLING)),
        libraries => Bytes(libraries.0.saturating_sub(peers.0 + graphs.0 + nccl_card.0)),
    };
    let of_nccl = nccl.as_ref().map_or(Rss::default(), |nccl| nccl.host);
    let held = held_of(libraries, before, Host::this().rss().since(of_nccl), offloaded);
    // Who came to the card in the meantime is no library, and no later plan should count with it.
    if note && held.card.0 <= planned.0 + LIBRARIES_MORE {
        (report.shape.row().note)(held, report.shape.are_own, report.shape.spec.hidden);
    }
    for region in &mut report.plan.layout.regions {
        let bytes = match region.name.as_str() {
            "device.libraries" => Bytes(held.card.0 + CARD_SETTLING),
            "cuda.host" => Bytes(held.host.0 + SETTLING),
            "cuda.files" => Bytes(held.files.0 + SETTLING),
            "cuda.shared" => held.shared,
            // If ranks share a card, it counts the libraries of all of them.
            "device.nccl" if memory.libraries > Bytes(0) => nccl_card,
            "cuda.nccl" => Bytes(of_nccl.anon.0 + of_nccl.file.0 + of_nccl.shmem.0),
            _ => continue,
        };
        (region.bytes, region.shape) = (bytes, vec![bytes.0]);
    }
    report.held_source = "measured by this run before its first step".into();
    if let Some(nccl) = &nccl {
        report.held_source += &format!("; cards of different hosts exchange by {}", nccl.name);
    }
    report.plan.refusal().map_err(|error| {
        if note {
            error
                .fact(format!("driver and libraries hold {} of the card, {planned} were planned", held.card))
                .hint("start again: what they hold is noted, and the next plan counts with it")
        } else {
            error
        }
    })?;
    Ok(report)
}

/// Returns the memory of driver and libraries, from the growth of this process. `offloaded`: bytes in pinned memory,
/// which has its own rows; drivers report them as anonymous or as shared.
///
/// Part of the host's anonymous memory is already in the run's own rows: the estimate errs on the high side.
fn held_of(card: Bytes, before: Rss, now: Rss, offloaded: Bytes) -> DriverMemory {
    let grown = |then: Bytes, now: Bytes| now.0.saturating_sub(then.0);
    let (host, shared) = (grown(before.anon, now.anon), grown(before.shmem, now.shmem));
    let of_host = offloaded.0.min(host);
    DriverMemory {
        card,
        host: Bytes(host - of_host),
        files: Bytes(grown(before.file, now.file)),
        shared: Bytes(shared.saturating_sub(offloaded.0 - of_host)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_config::RunDevice;
    use plimsoll_devices::{ROWS, host, named, of};

    #[test]
    fn every_device_of_run_files_has_a_row_and_every_row_a_name_there() {
        let mut rows = ROWS.map(|row| row.kind.name);
        let mut names = RunDevice::ALL.map(RunDevice::name);
        rows.sort_unstable();
        names.sort_unstable();
        assert_eq!(rows, names);
        for row in ROWS {
            assert_eq!((named(row.kind.name).kind, of(row.kind).kind), (row.kind, row.kind));
        }
        assert!(!host().has_own_memory() && (host().probe)().is_ok(), "every machine has a processor");
    }

    #[test]
    fn offloaded_bytes_are_no_part_of_what_the_driver_holds() {
        let rss = |anon, file, shmem| {
            let [anon, file, shmem] = [anon, file, shmem].map(Bytes::mib);
            Rss { anon, file, shmem, ..Rss::default() }
        };
        let (before, card) = (rss(30, 15, 0), Bytes::mib(500));
        let held = |host, files, shared| {
            let [host, files, shared] = [host, files, shared].map(Bytes::mib);
            DriverMemory { card, host, files, shared }
        };
        assert_eq!(held_of(card, before, rss(330, 205, 10), Bytes(0)), held(300, 190, 10));
        // 8 GiB of states, anonymous or shared, are counted in their own rows and not here.
        let states = Bytes::mib(8 << 10);
        assert_eq!(held_of(card, before, rss(330 + (8 << 10), 205, 10), states), held(300, 190, 10));
        let as_shared = held_of(card, before, rss(330, 205, 10 + (8 << 10)), states);
        assert_eq!(as_shared.host + as_shared.shared, Bytes::mib(310));
    }
}
