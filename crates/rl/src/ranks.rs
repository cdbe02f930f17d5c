//! Exchanges among ranks that train one model, apart from their arenas: memory limits, what they read, shares of the
//! work, and numbers.

use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{Auto, RunSpec};
use plimsoll_device::{Device, OpenOptions};
use plimsoll_devices::{BoxedDevice, Opening};
use plimsoll_files::OpenModel;
use plimsoll_memory::{Arena, Limit, Limits};
use plimsoll_plan::{Hosts, RunShape, devices, machine_limits};
use plimsoll_ranks::Group;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Opens the device of a rank, with the arenas of all others.
///
/// Errors: those of `plimsoll_devices::open`.
pub fn open(shape: &RunShape, options: OpenOptions, group: &Group) -> Result<(BoxedDevice, Arena)> {
    plimsoll_devices::open(&shape.layout()?, &Opening { group, ..devices::opening(shape, options) })
}

/// Returns a warning if cards of different hosts could exchange by NCCL, but it is not installed.
pub fn without_library(dev: &dyn Device, run: &RunSpec, group: &Group) -> Option<String> {
    let several = group.near().len() < group.ranks();
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

/// Returns the least host and device limits over all ranks, so that all ranks make one plan; none for a rank alone,
/// whose plan reads them.
///
/// Errors: `rank-lost`.
pub fn limits(group: &Group, run: &RunSpec, dir: &Path) -> Result<Limits> {
    if group.is_alone() {
        return Ok(Limits::default());
    }
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

/// SHA-256 by the name of what was read.
pub(crate) type Inputs = BTreeMap<String, String>;

/// Checks that all ranks read the same: `inputs` (data, code, tokenizers, templates), and the weights of `models`.
/// Otherwise they would train one model that is put together from several, and say nothing.
///
/// Errors: `ranks-differ`, on all ranks, with both hashes; `rank-lost`; those of reading weights.
pub fn check_inputs<'m>(
    group: &Group,
    inputs: &Inputs,
    models: impl Iterator<Item = &'m OpenModel>,
) -> Result<()> {
    if group.is_alone() {
        // Weights take long to read, and there are none to compare them with.
        return Ok(());
    }
    let own = serde_json::to_vec(&with_weights(inputs.clone(), models)?).expect("text by text");
    let all: Vec<Inputs> = group
        .all_gather(&own)?
        .iter()
        .map(|bytes| serde_json::from_slice(bytes).expect("every rank writes a map"))
        .collect();
    let differences =
        (1..).zip(&all[1..]).find_map(|(rank, there)| Some((rank, difference(&all[0], there)?)));
    match differences {
        Some((rank, [here, there])) => {
            Err(Error::usage("ranks-differ", format!("{here} on rank 0, and {there} on rank {rank}"))
                .fact("what they read decides what they train: together they would train neither")
                .hint("give all ranks the same files, and for a model of a hub the same commit, by model_options.revision")
                .hint("sha256sum on both hosts shows which file is another"))
        }
        None => Ok(()),
    }
}

/// Adds the weights of `models`.
pub(crate) fn with_weights<'m>(
    mut inputs: Inputs,
    models: impl Iterator<Item = &'m OpenModel>,
) -> Result<Inputs> {
    for model in models {
        inputs.insert(format!("the weights of {}", model.source), model.weights_sha256()?);
    }
    Ok(inputs)
}

/// Returns what differs first: its name and hash here and there. Folders may differ where contents do not.
fn difference(here: &Inputs, there: &Inputs) -> Option<[String; 2]> {
    let words = |found: Option<(&String, &String)>| match found {
        Some((name, sha256)) => format!("{name} has SHA-256 {sha256}"),
        None => "nothing is read".to_string(),
    };
    if here.keys().eq(there.keys()) {
        let mut both = here.iter().zip(there);
        return both
            .find(|(one, other)| one != other)
            .map(|(one, other)| [Some(one), Some(other)].map(words));
    }
    let missing = |from: &Inputs, of: &Inputs| {
        words(of.iter().find(|(_, sha256)| !from.values().any(|other| other == *sha256)))
    };
    let [mut one, mut other] = [here, there].map(|inputs| inputs.values().collect::<Vec<_>>());
    one.sort();
    other.sort();
    (one != other).then(|| [missing(there, here), missing(here, there)])
}

