//! The host's CPU. Its arena is host memory; ranks of one host map each other's from files in memory.

use crate::among::{Reached, unseen};
use crate::rates::Rates;
use crate::row::{BoxedDevice, DeviceRow, Opening, Probe};
use plimsoll_base::{Bytes, Result};
use plimsoll_cpu::peak::{measure_bandwidth, measure_flops};
use plimsoll_cpu::{CpuDevice, Isa, Pool as Threads, takes_head_dim};
use plimsoll_device::Away;
use plimsoll_memory::{Arena, Layout, Mapping, Pool, shared_file};
use plimsoll_ranks::{Group, Memory};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The row of the host's CPU.
pub(crate) static CPU: DeviceRow = DeviceRow {
    kind: &plimsoll_cpu::LAYOUTS,
    pool: Pool::Host,
    needs: None,
    runs_ahead: false,
    reads_ranks_in_place: true,
    prefill_rows: 1024,
    cut_rows: 1024,
    slots: 32,
    added_adapters: 1.0,
    staging: Bytes(0),
    network: None,
    probe: || Ok(Probe { name: Isa::chosen()?.name().into(), ..Probe::default() }),
    libraries: || Ok(String::new()),
    cards: Vec::new,
    free_memory: || None,
    rates: Rates::of_this_machine,
    peak: |threads, seconds, bytes| {
        let threads = Threads::new(threads);
        Some([measure_flops(&threads, Isa::in_use(), seconds), measure_bandwidth(&threads, bytes)])
    },
    takes_head_dim,
    takes_fp8: |_| Ok(()),
    scratch: CpuDevice::scratch,
    held: |_, _| Default::default(),
    note: |_, _, _| {},
    beyond: |_, _, _, _, _| Vec::new(),
    open,
};

/// Returns the CPU's scratch for matrices `[n, k]` of f32 weights, of any model.
///
/// Errors: `size-overflow`.
pub fn scratch_of_matrices(matrices: &[(u64, u64)], threads: usize) -> Result<Layout> {
    CpuDevice::scratch_of_matrices(matrices, threads)
}

fn open(arena: &mut Arena, opening: &Opening<'_>) -> Result<BoxedDevice> {
    let (bytes, threads, isa) = (Bytes(arena.map().used_bytes()), opening.threads, Isa::chosen()?);
    let group = opening.group;
    let file = (!group.is_alone()).then(|| shared_file("plimsoll-arena")).transpose()?;
    let mut dev = match &file {
        None => CpuDevice::new(bytes, threads, isa)?,
        Some(file) => CpuDevice::shared(file, bytes, threads, isa)?,
    };
    dev.take_offloaded(Bytes(arena.map().offloaded_bytes()))?;
    if let Some(scratch) = arena.split().0.get("device.scratch") {
        dev.bind_scratch(scratch);
    }
    if let Some(file) = file {
        join(&mut dev, bytes, &file, group)?;
    }
    Ok(Box::new(dev))
}

/// Maps the arenas of the ranks of this host, and connects to those of other hosts.
fn join(dev: &mut CpuDevice, bytes: Bytes, file: &File, group: &Group) -> Result<()> {
    let own = [std::process::id().to_le_bytes(), file.as_raw_fd().to_le_bytes()].concat();
    let all = group.near_gather(&own)?;
    let length = file.metadata().map_err(|err| unseen(&err))?.len();
    let memory = Memory::File(file.try_clone().map_err(|err| unseen(&err))?);
    let reach = group.reach(memory, Bytes(length), None)?;
    let of = |rank: usize| -> Result<Option<Mapping>> {
        let Some(place) = group.near().iter().position(|near| *near == rank) else {
            return reach.as_ref().map_or(Ok(None), |reach| reach.view(rank));
        };
        if rank == group.rank() {
            return Ok(None);
        }
        let (words, _) = all[place].as_chunks::<4>();
        let [pid, fd] = [words[0], words[1]].map(u32::from_le_bytes);
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = File::open(&path).map_err(|err| unseen(&format!("rank {rank} at {path}: {err}")))?;
        Mapping::of_another(&file, bytes).map(Some)
    };
    let others = (0..group.ranks()).map(of).collect::<Result<_>>()?;
    let away = reach.map(|reach| Arc::new(Reached { reach, watch: group.watch() }) as Arc<dyn Away>);
    dev.join(others, away);
    // A descriptor may be closed once all have opened it.
    group.barrier()
}
