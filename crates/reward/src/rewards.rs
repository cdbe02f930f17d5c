//! The rewards of a run: each scores every sample, and the weighted sum is the sample's reward.
//!
//! Samples are submitted as they end and graded in batches of whole groups. The composition of batches, the worker of
//! each and their order per worker follow from the run alone, so scores do not depend on timing.

use crate::ahead::{Ahead, Taken};
use crate::case::{Case, column};
use crate::grader::{Graded, Grader, Opening, Place};
use crate::kinds::{self, START_TIMEOUT};
use crate::scorer::column_missing;
use crate::spec::{OnError, RewardSpec};
use crate::tally::Tally;
use plimsoll_base::{ExactSum, Result};
use plimsoll_worker::{RewardStep, Scores, Stop, Words};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// The scores of one sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scored {
    /// Weighted sum over the rewards that gave a score; `None` if none did, or one failed.
    pub total: Option<f32>,
    /// One score per reward, unweighted, in the order of the specifications.
    pub parts: Vec<Option<f32>>,
    /// True if a reward or an environment failed: a sum without that part would take the failure for a 0.
    pub failed: bool,
    /// Steps of the response with their weighted rewards, in order; they are no part of the sum. Empty without.
    pub steps: Vec<RewardStep>,
}

impl Scored {
    /// Adds a part of the sum.
    pub fn add(&mut self, weighted: f32) {
        if !self.failed {
            self.total = Some(self.total.unwrap_or(0.0) + weighted);
        }
    }

    /// Adds steps; those of several rewards that end in one place are one.
    fn add_steps(&mut self, steps: &[RewardStep], weight: f64) {
        for step in steps {
            let reward = step.reward * weight;
            match self.steps.binary_search_by_key(&step.end, |known| known.end) {
                Ok(at) => self.steps[at].reward += reward,
                Err(at) => self.steps.insert(at, RewardStep { reward, ..*step }),
            }
        }
    }
}

/// All configured rewards of a run, with their threads and worker processes.
pub struct Rewards {
    rewards: Vec<Reward>,
    done: Receiver<Graded>,
    stop: Stop,
    words: Words,
    round: Round,
    ahead: Ahead,
    seconds_ahead: f64,
}

struct Reward {
    name: String,
    spec: RewardSpec,
    needs_answer: bool,
    has_tally: bool,
    is_per_response: bool,
    graders: Vec<Grader>,
    /// The batches of the round.
    batches: Batches,
    /// Failures since the round began.
    tally: Tally,
    /// Sum and count of the values that the function logged in the round.
    logged: BTreeMap<String, (ExactSum, u64)>,
}

/// The samples in progress.
#[derive(Default)]
struct Round {
    steps: [u32; 2],
    cases: Vec<Option<Arc<Case>>>,
    /// Batches whose outcome is awaited.
    left: usize,
    taken: Taken,
}

/// The batches of a round for one reward: consecutive samples, whole groups.
#[derive(Default)]
struct Batches {
    samples: usize,
    /// Number of missing samples per batch.
    missing: Vec<usize>,
}

impl Rewards {
    /// Reads the kinds, and starts threads and workers.
    ///
    /// Errors: `unknown-reward`, those of starting a worker. Panics at a weight that is not finite.
    pub fn new(specs: &[RewardSpec]) -> Result<Rewards> {
        Rewards::saying(specs, Words::to_stderr())
    }

    /// Starts rewards like `new`, with `words` as the output of functions and programs.
    pub fn saying(specs: &[RewardSpec], words: Words) -> Result<Rewards> {
        Rewards::within(specs, words, START_TIMEOUT)
    }

    /// Starts rewards like `new`, with `words` as their output and `start_timeout` as the limit of each start.
    pub fn within(specs: &[RewardSpec], words: Words, start_timeout: Duration) -> Result<Rewards> {
        let opening = Opening { words, start_timeout };
        let stop = Stop::default();
        let (say, done) = channel();
        let mut rewards: Vec<Reward> = Vec::with_capacity(specs.len());
        let mut starting = Vec::new();
        for (index, spec) in specs.iter().enumerate() {
            assert!(spec.weight.is_finite(), "the weight of reward `{}` is not finite", spec.kind);
            let kind = kinds::read(spec)?;
            let base = kind.label();
            let is_same = |other: &&RewardSpec| kinds::read(other).is_ok_and(|kind| kind.label() == base);
            let same = specs[..index].iter().filter(is_same);
            let name = match same.count() {
                0 => base.to_string(),
                same => format!("{base}_{}", same + 1),
            };
            for _ in 0..kind.graders(spec) {
                starting.push((index, Grader::begin(index, &name, spec, &stop, &opening, &say)?));
            }
            rewards.push(Reward {
                name,
                spec: spec.clone(),
                needs_answer: kind.needs_answer,
                has_tally: kind.may_fail(),
                is_per_response: kind.is_per_response(spec),
                graders: Vec::new(),
                batches: Batches::default(),
                tally: Tally::default(),
                logged: BTreeMap::new(),
            });
        }
        for (index, grader) in starting {
            rewards[index].graders.push(grader.ready()?);
        }
        let (words, round, ahead) = (opening.words, Round::default(), Ahead::default());
        Ok(Rewards { rewards, done, stop, words, round, ahead, seconds_ahead: 0.0 })
    }

