//! Requires that two run directories reached the same state: final weights and samples byte for byte, metrics number
//! for number. Clock and memory readings are left out.

use std::fs;
use std::path::{Path, PathBuf};

use super::leaves::leaves;

/// Events about learning. Others are about processes: a stopped run saves once more.
const EVENTS: [&str; 4] = ["\"started\"", "\"eval\"", "\"step\"", "\"finished\""];
/// Clock and memory readings and directory names, by prefix of a key's last part or of a metric's name.
const READINGS: [&str; 31] = [
    "seconds",
    "time/",
    "step_time",
    "tokens_per_second",
    "rss_",
    "monitoring_share",
    "supervisor_",
    "planned_bytes",
    "device_",
    "held_bytes",
    "trainer",
    "workers",
    "kernel",
    "limit_bytes",
    "host/",
    "memory",
    "device/",
    "trend",
    "forecast",
    "share_of_peak",
    // Of a summary: what the phases took next to what the machine allows, and the clock's share in what a carry saved.
    "limits",
    "saved_seconds",
    "arena_",
    "path",
    "dir",
    "overhead",
    "pressure",
    "supervisor",
    // Readings of the engine's passes, which follow from the number of ranks.
    "rollout/passes",
    "rollout/preemptions",
    // Waiting times and memory of ranks.
    "ranks",
];

/// Checks that `found` reached the same state as `expect`; an error names the first difference.
pub fn directories(expect: &Path, found: &Path) -> Result<(), String> {
    let latest = |dir: &Path| {
        dir.join("checkpoints/latest").canonicalize().map_err(|err| format!("{}: {err}", dir.display()))
    };
    let (a, b) = (latest(expect)?, latest(found)?);
    if a.file_name() != b.file_name() {
        return Err(format!("the last checkpoints are {} and {}", a.display(), b.display()));
    }
    for name in ["model.safetensors", "state/optimizer.safetensors", "config.json", "tokenizer.json"] {
        same_bytes(&a.join(name), &b.join(name))?;
    }
    let samples = |dir: &Path| names(&dir.join("samples"));
    if samples(expect) != samples(found) {
        return Err(format!("samples are {:?} and {:?}", samples(expect), samples(found)));
    }
    for name in samples(expect) {
        same_bytes(&expect.join("samples").join(&name), &found.join("samples").join(&name))?;
    }
    let is_left_over = |name: &&PathBuf| {
        let name = name.to_string_lossy();
        name.starts_with('.') || name.ends_with(".damaged")
    };
    if let Some(name) = names(&found.join("checkpoints")).iter().find(is_left_over) {
        return Err(format!("{}: {} was left over", found.display(), name.display()));
    }
    let (a, b) = (events(expect)?, events(found)?);
    for (index, (a, b)) in a.iter().zip(&b).enumerate() {
        if a != b {
            let differs = a.iter().zip(b).find(|(a, b)| a != b);
            return Err(format!("{}: event {index} differs: {differs:?}", found.display()));
        }
    }
    if a.len() != b.len() {
        return Err(format!("{}: {} events, expected {}", found.display(), b.len(), a.len()));
    }
    Ok(())
}

fn same_bytes(a: &Path, b: &Path) -> Result<(), String> {
    let read = |path: &Path| fs::read(path).map_err(|err| format!("{}: {err}", path.display()));
    let (left, right) = (read(a)?, read(b)?);
    if left == right {
        return Ok(());
    }
    let at = left.iter().zip(&right).position(|(a, b)| a != b).unwrap_or(left.len().min(right.len()));
    Err(format!("{} and {} differ at byte {at}", a.display(), b.display()))
}

fn names(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<PathBuf> = entries.map(|entry| PathBuf::from(entry.file_name())).collect();
    names.sort();
    names
}

/// Returns the events that count, each as its leaves without readings.
fn events(dir: &Path) -> Result<Vec<Vec<(String, String)>>, String> {
    let path = dir.join("events.jsonl");
    let text = fs::read_to_string(&path).map_err(|err| format!("{}: {err}", path.display()))?;
    let mut events = Vec::new();
    for line in text.lines() {
        let leaves = leaves(line).ok_or_else(|| format!("{}: not JSON: {line}", path.display()))?;
        let kind = leaves.iter().find(|(key, _)| key == "event").map_or("", |(_, kind)| kind);
        if EVENTS.contains(&kind) {
            events.push(leaves.into_iter().filter(|(key, _)| !is_reading(key)).collect());
        }
    }
    Ok(events)
}

fn is_reading(key: &str) -> bool {
    // A reading may have parts, such as the memory trend.
    key.split('.').any(|name| READINGS.iter().any(|reading| name.starts_with(reading)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_and_memory_are_readings_and_what_is_learned_is_not() {
        for key in [
            "seconds_since_start",
            "metrics.time/rollout",
            "metrics.host/anon",
            "summary.rss_peak_bytes",
            "summary.trend.anon.z",
            "summary.limits.rollout.limit_seconds",
        ] {
            assert!(is_reading(key), "{key}");
        }
        for key in [
            "step",
            "metrics.reward",
            "metrics.grad_norm",
            "metrics.num_tokens",
            "summary.eval_after",
            "loss",
        ] {
            assert!(!is_reading(key), "{key}");
        }
    }
}
