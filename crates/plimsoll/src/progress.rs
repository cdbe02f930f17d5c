//! Shows the progress of a run: one live line on a terminal, a few lines in a pipe, and a summary at the end.

use crate::rank_rows::{self, STEP_WAITED_MIN_S, slowest_of};
use crate::terminal::{self, LiveLine};
use crate::{output, sparkline::sparkline};
use plimsoll_base::{Bytes, shown_places};
use plimsoll_run::events::{EvalResult, Event, Observer, Started, StepResult};
use plimsoll_run::scores::pass_words;
use plimsoll_run::scores::{EvalReport, PairScore};
use std::collections::BTreeMap;
use std::path::Path;

const CURVE_WIDTH: usize = 60;
const CURVE_POINTS_MAX: usize = 1024;
/// Lines that a long run prints to a pipe, between the first and the last.
const PIPE_LINES: u32 = 10;

pub struct Progress {
    live: Option<LiveLine>,
    quiet: bool,
    resumed: bool,
    rewards: Vec<f64>,
    losses: Vec<f64>,
    /// (step, score) by set.
    evals: BTreeMap<String, Vec<(u32, f64)>>,
    /// Tokens a second of all steps up to the last one, sampled and trained.
    rates: [Option<f64>; 2],
    last_step: u32,
    dir: String,
    /// Rows of the finished run's ranks, one each.
    ranks: String,
}

impl Progress {
    pub fn new(quiet: bool) -> Progress {
        Progress {
            live: terminal::live_line(quiet),
            quiet,
            resumed: false,
            rewards: Vec::new(),
            losses: Vec::new(),
            evals: BTreeMap::new(),
            rates: [None; 2],
            last_step: 0,
            dir: String::new(),
            ranks: String::new(),
        }
    }

    /// Formats values before and after, with curves; empty if nothing was measured.
    pub fn closing(&self) -> String {
        let mut text = String::new();
        let curve = |values: &[f64]| sparkline(values, CURVE_WIDTH);
        for (name, evals) in &self.evals {
            let (Some((_, before)), Some((_, after))) = (evals.first(), evals.last()) else { continue };
            let scores: Vec<f64> = evals.iter().map(|(_, score)| *score).collect();
            let name = if self.evals.len() > 1 { format!("  {name}") } else { String::new() };
            let (before, after) = (shown_places(*before, 3), shown_places(*after, 3));
            text += &format!("held-out  {before} before, {after} after   {}{name}\n", curve(&scores));
        }
        for (name, values) in [("reward", &self.rewards), ("loss", &self.losses)] {
            let (Some(first), Some(last)) = (values.first(), values.last()) else { continue };
            let (first, last) = (shown_places(*first, 3), shown_places(*last, 3));
            text += &format!("{name:<9} {first} first,  {last} last    {}\n", curve(values));
        }
        text += &self.speed();
        text += &self.ranks;
        if !self.dir.is_empty() {
            text += &format!("written   {}\n", self.dir);
        }
        text
    }

    /// Formats the rates of the last step's line with the steps that they are means of.
    fn speed(&self) -> String {
        let rates = self.rates.iter().zip(["sampled", "trained"]);
        let rates: Vec<String> =
            rates.filter_map(|(rate, what)| Some(format!("{} {what}", shown_places((*rate)?, 0)))).collect();
        match (rates.is_empty(), self.last_step) {
            (true, _) => String::new(),
            (false, 1) => format!("speed     {} tok/s in step 1\n", rates.join(", ")),
            (false, last) => format!("speed     {} tok/s, means of steps 1 to {last}\n", rates.join(", ")),
        }
    }

    pub fn dir(&self) -> Option<&Path> {
        (!self.dir.is_empty()).then(|| Path::new(&self.dir))
    }

    fn say(&self, line: &str) {
        match &self.live {
            Some(live) => live.say(line),
            None => output::note(self.quiet, line),
        }
    }

    fn started(&mut self, started: &Started) {
        self.dir = started.dir.display().to_string();
        let (planned, limit) = (Bytes(started.planned_bytes), Bytes(started.limit_bytes));
        let mut parts: Vec<(&String, &u64)> = started.planned_parts.iter().collect();
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
        let parts: Vec<String> =
            parts.into_iter().map(|(name, bytes)| format!("{name} {}", Bytes(*bytes))).collect();
        let parts = parts.join(", ");
        self.say(&format!("{}; {planned} planned of {limit} ({parts}); writes {}", started.what, self.dir));
        if let Some(bar) = &self.live {
            bar.set_length(u64::from(started.steps));
        }
    }

    fn eval(&mut self, eval: &EvalResult) {
        if let Some(score) = eval.score {
            let evals = self.evals.entry(eval.set.clone()).or_default();
            evals.push((eval.step, score));
            bound(evals);
        }
        self.say(&eval_line(eval));
    }