    /// Checks that a row has the columns that the rewards read, and that functions can be called with them.
    ///
    /// Errors: `data-column-missing`, `reward-bad-answer`, `reward-bad-schema`, `reward-function-signature`.
    pub fn check_columns(&self, columns: &Map<String, Value>) -> Result<()> {
        for reward in &self.rewards {
            let name = &reward.spec.answer_column;
            if reward.needs_answer && column(columns, name).is_none_or(Value::is_null) {
                return Err(column_missing(&reward.name, name, columns));
            }
            reward.graders[0].check(columns)?;
        }
        Ok(())
    }

    /// Begins a round of `samples` samples in groups of `group`. `steps` are the step and the number of steps.
    pub fn begin(&mut self, samples: usize, group: usize, steps: [u32; 2]) {
        self.round = Round { steps, cases: vec![None; samples], ..Round::default() };
        // All rounds are over, so nothing else arrives.
        while let Ok(graded) = self.done.try_recv() {
            self.ahead.keep(graded);
        }
        self.words.begin(steps[0]);
        for reward in &mut self.rewards {
            reward.batches = Batches::cut(samples, group.max(1), &reward.spec, reward.graders.len());
            reward.tally = Tally::default();
            reward.logged.clear();
        }
    }

    /// Submits sample `index` of the round, which has ended. Its batch is graded once complete.
    pub fn submit(&mut self, index: usize, case: Case) {
        let round = &mut self.round;
        let before = round.cases[index].replace(Arc::new(case));
        assert!(before.is_none(), "sample {index} ended twice");
        for reward in &mut self.rewards {
            let batch = index / reward.batches.samples;
            reward.batches.missing[batch] -= 1;
            if reward.batches.missing[batch] > 0 {
                continue;
            }
            let samples = reward.samples(batch, round.cases.len(), &round.taken);
            let cases: Arc<[Arc<Case>]> = samples.filter_map(|s| round.cases[s].clone()).collect();
            if cases.is_empty() {
                continue;
            }
            round.left += 1;
            // By number and not by who is idle: a worker sees the same batches in every run.
            let grader = &reward.graders[batch % reward.graders.len()];
            grader.score(Place::Round(batch), cases, round.steps);
        }
    }

    /// Returns true if a reward scores each response by itself, so that it can grade ahead.
    pub fn grades_ahead(&self) -> bool {
        self.rewards.iter().any(|reward| reward.is_per_response)
    }

    /// Returns true if the response `key` is graded ahead.
    pub fn is_ahead(&self, key: u64) -> bool {
        self.ahead.has(key)
    }

    /// Grades a response ahead of the round that takes it by its `key`. `steps`: as in `begin`.
    pub fn submit_ahead(&mut self, key: u64, case: Case, steps: [u32; 2]) {
        let (case, number) = (Arc::new(case), self.ahead.next());
        let per_response = self.rewards.iter().filter(|reward| reward.is_per_response);
        for reward in per_response.clone() {
            let grader = &reward.graders[number % reward.graders.len()];
            grader.score(Place::Ahead(key), [case.clone()].into(), steps);
        }
        self.ahead.add(key, (per_response.count(), self.rewards.len()));
    }

    /// Submits sample `index` of the round, which was graded ahead as `key`: to the other rewards.
    pub fn submit_graded(&mut self, index: usize, case: Case, key: u64) {
        let workers = |reward: usize| self.rewards[reward].graders.len();
        self.ahead.take(&mut self.round.taken, index, key, workers);
        self.submit(index, case);
    }

    /// Returns the seconds by which grading ahead made the last round shorter: those of the worker that graded longest.
    pub fn seconds_ahead(&self) -> f64 {
        self.seconds_ahead
    }

