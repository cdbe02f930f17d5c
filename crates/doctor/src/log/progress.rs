//! Whether a run went on: steps after a line that looked like a failure, the end of a run that went well, and steps whose
//! loss is not a number.
//!
//! Only the first steps after something suspicious are looked at, because most lines of a log are steps.

use super::text::{regex, shown};
use regex::Regex;
use std::sync::LazyLock;

/// Steps after a line that show that the run survived it.
pub const SURVIVED: u64 = 2;
/// Steps after a line that ends runs that show that it was no such line.
pub const OUTLIVED: u64 = 10;
/// Steps looked at while the loss is not a number.
const NAN_LOOKS: u64 = 512;
/// Norms in a row that are not a number, after which it is no skipped step of a loss scaler.
const NAN_NORMS: u64 = 2;
/// Lines that may follow the end of a run that went well.
const LINES_AFTER_FINISH: u64 = 200;

/// A line of metrics: TRL's dictionary, verl's `step:12 - `, Megatron's `iteration 12/ 500 |`.
static METRICS: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"(?i)\{['"](?:train_)?(?:actor_|policy_|critic_)?loss['"]: |\bstep: ?\d+ - |\b(?:global[ _]?)?(?:step|iter(?:ation)?|episode|update)s?\b['"]?[ =:#\[|]{0,3} *\d+\b.{0,400}\b(?:\w*loss|reward\w*|lr|learning[ _]rate|\w*kl|score)\b|\b(?:\w*loss|reward\w*)['"]?[ =:]{1,3}-?\d.{0,400}\b(?:step|iter(?:ation)?|episode)s?['"]?[ =:]{1,3}\d"#,
    )
});
/// A bar over steps of training; bars over prompts, files and tokens have another name before them.
static BAR: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)^(?:[^|\n]*\b(?:train\w*|steps?|epochs?|episodes?|iter\w*|progress|update)\b[^|\n]*)?\s*\d+%\|[^|\n]*\| *(\d+)/(\d+) \[",
    )
});
/// Metrics that are no step.
static NO_STEP: LazyLock<Regex> = LazyLock::new(|| regex(r"train_runtime|eval_|Error|examples/s"));
static VALUES: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"(?i)\b(\w*loss\w*|(?:\w*grad\w*[ _/])?norm)['"]?\s*[:=]\s*(?:np\.float\d+\()?(nan|-?(?:\d|\.\d|inf))"#,
    )
});

/// Returns true for a line of metrics, or a bar over steps.
pub fn is_step(message: &str) -> bool {
    METRICS.is_match(message) && !NO_STEP.is_match(message)
}

#[derive(Debug, Default)]
pub struct Progress {
    /// Steps counted.
    pub steps: u64,
    /// Steps to count before it looks at no further one.
    until: u64,
    bar: Option<u64>,
    /// Line of the end of a run that went well.
    finish: Option<u64>,
    nan: Option<NanRun>,
    last_line: u64,
}

/// Steps in a row without a number.
#[derive(Debug)]
struct NanRun {
    line: u64,
    text: String,
    losses: u64,
    norms: u64,
    looks: u64,
}

impl Progress {
    /// Returns whether to look at a line that may be a step.
    pub fn wants_more(&self) -> bool {
        self.steps < self.until.max(SURVIVED)
            || self.finish.is_some()
            || self.nan.as_ref().is_some_and(|nan| nan.looks < NAN_LOOKS)
    }

    /// Something suspicious was seen: the next `steps` show whether the run survived it.
    pub fn watch(&mut self, steps: u64) {
        self.until = self.until.max(self.steps + steps);
    }

    /// Reads a line that may be a step. Returns true if it is one that was not seen before.
    pub fn step(&mut self, text: &str, line: u64) -> bool {
        let is_new = match BAR.captures(text) {
            Some(found) => self.bar(&found[1], &found[2], line),
            None => METRICS.is_match(text) && !NO_STEP.is_match(text) && line > self.last_line,
        };
        if is_new {
            (self.steps, self.last_line, self.finish) = (self.steps + 1, line, None);
            self.numbers(text, line);
        }
        is_new
    }

