//! NVIDIA cards. Their arenas are card memory; ranks of one host open each other's by handles.

use crate::among::{Reached, ShownCard, join_nccl};
use crate::cards::rates_here;
use crate::row::{BoxedDevice, DeviceRow, Opening, Probe, Sizes};
use plimsoll_base::{Bytes, DType, Error, Result};
use plimsoll_cuda::held::{Modules, graph_bytes, known, note};
pub use plimsoll_cuda::take;
use plimsoll_cuda::{self as cuda, CudaDevice, FAR_BYTES, GpuInfo, NCCL_BYTES};
use plimsoll_device::{HandOver, PORTION_BYTES};
use plimsoll_memory::{Arena, Limit, Pool};
use plimsoll_ranks::{Group, Memory};
use std::sync::Arc;

/// The row of NVIDIA cards. Sampling with added adapters takes 1 / 0.96 and 1 / 0.93 times as long on an H200 at rank
/// 32 (docs/lora.md); on a CPU only their arithmetic adds time.
pub(crate) static CUDA: DeviceRow = DeviceRow {
    kind: &plimsoll_cuda::LAYOUTS,
    pool: Pool::Device,
    needs: Some("the CUDA driver"),
    runs_ahead: true,
    reads_ranks_in_place: false,
    prefill_rows: 4096,
    cut_rows: 16_384,
    slots: 256,
    added_adapters: 1.06,
    staging: FAR_BYTES,
    network: Some(NCCL_BYTES),
    probe,
    libraries: cuda::libraries,
    cards: cuda::cards,
    free_memory: || cuda::free_memory().map(|(bytes, source)| Limit { bytes, source }),
    rates: |_| rates_here(),
    peak: |_, _, _| None,
    takes_head_dim: plimsoll_cuda::takes_head_dim,
    takes_fp8,
    scratch: CudaDevice::scratch_layout,
    held: |are_own, hidden| known(Modules::of(are_own, hidden)),
    note: |held, are_own, hidden| note(held, Modules::of(are_own, hidden)),
    beyond,
    open,
};

/// Bytes that an 8-byte entry of a driver's page table maps.
const PAGE: u64 = 4096;

fn probe() -> Result<Probe> {
    let info = cuda::probe()?;
    let driver = format!("CUDA {}.{}, {}", info.driver / 1000, info.driver % 1000 / 10, info.driver_library);
    Ok(Probe { name: info.name, driver, total: info.total })
}

/// Errors: `fp8-unsupported`.
fn takes_fp8(weights: DType) -> Result<()> {
    let refused = |message: String| Error::usage("fp8-unsupported", message);
    if weights != DType::Bf16 {
        let message = format!("cards round weights of bf16 to eight bits, and these are {}", weights.name());
        return Err(refused(message).hint("set model_options.dtype = \"bf16\""));
    }
    match cuda::probe() {
        Ok(GpuInfo { capability: (9, 0), .. }) | Err(_) => Ok(()),
        Ok(GpuInfo { name, capability: (major, minor), .. }) => {
            let message =
                format!("{name} has capability {major}.{minor}, and products of eight bits are for 9.0");
            Err(refused(message)
                .fact("H100, H200 and GH200 have it")
                .hint("remove model_options.compute, or set run.device = \"cpu\""))
        }
    }
}

/// Offers a card's memory to another process, which `take` starts with the line of the offer; returns its results.
pub fn hand_over(
    take: impl Fn(&str) -> std::result::Result<HandOver, String>,
) -> std::result::Result<HandOver, String> {
    let offer = cuda::Offer::new().map_err(|error| format!("{}: {}", error.slug, error.message))?;
    take(&offer.line()).map(|taken| offer.found(taken))
}

fn beyond(ranks: u64, arena: Bytes, passes: usize, layers: u32, network: bool) -> Sizes {
    let nccl = if network { NCCL_BYTES.0 } else { Bytes(0) };
    let (graphs, peers) = (graph_bytes(passes, layers), peers_bytes(ranks, arena));
    let rows = [("device.graphs", graphs), ("device.peers", peers), ("device.nccl", nccl)];
    rows.into_iter().filter(|(_, bytes)| *bytes > Bytes(0)).collect()
}