    /// Returns the scores of the round, once all its samples are submitted.
    ///
    /// Errors: the first failure of a reward whose `on_error` is `Stop`; the rest is abandoned, and scoring is over.
    pub fn finish(&mut self) -> Result<Vec<Scored>> {
        let Round { cases, mut left, taken, .. } = std::mem::take(&mut self.round);
        let batches = || self.rewards.iter().map(|reward| &reward.batches.missing);
        assert!(batches().flatten().all(|&missing| missing == 0), "samples are missing");
        let mut outcomes: Vec<Vec<Option<Result<Scores>>>> =
            batches().map(|missing| missing.iter().map(|_| None).collect()).collect();
        while left > 0 || self.ahead.awaits(&taken) {
            let graded = self.done.recv().expect("graders live as long as their rewards");
            let Some(graded) = self.ahead.keep(graded) else { continue };
            let Place::Round(batch) = graded.batch else { unreachable!("those graded ahead are kept") };
            left -= 1;
            let reward = &mut self.rewards[graded.reward];
            reward.tally.add(&graded.tally);
            let outcome = graded.outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcomes[graded.reward][batch] = Some(match outcome {
                Err(error) if reward.spec.on_error == OnError::Stop => {
                    self.stop.set();
                    return Err(error);
                }
                outcome => outcome,
            });
        }
        self.seconds_ahead = taken.seconds();
        self.sum(cases.len(), outcomes, &taken)
    }

    /// Scores all cases at once, each as its own group.
    ///
    /// Errors: those of `finish`.
    pub fn score(&mut self, cases: Vec<Case>) -> Result<Vec<Scored>> {
        self.begin(cases.len(), 1, [0, 0]);
        for (index, case) in cases.into_iter().enumerate() {
            self.submit(index, case);
        }
        self.finish()
    }

    /// Returns the output of functions and programs.
    pub fn words(&self) -> &Words {
        &self.words
    }

    /// Returns the rewards' names in metrics, in order; equal kinds are numbered.
    pub fn names(&self) -> Vec<&str> {
        self.rewards.iter().map(|reward| reward.name.as_str()).collect()
    }

    /// Returns the failures of the last round, by reward; rewards that cannot fail have no entry.
    pub fn tallies(&self) -> impl Iterator<Item = (&str, Tally)> {
        self.rewards
            .iter()
            .filter(|reward| reward.has_tally)
            .map(|reward| (reward.name.as_str(), reward.tally))
    }

    /// Returns means of the values that functions logged in the last round, under `NAME/METRIC`.
    pub fn logged(&self) -> impl Iterator<Item = (String, f64)> {
        self.logged_sums().map(|(name, sum, count)| (name, sum.value() / count.max(1) as f64))
    }

    /// Returns sums and counts of the values that functions logged in the last round.
    pub fn logged_sums(&self) -> impl Iterator<Item = (String, &ExactSum, u64)> {
        self.rewards.iter().flat_map(|reward| {
            let name = |name: &String| format!("{}/{name}", reward.name);
            reward.logged.iter().map(move |(of, (sum, count))| (name(of), sum, *count))
        })
    }

    /// Sums in the order of rewards and batches, so the bits do not depend on timing.
    ///
    /// Errors: the first failure ahead of the round of a reward whose `on_error` is `Stop`.
    fn sum(
        &mut self,
        samples: usize,
        outcomes: Vec<Vec<Option<Result<Scores>>>>,
        taken: &Taken,
    ) -> Result<Vec<Scored>> {
        let mut scored = vec![Scored::default(); samples];
        let mut ahead = self.ahead.remove(taken);
        for (index, (reward, batches)) in self.rewards.iter_mut().zip(outcomes).enumerate() {
            let ends = reward.spec.on_error == OnError::Stop;
            let failed = || ahead.iter_mut().find_map(|(_, one)| one.take_error(index));
            if let Some(error) = ends.then(failed).flatten() {
                self.stop.set();
                return Err(error);
            }
            for (batch, outcome) in batches.into_iter().enumerate() {
                let of: Vec<usize> = reward.samples(batch, samples, taken).collect();
                if !of.is_empty() {
                    reward.add(&of, outcome.expect("every batch was graded"), &mut scored);
                }
            }
            for (sample, response) in &mut ahead {
                let Some((scores, tally)) = response.take(index) else { continue };
                reward.tally.add(&tally);
                reward.add(&[*sample], scores, &mut scored);
            }
        }
        Ok(scored)
    }
}

