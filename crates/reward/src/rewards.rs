//! The rewards of a run: each scores every sample, and the weighted sum is the sample's reward.

use crate::external::External;
use crate::spec::Kind;
use crate::{OnError, RewardSpec, grade_exact, grade_gsm8k, math};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};

/// What a reward sees of one sample.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The prompt as text.
    pub prompt: &'a str,
    /// The response as text, special tokens left out.
    pub response: &'a str,
    /// Tokens of the response.
    pub response_tokens: usize,
    /// The limit that the response was sampled under.
    pub max_new_tokens: usize,
    /// False if the limit cut the response.
    pub ended: bool,
    /// The row's columns other than the prompt.
    pub columns: &'a Map<String, Value>,
}

/// The scores of one sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scored {
    /// Weighted sum over the rewards that gave a score; `None` if none did.
    pub total: Option<f32>,
    /// One score a reward, unweighted, in the order of the specifications.
    pub parts: Vec<Option<f32>>,
}

/// All configured rewards of a run, with their worker processes.
pub struct Rewards {
    rewards: Vec<Reward>,
}

struct Reward {
    name: String,
    spec: RewardSpec,
    kind: Kind,
    external: Option<External>,
}

impl Rewards {
    /// Reads the kinds and starts the workers.
    ///
    /// A worker dies with the thread that started it, so call this from one that lives as long as the run.
    pub fn new(specs: &[RewardSpec]) -> Result<Rewards> {
        let mut rewards: Vec<Reward> = Vec::with_capacity(specs.len());
        for spec in specs {
            if !spec.weight.is_finite() {
                return Err(Error::usage(
                    "reward-bad-weight",
                    format!("reward `{}` has weight {}", spec.kind, spec.weight),
                )
                .hint("set `weight` in the [[reward]] table to a finite number"));
            }
            let kind = Kind::parse(spec)?;
            let same = rewards.iter().filter(|other| other.kind.name() == kind.name()).count();
            let name = if same == 0 { kind.name() } else { format!("{}_{}", kind.name(), same + 1) };
            let external = External::start(&name, &kind, spec)?;
            rewards.push(Reward { name, spec: spec.clone(), kind, external });
        }
        Ok(Rewards { rewards })
    }

    /// Checks that a row has the answer columns; a missing one is `data-column-missing`.
    pub fn check_columns(&self, columns: &Map<String, Value>) -> Result<()> {
        for reward in self.rewards.iter().filter(|reward| reward.kind.needs_answer()) {
            if !columns.contains_key(&reward.spec.answer_column) {
                return Err(column_missing(reward, columns));
            }
        }
        Ok(())
    }

    /// Scores every case with every reward.
    ///
    /// The result does not depend on timing: workers take contiguous slices in order.
    pub fn score(&mut self, cases: &[Case]) -> Result<Vec<Scored>> {
        let mut scored = vec![Scored::default(); cases.len()];
        for reward in &mut self.rewards {
            let parts = reward.score(cases)?;
            for (index, (case, part)) in cases.iter().zip(parts).enumerate() {
                if let Some(score) = part {
                    check_finite(reward, index, case, score)?;
                    let total = scored[index].total.unwrap_or(0.0) + (score * reward.spec.weight) as f32;
                    scored[index].total = Some(total);
                }
                scored[index].parts.push(part.map(|score| score as f32));
            }
        }
        Ok(scored)
    }

    /// The names of the rewards in metrics, in order; equal kinds are numbered.
    pub fn names(&self) -> Vec<&str> {
        self.rewards.iter().map(|reward| reward.name.as_str()).collect()
    }

    /// Times in all that a worker was started again.
    pub fn restarts(&self) -> u64 {
        self.rewards.iter().filter_map(|reward| reward.external.as_ref()).map(External::restarts).sum()
    }
}

impl Reward {
    fn score(&mut self, cases: &[Case]) -> Result<Vec<Option<f64>>> {
        if let Some(external) = &mut self.external {
            return external.score(cases, self.spec.on_error == OnError::None);
        }
        cases.iter().map(|case| self.score_one(case).map(Some)).collect()
    }

    fn score_one(&self, case: &Case) -> Result<f64> {
        let response = case.response;
        Ok(match &self.kind {
            Kind::Exact => f64::from(grade_exact(response, &self.answer(case)?)),
            Kind::Math => f64::from(math::grade_math(response, &self.answer(case)?)),
            Kind::Gsm8k => f64::from(grade_gsm8k(response, &self.answer(case)?)),
            Kind::Pattern(pattern) => f64::from(pattern.matches(response)),
            Kind::Format(format) => f64::from(format.matches(response)),
            Kind::Length(length) => length.score(case.response_tokens, case.max_new_tokens),
            Kind::Hash => hash(response),
            Kind::Python { .. } | Kind::Command { .. } => unreachable!("these have an external"),
        })
    }

