//! The table and the picture of `bench mismatch`.

use super::cases::CASES;
use plimsoll_plan::picture::{begin, line, polyline, text};
use serde_json::Value;
use std::fmt::Write;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 46.0;
const TOP: f64 = 46.0;
/// A colour for each case, in their order, of its curve and of its name: on a light background and on a dark one, where
/// only the exact run has another.
const STYLE: [&str; 2] = [
    "\
.curve{fill:none;stroke-width:2}.c0{stroke:#111}.c1{stroke:#4c9be8}.c2{stroke:#1f5f8b}.c3{stroke:#e8a33d}.c4{stroke:#d0342c}\
.c5{stroke:#2c8a57}.c6{stroke:#8a4fbf}.t1{fill:#4c9be8}.t2{fill:#1f5f8b}.t3{fill:#e8a33d}.t4{fill:#d0342c}.t5{fill:#2c8a57}.t6{fill:#8a4fbf}",
    ".c0{stroke:#eee}",
];

fn rows(result: &Value) -> &[Value] {
    result["rows"].as_array().map_or(&[], Vec::as_slice)
}

fn numbers(row: &Value, key: &str) -> Vec<f64> {
    row[key].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len().max(1) as f64
}

/// Formats a case's row: its name, its correction, and its numbers over the seeds.
fn cells(row: &Value) -> [String; 7] {
    let spread = |key: &str| {
        let all = numbers(row, key);
        let (low, high) = all.iter().fold((f64::MAX, f64::MIN), |(l, h), &x| (l.min(x), h.max(x)));
        format!("{:.3} ({low:.3} to {high:.3})", mean(&all))
    };
    let runs = row["collapsed_at"].as_array().map_or(0, Vec::len);
    let at = numbers(row, "collapsed_at");
    let ended: Vec<&str> = row["ended"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let collapse = match (at.len(), ended.len()) {
        (0, 0) => "no".to_string(),
        (0, _) => format!("ended: {}", ended.join("; ")),
        (n, _) => format!("{n} of {runs}, from step {:.0}", at.iter().copied().fold(f64::MAX, f64::min)),
    };
    [
        row["case"].as_str().unwrap_or_default().to_string(),
        if row["corrects"] == true { "truncated weights" } else { "none" }.to_string(),
        format!("{:.5}", mean(&numbers(row, "difference"))),
        format!("{:.3}", numbers(row, "largest_difference").iter().copied().fold(0.0, f64::max)),
        spread("best"),
        spread("last"),
        collapse,
    ]
}

/// Formats the table for a terminal.
pub fn words(result: &Value) -> String {
    let mut text = String::from(
        "case     correction         mean |d|  largest  best                    last                    collapse\n",
    );
    for row in rows(result) {
        let [case, correction, difference, largest, best, last, collapse] = cells(row);
        let _ = writeln!(
            text,
            "{case:8} {correction:18} {difference:9} {largest:8} {best:23} {last:23} {collapse}"
        );
    }
    text
}

pub(super) fn page(result: &Value) -> String {
    let mut text = format!(
        "# What exactness is worth\n\n\
         Machine: {}, {} threads. Made by `{} --out bench/results`; {} seeds. The score is the mean reward of greedy\n\
         answers to held-out prompts, without noise. `|d|` is the difference between the log-probability that the sampler drew a token with and the one that the trainer\n\
         computed for it before its update, as two engines of other stacks have it; the mean is over tokens and steps. `routing`: 2 % of the tokens have\n\
         all of the noise. `8-bit`: the sampler's hidden numbers are rounded to e4m3. Truncated weights are w = min(p / q, 2) on each token. A run has\n\
         collapsed when its score falls below half of its best.\n\n\
         ![Score over steps](mismatch.svg)\n\n\
         | noise | correction | mean \\|d\\| | largest \\|d\\| | best score | last score | collapsed |\n\
         |---|---|---|---|---|---|---|\n",
        result["machine"].as_str().unwrap_or_default(),
        result["threads"],
        result["command"].as_str().unwrap_or_default(),
        result["seeds"],
    );
    for row in rows(result) {
        let _ = writeln!(text, "| {} |", cells(row).join(" | "));
    }
    text
}

/// Draws score over steps: on the left without a correction, on the right with one.
pub(super) fn picture(result: &Value) -> String {
    let title = "Held-out score over steps, by the difference between sampler and trainer";
    let size = [2.0 * (WIDTH + LEFT) + 20.0, HEIGHT + TOP + 40.0];
    let mut svg = begin(size, "", STYLE, title, "Left: no correction. Right: truncated weights.");
    let steps = result["steps"].as_f64().unwrap_or(1.0);
    let y = |score: f64| TOP + (1.0 - score) * HEIGHT;
    for (panel, (title, corrects)) in
        [("no correction", false), ("truncated weights", true)].into_iter().enumerate()
    {
        let left = LEFT + panel as f64 * (WIDTH + LEFT);
        text(&mut svg, left, 20.0, "bold", title);
        for score in [0.0, 0.25, 0.5, 0.75, 1.0] {
            line(&mut svg, left, y(score), left + WIDTH, y(score), "grid");
            text(&mut svg, left - 6.0, y(score) + 4.0, "soft end", &score.to_string());
        }
        text(&mut svg, left + WIDTH, y(0.0) + 18.0, "soft end", &format!("{steps} steps"));
        let shown = |row: &&Value| row["corrects"] == corrects || row["case"] == "exact";
        for (place, row) in rows(result).iter().filter(shown).enumerate() {
            let name = row["case"].as_str().unwrap_or_default();
            let case = CASES.iter().position(|case| case.name == name).unwrap_or(0);
            let points = numbers(row, "steps").into_iter().zip(numbers(row, "scores"));
            let points = points.map(|(step, score)| (left + step / steps * WIDTH, y(score)));
            polyline(&mut svg, points, &format!("curve c{case}"));
            text(&mut svg, left + 60.0 * place as f64, 38.0, &format!("t{case}"), name);
        }
    }
    svg + "</svg>\n"
}
