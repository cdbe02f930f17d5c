//! Dead steps, which teach nothing: no sample has a score or is trained on, all advantages or the gradient are zero, or
//! the loss exploded. A warning names them, and `train.dead_steps_max` of them in a row end the run.

use plimsoll_base::{Error, shown_places};
use serde::{Deserialize, Serialize};

/// Dead steps in a row before a warning. One group of equal rewards is ordinary; a step without any score is not.
const WARN_AFTER: u32 = 3;
/// A loss exploded if its magnitude is this multiple of the smallest so far, or of 1 if that is larger.
const EXPLODED: f64 = 100.0;
/// A step with a larger share of failed samples gets a warning: elsewhere 5 % of false zeros moved the advantages.
const FAULT_SHARE: f64 = 0.05;

/// Signs in a step of whether anything can be learned; `None` if the method has no such number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vitals {
    /// Number of samples, and of those with a score.
    pub scored: Option<[usize; 2]>,
    /// Share of samples for which a reward or the environment failed, on this rank.
    #[serde(skip)]
    pub fault_share: f64,
    /// True if no scored sample is trained on.
    pub left_out: bool,
    /// Largest magnitude of an advantage.
    pub advantage_max: Option<f32>,
    /// True if a teacher has scored the samples.
    pub taught: bool,
    /// Mean reward, for messages.
    pub reward: Option<f64>,
    /// Gradient norm of the last update before clipping; `None` without an update.
    pub grad_norm: Option<f64>,
    pub loss: Option<f64>,
}

/// Why a step teaches nothing; the first cause if there are several.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sign {
    NoScore,
    LeftOut,
    NoAdvantage,
    NoGradient,
    LossExploded { least: f64 },
}

/// Counts dead steps; saved in checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeadSteps {
    /// Dead steps in a row, up to the last.
    in_a_row: u32,
    /// Smallest magnitude of the loss so far.
    #[serde(with = "crate::checkpoint::exact_option")]
    least_loss: Option<f64>,
    /// Steps with too many failed samples, up to the last.
    faulty: u32,
}

/// Says what follows from a dead step.
#[derive(Debug)]
pub enum Verdict {
    Alive,
    Warn(Error),
    /// `train.dead_steps_max` is reached.
    Stop(Error),
}

impl DeadSteps {
    /// Counts a step. `max`: dead steps in a row that end the run; 0 never does.
    pub fn count(&mut self, vitals: &Vitals, max: u32) -> Verdict {
        let sign = self.sign(vitals);
        if let Some(loss) = vitals.loss.map(f64::abs).filter(|loss| loss.is_finite()) {
            self.least_loss = Some(self.least_loss.map_or(loss, |least| least.min(loss)));
        }
        let Some(sign) = sign else {
            self.in_a_row = 0;
            return self.faults(vitals.fault_share);
        };
        self.in_a_row = self.in_a_row.saturating_add(1);
        if max > 0 && self.in_a_row >= max {
            return Verdict::Stop(self.error(sign, vitals, max));
        }
        let warn_after = if sign == Sign::NoScore { 1 } else { WARN_AFTER };
        if self.in_a_row == warn_after {
            Verdict::Warn(self.error(sign, vitals, max))
        } else {
            Verdict::Alive
        }
    }

    /// Warns of failed samples in the first such step, and each time that their number has doubled.
    fn faults(&mut self, share: f64) -> Verdict {
        if share <= FAULT_SHARE {
            return Verdict::Alive;
        }
        self.faulty = self.faulty.saturating_add(1);
        if !self.faulty.is_power_of_two() {
            return Verdict::Alive;
        }
        let message = format!(
            "for {:.1} % of the samples of this step a reward or the environment failed",
            100.0 * share
        );
        let so_far = match self.faulty {
            1 => "one step".to_string(),
            n => format!("{n} steps"),
        };
        Verdict::Warn(
            Error::new("rewards-failing", message)
                .fact(format!("{so_far} so far had more than {:.0} %", 100.0 * FAULT_SHARE))
                .fact(
                    "they are left out, not counted as 0; what is slow or hard to grade is then learned less",
                )
                .hint("`rewards/NAME/*`, `environment/*` and `teacher/*` in events.jsonl count the causes")
                .hint("on_error = \"stop\" in [[reward]] ends the run at the first"),
        )
    }

