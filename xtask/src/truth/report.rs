//! The table of plan against truth, as JSON and Markdown.

use super::Run;
use std::fmt::Write;

pub fn to_json(runs: &[Run], seed: u64) -> String {
    let spread = spread(runs);
    let mut text = format!(
        "{{\n  \"seed\": {seed},\n  \"runs\": {},\n  \"planned_over_measured\": {{ \"min\": {:.4}, \"median\": {:.4}, \"max\": {:.4} }},\n",
        runs.len(),
        spread[0],
        spread[1],
        spread[2]
    );
    let _ = writeln!(
        text,
        "  \"arenas_equal\": {},",
        runs.iter().filter(|r| r.arena_planned == r.arena_used).count()
    );
    let _ = writeln!(text, "  \"faults\": {},", runs.iter().filter(|r| !r.faults().is_empty()).count());
    text += "  \"rows\": [\n";
    for (i, run) in runs.iter().enumerate() {
        let comma = if i + 1 < runs.len() { "," } else { "" };
        let _ = writeln!(
            text,
            "    {{ \"run\": \"{}\", \"planned\": {}, \"measured\": {}, \"arena_planned\": {}, \"arena_used\": {} }}{comma}",
            run.what, run.rss_planned, run.rss_peak, run.arena_planned, run.arena_used
        );
    }
    text + "  ]\n}\n"
}

pub fn markdown(runs: &[Run], seed: u64) -> String {
    let [min, median, max] = spread(runs);
    let equal = runs.iter().filter(|r| r.arena_planned == r.arena_used).count();
    let faults = runs.iter().filter(|r| !r.faults().is_empty()).count();
    let gap = runs.iter().map(|r| r.rss_planned.saturating_sub(r.rss_peak)).max().unwrap_or(0);
    let mut text = format!(
        "# Plan against truth\n\n\
         `cargo xtask truth --runs {} --seed {seed}`: runs drawn at random (model shape, method, storage, recompute, lengths, \
         batches, threads), each planned and then made. Measured is the process's highest resident memory (VmHWM).\n\n\
         | | |\n|---|---|\n\
         | runs | {} |\n\
         | arena used equals its plan, to the byte | {equal} of {} |\n\
         | planned / measured peak of the process: minimum, median, maximum | {min:.3}, {median:.3}, {max:.3} |\n\
         | farthest below the plan | {:.1} MiB |\n\
         | runs above their plan, or below it by more than 5 % and 16 MiB | {faults} |\n\n\
         | run | planned, MiB | measured, MiB | ratio |\n|---|---|---|---|\n",
        runs.len(),
        runs.len(),
        runs.len(),
        mib(gap)
    );
    for run in runs {
        let (planned, measured, ratio) = (mib(run.rss_planned), mib(run.rss_peak), run.ratio());
        let _ = writeln!(text, "| {} | {planned:.1} | {measured:.1} | {ratio:.3} |", run.what);
    }
    text
}

/// Returns minimum, median and maximum of planned over measured.
fn spread(runs: &[Run]) -> [f64; 3] {
    let mut ratios: Vec<f64> = runs.iter().map(Run::ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |index: usize| ratios.get(index).copied().unwrap_or(f64::NAN);
    [at(0), at(ratios.len() / 2), at(ratios.len().saturating_sub(1))]
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 20) as f64
}
