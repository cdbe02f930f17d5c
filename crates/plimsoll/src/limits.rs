//! The machine's limits as `plan` shows them, each with its source.

use plimsoll_memory::host::{Host, Reading};
use serde_json::Value;
use std::path::Path;

/// Reads the limits of this machine for a run in `dir`.
pub fn read(dir: &Path) -> Vec<Reading> {
    let mut readings = Host::this().readings(dir);
    if let Some(card) = (plimsoll_devices::card().free_memory)() {
        readings.push(Reading::of_bytes("free device memory", card.bytes, card.source));
    }
    readings
}

pub fn table(readings: &[Reading]) -> String {
    let name_width = readings.iter().map(|r| r.name.len()).max().unwrap_or(0);
    let line = |r: &Reading| format!("{:name_width$} {:>11}  {}\n", r.name, r.shown(), r.source);
    format!("limits of this machine\n{}\n", readings.iter().map(line).collect::<String>())
}

/// Returns the limits as `limits[]` of `plan --json`.
pub fn to_json(readings: &[Reading]) -> Value {
    readings.iter().map(Reading::to_json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_line_a_limit() {
        let readings = read(Path::new("."));
        let shown = table(&readings);
        assert_eq!(shown.lines().count(), readings.len() + 2, "{shown}");
        for name in ["free memory", "free disk", "open files", "overcommit", "shared memory"] {
            assert!(shown.contains(name), "{shown}");
        }
        let json = to_json(&readings);
        assert!(json.as_array().is_some_and(|all| all.iter().all(|r| r["source"].is_string())), "{json}");
    }
}