/// Returns the range of `len` items that rank `rank` of `ranks` takes: contiguous, and equal up to rounding.
pub fn share_of(rank: usize, ranks: usize, len: usize) -> Range<usize> {
    rank * len / ranks..(rank + 1) * len / ranks
}

/// Gives all ranks what each wrote: rank r the elements `parts[r]` of `array`.
///
/// Errors: `rank-lost`, `ranks-exchange`.
pub(crate) fn share<T: ToFromBytes>(group: &Group, array: &mut [T], parts: &[Range<usize>]) -> Result<()> {
    share_in_pieces(group, array, parts, usize::MAX)
}

/// Does what `share` does, `piece` elements of each rank at a time.
///
/// Errors: as `share`.
pub(crate) fn share_in_pieces<T: ToFromBytes>(
    group: &Group,
    array: &mut [T],
    parts: &[Range<usize>],
    piece: usize,
) -> Result<()> {
    if group.is_alone() {
        return Ok(());
    }
    let own = group.rank();
    let longest = parts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    for first in (0..longest).step_by(piece) {
        let at = |part: &Range<usize>| {
            let start = (part.start + first).min(part.end);
            start..start.saturating_add(piece).min(part.end)
        };
        let all = group.all_gather(&T::to_bytes(&array[at(&parts[own])]))?;
        for (rank, (part, bytes)) in parts.iter().zip(&all).enumerate().filter(|(rank, _)| *rank != own) {
            let to = &mut array[at(part)];
            if bytes.len() != size_of_val(to) {
                let message = format!("rank {rank} sent {} bytes of {}", bytes.len(), size_of_val(to));
                return Err(Error::new("ranks-exchange", message)
                    .hint("start the same command with --resume to continue from the last checkpoint"));
            }
            T::read_bytes(bytes, to);
        }
    }
    Ok(())
}

/// A number that is sent as its little-endian bytes.
pub(crate) trait ToFromBytes: Clone + Default {
    fn to_bytes(values: &[Self]) -> Vec<u8>;
    /// Reads as many values as `to` has.
    fn read_bytes(bytes: &[u8], to: &mut [Self]);
}

macro_rules! to_from_bytes {
    ($($of:ty),+) => {$(
        impl ToFromBytes for $of {
            fn to_bytes(values: &[$of]) -> Vec<u8> {
                values.iter().flat_map(|value| value.to_le_bytes()).collect()
            }
            fn read_bytes(bytes: &[u8], to: &mut [$of]) {
                let values = bytes.as_chunks::<{ size_of::<$of>() }>().0;
                to.iter_mut().zip(values).for_each(|(to, value)| *to = <$of>::from_le_bytes(*value));
            }
        }
    )+};
}
to_from_bytes!(u8, u32, f32, f64);

/// Sends this rank's numbers to all ranks. Returns those of every rank, by rank.
///
/// Errors: `rank-lost`.
pub(crate) fn gather<T: ToFromBytes>(group: &Group, own: &[T]) -> Result<Vec<Vec<T>>> {
    let numbers = |bytes: Vec<u8>| {
        let mut numbers = vec![T::default(); bytes.len() / size_of::<T>()];
        T::read_bytes(&bytes, &mut numbers);
        numbers
    };
    Ok(group.all_gather(&T::to_bytes(own))?.into_iter().map(numbers).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(pairs: &[(&str, &str)]) -> Inputs {
        pairs.iter().map(|(name, sha256)| (name.to_string(), sha256.to_string())).collect()
    }

    #[test]
    fn what_ranks_read_is_compared_by_contents() {
        let here = inputs(&[("a/data", "1"), ("a/model", "2")]);
        let differs = |there: &[(&str, &str)]| difference(&here, &inputs(there));
        assert_eq!(differs(&[("a/data", "1"), ("a/model", "2")]), None);
        assert_eq!(differs(&[("z/model", "2"), ("z/text", "1")]), None, "another folder");
        let words = |one: &str, other: &str| Some([one.to_string(), other.to_string()]);
        assert_eq!(
            differs(&[("a/data", "1"), ("a/model", "3")]),
            words("a/model has SHA-256 2", "a/model has SHA-256 3")
        );
        assert_eq!(
            differs(&[("b/data", "1"), ("b/model", "3")]),
            words("a/model has SHA-256 2", "b/model has SHA-256 3")
        );
        assert_eq!(differs(&[("a/data", "1")]), words("a/model has SHA-256 2", "nothing is read"));
    }
}