    fn step(&mut self, step: &StepResult) {
        self.rewards.extend(step.reward);
        self.losses.extend(step.loss);
        bound(&mut self.rewards);
        bound(&mut self.losses);
        self.rates = [step.tokens_per_second_rollout, step.tokens_per_second_update];
        self.last_step = step.step;
        match &self.live {
            Some(bar) => {
                bar.set_position(u64::from(step.step));
                bar.show(&live_line(step));
            }
            None if is_shown(step.step, step.steps) => self.say(&step_line(step)),
            None => {}
        }
    }
}

impl Observer for Progress {
    fn on_event(&mut self, event: &Event) {
        match event {
            Event::Started(started) => self.started(started),
            Event::Note { text } | Event::Rows { text } => self.say(text),
            // Its notes were printed on arrival.
            Event::Resumed { .. } => self.resumed = true,
            Event::Eval(eval) => self.eval(eval),
            Event::Step(step) => self.step(step),
            Event::Memory(_) | Event::Trend(_) => {}
            Event::Warning(warning) => {
                self.say(&format!("warning[{}]: {}", warning.slug, warning.message));
                warning.facts.iter().for_each(|fact| self.say(&format!("  {fact}")));
            }
            Event::Saved { step, path } => {
                if self.live.is_none() {
                    self.say(&format!("saved step {step} to {}", path.display()));
                }
            }
            Event::Finished { summary } => {
                self.ranks = rank_rows::of_summary(summary);
                // A resumed run began in another process.
                for (name, evals) in &mut self.evals {
                    if let (Some(before), true) =
                        (summary["sets"][name]["before"].as_f64(), evals.first().is_some_and(|e| e.0 > 0))
                    {
                        evals.insert(0, (0, before));
                    }
                }
                if let (Some(first), true) = (summary["reward_first"].as_f64(), self.resumed) {
                    self.rewards.insert(0, first);
                }
                if let Some(bar) = &self.live {
                    bar.finish();
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.live {
            bar.finish();
        }
    }
}

/// Drops every second value of a curve too long to show, except the first and the last.
fn bound<T: Copy>(curve: &mut Vec<T>) {
    if curve.len() > CURVE_POINTS_MAX {
        let last = curve.len() - 1;
        let mut index = 0;
        curve.retain(|_| {
            index += 1;
            (index - 1) % 2 == 0 || index - 1 == last
        });
    }
}

/// Returns true for the first step, the last, and about ten between them.
fn is_shown(step: u32, steps: u32) -> bool {
    let part = |step: u32| u64::from(step) * u64::from(PIPE_LINES) / u64::from(steps.max(1));
    step <= 1 || step >= steps || part(step) > part(step - 1)
}

/// Formats an evaluation, without pass@1 if there is one sample per prompt: it equals the score.
fn eval_line(eval: &EvalResult) -> String {
    let EvalResult { step, set, score, pass_at_k, pairs, num_samples, num_empty, num_cut, seconds } = eval;
    let faults = EvalReport::fault_words(*num_empty, *num_cut);
    let of_pairs = pairs.as_ref().map(|pairs| {
        let PairScore { accuracy, margin, loss, num_pairs } = pairs;
        format!("accuracy {accuracy:.3}, margin {margin:.3}, loss {loss:.4} on {num_pairs} pairs of {set}")
    });
    if let (Some(words), 0) = (&of_pairs, *num_samples) {
        return format!("eval at step {step}: {words}");
    }
    let of_pairs = of_pairs.map_or(String::new(), |words| format!("; {words}"));
    let pass = match pass_at_k.len() {
        0 | 1 => String::new(),
        _ => format!(", {}", pass_words(pass_at_k, 3)),
    };
    let score = score.map_or("no score".into(), |score| shown_places(score, 3));
    format!("eval at step {step}: {score} on {num_samples} of {set}{pass}{faults}, {seconds:.1} s{of_pairs}")
}

fn step_line(step: &StepResult) -> String {
    let mut parts = vec![format!("step {}/{}", step.step, step.steps)];
    let names = ["reward", "loss", "accuracy", "frames/s", "rollout tok/s", "update tok/s"];
    parts.extend(numbers(step, names, ""));
    if step.planned_bytes > 0 {
        parts.push(format!("memory {} of {}", Bytes(step.held_bytes), Bytes(step.planned_bytes)));
    }
    if let Some((rank, share)) = slowest_of(&step.ranks_waited, step.seconds, STEP_WAITED_MIN_S) {
        parts.push(format!("slowest rank {rank}, others waited {:.0} %", share * 100.0));
    }
    parts.push(format!("{} left", duration(step.seconds_left)));
    parts.join("  ")
}

/// Formats a step's existing numbers; the last three are rates, in `per`.
fn numbers(step: &StepResult, names: [&str; 6], per: &str) -> Vec<String> {
    let values = [
        (step.reward, 3, ""),
        (step.loss.filter(|_| step.reward.is_none()), 4, ""),
        (step.accuracy, 3, ""),
        (step.frames_per_second, 0, per),
        (step.tokens_per_second_rollout, 0, per),
        (step.tokens_per_second_update, 0, per),
    ];
    let one = |(name, (value, digits, unit)): (&str, (Option<f64>, usize, &str))| {
        Some(format!("{name} {}{unit}", shown_places(value?, digits)))
    };
    names.into_iter().zip(values).filter_map(one).collect()
}

/// Formats a step in about 80 columns; a narrower terminal cuts it.
fn live_line(step: &StepResult) -> String {
    let mut parts = vec![format!("{}/{}", step.step, step.steps)];
    parts.extend(numbers(step, ["reward", "loss", "acc", "frames", "rollout", "update"], "/s"));
    if step.planned_bytes > 0 {
        parts.push(format!("{}/{} MiB", step.held_bytes / Bytes::MIB, step.planned_bytes / Bytes::MIB));
    }
    if let Some((rank, share)) = slowest_of(&step.ranks_waited, step.seconds, STEP_WAITED_MIN_S) {
        parts.push(format!("slowest rank {rank} +{:.0} %", share * 100.0));
    }
    parts.push(format!("{} left", duration(step.seconds_left)));
    parts.join(" ")
}

/// Formats a duration: `42 s`, `3 min 20 s`, `2 h 05 min`.
fn duration(seconds: f64) -> String {
    let seconds = if seconds.is_finite() { seconds.max(0.0).round() as u64 } else { 0 };
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_gets_the_first_step_the_last_and_ten_between() {
        for (steps, expect) in [(1, 1), (3, 3), (10, 10), (60, 11), (1000, 11), (0, 0)] {
            let shown = (1..=steps).filter(|&step| is_shown(step, steps)).count();
            assert_eq!(shown, expect, "{steps} steps");
        }
    }

    #[test]
    fn a_long_curve_keeps_its_ends() {
        let mut curve = Vec::new();
        for step in 0..100_000 {
            curve.push(step);
            bound(&mut curve);
            assert!(curve.len() <= CURVE_POINTS_MAX && curve[0] == 0 && curve[curve.len() - 1] == step);
        }
    }

    #[test]
    fn a_step_is_one_line() {
        let step = StepResult {
            step: 7,
            steps: 60,
            reward: Some(0.5),
            accuracy: Some(0.25),
            tokens_per_second_rollout: Some(9000.4),
            held_bytes: 40 << 20,
            planned_bytes: 48 << 20,
            seconds_left: 83.0,
            ..StepResult::default()
        };
        let expect = "step 7/60  reward 0.500  accuracy 0.250  rollout tok/s 9000  memory 40.0 MiB of 48.0 MiB  1 min 23 s left";
        assert_eq!(step_line(&step), expect);
        // Ranks 0 and 2 waited for rank 1.
        let step = StepResult { ranks_waited: vec![0.5, 0.1, 0.3], seconds: 2.0, ..step };
        assert!(
            step_line(&step).ends_with("of 48.0 MiB  slowest rank 1, others waited 20 %  1 min 23 s left")
        );
        assert!(live_line(&step).ends_with(" slowest rank 1 +20 % 1 min 23 s left"), "{}", live_line(&step));
    }

    #[test]
    fn an_evaluation_of_several_samples_says_pass_at_k() {
        let mut eval = EvalResult {
            step: 3,
            set: "t".into(),
            score: Some(0.25),
            num_samples: 8,
            ..EvalResult::default()
        };
        eval.pass_at_k.insert(1, 0.25);
        assert_eq!(eval_line(&eval), "eval at step 3: 0.250 on 8 of t, 0.0 s");
        eval.pass_at_k.insert(2, 0.4);
        eval.pass_at_k.insert(16, 1.0);
        let expect = "eval at step 3: 0.250 on 8 of t, pass@1 0.250, pass@2 0.400, pass@16 1.000, 0.0 s";
        assert_eq!(eval_line(&eval), expect);
    }

    #[test]
    fn the_live_line_is_short() {
        let step = StepResult {
            step: 100,
            steps: 200,
            reward: Some(0.5),
            accuracy: Some(0.25),
            tokens_per_second_rollout: Some(12345.0),
            tokens_per_second_update: Some(12345.0),
            held_bytes: 1095 << 20,
            planned_bytes: 1100 << 20,
            seconds_left: 83.0,
            ..StepResult::default()
        };
        let line = live_line(&step);
        assert_eq!(
            line,
            "100/200 reward 0.500 acc 0.250 rollout 12345/s update 12345/s 1095/1100 MiB 1 min 23 s left"
        );
    }

    #[test]
    fn the_closing_words_say_before_and_after() {
        let mut progress = Progress::new(true);
        for (step, score) in [(0, 0.4), (60, 0.95)] {
            progress.on_event(&Event::Eval(EvalResult { step, score: Some(score), ..EvalResult::default() }));
        }
        for (step, reward) in [(1, 0.3), (2, 0.9)] {
            progress.on_event(&Event::Step(StepResult {
                step,
                reward: Some(reward),
                steps: 2,
                tokens_per_second_rollout: Some(900.4),
                ..StepResult::default()
            }));
        }
        let expect = "held-out  0.400 before, 0.950 after   ▁█\nreward    0.300 first,  0.900 last    ▁█\n\
                      speed     900 sampled tok/s, means of steps 1 to 2\n";
        assert_eq!(progress.closing(), expect);
    }
}
