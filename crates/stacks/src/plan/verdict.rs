//! The first phase that does not fit, and its remedies: each is planned again, so what it frees is computed.

use super::ledger::{Ledger, Phase, Sum};
use super::limits::Limits;
use super::pool::Pool;
use crate::options::{Change, Options};
use plimsoll_base::{Bytes, Result};

/// Most remedies to show.
const REMEDIES_MAX: usize = 6;

#[derive(Clone, Debug)]
pub struct Verdict {
    /// The peak of each group's card and of a node, per phase.
    pub peaks: Vec<Peak>,
    /// The first phase that does not fit.
    pub over: Option<Over>,
    /// Remedies, the cheapest sufficient one first.
    pub remedies: Vec<Remedy>,
}

/// The peak in a phase at a place.
#[derive(Clone, Debug, PartialEq)]
pub struct Peak {
    pub phase: Phase,
    pub pool: Pool,
    /// Index of the group or the node.
    pub place: u64,
    pub sum: Sum,
}

#[derive(Clone, Debug)]
pub struct Over {
    pub peak: Peak,
    pub limit: Bytes,
    pub limit_source: String,
    /// The page of the resulting symptom.
    pub slug: &'static str,
}

/// A change of settings and the memory that it frees there.
#[derive(Clone, Debug, PartialEq)]
pub struct Remedy {
    pub words: String,
    /// Bytes freed at the first place that does not fit; negative if it takes more.
    pub frees: Bytes,
    /// True if the whole run then fits.
    pub is_enough: bool,
}

/// A number of another run, next to this plan's.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub what: String,
    pub computed: Bytes,
    pub reported: Option<Bytes>,
    /// Who reported it, or how it is computed.
    pub source: &'static str,
}

pub(crate) fn peaks(ledger: &Ledger) -> Result<Vec<Peak>> {
    let mut peaks = Vec::new();
    for &phase in &ledger.phases {
        for group in 0..ledger.cluster.groups.len() {
            let sum = ledger.card(group, phase)?;
            peaks.push(Peak { phase, pool: Pool::Device, place: group as u64, sum });
        }
        for pool in [Pool::Host, Pool::Shm] {
            // The fullest node decides for all.
            let mut fullest: Option<Peak> = None;
            for place in 0..ledger.cluster.nodes().min(64) {
                let sum = ledger.node(pool, place, phase)?;
                if fullest.as_ref().is_none_or(|peak| peak.sum.bytes < sum.bytes) {
                    fullest = Some(Peak { phase, pool, place, sum });
                }
            }
            peaks.extend(fullest);
        }
    }
    Ok(peaks)
}

/// Returns the first phase, in a run's order, that does not fit somewhere.
pub(crate) fn first_over(ledger: &Ledger, limits: &Limits) -> Result<Option<Over>> {
    let over = |peak: Peak| {
        let limit = limits.of(peak.pool).filter(|limit| peak.sum.bytes > limit.value)?;
        let slug = slug_of(ledger, &peak);
        Some(Over { peak, limit: limit.value, limit_source: limit.source.clone(), slug })
    };
    Ok(peaks(ledger)?.into_iter().find_map(over))
}

/// Returns the page of the symptom that a user would see.
fn slug_of(ledger: &Ledger, peak: &Peak) -> &'static str {
    let largest = peak.sum.rows.first().map_or("", |&(index, _)| ledger.items[index].name);
    match (peak.pool, peak.phase, largest) {
        (Pool::Device, _, "contexts of workers") => "cuda-context-per-worker",
        (Pool::Device, _, "logits") => "cuda-oom-logits",
        (Pool::Device, Phase::Sync, _) => "vllm-wakeup-oom",
        (Pool::Device, Phase::Load, "share of the card") => "vllm-startup-oom",
        (Pool::Device, Phase::Update | Phase::Critic, "master weights and Adam") => "cuda-oom-optimizer-step",
        (Pool::Device, _, _) => "cuda-oom",
        (Pool::Shm, _, _) => "shm-full-ray",
        (Pool::Host, Phase::Save, _) => "host-oom-at-checkpoint",
        (Pool::Host, _, "sleep copy of the weights") => "sleep-host-copy",
        (Pool::Host, _, _) => "cgroup-oom-kill",
    }
}

/// Plans the run again with each change.
pub(crate) fn remedies(
    over: &Over,
    options: &Options,
    changes: &[Change],
    again: &dyn Fn(&Options) -> Result<Ledger>,
    limits: &Limits,
) -> Vec<Remedy> {
    let mut found: Vec<Remedy> = Vec::new();
    for (words, values) in changes {
        let Some(values) = values(options) else { continue };
        // A change that contradicts another setting is no remedy.
        let Ok(ledger) = again(&options.with(&values)) else { continue };
        let (Ok(peaks), Ok(left)) = (peaks(&ledger), first_over(&ledger, limits)) else { continue };
        let at = |peak: &&Peak| {
            (peak.phase, peak.pool) == (over.peak.phase, over.peak.pool)
                && (peak.pool != Pool::Device || peak.place == over.peak.place)
        };
        let needed = peaks.iter().filter(at).map(|peak| peak.sum.bytes).max().unwrap_or_default();
        let frees = over.peak.sum.bytes.0.saturating_sub(needed.0);
        if frees > 0 {
            let shown = |(name, value): &(&str, Option<String>)| match value {
                Some(value) if value.is_empty() => (*name).to_string(),
                Some(value) => format!("{name} = {value}"),
                None => format!("without {name}"),
            };
            let shown: Vec<String> = values.iter().map(shown).collect();
            let words = format!("{words} ({})", shown.join(", "));
            found.push(Remedy { words, frees: Bytes(frees), is_enough: left.is_none() });
        }
    }
    // Sufficient ones first, in the order of their cost; then those that free the most.
    found.sort_by_key(|remedy| {
        (!remedy.is_enough, if remedy.is_enough { 0 } else { u64::MAX - remedy.frees.0 })
    });
    found.truncate(REMEDIES_MAX);
    found.push(machine(over));
    found
}

/// Returns the remedy that always exists: a larger machine.
fn machine(over: &Over) -> Remedy {
    let need = over.peak.sum.bytes;
    // Two per cent above the plan, in whole GiB.
    let wanted = Bytes((need.0 / 50 + need.0).div_ceil(1 << 30) << 30);
    let words = match over.peak.pool {
        Pool::Device => format!("cards of at least {wanted}, or fewer roles on a card"),
        Pool::Host => format!("a memory limit of at least {wanted} for the container"),
        Pool::Shm => format!("a /dev/shm of at least {wanted}: docker run --shm-size"),
    };
    Remedy { words, frees: Bytes(0), is_enough: false }
}
