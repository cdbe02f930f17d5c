//! A run's device and numbers where several ranks train one model. Each has an arena of one layout that the others may read: a file in
//! memory, or a card's memory. What ranks of other hosts have comes over the network, before it is read.

use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{Auto, Exchange, RunSpec};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_cuda::{CudaDevice, CudaOptions, NcclId, ShownArena, card_name, nccl_id, nccl_version};
use plimsoll_device::{Away, Device, DeviceKind, PORTION_BYTES};
use plimsoll_files::digest;
use plimsoll_memory::{Arena, ArenaMap, Limit, Limits, Mapping, shared_file};
use plimsoll_plan::{Hosts, RunShape, devices, machine_limits};
use plimsoll_ranks::{Group, Memory, Reach, Shown, Watch};
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

/// Opens the rank's device, with the arenas of all others.
///
/// Errors: `host-allocation-failed`; `ranks-method`, `ranks-unreachable`, `ranks-window`, `ranks-differ`, `rank-lost`; those of `CudaDevice::new`.
pub fn open(shape: &RunShape, options: CudaOptions, group: &Group) -> Result<(Box<dyn Device>, Arena)> {
    let mut arena = Arena::new(ArenaMap::new(&shape.layout()?, 0));
    check_layout(group, shape, arena.map())?;
    let dev: Box<dyn Device> = match shape.target.kind {
        DeviceKind::Cpu => Box::new(open_cpu(shape, &mut arena, group)?),
        DeviceKind::Cuda => Box::new(open_card(shape, &mut arena, options, group)?),
    };
    Ok((dev, arena))
}

fn open_card(shape: &RunShape, arena: &mut Arena, options: CudaOptions, group: &Group) -> Result<CudaDevice> {
    let bytes = Bytes(arena.map().used_bytes());
    let mut dev = CudaDevice::new(bytes, options)?;
    dev.take_offloaded(Bytes(arena.map().offloaded_bytes()))?;
    if let Some(training) = &shape.training {
        dev.require_equal_parts(training.dtypes.grads)?;
    }
    dev.bind_scratch(arena.split().0.buf("device.scratch"));
    if let Some(scratch) = arena.split().0.get("device.aside") {
        dev.bind_aside(scratch);
    }
    dev.name_regions(arena.map());
    let windows = group.near_gather(&dev.window()?)?;
    let mut others = vec![None; group.ranks()];
    for (rank, window) in group.near().iter().zip(windows).filter(|(rank, _)| **rank != group.rank()) {
        others[*rank] = Some(window);
    }
    dev.join(&others)?;
    let name = card_name().unwrap_or_default();
    let names = group.all_gather(name.as_bytes())?;
    if names.iter().filter(|other| **other == name.as_bytes()).count() > 1 {
        dev.divide();
    }
    if group.near().len() < group.ranks() {
        let shown = Memory::Shown(Box::new(Card(dev.shown()?)));
        let kept = Some(Bytes(PORTION_BYTES));
        let reach = group.reach(shown, bytes, kept)?.expect("ranks of other hosts");
        let views = (0..group.ranks()).map(|rank| reach.view(rank)).collect::<Result<_>>()?;
        dev.join_far(views, Arc::new(Reached { reach, watch: group.watch() }))?;
        let exchange = shape.training.as_ref().map_or(Auto::Auto, |training| training.exchange);
        join_nccl(&mut dev, exchange, group)?;
    }
    // No rank ends before all have opened its memory.
    group.barrier()?;
    Ok(dev)
}

/// Connects the cards by NCCL, unless the run file says otherwise or none of the ranks has it.
///
/// Errors: `ranks-differ` where ranks have different versions; `ranks-nccl`, `rank-lost`; `cuda-library-missing` where it is asked for.
fn join_nccl(dev: &mut CudaDevice, exchange: Auto<Exchange>, group: &Group) -> Result<()> {
    if exchange == Auto::Value(Exchange::Sockets) {
        return Ok(());
    }
    let found = nccl_version();
    let words = |found: &Result<String>| found.clone().unwrap_or_else(|error| error.message);
    let all = group.all_gather(words(&found).as_bytes())?;
    if let Some(other) = (1..all.len()).find(|rank| all[*rank] != all[0]) {
        let [here, there] = [0, other].map(|rank| String::from_utf8_lossy(&all[rank]).into_owned());
        return Err(Error::usage(
            "ranks-differ",
            format!("NCCL is {here} on rank 0 and {there} on rank {other}"),
        )
        .hint("install the same version on all hosts, or set run.exchange = \"sockets\""));
    }
    match found {
        Err(_) if exchange == Auto::Auto => return Ok(()),
        found => found?,
    };
    let own = if group.rank() == 0 { nccl_id()?.0.to_vec() } else { Vec::new() };
    let id = group.all_gather(&own)?.swap_remove(0);
    let id = id.try_into().map_err(|_| Error::new("rank-lost", "rank 0 made no name for NCCL"))?;
    dev.join_nccl(NcclId(id), group.rank(), group.ranks(), group.near())
}