    fn sign(&self, vitals: &Vitals) -> Option<Sign> {
        if vitals.scored.is_some_and(|[samples, scored]| samples > 0 && scored == 0) {
            return Some(Sign::NoScore);
        }
        if vitals.left_out {
            return Some(Sign::LeftOut);
        }
        if vitals.advantage_max == Some(0.0) {
            return Some(Sign::NoAdvantage);
        }
        if vitals.grad_norm == Some(0.0) {
            return Some(Sign::NoGradient);
        }
        let least = self.least_loss?.max(1.0);
        (vitals.loss?.abs() > EXPLODED * least).then_some(Sign::LossExploded { least })
    }

    fn error(&self, sign: Sign, vitals: &Vitals, max: u32) -> Error {
        let steps = match self.in_a_row {
            1 => "in this step".to_string(),
            n => format!("in the last {n} steps"),
        };
        let error = match sign {
            Sign::NoScore => {
                let samples = vitals.scored.map_or(0, |[samples, _]| samples);
                Error::new("no-score", format!("no sample has a score {steps}, so nothing was learned"))
                    .fact(format!("samples of the last step: {samples}, with a score: 0"))
                    .hint("`rewards/NAME/*` in events.jsonl counts why; grade one response with `plimsoll grade`")
            }
            Sign::LeftOut => {
                let message = format!("no sample was trained on {steps}, so nothing was learned");
                let error = Error::new("nothing-trained", message);
                if vitals.fault_share >= 1.0 {
                    return error
                        .fact("for every sample a reward, the environment or the teacher's server failed")
                        .hint("`rewards/NAME/*`, `environment/*` and `teacher/*` in events.jsonl count the causes");
                }
                error
                    .fact("every sample with a score was left out: loss.mask_truncated leaves out those that the length limit cut")
                    .hint("raise rollout.max_new_tokens, or set loss.mask_truncated = false")
            }
            Sign::NoAdvantage if vitals.taught => {
                let message = format!("all advantages are zero {steps}, so nothing was learned");
                Error::new("no-advantage", message)
                    .fact("the student gives every token that it samples the same probability as its teacher does")
                    .hint("check that distill.teacher and `model` are different models")
            }
            Sign::NoAdvantage => {
                let reward = vitals.reward.unwrap_or(f64::NAN);
                let message = format!("all advantages are zero {steps}, so nothing was learned");
                Error::new("no-advantage", message)
                    .fact(format!("every group's rewards are equal; their mean in the last step is {}", shown_places(reward, 3)))
                    .hint("if all answers are right, the task is learned: stop, or give harder prompts")
                    .hint("if all are wrong, give easier prompts, a larger rollout.group_size or a reward with steps between")
            }
            Sign::NoGradient => {
                let message = format!("the gradient is exactly zero {steps}, so no weight changed");
                let error = Error::new("no-gradient", message);
                if vitals.taught {
                    error
                        .fact("so it is where a student has its teacher's probabilities of all listed tokens")
                        .hint("check that distill.teacher and `model` are different models")
                } else {
                    error.hint(
                        "lower train.learning_rate: a policy that is certain of every token has no gradient",
                    )
                }
            }
            Sign::LossExploded { least } => {
                let loss = vitals.loss.unwrap_or(f64::NAN);
                let message =
                    format!("the loss is {loss:.3e}, {:.0} times its smallest value", loss.abs() / least);
                Error::new("loss-exploded", message)
                    .fact(format!("for {} steps in a row", self.in_a_row))
                    .hint("lower train.learning_rate, and resume from a checkpoint before it")
            }
        };
        match max {
            0 => error,
            _ => error
                .fact(format!("train.dead_steps_max = {max} such steps in a row end the run"))
                .hint("set train.dead_steps_max = 0 to go on in any case"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALIVE: Vitals = Vitals {
        scored: Some([8, 8]),
        advantage_max: Some(1.0),
        fault_share: 0.0,
        left_out: false,
        taught: false,
        reward: Some(0.5),
        grad_norm: Some(0.1),
        loss: Some(0.2),
    };

    fn slug_of(verdict: Verdict) -> Option<(&'static str, bool)> {
        match verdict {
            Verdict::Alive => None,
            Verdict::Warn(error) => Some((error.slug, false)),
            Verdict::Stop(error) => Some((error.slug, true)),
        }
    }

    #[test]
    fn each_sign_warns_once_and_ends_the_run_at_the_limit() {
        let cases = [
            (Vitals { scored: Some([8, 0]), advantage_max: Some(0.0), ..ALIVE }, "no-score", 1),
            (Vitals { left_out: true, advantage_max: None, ..ALIVE }, "nothing-trained", 3),
            (Vitals { advantage_max: Some(0.0), grad_norm: Some(0.0), ..ALIVE }, "no-advantage", 3),
            (Vitals { grad_norm: Some(0.0), ..ALIVE }, "no-gradient", 3),
            (Vitals { loss: Some(-101.0), ..ALIVE }, "loss-exploded", 3),
        ];
        for (dead, slug, warns_at) in cases {
            let mut steps = DeadSteps::default();
            assert!(slug_of(steps.count(&ALIVE, 5)).is_none());
            for step in 1..=6 {
                let expect = match step {
                    5.. => Some((slug, true)),
                    _ if step == warns_at => Some((slug, false)),
                    _ => None,
                };
                assert_eq!(slug_of(steps.count(&dead, 5)), expect, "{slug} {step}");
            }
            assert!(slug_of(steps.count(&ALIVE, 5)).is_none());
            assert_eq!(steps.in_a_row, 0, "a step that teaches something ends the row");
        }
    }

    #[test]
    fn a_student_equal_to_its_teacher_is_named_as_such() {
        let same = Vitals { advantage_max: Some(0.0), taught: true, reward: None, ..ALIVE };
        let mut steps = DeadSteps::default();
        let verdicts: Vec<Verdict> = (0..3).map(|_| steps.count(&same, 5)).collect();
        let Some(Verdict::Warn(error)) = verdicts.last() else { panic!("a warning after three steps") };
        assert!(error.slug == "no-advantage" && error.facts[0].contains("teacher"), "{error}");
    }

    #[test]
    fn failed_samples_are_told_when_their_steps_have_doubled() {
        let mut steps = DeadSteps::default();
        let shares = [0.0, 0.05, 0.06, 0.5, 0.0, 0.5, 0.5, 0.5];
        let told: Vec<bool> = shares
            .iter()
            .map(|&fault_share| slug_of(steps.count(&Vitals { fault_share, ..ALIVE }, 5)).is_some())
            .collect();
        assert_eq!(told, [false, false, true, true, false, false, true, false]);
        // A step without any score has an error of its own.
        let none = Vitals { scored: Some([8, 0]), fault_share: 1.0, ..ALIVE };
        assert_eq!(slug_of(steps.count(&none, 5)), Some(("no-score", false)));
    }

    #[test]
    fn zero_never_ends_a_run() {
        let mut steps = DeadSteps::default();
        let dead = Vitals { grad_norm: Some(0.0), ..ALIVE };
        let stops = (0..1000).filter(|_| matches!(steps.count(&dead, 0), Verdict::Stop(_))).count();
        assert_eq!(stops, 0);
    }

    #[test]
    fn what_a_method_does_not_have_is_no_sign() {
        let mut steps = DeadSteps::default();
        for _ in 0..10 {
            assert!(slug_of(steps.count(&Vitals::default(), 1)).is_none());
        }
        // A loss near zero may become ordinary again: below a magnitude of 100 nothing exploded.
        steps.count(&Vitals { loss: Some(1e-6), ..Vitals::default() }, 1);
        assert!(slug_of(steps.count(&Vitals { loss: Some(3.0), ..Vitals::default() }, 1)).is_none());
    }
}
