//! The summary of a finished run on a terminal: a table of before and after, the curves, and responses to the same
//! prompts side by side. Read from the run directory, so it is complete for resumed runs.

use crate::chart::chart;
use crate::rank_rows;
use plimsoll_base::{Result, shown_places};
use plimsoll_run::report::{Pair, Points, Report, Shown};
use plimsoll_run::scores::pass_words;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

const CHART_LINES: usize = 6;
/// Characters in a line of a chart, without the values at the left.
const CHART_WIDTH: usize = 60;
/// Longest line; longer ones are hard to read.
const COLUMNS_MAX: usize = 120;
const SAMPLE_LINES: usize = 6;

/// Formats the summary of the run in `dir`, `columns` wide.
pub fn words(dir: &Path, summary: &Value, columns: usize) -> Result<String> {
    let steps = summary["steps"].as_u64().and_then(|steps| u32::try_from(steps).ok()).unwrap_or(0);
    let report = Report::read(dir, steps)?;
    let columns = columns.clamp(40, COLUMNS_MAX);
    let mut text = table(&report, summary);
    for (name, points) in curves(&report) {
        if let (Some((first, _)), Some((last, _)), true) = (points.first(), points.last(), points.len() > 1) {
            text += &format!("\n{name}, steps {first} to {last}\n");
            let lines = chart(points, CHART_WIDTH.min(columns - 12), CHART_LINES);
            lines.iter().for_each(|line| text += &format!("{line}\n"));
        }
    }
    report.pairs.iter().for_each(|pair| text += &pair_lines(pair, columns));
    let ranks = rank_rows::of_summary(summary);
    if !ranks.is_empty() {
        text += &format!("\n{ranks}");
    }
    text += &format!("\nwritten   {}\n", dir.display());
    Ok(text)
}

fn curves(report: &Report) -> [(&'static str, &Points); 3] {
    let curves = &report.curves;
    [("reward", &curves.rewards), ("loss", &curves.losses), ("length", &curves.lengths)]
}

/// Formats a line for each set and curve: before, after, difference.
fn table(report: &Report, summary: &Value) -> String {
    let mut rows: Vec<(String, f64, f64)> = Vec::new();
    for (name, set) in summary["sets"].as_object().into_iter().flatten() {
        if let (Some(before), Some(after)) = (set["before"].as_f64(), set["after"].as_f64()) {
            rows.push((format!("held-out {name}"), before, after));
        }
    }
    for (name, points) in curves(report) {
        if let (Some((_, first)), Some((_, last))) = (points.first(), points.last()) {
            rows.push((name.to_string(), *first, *last));
        }
    }
    let width = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    let mut text = if rows.is_empty() {
        String::new()
    } else {
        format!("{:width$}  {:>9}  {:>9}  {:>9}\n", "", "before", "after", "change")
    };
    for (name, before, after) in rows {
        text += &format!("{name:width$}  {before:>9.3}  {after:>9.3}  {:>+9.3}\n", after - before);
    }
    let pass =
        |key: &str| serde_json::from_value::<BTreeMap<u32, f64>>(summary[key].clone()).unwrap_or_default();
    let (before, after) = (pass("pass_at_k_before"), pass("pass_at_k_after"));
    // With one sample pass@1 equals the score.
    if before.len() > 1 && after.len() > 1 {
        text += &format!("before  {}\nafter   {}\n", pass_words(&before, 3), pass_words(&after, 3));
    }
    if let (Some(step), Some(metric), Some(value)) = (
        summary["best"]["step"].as_u64(),
        summary["best"]["metric"].as_str(),
        summary["best"]["value"].as_f64(),
    ) {
        text += &format!("best checkpoint: step {step}, {metric} {}\n", shown_places(value, 3));
    }
    text
}

/// Formats two responses in two columns.
fn pair_lines(pair: &Pair, columns: usize) -> String {
    let width = (columns - 3) / 2;
    let column = |one: &Shown| {
        let reward =
            one.reward.map_or(String::new(), |reward| format!(", reward {}", shown_places(reward, 3)));
        let mut lines = vec![format!("after step {}{reward}", one.step)];
        lines.extend(wrapped(&one.prompt, width).into_iter().take(SAMPLE_LINES));
        lines.push("-".repeat(width));
        lines.extend(wrapped(&one.response, width).into_iter().take(SAMPLE_LINES));
        lines
    };
    let (left, right) = (column(&pair.before), column(&pair.after));
    let mut text = String::from("\n");
    for i in 0..left.len().max(right.len()) {
        let line = |lines: &[String]| lines.get(i).cloned().unwrap_or_default();
        text += format!("{:width$} | {}", line(&left), line(&right)).trim_end();
        text.push('\n');
    }
    text
}

/// Wraps text to `width` characters, between words if possible.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut rest: Vec<char> = line.chars().collect();
        while rest.len() > width {
            let cut = rest[..width].iter().rposition(|c| *c == ' ').filter(|at| *at > 0).unwrap_or(width);
            let tail = rest.split_off(cut);
            lines.push(rest.iter().collect());
            rest = tail.into_iter().skip_while(|c| *c == ' ').collect();
        }
        lines.push(rest.iter().collect());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_table_has_a_line_a_set() {
        let mut report = Report::default();
        report.curves.rewards = vec![(1, 0.25), (9, 0.75)];
        let set = |before: f64, after: f64| json!({"before": before, "after": after});
        let summary = json!({
            "sets": {"easy": set(0.5, 1.0), "hard": set(0.5, 0.25)},
            "pass_at_k_before": {"1": 0.5, "2": 0.75}, "pass_at_k_after": {"1": 0.625, "2": 1.0},
            "best": {"step": 8, "metric": "easy/reward", "value": 1.0},
        });
        let expect = "                  before      after     change\n\
                      held-out easy      0.500      1.000     +0.500\n\
                      held-out hard      0.500      0.250     -0.250\n\
                      reward             0.250      0.750     +0.500\n\
                      before  pass@1 0.500, pass@2 0.750\n\
                      after   pass@1 0.625, pass@2 1.000\n\
                      best checkpoint: step 8, easy/reward 1.000\n";
        assert_eq!(table(&report, &summary), expect);
        assert_eq!(table(&Report::default(), &Value::Null), "");
    }

    #[test]
    fn samples_are_next_to_each_other() {
        let shown = |step, response: &str| Shown {
            step,
            prompt: "1+1=".into(),
            response: response.into(),
            reward: Some(0.5),
        };
        let pair = Pair { before: shown(0, "aaa bbb ccc ddd eee fff ggg hhh iii"), after: shown(60, "2\n3") };
        let text = pair_lines(&pair, 63);
        let expect = "\nafter step 0, reward 0.500     | after step 60, reward 0.500\n\
                      1+1=                           | 1+1=\n\
                      ------------------------------ | ------------------------------\n\
                      aaa bbb ccc ddd eee fff ggg    | 2\n\
                      hhh iii                        | 3\n";
        assert_eq!(text, expect);
        assert_eq!(wrapped("aaaaaa", 4), ["aaaa", "aa"]);
        assert_eq!(wrapped("", 4), [""; 0]);
    }
}
