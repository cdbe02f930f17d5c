//! Reported memory of OpenRLHF runs with CPU Adam.

use crate::plan::ledger::{Ledger, Phase};
use crate::plan::pool::Pool;
use crate::plan::verdict::{Comparison, Peak};
use plimsoll_base::Bytes;

const GIB: f64 = (1_u64 << 30) as f64;

/// Compares 13B actor and critic with CPU Adam.
pub(super) fn comparisons(ledger: &Ledger, peaks: &[Peak]) -> Vec<Comparison> {
    let node = |phase| peaks.iter().find(|peak| (peak.phase, peak.pool) == (phase, Pool::Host));
    // A role's host memory before its first update, without rows that come with it.
    let at_start = |role: &str| -> Bytes {
        let rows = node(Phase::Rollout).map_or(&[][..], |peak| &peak.sum.rows);
        let held = rows.iter().filter(|(row, _)| {
            let item = &ledger.items[*row];
            item.role == role && item.pool == Pool::Host && item.name != "accumulated gradients"
        });
        held.map(|&(_, bytes)| bytes).sum()
    };
    let is_13b = |params: u64| (12_500_000_000..13_600_000_000).contains(&params);
    let is_like = |role: &str| {
        let has_size = ledger.models.iter().any(|&(own, params)| own == role && is_13b(params));
        has_size && at_start(role).0 as f64 > 100.0 * GIB
    };
    if !(is_like("actor") && is_like("critic")) {
        return Vec::new();
    }
    let one = |what: &str, computed, reported, source| Comparison {
        what: what.into(),
        computed,
        reported: Some(Bytes(reported)),
        source,
    };
    let gib = |gib: f64| (gib * GIB) as u64;
    let mut found = vec![
        one(
            "host memory of the actor after start",
            at_start("actor"),
            gib(211.8),
            "OpenRLHF issue 171: one process of a 13B actor with CPU Adam",
        ),
        one(
            "host memory of the critic after start",
            at_start("critic"),
            gib(202.2),
            "OpenRLHF issue 171: one process of a 13B critic with CPU Adam, still starting",
        ),
    ];
    let source = "OpenRLHF issue 187: 537 GB used, the container allows 500; 500 GiB are 536.9 GB";
    let what = "host memory of the node while the actor is saved";
    found.extend(node(Phase::Save).map(|peak| one(what, peak.sum.bytes, 537_000_000_000, source)));
    found
}