    /// A bar is drawn again after an exception, with the same number.
    fn bar(&mut self, done: &str, total: &str, line: u64) -> bool {
        let (Ok(done), Ok(total)) = (done.parse::<u64>(), total.parse::<u64>()) else { return false };
        if done >= total {
            // Bars of a few parts load weights.
            if total > 3 && self.steps >= SURVIVED {
                self.finish = Some(line);
            }
            return false;
        }
        let before = self.bar.replace(done);
        before.is_some_and(|before| done > before)
    }

    pub fn finished(&mut self, line: u64) {
        self.finish = Some(line);
    }

    /// Returns the line of the end of a run that went well, if the file of `lines` lines ends with it.
    pub fn finish(&self, lines: u64) -> Option<u64> {
        self.finish.filter(|line| lines.saturating_sub(*line) <= LINES_AFTER_FINISH)
    }

    /// Reads the numbers of a step, or of a line with one that is not a number.
    pub fn numbers(&mut self, text: &str, line: u64) {
        let (mut nan, mut finite) = ([false; 2], [false; 2]);
        for found in VALUES.captures_iter(text) {
            let is_norm = found[1].to_ascii_lowercase().ends_with("norm");
            match found[2].eq_ignore_ascii_case("nan") {
                true => nan[usize::from(is_norm)] = true,
                false => finite[usize::from(is_norm)] = true,
            }
        }
        if nan == [false; 2] && (finite[0] || finite[1]) {
            if let Some(run) = &mut self.nan {
                run.looks += 1;
            }
            if self.nan.as_ref().is_some_and(|run| if run.losses > 0 { finite[0] } else { finite[1] }) {
                self.nan = None;
            }
        } else if nan != [false; 2] {
            let text = || shown(text);
            let run =
                self.nan.get_or_insert_with(|| NanRun { line, text: text(), losses: 0, norms: 0, looks: 0 });
            run.losses += u64::from(nan[0]);
            run.norms += u64::from(nan[1]);
            run.looks += 1;
        }
    }

    /// Returns (line, text, reason) if the last steps had no number.
    pub fn nan_at_end(&self) -> Option<(u64, String, String)> {
        let run = self.nan.as_ref().filter(|run| run.losses > 0 || run.norms >= NAN_NORMS)?;
        let what = if run.losses > 0 { "the loss" } else { "the norm of the gradient" };
        let reason =
            format!("{what} is not a number from line {} on, and no later step has a finite one", run.line);
        Some((run.line, run.text.clone(), reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(lines: &[&str]) -> u64 {
        let mut progress = Progress::default();
        for (index, line) in lines.iter().enumerate() {
            progress.step(line, index as u64 + 1);
        }
        progress.steps
    }

    #[test]
    fn steps_of_the_trainers_in_use() {
        let found = [
            "{'loss': 0.01, 'grad_norm': 0.38, 'learning_rate': 9.5e-06, 'reward': 1.6, 'epoch': 0.05}",
            "(TaskRunner pid=7) step:12 - global_seqlen/min:70 - actor/pg_loss:0.1",
            " iteration     5426/  250000 | consumed samples: 43408 | learning rate: 2.999E-04 | grad norm: 1.2 |",
            "Episode [2/20]: global step 41, policy loss 0.3, reward 1.2",
            "step 12 loss 0.5",
        ];
        assert_eq!(steps(&found), found.len() as u64);
        let not = [
            "Processed prompts:  10%|#    | 51/512 [00:01<00:09, 3.95it/s]",
            "{'train_runtime': 812.3, 'train_loss': 0.31}",
            "Loading checkpoint shards:  50%|#####     | 1/2 [00:03<00:03,  3.00s/it]",
            "ValueError: the loss is nan at step 12",
            "INFO the loss is in units of a step",
        ];
        assert_eq!(steps(&not), 0);
    }

    #[test]
    fn a_bar_counts_when_it_advances() {
        let bar = |done: u64| format!(" 12%|#2        | {done}/50 [05:10<38:02, 51.9s/it]");
        let lines = [bar(6), bar(6), bar(7), bar(7), bar(8)];
        assert_eq!(steps(&lines.each_ref().map(String::as_str)), 2);
    }

    #[test]
    fn the_end_of_a_run_is_unsaid_by_a_further_step() {
        let mut progress = Progress::default();
        progress.finished(10);
        assert_eq!((progress.finish(12), progress.finish(1000)), (Some(10), None));
        progress.step("{'loss': 0.2, 'epoch': 0.1}", 11);
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
    }
}
