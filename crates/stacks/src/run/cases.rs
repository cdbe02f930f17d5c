//! Runs that others reported, beside a plan that looks like them: which numbers were seen, and which are computed.

use super::ledger::{Item, Phase, Pool};
use super::verdict::{Over, Peak};
use super::{RunPlan, Stack};
use plimsoll_base::Bytes;

/// One number of another run.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    /// What it is of.
    pub what: String,
    /// What this plan says.
    pub computed: Bytes,
    /// What was seen, if it was.
    pub reported: Option<Bytes>,
    /// Who reported it, or how it is computed.
    pub source: &'static str,
}

const GIB: f64 = (1_u64 << 30) as f64;

/// Host rows of a role before its first update: those that come with it are left out.
fn at_start(plan: &RunPlan, role: &str) -> Bytes {
    let items = plan.items().iter().enumerate();
    let is_held = |item: &Item| item.is_in(Phase::Rollout) && item.name != "accumulated gradients";
    let held = items.filter(|(_, item)| item.role == role && item.pool == Pool::Host && is_held(item));
    let node = plan.verdict.peaks.iter().find(|peak| (peak.phase, peak.pool) == (Phase::Rollout, Pool::Host));
    held.map(|(index, _)| bytes_of(node, index)).sum()
}

fn bytes_of(peak: Option<&Peak>, index: usize) -> Bytes {
    let rows = peak.map_or(&[][..], |peak| &peak.sum.rows);
    rows.iter().find(|(row, _)| *row == index).map_or(Bytes(0), |&(_, bytes)| bytes)
}

/// Numbers of runs like this one.
pub(super) fn beside(plan: &RunPlan) -> Vec<Beside> {
    match plan.stack {
        Stack::OpenRlhf => cpu_adam(plan),
        Stack::Verl => swap(plan),
        Stack::Orz | Stack::Trl | Stack::TorchRl => Vec::new(),
    }
}

/// 13B with CPU Adam.
fn cpu_adam(plan: &RunPlan) -> Vec<Beside> {
    let is_13b = |role: &str| {
        plan.draft
            .models
            .iter()
            .any(|(own, params)| *own == role && (12_500_000_000..13_600_000_000).contains(params))
    };
    let offloads = |role| at_start(plan, role).0 as f64 > 100.0 * GIB;
    if !(is_13b("actor") && is_13b("critic") && offloads("actor") && offloads("critic")) {
        return Vec::new();
    }
    let reported = |gib: f64| Some(Bytes((gib * GIB) as u64));
    let mut found = vec![
        Beside {
            what: "host memory of the actor after start".into(),
            computed: at_start(plan, "actor"),
            reported: reported(211.8),
            source: "OpenRLHF issue 171: one process of a 13B actor with CPU Adam",
        },
        Beside {
            what: "host memory of the critic after start".into(),
            computed: at_start(plan, "critic"),
            reported: reported(202.2),
            source: "OpenRLHF issue 171: one process of a 13B critic with CPU Adam, still starting",
        },
    ];
    let save = plan.verdict.peaks.iter().find(|peak| (peak.phase, peak.pool) == (Phase::Save, Pool::Host));
    found.extend(save.map(|peak| Beside {
        what: "host memory of the node while the actor is saved".into(),
        computed: peak.sum.bytes,
        reported: Some(Bytes(537_000_000_000)),
        source: "OpenRLHF issue 187: 537 GB used, the container allows 500; 500 GiB are 536.9 GB",
    }));
    found
}

/// Pinned swap of simpleRL-reason.
fn swap(plan: &RunPlan) -> Vec<Beside> {
    let is_swap = |item: &Item| item.name == "CPU swap" && item.bytes > 8 << 30;
    let Some(index) = plan.items().iter().position(is_swap) else { return Vec::new() };
    let node = plan.verdict.peaks.iter().find(|peak| (peak.phase, peak.pool) == (Phase::Rollout, Pool::Host));
    vec![Beside {
        what: "pinned swap of a node".into(),
        computed: bytes_of(node, index),
        reported: None,
        source: "simpleRL-reason issue 84 reports a host out of memory at the third rollout and no size; 40 GiB a card of Qwen2.5-7B on 8 cards computes to 28 layers x 2 GiB x 8 = 448 GiB",
    }]
}

/// The line about a phase that does not fit.
pub(super) fn sentence(over: &Over) -> String {
    let place = match over.peak.pool {
        Pool::Device => "a card",
        Pool::Host => "a node",
        Pool::Shm => "/dev/shm",
    };
    format!(
        "does not fit: {} needs {} of {place}, {} are allowed ({})",
        over.peak.phase.name(),
        over.peak.sum.bytes,
        over.limit,
        over.limit_source
    )
}