/// Returns the bytes that a card's driver takes to map the other ranks' arenas, each as large as this one: 8 bytes per
/// 4 KiB, whatever the page size. On four H200 with driver 580 it took 1.9 to 2.0 MiB per GiB.
fn peers_bytes(ranks: u64, arena: Bytes) -> Bytes {
    Bytes((ranks - 1).saturating_mul(arena.0.div_ceil(PAGE / 8)))
}

fn open(arena: &mut Arena, opening: &Opening<'_>) -> Result<BoxedDevice> {
    let bytes = Bytes(arena.map().used_bytes());
    let mut dev = CudaDevice::new(bytes, opening.options)?;
    dev.take_offloaded(Bytes(arena.map().offloaded_bytes()))?;
    let has_others = !opening.group.is_alone();
    if let Some(grads) = opening.grads.filter(|_| has_others) {
        dev.require_equal_parts(grads)?;
    }
    dev.bind_scratch(arena.split().0.buf("device.scratch"));
    if let Some(scratch) = arena.split().0.get("device.aside") {
        dev.bind_aside(scratch);
    }
    dev.name_regions(arena.map());
    if has_others {
        join(&mut dev, bytes, opening.by_library, opening.group)?;
    }
    Ok(Box::new(dev))
}

/// Opens the arenas of the ranks of this host, and connects to those of other hosts.
fn join(dev: &mut CudaDevice, bytes: Bytes, by_library: Option<bool>, group: &Group) -> Result<()> {
    let windows = group.near_gather(&dev.window()?)?;
    let mut others = vec![None; group.ranks()];
    for (rank, window) in group.near().iter().zip(windows).filter(|(rank, _)| **rank != group.rank()) {
        others[*rank] = Some(window);
    }
    dev.join(&others)?;
    let name = cuda::card_name().unwrap_or_default();
    let names = group.all_gather(name.as_bytes())?;
    if names.iter().filter(|other| **other == name.as_bytes()).count() > 1 {
        dev.divide();
    }
    if group.near().len() < group.ranks() {
        let shown = Memory::Shown(Box::new(ShownCard(dev.shown()?)));
        let kept = Some(Bytes(PORTION_BYTES));
        let reach = group.reach(shown, bytes, kept)?.expect("ranks of other hosts");
        let views = (0..group.ranks()).map(|rank| reach.view(rank)).collect::<Result<_>>()?;
        dev.join_far(views, Arc::new(Reached { reach, watch: group.watch() }))?;
        join_nccl(dev, by_library, group)?;
    }
    // No rank exits before all have opened its memory.
    group.barrier()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cards_held_with_others_mapped_was_within_a_hundredth_of_the_rows_and_never_above() {
        // MiB on four H200: ranks, arena, and a card's most by NVML after five steps. `bench/results/h200_ranks.md`.
        let measured = [
            (1, 25_597.5, 26_174.8),
            (2, 24_106.7, 24_728.9),
            (4, 22_570.9, 23_278.9),
            (1, 62_240.7, 62_822.8),
            (2, 57_067.3, 57_756.9),
            (4, 51_889.6, 52_770.9),
            (1, 83_149.2, 83_722.8),
            (2, 83_189.3, 83_928.9),
            (4, 68_696.6, 69_676.9),
        ];
        // With what a run of one rank had noted, and a plan's margin; and by the table.
        for libraries in [577 + 16, 640] {
            for (ranks, arena, held) in measured {
                let arena = Bytes((arena * Bytes::MIB as f64) as u64);
                let planned = (arena + Bytes::mib(libraries) + peers_bytes(ranks, arena)).0 as f64;
                let share = held * Bytes::MIB as f64 / planned;
                assert!((0.99..=1.0).contains(&share), "{ranks} ranks, arena {arena}: {share}");
            }
        }
    }
}