    fn answer(&self, case: &Case) -> Result<String> {
        match case.columns.get(&self.spec.answer_column) {
            Some(value) => Ok(text_of(value)),
            None => Err(column_missing(self, case.columns)),
        }
    }
}

/// A number in [0, 1) from the text alone (FNV-1a, 64 bits).
fn hash(text: &str) -> f64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

/// A column as the text that a verifier reads: a string as it is, anything else as JSON.
pub(crate) fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn column_missing(reward: &Reward, columns: &Map<String, Value>) -> Error {
    let there: Vec<&str> = columns.keys().map(String::as_str).collect();
    Error::usage(
        "data-column-missing",
        format!(
            "reward `{}` needs the column `{}`, which the data does not have",
            reward.name, reward.spec.answer_column
        ),
    )
    .fact(format!("columns there: {}", if there.is_empty() { "none".into() } else { there.join(", ") }))
    .hint("name the column of the answer with `answer_column` in the [[reward]] table, or add it to the data")
}

fn check_finite(reward: &Reward, index: usize, case: &Case, score: f64) -> Result<()> {
    // A score that f32 cannot hold would become infinite in the sum.
    if score.is_finite() && (score * reward.spec.weight).abs() <= f64::from(f32::MAX) {
        return Ok(());
    }
    let head: String = case.response.chars().take(80).collect();
    Err(Error::new("reward-not-finite", format!("reward `{}` gave {score} for sample {index}", reward.name))
        .fact(format!("the response begins {head:?}"))
        .hint("return a finite number, or None to leave the sample out"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn columns(value: Value) -> Map<String, Value> {
        value.as_object().expect("a test passes an object").clone()
    }

    fn case<'a>(response: &'a str, columns: &'a Map<String, Value>) -> Case<'a> {
        Case { prompt: "p", response, response_tokens: 5, max_new_tokens: 10, ended: true, columns }
    }

    #[test]
    fn rewards_are_summed_with_their_weights() {
        let specs = [
            RewardSpec { weight: 2.0, ..RewardSpec::of_kind("exact") },
            RewardSpec { weight: 0.5, ..RewardSpec::of_kind("length") },
            RewardSpec { weight: -1.0, ..RewardSpec::of_kind("regex:^4") },
        ];
        let mut rewards = Rewards::new(&specs).unwrap();
        assert_eq!(rewards.names(), ["exact", "length", "regex"]);
        let row = columns(json!({"ground_truth": 42}));
        rewards.check_columns(&row).unwrap();
        let scored = rewards.score(&[case("42", &row), case("7", &row)]).unwrap();
        assert_eq!(scored[0], Scored { total: Some(0.75), parts: vec![Some(1.0), Some(-0.5), Some(1.0)] });
        assert_eq!(scored[1], Scored { total: Some(-0.25), parts: vec![Some(0.0), Some(-0.5), Some(0.0)] });
    }

    #[test]
    fn a_missing_column_is_named_with_those_there() {
        let spec = RewardSpec { answer_column: "label".into(), ..RewardSpec::of_kind("math") };
        let rewards = Rewards::new(&[spec]).unwrap();
        let error = rewards.check_columns(&columns(json!({"answer": 1, "level": 2}))).unwrap_err();
        assert_eq!(error.slug, "data-column-missing");
        let text = error.to_string();
        assert!(
            text.contains("`math`") && text.contains("`label`") && text.contains("answer, level"),
            "{text}"
        );
    }

    #[test]
    fn rewards_of_one_kind_have_different_names() {
        let rewards =
            Rewards::new(&[RewardSpec::of_kind("regex:a"), RewardSpec::of_kind("regex:b")]).unwrap();
        assert_eq!(rewards.names(), ["regex", "regex_2"]);
    }

    #[test]
    fn a_score_beyond_f32_is_not_finite() {
        let spec = RewardSpec { weight: 1e300, ..RewardSpec::of_kind("exact") };
        let row = columns(json!({"ground_truth": "1"}));
        let error = Rewards::new(&[spec]).unwrap().score(&[case("1", &row)]).unwrap_err();
        assert_eq!(error.slug, "reward-not-finite");
    }
}
