//! Exchanges among ranks that train one model, apart from their arenas: memory limits, shares of the work, and numbers.

use plimsoll_base::{Bytes, Result};
use plimsoll_config::{Auto, RunSpec};
use plimsoll_device::{Device, OpenOptions};
use plimsoll_devices::{BoxedDevice, Opening};
use plimsoll_memory::{Arena, Limit, Limits};
use plimsoll_plan::{Hosts, RunShape, devices, machine_limits};
use plimsoll_ranks::Group;
use std::ops::Range;
use std::path::Path;

/// Opens the device of a run, or of one of its ranks with the arenas of all others.
///
/// Errors: those of `plimsoll_devices::open`.
pub fn open(shape: &RunShape, options: OpenOptions, group: Option<&Group>) -> Result<(BoxedDevice, Arena)> {
    plimsoll_devices::open(&shape.layout()?, &Opening { group, ..devices::opening(shape, options) })
}

/// Returns a warning if cards of different hosts could exchange by NCCL, but it is not installed.
pub fn without_library(dev: &dyn Device, run: &RunSpec, group: Option<&Group>) -> Option<String> {
    let several = group.is_some_and(|group| group.near().len() < group.ranks());
    let wanted = several && run.run.exchange == Auto::Auto && dev.network().is_none();
    let row = devices::row_of(run, &Limits::default());
    let error = row.network.filter(|_| wanted).and_then(|_| plimsoll_devices::nccl_version().err())?;
    Some(format!("warning: cards of different hosts exchange over sockets: {}", error.message))
}

/// Returns the hosts of some ranks for the plan, which is made for the host with the most of them.
pub fn hosts_of(group: &Group, part: Range<usize>) -> Hosts {
    let (count, near, are_even) = group.hosts_of(part.clone());
    Hosts { count, near, are_even, ..Hosts::one(part.len()) }
}

/// Returns the least host and device limits over all ranks, so that all ranks make one plan.
///
/// Errors: `rank-lost`.
pub fn limits(group: &Group, run: &RunSpec, dir: &Path) -> Result<Limits> {
    let here = machine_limits(dir);
    let device = (devices::row_of(run, &Limits::default()).free_memory)();
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

/// Returns the range of `len` items that rank `rank` of `ranks` takes: contiguous, and equal up to rounding.
pub fn share_of(rank: usize, ranks: usize, len: usize) -> Range<usize> {
    rank * len / ranks..(rank + 1) * len / ranks
}

/// Sends this rank's numbers to all ranks. Returns those of every rank, by rank.
///
/// Errors: `rank-lost`.
pub fn gather_f32(group: &Group, own: &[f32]) -> Result<Vec<Vec<f32>>> {
    let bytes: Vec<u8> = own.iter().flat_map(|x| x.to_le_bytes()).collect();
    let floats = |bytes: Vec<u8>| bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    Ok(group.all_gather(&bytes)?.into_iter().map(floats).collect())
}

/// Does what `gather_f32` does, for f64.
///
/// Errors: `rank-lost`.
pub fn gather_f64(group: &Group, own: &[f64]) -> Result<Vec<Vec<f64>>> {
    let bytes: Vec<u8> = own.iter().flat_map(|x| x.to_le_bytes()).collect();
    let floats = |bytes: Vec<u8>| bytes.as_chunks::<8>().0.iter().map(|x| f64::from_le_bytes(*x)).collect();
    Ok(group.all_gather(&bytes)?.into_iter().map(floats).collect())
}
