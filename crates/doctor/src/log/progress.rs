//! Tells whether a run went on: steps after a suspicious line, a successful end, and steps with a NaN.
//!
//! Reads only the first steps after something suspicious, because most lines of a log are steps.

use super::bars::{BAR, NO_TRAINING};
use super::counters::{Ended, OpenCounters, Sort, bar_sort};
use super::roster::Roster;
use super::text::{regex, shown};
use regex::Regex;
use std::sync::LazyLock;

/// Steps after a line that prove that the run survived it.
pub const SURVIVED: u64 = 2;
/// Steps after a fatal-looking line that prove that it was harmless.
pub const OUTLIVED: u64 = 10;
/// Lines to read while a value is not a number.
const NAN_LOOKS: u64 = 512;
/// Consecutive NaN norms that are no skipped step of a loss scaler.
const NAN_NORMS: u64 = 2;
/// Lines that may follow the end of a successful run.
const LINES_AFTER_FINISH: u64 = 200;
/// Times that words of an end may be followed by steps: then they are printed for each epoch.
const UNSAID_MAX: u64 = 2;

/// A line that is a step by itself: TRL's dictionary, verl's `step:12 - `, torchtune's `1|25|Loss: 0.8`, headings of
/// rsl_rl and NeMo-RL, a row of Stable-Baselines3's table, Keras's bar.
static ALONE: LazyLock<Regex> = LazyLock::new(|| {
    regex(concat!(
        r#"(?i)^\{['"][^\n]{0,600}['"](?:\w*_)?loss['"]: |^\{['"](?:train_)?(?:actor_|policy_|critic_)?loss['"]: |\bstep: ?\d+ - "#,
        r"|^\d+\|\d+\|loss: |\blearning iteration \d+ ?/|^=+ step \d+/\d+ =+$|^\| +(?:time/)?(?:total_timesteps|total timesteps|total_env_steps|iterations) +\| +\d|^\| \S+ +\| RUNNING +\| \S[^\n]*\| +\d",
        r"|^train epoch \d+\s*$|^ *\d+/\d+ (?:\[[=>.]*\]|━+)[^\n]{0,80}loss: |^training_iteration: \d|^\(?[\w.]* ?training_iteration ?[=:] ?\d",
    ))
});
/// The number of a step, under any name.
static COUNTER: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"(?i)\b(?:global[ _]?|env[ _]?|train(?:ing)?[ _]?|total[ _]?)?(?:step|iter(?:ation)?|episode|epoch|update|batch|timestep|round|ep|itr?)s?\b(?:\(train\))?['"]?[ =:#\[|(]{0,4} *\d|\[ *\d+/ *\d+"#,
    )
});
/// A metric of steps.
static METRIC: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"(?i)(?:loss|(?:\b|_)(?:reward\w*|lr|learning[ _]rate|kl|score|return\w*|fps|ppl|perplexity|acc(?:uracy)?|tok(?:en)?s/s(?:ec)?)|grad[_ ]?norm)\b[\w/ ]{0,16}['"]?\)?[ =:|(\[]{1,5}(?:np\.float\d+\(|tensor\()?(?:-?\.?\d|nan\b|-?inf\b)"#,
    )
});
/// The bar of rich, in Stable-Baselines3: `100% ━━━━ 100,000/100,000  [ 0:01:40 < 0:00:00 , 1,002 it/s ]`
static RICH: LazyLock<Regex> =
    LazyLock::new(|| regex(r"\b100(?:\.0)?% ?━[━ ]* ?([\d,]+)/([\d,]+) |━+ ([\d,]+)/([\d,]+) \S*\d:\d\d"));
/// Words of an end that programs also print for an epoch, or for one of several stages.
static OF_STAGES: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)train_runtime|\btraining\b.{0,60}\b(?:complete[ds]?|finished|done|ended|took)\b|\b(?:finished|done|end of) (?:the )?training\b|\bfinal\b|\brun complete\b|\bexperiment\b",
    )
});
/// The number of an epoch or a stage, next to words of an end.
static PART: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)(?P<at>\b(?:at|after|in) )?\b(?:epoch|stage|phase|round|fold|episode)\b[ :#\[(]{0,3}(?P<done>\d{1,9})(?: ?(?:/|of) ?(?P<all>\d{1,9}))?",
    )
});
/// Metrics that are not of a step.
static NO_STEP: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"train_runtime|eval_|Error|Exception|examples/s|^(?:Traceback|\s*File )|^\W*(?i:best)\b")
});
static VALUES: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"(?i)(?:^|[\s,{|(\[/'"-])([a-z][a-z0-9_/. -]{0,48}?)['"]?\s*[:=|]\s*(?:np\.float\d+\(|tensor\()?['"]?(nan|[+-]?(?:\d|\.\d|inf))\b"#,
    )
});
/// Values after a name and a space: `step 12 loss nan`.
static SPACED_VALUES: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)(?:^|[\s,|(\[])([a-z][a-z0-9_/.-]{0,48}) +(nan|[+-]?(?:\d|\.\d|inf))\b"));
/// Values that are numbers in a healthy step: not the deviation of a group of one, nor the mean over no episode.
static NUMBERS: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)loss|norm|logp|logits|chosen|rejected|margin|entropy|advantage|\bkl|_kl|ratio|q_?values?|q1|q2|td_error|grad\b|critic|actor|policy|surrogate",
    )
});
static NO_NUMBERS: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)std|var\b|variance|episode|ep_|eval|val_|valid|test|ppl|perplex|mean_reward|reward_mean|success|acc|clip_?ratio|compression|ratio_min|ratio_max|explained",
    )
});
static NOT_A_NUMBER: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)\b(?:nan|inf)\b"));
static LONE_GROUP: LazyLock<Regex> = LazyLock::new(|| {
    regex(r#"(?i)\b(?:rewards?|advantages?|scores?)[_/]std['"]?\s*[:=]\s*(?:np\.float\d+\(|tensor\()?nan\b"#)
});

/// Returns true for a line of metrics of a step.
pub fn is_step(message: &str) -> bool {
    (ALONE.is_match(message) || COUNTER.is_match(message) && METRIC.is_match(message))
        && !NO_STEP.is_match(message)
}

#[derive(Debug, Default)]
pub struct Progress {
    pub steps: u64,
    /// Steps to count before reading stops.
    until: u64,
    bar: Option<f64>,
    /// Counters around an end.
    pub counters: OpenCounters,
    /// The pods or jobs that a list shows.
    roster: Roster,
    finish: Option<Ended>,
    /// An end that failed runs have too.
    goodbye: Option<Ended>,
    /// Times that words of an end were followed by steps.
    unsaid: u64,
    nan: Option<NanRun>,
    /// Line on which a group's rewards had no deviation.
    lone_group: Option<u64>,
    last_line: u64,
}

/// Consecutive steps with a value that was not a number.
#[derive(Debug)]
struct NanRun {
    name: String,
    is_norm: bool,
    line: u64,
    text: String,
    times: u64,
    looks: u64,
}

impl Progress {
    /// Returns true if a line that may be a step should be read.
    pub fn wants_more(&self) -> bool {
        self.steps < self.until.max(SURVIVED)
            || self.finish.is_some()
            || self.goodbye.is_some()
            || self.nan.as_ref().is_some_and(|nan| nan.looks < NAN_LOOKS)
    }

    /// Returns true while any line may bring a number again.
    pub fn has_nan(&self) -> bool {
        self.nan.is_some()
    }

    /// Watches the next `steps` steps after something suspicious, to see whether the run survived it.
    pub fn watch(&mut self, steps: u64) {
        self.until = self.until.max(self.steps + steps);
    }

    /// Reads a line that may be a step; `is_step` is true for a line of metrics. Returns true if it is a new step.
    pub fn step(&mut self, text: &str, is_step: bool, line: u64) -> bool {
        let is_new = match text.contains("%|").then(|| BAR.captures(text)).flatten() {
            Some(found) => match counts(&found) {
                Some((done, total)) if !NO_TRAINING.is_match(text) => self.bar(text, done, total, line),
                _ => false,
            },
            None => is_step && line > self.last_line,
        };
        if is_new {
            (self.steps, self.last_line) = (self.steps + 1, line);
            self.begins();
        }
        if self.nan.is_some() || is_new && NOT_A_NUMBER.is_match(text) {
            self.numbers(text, line);
        }
        is_new
    }

    /// Counts a bar. It is drawn again after an exception, with the same number.
    fn bar(&mut self, text: &str, done: f64, total: f64, line: u64) -> bool {
        if done >= total {
            // Bars of a few parts load weights.
            if total > 3.0
                && self.steps >= SURVIVED
                && let Some(sort) = bar_sort(text)
                && !self.is_of_earlier_epoch(text)
            {
                self.full(line, sort);
            }
            return false;
        }
        let before = self.bar.replace(done);
        before.is_some_and(|before| done > before)
    }

    /// Reads a bar that may be at its end.
    pub fn full_bar(&mut self, text: &str, line: u64) {
        if NO_TRAINING.is_match(text) {
            return;
        }
        if let Some((done, total)) = BAR.captures(text).and_then(|found| counts(&found)) {
            self.bar(text, done, total, line);
        } else if let Some(found) = RICH.captures(text) {
            let number = |group: usize| found.get(group)?.as_str().replace(',', "").parse::<u64>().ok();
            let pair = number(1).zip(number(2)).or_else(|| number(3).zip(number(4)));
            // It prints no line per step, and is complete.
            if pair.is_some_and(|(done, total)| done >= total && total > 3) {
                self.full(line, Sort::Bar { is_whole: false });
            }
        }
    }

    /// Sets an end, unless words of one came before: a bar after them says less.
    fn full(&mut self, line: u64, sort: Sort) {
        let is_told = self.finish.is_some_and(|end| matches!(end.sort, Sort::Firm | Sort::Words { .. }));
        if !is_told {
            self.finish = Some(self.counters.end(line, sort));
        }
    }

    /// Returns true for torchtune's bar of an epoch, `1|25|Loss: …`, if the configuration names more epochs.
    fn is_of_earlier_epoch(&self, text: &str) -> bool {
        let epoch = text.split_once('|').and_then(|(epoch, _)| epoch.parse().ok());
        epoch.is_some_and(|epoch| self.counters.has_more_epochs(epoch))
    }

    /// Reads words of a successful end.
    pub fn finished(&mut self, text: &str, line: u64) {
        if !OF_STAGES.is_match(text) {
            self.finish = Some(self.counters.end(line, Sort::Firm));
            return;
        }
        let is_part = PART.captures(text).is_some_and(|part| {
            let number = |name: &str| part.name(name).and_then(|text| text.as_str().parse::<u64>().ok());
            part.name("at").is_none() && number("all").is_none_or(|all| number("done") < Some(all))
        });
        let is_firm = self.finish.is_some_and(|end| end.sort == Sort::Firm);
        if is_part {
            self.finish = None;
        } else if !is_firm {
            let is_repeated = self.unsaid >= UNSAID_MAX;
            self.finish = Some(self.counters.end(line, Sort::Words { is_repeated }));
        }
    }

    /// Reads a row about a pod or a job: an end, if it ends the last one of them.
    pub fn member(&mut self, text: &str, line: u64) {
        let Some(has_ended) = self.roster.see(text) else { return };
        let is_of_list = self.finish.is_some_and(|end| end.sort == Sort::Members);
        if has_ended && self.roster.have_all_ended() {
            let is_firm = self.finish.is_some_and(|end| end.sort == Sort::Firm);
            self.finish = if is_firm { self.finish } else { Some(self.counters.end(line, Sort::Members)) };
        } else if is_of_list {
            self.finish = None;
        }
    }

    pub fn goodbye(&mut self, line: u64) {
        self.goodbye = Some(self.counters.end(line, Sort::Goodbye));
    }

    /// Unsays an end, because the run, or another one, goes on.
    pub fn begins(&mut self) {
        self.unsaid += u64::from(self.finish.is_some_and(|end| matches!(end.sort, Sort::Words { .. })));
        (self.finish, self.goodbye) = (None, None);
    }

    /// Returns the line of a successful end, if the file of `lines` lines ends with it and no counter is open.
    pub fn finish(&self, lines: u64) -> Option<u64> {
        self.ending(self.finish, lines)
    }

    /// Returns a farewell that failed runs print too, if the file of `lines` lines ends with it and no step follows.
    pub fn said_goodbye(&self, lines: u64) -> Option<u64> {
        self.ending(self.goodbye, lines)
    }

    fn ending(&self, end: Option<Ended>, lines: u64) -> Option<u64> {
        let end = end.filter(|end| lines.saturating_sub(end.line) <= LINES_AFTER_FINISH)?;
        self.counters.allow(end).then_some(end.line)
    }

    /// Reads the numbers of a step, or of a line with a NaN.
    pub fn numbers(&mut self, text: &str, line: u64) {
        // A NaN that lasts `NAN_LOOKS` lines stays.
        if self.nan.as_ref().is_some_and(|run| run.looks >= NAN_LOOKS) {
            return;
        }
        if self.lone_group.is_none() && LONE_GROUP.is_match(text) {
            self.lone_group = Some(line);
        }
        let mut first: Option<(String, bool)> = None;
        let mut is_finite_again = false;
        for found in VALUES.captures_iter(text).chain(SPACED_VALUES.captures_iter(text)) {
            let name = found[1].trim().to_ascii_lowercase();
            if !NUMBERS.is_match(&name) || NO_NUMBERS.is_match(&name) {
                continue;
            }
            let value = found[2].to_ascii_lowercase();
            if value.ends_with("nan") || value.ends_with("inf") {
                // A masked logit or log-probability is minus infinity, which is fine.
                let is_masked = value.starts_with('-') && !name.contains("loss");
                let is_norm = name.ends_with("norm");
                if !is_masked && first.as_ref().is_none_or(|(_, norm)| *norm && !is_norm) {
                    first = Some((name, is_norm));
                }
            } else if self.nan.as_ref().is_some_and(|run| run.name == name) {
                is_finite_again = true;
            }
        }
        match (first, &mut self.nan) {
            (Some((name, is_norm)), run) => {
                let begin = || NanRun { name, is_norm, line, text: shown(text), times: 0, looks: 0 };
                let run = run.get_or_insert_with(begin);
                run.times += u64::from(run.times == 0 || line > run.line);
                run.looks += 1;
            }
            (None, Some(run)) => {
                run.looks += 1;
                if is_finite_again {
                    self.nan = None;
                }
            }
            (None, None) => {}
        }
    }

    /// Returns (line, text, reason) if a value of the last steps was not a number.
    pub fn nan_at_end(&self) -> Option<(u64, String, String)> {
        let run = self.nan.as_ref().filter(|run| !run.is_norm || run.times >= NAN_NORMS)?;
        let (name, line) = (&run.name, run.line);
        let what = if run.is_norm { "the norm of the gradient" } else { name.as_str() };
        let reason = format!("{what} is not a finite number from line {line} on, and no later step has one");
        Some((run.line, run.text.clone(), reason))
    }

    /// Returns the line on which a group's rewards had no deviation because it has one sample.
    pub fn lone_group(&self) -> Option<u64> {
        self.lone_group
    }
}

/// Returns (done, total) of a bar.
fn counts(found: &regex::Captures) -> Option<(f64, f64)> {
    let number = |group: usize| found[group].replace(',', "").parse::<f64>().ok();
    number(1).zip(number(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(lines: &[&str]) -> u64 {
        let mut progress = Progress::default();
        for (index, line) in lines.iter().enumerate() {
            progress.step(line, is_step(line), index as u64 + 1);
        }
        progress.steps
    }

    #[test]
    fn steps_of_the_trainers_in_use() {
        for line in [
            "{'loss': 0.01, 'grad_norm': 0.38, 'learning_rate': 9.5e-06, 'reward': 1.6, 'epoch': 0.05}",
            "{'rewards/chosen': 0.1, 'loss': 0.01, 'epoch': 0.05}",
            "step:12 - global_seqlen/min:70 - actor/pg_loss:0.1",
            " iteration     5426/  250000 | consumed samples: 43408 | learning rate: 2.999E-04 | grad norm: 1.2 |",
            "Episode [2/20]: global step 41, policy loss 0.3, reward 1.2",
            "step 12 loss 0.5",
            "Epoch(train) [1][ 100/9000]  lr: 1.0000e-03  eta: 1:02:03  time: 0.4  loss: 81.2",
            "Epoch [3][50/1000]\tlr: 1.000e-02, eta: 3:02:11, loss: 0.5124",
            "Epoch 7: loss = 0.000, acc = 0.91",
            "[   40/100] | loss = 0.000",
            "| epoch 001:     12 / 300 loss=8.123, nll_loss=7.9, ppl=240.1, wps=3000",
            "|    total_timesteps      | 2048     |",
            "                       Learning iteration 12/1500                        ",
            "fps step: 56789 fps step and policy inference: 45678 fps total: 30000 epoch: 12/1000 frames: 131072",
            "[INFO] 3DBall. Step: 12000. Time Elapsed: 33.1 s. Mean Reward: 1.2. Std of Reward: 0.7. Training.",
            "global_step=3012, episodic_return=[21.]",
            "completed step: 12, seconds: 3.2, TFLOP/s/device: 120.1, loss: 10.2",
            "1|25|Loss: 0.8214",
            "INFO 2026-03-01 10:11:12 ts/train.py:230 step:200 smpl:2K ep:3 epch:0.10 loss:0.312 grdn:1.2 lr:1.0e-05",
            "========================= Step 2/100 =========================",
            " 12/100 [==>...........................] - ETA: 3s - loss: 0.3012 - accuracy: 0.91",
            "Train: 12 [ 100/1251 (  8%)]  Loss: 6.91 (6.92)  Time: 0.3s",
        ] {
            assert!(is_step(line.trim_start()), "{line}");
        }
        let not = [
            "Processed prompts:  10%|#    | 51/512 [00:01<00:09, 3.95it/s]",
            "{'train_runtime': 812.3, 'train_loss': 0.31}",
            "Loading checkpoint shards:  50%|#####     | 1/2 [00:03<00:03,  3.00s/it]",
            "ValueError: the loss is nan at step 12",
            "INFO the loss is in units of a step",
            "Saving the model at step 100",
            "torch.OutOfMemoryError: CUDA out of memory at step 12, loss 0.1",
        ];
        for line in not {
            assert_eq!(steps(&[line]), 0, "{line}");
        }
    }

    #[test]
    fn a_bar_counts_when_it_advances() {
        let bar = |done: u64| format!(" 12%|#2        | {done}/50 [05:10<38:02, 51.9s/it]");
        let lines = [bar(6), bar(6), bar(7), bar(7), bar(8)];
        assert_eq!(steps(&lines.each_ref().map(String::as_str)), 2);
    }

    #[test]
    fn a_full_bar_ends_a_run() {
        let ends = |line: &str| {
            let mut progress = Progress { steps: SURVIVED, ..Progress::default() };
            progress.full_bar(line, 1);
            progress.finish(2).is_some()
        };
        for line in [
            "100%|##########| 500/500 [05:10<00:00,  1.9it/s]",
            "Training Progress: 100%|##########| 435/435 [4:10:01<00:00, 34.5s/it]",
            " 100% ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 100,000/100,000  [ 0:01:40 < 0:00:00 , 1,002 it/s ]",
            "1|25|Loss: 0.8214: 100%|##########| 25/25 [01:10<00:00,  1.9s/it]",
        ] {
            assert!(ends(line), "{line}");
        }
        for line in [
            "Loading checkpoint shards: 100%|##########| 8/8 [00:03<00:00,  3.00s/it]",
            "Generating train split: 100%|##########| 7473/7473 [00:00<00:00, 12345.6 examples/s]",
            " 90%|#########1| 450/500 [05:10<00:30,  1.9it/s]",
        ] {
            assert!(!ends(line), "{line}");
        }
    }

    #[test]
    fn the_end_of_a_run_is_unsaid_by_a_further_step() {
        let mut progress = Progress::default();
        progress.finished("Training done", 10);
        assert_eq!((progress.finish(12), progress.finish(1000)), (Some(10), None));
        progress.step("{'loss': 0.2, 'epoch': 0.1}", true, 11);
        assert_eq!(progress.finish(12), None);
    }

    #[test]
    fn numbers_that_stay_away() {
        let nan_at_end = |lines: &[&str]| {
            let mut progress = Progress::default();
            lines.iter().enumerate().for_each(|(at, line)| progress.numbers(line, at as u64 + 1));
            progress.nan_at_end().map(|(line, ..)| line)
        };
        assert_eq!(nan_at_end(&["loss_net: 0.31 norm: 2.0", "loss_net: nan norm: nan"]), Some(2));
        assert_eq!(nan_at_end(&["{'loss': nan, 'reward': 5.7}", "{'loss': 0.2, 'reward': 1.2}"]), None);
        assert_eq!(nan_at_end(&["{'loss': 0.0, 'grad_norm': nan}", "{'loss': 0.0, 'grad_norm': 0.3}"]), None);
        assert_eq!(nan_at_end(&["grad norm: nan | x", "grad norm: nan | x"]), Some(1));
        assert_eq!(nan_at_end(&["{'reward_std': nan, 'loss': 0.2}"]), None);
        assert_eq!(
            nan_at_end(&["{'loss': 0.0, 'rewards/chosen': nan, 'logps/chosen': nan, 'epoch': 0.1}"]),
            Some(1)
        );
        assert_eq!(nan_at_end(&["Value function loss: inf", "Surrogate loss: -0.0112"]), Some(1));
        assert_eq!(nan_at_end(&["Value function loss: inf", "Value function loss: 0.51"]), None);
        assert_eq!(nan_at_end(&["|    value_loss           | nan       |"]), Some(1));
        assert_eq!(nan_at_end(&["episode_reward_mean: nan, ep_len_mean: nan"]), None);
        assert_eq!(nan_at_end(&["'actor/pg_loss': nan"]), Some(1));
        assert_eq!(nan_at_end(&["step 11 loss nan", "step 12 loss nan"]), Some(1));
        assert_eq!(nan_at_end(&["step 11 loss nan", "step 12 loss 0.41"]), None);
    }
}