/// A card's memory, as ranks of other hosts read it.
#[derive(Debug)]
struct Card(ShownArena);

impl Shown for Card {
    fn read(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        self.0.read(at, len)
    }
}

fn open_cpu(shape: &RunShape, arena: &mut Arena, group: &Group) -> Result<CpuDevice> {
    let (bytes, file) = (Bytes(arena.map().used_bytes()), shared_file("plimsoll-arena")?);
    let mut dev = CpuDevice::shared(&file, bytes, shape.target.threads, Isa::detect())?;
    dev.take_offloaded(Bytes(arena.map().offloaded_bytes()))?;
    if let Some(scratch) = arena.split().0.get("device.scratch") {
        dev.bind_scratch(scratch);
    }
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
    group.barrier()?;
    Ok(dev)
}

fn unseen(why: &dyn std::fmt::Display) -> Error {
    Error::new("ranks-window", format!("the memory of another rank: {why}"))
        .hint("all ranks of a host must run as one user and see each other's processes in /proc")
}

/// The memory of ranks on other hosts, for operations.
#[derive(Debug)]
struct Reached {
    reach: Arc<Reach>,
    watch: Watch,
}

impl Away for Reached {
    fn bring(&self, wanted: &[(usize, Range<u64>)]) {
        self.reach.bring(wanted, &|| self.watch.check());
    }

    fn check(&self) -> Result<()> {
        self.reach.check()
    }
}

/// Returns where the ranks are, for the plan, which is that of the host with the most of them.
pub fn hosts_of(group: &Group) -> Hosts {
    let (count, near) = group.hosts();
    Hosts { count, near, are_even: group.is_even(), ..Hosts::one(group.ranks()) }
}

/// Returns the limits of the host and of a card as the rank that sees the least of each does, so that all ranks make one plan.
///
/// Errors: `rank-lost`.
pub fn limits(group: &Group, run: &RunSpec, dir: &Path) -> Result<Limits> {
    let here = machine_limits(dir);
    let device = devices::uses_card(run).then(devices::device_limit).flatten();
    let (host, device) = (least(group, here.host)?, least(group, device)?);
    Ok(Limits { host, device, ..Limits::default() })
}

fn least(group: &Group, own: Option<Limit>) -> Result<Option<Limit>> {
    let bytes = own.as_ref().map_or(u64::MAX, |limit| limit.bytes.0);
    let all = group.all_gather(&bytes.to_le_bytes())?;
    let least =
        all.iter().filter_map(|bytes| Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?))).min();
    Ok(own.map(|limit| Limit { bytes: Bytes(least.unwrap_or(bytes)), ..limit }))
}

/// Requires that all ranks laid out their arenas alike: one reads another's by the offsets of its own.
///
/// Errors: `ranks-differ`, `rank-lost`.
fn check_layout(group: &Group, shape: &RunShape, map: &ArenaMap) -> Result<()> {
    let own = digest(format!("{map:?}").as_bytes());
    let words = format!("{own} {} threads, arena {}", shape.target.threads, Bytes(map.used_bytes()));
    let all = group.all_gather(words.as_bytes())?;
    let of = |rank: usize| String::from_utf8_lossy(&all[rank]).into_owned();
    let Some(other) = (1..all.len()).find(|rank| all[*rank] != all[0]) else { return Ok(()) };
    let shown = |rank: usize| of(rank).split_once(' ').map_or(String::new(), |(_, words)| words.to_string());
    let message = format!("the plan of rank 0 has {}, that of rank {other} {}", shown(0), shown(other));
    Err(Error::new("ranks-differ", message).hint("set run.threads, and bind ranks to processors alike"))
}

/// Returns the items of `len` that rank `rank` of `ranks` takes: neighbours, as many as the others'.
pub fn share_of(rank: usize, ranks: usize, len: usize) -> Range<usize> {
    rank * len / ranks..(rank + 1) * len / ranks
}

/// Gives every rank's numbers to every rank, by rank.
///
/// Errors: `rank-lost`.
pub fn gather_f32(group: &Group, own: &[f32]) -> Result<Vec<Vec<f32>>> {
    let bytes: Vec<u8> = own.iter().flat_map(|x| x.to_le_bytes()).collect();
    let floats = |bytes: Vec<u8>| bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    Ok(group.all_gather(&bytes)?.into_iter().map(floats).collect())
}

/// `gather_f32` for f64.
///
/// Errors: `rank-lost`.
pub fn gather_f64(group: &Group, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let bytes: Vec<u8> = own.iter().flat_map(|x| x.to_le_bytes()).collect();
    let floats = |bytes: Vec<u8>| bytes.as_chunks::<8>().0.iter().map(|x| f64::from_le_bytes(*x)).collect();
    Ok(group.all_gather(&bytes)?.into_iter().map(floats).collect())
}