impl Reward {
    /// Returns the samples of a batch, without those that it graded ahead.
    fn samples<'t>(
        &'t self,
        batch: usize,
        samples: usize,
        taken: &'t Taken,
    ) -> impl Iterator<Item = usize> + 't {
        let is_ahead = |sample: &usize| self.is_per_response && taken.keys.contains_key(sample);
        self.batches.range(batch, samples).filter(move |sample| !is_ahead(sample))
    }

    /// Adds the outcome of a batch to its samples.
    fn add(&mut self, samples: &[usize], outcome: Result<Scores>, scored: &mut [Scored]) {
        let Ok(scores) = outcome else {
            self.tally.none += samples.len() as u64;
            for &sample in samples {
                let one = &mut scored[sample];
                one.parts.push(None);
                (one.total, one.failed) = (None, true);
            }
            return;
        };
        for sample in scores.failed.iter().map(|failed| samples[*failed]) {
            (scored[sample].total, scored[sample].failed) = (None, true);
        }
        for (&sample, steps) in samples.iter().zip(&scores.steps) {
            scored[sample].add_steps(steps, self.spec.weight);
        }
        for (&sample, score) in samples.iter().zip(&scores.scores) {
            let one = &mut scored[sample];
            one.parts.push(score.map(|score| score as f32));
            match score {
                Some(score) => one.add((score * self.spec.weight) as f32),
                None => self.tally.none += 1,
            }
        }
        for (name, sum, count) in scores.logged {
            let entry = self.logged.entry(name).or_default();
            entry.0.add_sum(&sum);
            entry.1 += count;
        }
    }
}

impl Drop for Rewards {
    fn drop(&mut self) {
        // A worker in the middle of a batch is not waited for.
        self.stop.set();
    }
}

impl Batches {
    /// Cuts whole groups: enough for `asked` samples; by default few, but no more batches than give each grader one.
    fn cut(samples: usize, group: usize, spec: &RewardSpec, graders: usize) -> Batches {
        let (groups, most) = (samples.div_ceil(group), spec.groups_of_batch(group));
        let in_batch = match spec.batch_size {
            Some(_) => most,
            None => groups.div_ceil(graders).clamp(1, most),
        };
        let in_batch = in_batch * group;
        let mut missing = vec![in_batch; samples / in_batch];
        missing.extend(Some(samples % in_batch).filter(|&rest| rest > 0));
        Batches { samples: in_batch, missing }
    }

