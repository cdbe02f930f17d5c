//! Opening a device among ranks that train one model. Each has an arena of one layout that the others may read: a file
//! in memory, or a card's memory. Memory of ranks on other hosts comes over the network before it is read.

use plimsoll_base::{Bytes, Error, Result};
use plimsoll_cuda::{CudaDevice, NcclId, ShownArena, nccl_id};
use plimsoll_device::Away;
use plimsoll_files::digest;
use plimsoll_memory::ArenaMap;
use plimsoll_ranks::{Group, Reach, Shown, Watch};
use std::ops::Range;
use std::sync::Arc;

pub use plimsoll_cuda::nccl_version;

/// Requires that all ranks laid out their arenas alike: a rank reads another's arena by its own offsets.
///
/// Errors: `ranks-differ`, `rank-lost`.
pub(crate) fn check_layout(group: &Group, threads: usize, map: &ArenaMap) -> Result<()> {
    if group.is_alone() {
        return Ok(());
    }
    let own = digest(format!("{map:?}").as_bytes());
    let words = format!("{own} {} threads, arena {}", threads, Bytes(map.used_bytes()));
    let all = group.all_gather(words.as_bytes())?;
    let of = |rank: usize| String::from_utf8_lossy(&all[rank]).into_owned();
    let Some(other) = (1..all.len()).find(|rank| all[*rank] != all[0]) else { return Ok(()) };
    let shown = |rank: usize| of(rank).split_once(' ').map_or(String::new(), |(_, words)| words.to_string());
    let message = format!("the plan of rank 0 has {}, that of rank {other} {}", shown(0), shown(other));
    Err(Error::new("ranks-differ", message).hint("set run.threads, and bind ranks to processors alike"))
}

/// Connects the cards by NCCL, unless the run file says otherwise or no rank has it.
///
/// Errors: `ranks-differ` if versions differ, `ranks-nccl`, `rank-lost`; if asked for NCCL, `cuda-library-missing`.
pub(crate) fn join_nccl(dev: &mut CudaDevice, by_library: Option<bool>, group: &Group) -> Result<()> {
    if by_library == Some(false) {
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
        Err(_) if by_library.is_none() => return Ok(()),
        found => found?,
    };
    let own = if group.rank() == 0 { nccl_id()?.0.to_vec() } else { Vec::new() };
    let id = group.all_gather(&own)?.swap_remove(0);
    dev.join_nccl(id_of(&id)?, group.rank(), group.ranks(), group.near())
}

/// Returns the NCCL id that rank 0 sent, by which all ranks meet.
///
/// Errors: `rank-lost`.
pub(crate) fn id_of(bytes: &[u8]) -> Result<NcclId> {
    let id = bytes.try_into().map_err(|_| Error::new("rank-lost", "rank 0 made no name for NCCL"))?;
    Ok(NcclId(id))
}

/// A card's memory, for ranks of other hosts to read.
#[derive(Debug)]
pub(crate) struct ShownCard(pub(crate) ShownArena);

impl Shown for ShownCard {
    fn read(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        self.0.read(at, len)
    }
}

/// Memory of ranks on other hosts, for operations to read.
#[derive(Debug)]
pub(crate) struct Reached {
    pub(crate) reach: Arc<Reach>,
    pub(crate) watch: Watch,
}

impl Away for Reached {
    fn bring(&self, wanted: &[(usize, Range<u64>)]) {
        self.reach.bring(wanted, &|| self.watch.check());
    }

    fn check(&self) -> Result<()> {
        self.reach.check()
    }
}

pub(crate) fn unseen(why: &dyn std::fmt::Display) -> Error {
    Error::new("ranks-window", format!("the memory of another rank: {why}"))
        .hint("all ranks of a host must run as one user and see each other's processes in /proc")
}
