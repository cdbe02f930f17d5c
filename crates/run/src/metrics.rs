//! The metrics of a step, by name.

use plimsoll_base::Bytes;
use plimsoll_memory::host::Rss;
use std::collections::BTreeMap;

/// Metric name to value; TRL's names where TRL has them.
pub type Metrics = BTreeMap<String, f64>;

/// Adds host readings and the time of a step.
pub(crate) fn add_host(metrics: &mut Metrics, rss: &Rss, planned: Bytes, seconds: f64) {
    for (name, value) in [
        ("step_time", seconds),
        ("host/anon", rss.anon.0 as f64),
        ("host/file", rss.file.0 as f64),
        ("host/shmem", rss.shmem.0 as f64),
        ("memory/host/step/planned", planned.0 as f64),
        ("memory/host/step/measured", rss.now.0 as f64),
    ] {
        metrics.insert(name.to_string(), value);
    }
}