    /// Returns the samples of a batch.
    fn range(&self, batch: usize, samples: usize) -> Range<usize> {
        let first = batch * self.samples;
        first..(first + self.samples).min(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Prompt;
    use serde_json::json;

    fn columns(value: Value) -> Map<String, Value> {
        value.as_object().expect("a test passes an object").clone()
    }

    fn case(response: &str, columns: &Map<String, Value>) -> Case {
        let prompt = Prompt { text: "p".into(), columns: columns.clone().into(), ..Prompt::default() };
        Case {
            prompt: Arc::new(prompt),
            response: response.into(),
            completion: None,
            response_ids: vec![0; 5],
            max_new_tokens: 10,
            ended: true,
        }
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
        let scored = rewards.score(vec![case("42", &row), case("7", &row)]).unwrap();
        let of = |total, parts: [f32; 3]| Scored {
            total: Some(total),
            parts: parts.map(Some).to_vec(),
            ..Scored::default()
        };
        assert_eq!(scored[0], of(0.75, [1.0, -0.5, 1.0]));
        assert_eq!(scored[1], of(-0.25, [0.0, -0.5, 0.0]));
    }

    #[test]
    fn samples_may_end_in_any_order() {
        let mut rewards = Rewards::new(&[RewardSpec::of_kind("exact")]).unwrap();
        for (samples, group) in [(1, 1), (9, 1), (12, 4), (24, 12), (7, 3)] {
            rewards.begin(samples, group, [1, 2]);
            for index in (0..samples).rev() {
                let row = columns(json!({"ground_truth": index % 3}));
                rewards.submit(index, case("1", &row));
            }
            let totals: Vec<f32> = rewards.finish().unwrap().iter().map(|one| one.total.unwrap()).collect();
            let expect: Vec<f32> = (0..samples).map(|index| f32::from(index % 3 == 1)).collect();
            assert_eq!(totals, expect, "{samples} in groups of {group}");
        }
    }

    #[test]
    fn batches_are_whole_groups() {
        for (samples, group, asked, graders, expect) in [
            (12, 4, None, 1, vec![8, 4]),
            (12, 4, None, 3, vec![4, 4, 4]),
            (24, 12, None, 1, vec![12, 12]),
            (23, 1, None, 3, vec![8, 8, 7]),
            (6, 1, None, 3, vec![2, 2, 2]),
            (1, 1, None, 4, vec![1]),
            (32, 4, Some(32), 2, vec![32]),
            (32, 4, Some(1000), 2, vec![32]),
            (32, 4, Some(9), 2, vec![12, 12, 8]),
            (0, 1, None, 1, vec![]),
        ] {
            let spec = RewardSpec { batch_size: asked, ..RewardSpec::default() };
            let batches = Batches::cut(samples, group, &spec, graders);
            assert_eq!(batches.missing, expect, "{samples} {group} {asked:?} {graders}");
            let covered: Vec<usize> = (0..expect.len()).flat_map(|b| batches.range(b, samples)).collect();
            assert_eq!(covered, (0..samples).collect::<Vec<_>>());
        }
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
    fn steps_of_several_rewards_are_one_list() {
        let of = |end, reward| RewardStep { end, reward };
        let mut one = Scored::default();
        one.add_steps(&[of(2, 1.0), of(7, -1.0)], 0.5);
        one.add_steps(&[of(1, 3.0), of(7, 4.0), of(9, 1.0)], 1.0);
        assert_eq!(one.steps, [of(1, 3.0), of(2, 0.5), of(7, 3.5), of(9, 1.0)]);
        assert_eq!(one.total, None, "they are no part of the sum");
    }

    #[test]
    fn a_score_beyond_f32_is_not_finite() {
        let spec = RewardSpec { weight: 1e300, ..RewardSpec::of_kind("exact") };
        let row = columns(json!({"ground_truth": "1"}));
        let error = Rewards::new(&[spec]).unwrap().score(vec![case("1", &row)]).unwrap_err();
        assert_eq!(error.slug, "reward-not-finite");
        let scores = Scores { scores: vec![Some(1e300)], ..Scores::default() };
        let error =
            crate::grader::require_finite("style", 1.0, &[Arc::new(case("1", &row))], &scores, &|_| {
                "row 1".into()
            })
            .unwrap_err();
        assert_eq!(error.message, "reward `style` gave 1e300 for row 1");
    }

    #[test]
    fn an_answer_that_a_verifier_cannot_read_is_named() {
        for (kind, answer, slug) in [
            ("countdown", json!(7), "reward-bad-answer"),
            ("code", json!(3), "reward-bad-answer"),
            ("json-schema", json!({"type": "nothing"}), "reward-bad-schema"),
        ] {
            let rewards = Rewards::new(&[RewardSpec::of_kind(kind)]).unwrap();
            let error = rewards.check_columns(&columns(json!({"ground_truth": answer}))).unwrap_err();
            assert_eq!(error.slug, slug, "{kind}: {error}");
        }
    }

    fn scored_ahead(rewards: &mut Rewards, ahead: &[usize]) -> Vec<Scored> {
        let row = columns(json!({"ground_truth": "11"}));
        let cases = || (0..12).map(|i| case(&"1".repeat(1 + i % 3), &row));
        for (i, case) in cases().enumerate().filter(|(i, _)| ahead.contains(i)) {
            rewards.submit_ahead(100 + i as u64, case, [1, 2]);
        }
        rewards.score(vec![case("2", &row)]).expect("another round in between");
        rewards.begin(12, 4, [2, 2]);
        for (i, case) in cases().enumerate().collect::<Vec<_>>().into_iter().rev() {
            if rewards.is_ahead(100 + i as u64) {
                rewards.submit_graded(i, case, 100 + i as u64)
            } else {
                rewards.submit(i, case)
            }
        }
        let scored = rewards.finish().expect("scores");
        assert!((100..112).all(|key| !rewards.is_ahead(key)), "what a round took is gone");
        scored
    }

    #[test]
    fn scores_are_those_of_a_round_whichever_responses_were_graded_ahead() {
        let specs = [
            RewardSpec { weight: 0.3, ..RewardSpec::of_kind("exact") },
            RewardSpec { weight: 0.7, ..RewardSpec::of_kind("length") },
        ];
        let mut rewards = Rewards::new(&specs).expect("rewards");
        assert!(rewards.grades_ahead());
        let whole = scored_ahead(&mut rewards, &[]);
        assert_eq!(whole[1].total, Some(0.3 + (-0.5 * 0.7_f64) as f32));
        let all: Vec<usize> = (0..12).collect();
        for ahead in [&all[..1], &[1, 4, 5, 6, 7, 11], &all] {
            assert_eq!(scored_ahead(&mut rewards, ahead), whole, "{ahead:?}");
        }
        assert!(rewards.seconds_ahead() > 0.0);
    }
}
