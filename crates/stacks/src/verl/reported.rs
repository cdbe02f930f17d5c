//! Reported numbers of simpleRL-reason's pinned swap.

use crate::plan::ledger::{Ledger, Phase};
use crate::plan::pool::Pool;
use crate::plan::verdict::{Comparison, Peak};
use plimsoll_base::Bytes;

pub(super) fn comparisons(ledger: &Ledger, peaks: &[Peak]) -> Vec<Comparison> {
    let is_swap = |row: usize| ledger.items[row].name == "CPU swap" && ledger.items[row].bytes > 8 << 30;
    let Some(index) = (0..ledger.items.len()).find(|&row| is_swap(row)) else { return Vec::new() };
    let node = peaks.iter().find(|peak| (peak.phase, peak.pool) == (Phase::Rollout, Pool::Host));
    let rows = node.map_or(&[][..], |peak| &peak.sum.rows);
    vec![Comparison {
        what: "pinned swap of a node".into(),
        computed: rows.iter().find(|(row, _)| *row == index).map_or(Bytes(0), |&(_, bytes)| bytes),
        reported: None,
        source: "simpleRL-reason issue 84 reports a host out of memory at the third rollout and no size; 40 GiB a card of Qwen2.5-7B on 8 cards computes to 28 layers x 2 GiB x 8 = 448 GiB",
    }]
}
