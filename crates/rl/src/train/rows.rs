//! Per-rank rows of a run's report: how long a rank waited for the others, and its memory; and the disk limit, which is
//! rank 0's.

use plimsoll_base::{Bytes, Result};
use plimsoll_memory::Limit;
use plimsoll_plan::machine_limits;
use plimsoll_ranks::Group;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Returns the seconds that each rank waited since `before`; none without other ranks.
pub(super) fn waited_since(before: &[Duration], group: &Group) -> Vec<f64> {
    if group.is_alone() {
        return Vec::new();
    }
    group.waited().iter().zip(before).map(|(now, before)| now.saturating_sub(*before).as_secs_f64()).collect()
}

/// Returns a row for each of several ranks, made on each from its own `summary`. Every rank must call it.
pub(super) fn rows(group: &Group, summary: &Value) -> Option<Value> {
    if group.is_alone() {
        return None;
    }
    let own = json!({
        "rank": group.rank(),
        "seconds_waited": group.waited()[group.rank()].as_secs_f64(),
        "rss_peak_bytes": summary["rss_peak_bytes"],
        "rss_planned_bytes": summary["rss_planned_bytes"],
    });
    // A rank that ends now ends the run, and its supervisor says why.
    let all = group.all_gather(own.to_string().as_bytes()).ok()?;
    all.iter().map(|row| serde_json::from_slice::<Value>(row).ok()).collect()
}

/// Returns the free space on the disk of `dir`; with several ranks rank 0's, which alone writes planned files.
///
/// Errors: `rank-lost`.
pub(super) fn disk_limit(group: &Group, dir: &Path) -> Result<Option<Limit>> {
    let own = machine_limits(dir).disk;
    let words = own.map_or(String::new(), |limit| format!("{} {}", limit.bytes.0, limit.source));
    let all = group.all_gather(words.as_bytes())?;
    let of_rank_0 = String::from_utf8_lossy(&all[0]);
    let limit = |(bytes, source): (&str, &str)| {
        Some(Limit { bytes: Bytes(bytes.parse().ok()?), source: source.to_string() })
    };
    Ok(of_rank_0.split_once(' ').and_then(limit))
}
