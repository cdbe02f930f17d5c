//! Tables of ranks, one row per rank: in the summary of a run and in `doctor RUN_DIR`.

use plimsoll_base::Bytes;
use plimsoll_ranks::slowest;
use serde_json::Value;
use std::time::Duration;

/// Mean seconds that the others wait for a rank, below which it is not named: the start of a short run takes as long.
const WAITED_MIN_S: f64 = 1.0;
/// The same in one step.
pub const STEP_WAITED_MIN_S: f64 = 0.05;

/// Returns the rank that the others waited for and their average share of `seconds`; `None` if all waited equally, or
/// the others less than `waited_min_s` on average.
pub fn slowest_of(waited: &[f64], seconds: f64, waited_min_s: f64) -> Option<(usize, f64)> {
    let slow = slowest(waited.iter().map(|seconds| Duration::from_secs_f64(seconds.max(0.0))))?;
    let others = waited.iter().sum::<f64>() - waited[slow];
    let mean = others / (waited.len() - 1) as f64;
    let share = mean / seconds.max(f64::MIN_POSITIVE);
    (mean >= waited_min_s).then_some((slow, share.clamp(0.0, 1.0)))
}

/// Formats the ranks of `summary.json` and names the slowest; empty for a run of one rank.
pub fn of_summary(summary: &Value) -> String {
    let rows = summary["ranks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let seconds = summary["seconds"].as_f64().unwrap_or(0.0);
    let number = |row: &Value, key: &str| row[key].as_f64().unwrap_or(0.0);
    let waited: Vec<f64> = rows.iter().map(|row| number(row, "seconds_waited")).collect();
    let slow = slowest_of(&waited, seconds, WAITED_MIN_S);
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let head = if index == 0 { "ranks" } else { "" };
        let memory = Bytes(row["rss_peak_bytes"].as_u64().unwrap_or(0));
        let planned = Bytes(row["rss_planned_bytes"].as_u64().unwrap_or(0));
        let name = match slow {
            Some((rank, share)) if rank == index => {
                format!("  slowest: the others waited {:.0} % of the time", share * 100.0)
            }
            _ => String::new(),
        };
        let waited = format!("{:.1} s", waited[index]);
        text +=
            &format!("{head:<9} rank {index:<2} waited {waited:>7}  memory {memory} of {planned}{name}\n");
    }
    text
}

/// Formats the rows of `ranks.json`; empty if there are none.
pub fn of_board(board: &Value) -> String {
    let rows = board["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut lines = vec![["rank", "pid", "does", "phase", "step", "memory", "waited"].map(String::from)];
    for row in rows {
        let [held, planned] =
            ["held_bytes", "planned_bytes"].map(|key| Bytes(row[key].as_u64().unwrap_or(0)));
        let slow = if row["rank"] == board["slowest"] { ", slowest" } else { "" };
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_string();
        lines.push([
            row["rank"].to_string(),
            row["trainer"].to_string(),
            text("state"),
            text("phase"),
            format!("{} of {}", row["step"], row["steps"]),
            format!("{held} of {planned}"),
            format!("{:.1} s{slow}", row["seconds_waited"].as_f64().unwrap_or(0.0)),
        ]);
    }
    if rows.is_empty() { String::new() } else { aligned(&lines) }
}

fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_summary_has_a_row_a_rank_and_names_the_slowest() {
        let row = |waited: f64| json!({ "seconds_waited": waited, "rss_peak_bytes": 60 << 20, "rss_planned_bytes": 75 << 20 });
        let summary = json!({ "seconds": 10.0, "ranks": [row(3.0), row(0.25), row(1.0)] });
        let expect = "ranks     rank 0  waited   3.0 s  memory 60.0 MiB of 75.0 MiB\n          \
                      rank 1  waited   0.2 s  memory 60.0 MiB of 75.0 MiB  slowest: the others waited 20 % of the time\n          \
                      rank 2  waited   1.0 s  memory 60.0 MiB of 75.0 MiB\n";
        assert_eq!(of_summary(&summary), expect);
        assert_eq!(of_summary(&json!({ "seconds": 10.0 })), "");
        assert_eq!(slowest_of(&[1.0, 1.0], 9.0, 0.0), None);
        // A run of five steps: most of its time, and nothing to look into.
        let short = json!({ "seconds": 0.5, "ranks": [row(0.1), row(0.4)] });
        assert!(!of_summary(&short).contains("slowest"), "{}", of_summary(&short));
    }

    #[test]
    fn a_board_is_a_table() {
        let row = |rank: u32, state: &str, waited: f64| {
            json!({ "rank": rank, "trainer": 4711 + rank, "state": state, "phase": "update", "step": 3, "steps": 9,
                    "held_bytes": 1 << 20, "planned_bytes": 2 << 20, "seconds_waited": waited })
        };
        let board = json!({ "slowest": 1, "rows": [row(0, "waits", 2.5), row(1, "computes", 0.0)] });
        let expect = "rank  pid   does      phase   step    memory              waited\n\
                      0     4711  waits     update  3 of 9  1.0 MiB of 2.0 MiB  2.5 s\n\
                      1     4712  computes  update  3 of 9  1.0 MiB of 2.0 MiB  0.0 s, slowest\n";
        assert_eq!(of_board(&board), expect);
        assert_eq!(of_board(&Value::Null), "");
    }
}
