//! The limits that a run is planned against: given, from the run file, or from this machine.

use crate::{devices, disk::bytes_on_disk};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{Auto, ByteSize, SamplerSpec};
use plimsoll_devices::Card;
use plimsoll_memory::{Limit, Limits, host::Host};
use std::path::Path;

/// Suffix of a limit's source, if the run file sets it.
pub(crate) const OF_RUN_FILE: &str = "of the run file";
/// Source of a limit that is given for another machine.
const OF_FLAG: &str = "--limit";
/// Prefix of a limit's source, if it is a card's memory.
const OF_CARD: &str = "--card ";

/// True if the plan is for another machine.
pub(crate) fn is_elsewhere(limits: &Limits) -> bool {
    let all = [&limits.host, &limits.device, &limits.disk, &limits.shm];
    all.into_iter().flatten().any(|limit| limit.source == OF_FLAG || limit.source.starts_with(OF_CARD))
}

/// Returns the limits of a machine of which only the card is known.
pub(crate) fn limits_of_card(card: &Card) -> Limits {
    let device = Limit { bytes: card.memory, source: format!("{OF_CARD}{}", card.name) };
    Limits { device: Some(device), ..Limits::default() }
}

/// Returns the limits of this machine for a run in `dir`; what earlier processes of the run saved there counts as free.
pub fn machine_limits(dir: &Path) -> Limits {
    let mut limits = Host::this().limits(dir);
    let own = bytes_on_disk(dir);
    if let Some(disk) = limits.disk.as_mut().filter(|_| own > Bytes(0)) {
        disk.bytes = Bytes(disk.bytes.0.saturating_add(own.0));
        disk.source += &format!(", and {own} of the run's own");
    }
    limits
}

/// Returns the limits of a run: given, from the run file, or this machine's. For another machine only given ones count.
pub fn limits_of(run: &SamplerSpec, given: &Limits) -> Limits {
    let mut limits = given.clone();
    let here = if is_elsewhere(given) {
        Limits::default()
    } else {
        machine_limits(Path::new(run.run.dir.as_deref().unwrap_or("runs/out")))
    };
    let machine = limits.host.take().or(here.host);
    (limits.disk, limits.shm) = (limits.disk.or(here.disk), limits.shm.or(here.shm));
    limits.host = match (run.memory.host, machine) {
        (Auto::Value(ByteSize(bytes)), machine) if machine.as_ref().is_none_or(|m| bytes <= m.bytes) => {
            Some(Limit { bytes, source: format!("memory.host {OF_RUN_FILE}") })
        }
        (_, machine) => machine,
    };
    let row = devices::row_of(run, &limits);
    if row.has_own_memory() {
        let card = limits.device.take();
        let card = if is_elsewhere(given) { card } else { card.or_else(row.free_memory) };
        limits.device = match (run.memory.device, card) {
            (Auto::Value(ByteSize(bytes)), card) if card.as_ref().is_none_or(|c| bytes <= c.bytes) => {
                Some(Limit { bytes, source: format!("memory.device {OF_RUN_FILE}") })
            }
            (_, card) => card,
        };
    }
    limits
}

/// Parses the argument of `plan --limit`, such as `host=60GiB,device=139GiB`.
///
/// Errors: `bad-limit`.
pub fn parse_limits(text: &str) -> Result<Limits> {
    let mut limits = Limits::default();
    for part in text.split(',') {
        let bad = |why: &str| {
            Error::usage("bad-limit", format!("`{part}` {why}")).hint("write --limit host=8GiB,disk=100GiB")
        };
        let (pool, bytes) = part.split_once('=').ok_or_else(|| bad("is not a limit"))?;
        let limit = match pool.trim() {
            "host" => &mut limits.host,
            "disk" => &mut limits.disk,
            "shm" => &mut limits.shm,
            "device" => &mut limits.device,
            _ => return Err(bad("is not a limit")),
        };
        let before = limit.replace(Limit { bytes: Bytes::parse(bytes)?, source: OF_FLAG.into() });
        if before.is_some() {
            return Err(bad("limits a pool for the second time"));
        }
    }
    Ok(limits)
}
