//! What a run of several ranks reports of each of them: how long it waited for the others, and the memory that it took.

use plimsoll_ranks::Group;
use serde_json::{Value, json};
use std::time::Duration;

/// Returns the seconds that each rank waited since `before`; none without other ranks.
pub(super) fn waited_since(before: &[Duration], group: Option<&Group>) -> Vec<f64> {
    let now = group.map_or(Vec::new(), Group::waited);
    now.iter().zip(before).map(|(now, before)| now.saturating_sub(*before).as_secs_f64()).collect()
}

/// Returns a row for each rank, made on each from its own `summary`. Every rank must call it.
pub(super) fn rows(group: &Group, summary: &Value) -> Option<Value> {
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
