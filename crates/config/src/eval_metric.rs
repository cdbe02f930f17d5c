//! `eval.metric`: the number that decides which checkpoint is the best, of one evaluation set or the mean over all
//! sets.

use crate::RunFile;
use plimsoll_algo::pass_at_k::powers_up_to;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalMetric {
    /// Index of the set; none is the mean over the sets.
    pub set: Option<usize>,
    pub what: EvalNumber,
}

/// A number that an evaluation measures for each set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvalNumber {
    Reward,
    PassAt(u32),
}

impl EvalMetric {
    pub fn of(run: &RunFile) -> Option<EvalMetric> {
        EvalMetric::parse(&run.eval.metric, &sets_of(run), samples_of(run))
    }

    /// Returns every name that a run measures.
    pub(crate) fn names_of(run: &RunFile) -> Vec<String> {
        EvalMetric::names(&sets_of(run), samples_of(run))
    }

    fn names(sets: &[String], samples: u32) -> Vec<String> {
        let pass = powers_up_to(samples).map(|k| format!("pass_at_{k}"));
        let of_all: Vec<String> = ["reward".to_string()].into_iter().chain(pass).collect();
        match sets {
            // Without an evaluation no checkpoint is the best.
            [] => vec!["reward".into()],
            [_] => of_all,
            sets => {
                let of_one =
                    |set: &String| of_all.iter().map(|what| format!("{set}/{what}")).collect::<Vec<_>>();
                of_all.iter().cloned().chain(sets.iter().flat_map(of_one)).collect()
            }
        }
    }

    /// Returns the metric of that name; `score` is another word for `reward`.
    fn parse(name: &str, sets: &[String], samples: u32) -> Option<EvalMetric> {
        let (set, what) = match name.rsplit_once('/') {
            Some((set, what)) => (Some(sets.iter().position(|name| name == set)?), what),
            None => (None, name),
        };
        let what = match what.strip_prefix("pass_at_") {
            None if matches!(what, "reward" | "score") => EvalNumber::Reward,
            None => return None,
            Some(_) if sets.is_empty() => return None,
            Some(k) => {
                let k: u32 = k.parse().ok()?;
                EvalNumber::PassAt(powers_up_to(samples).find(|&power| power == k)?)
            }
        };
        Some(EvalMetric { set, what })
    }
}

fn sets_of(run: &RunFile) -> Vec<String> {
    run.eval_sets().into_iter().map(|(name, _)| name).collect()
}

/// Returns the samples per prompt; none where only pairs are scored.
fn samples_of(run: &RunFile) -> u32 {
    if run.reward.is_empty() && run.environment.is_none() { 0 } else { run.eval.samples }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| word.to_string()).collect()
    }

    #[test]
    fn a_metric_is_of_a_set_or_of_all() {
        let sets = names(&["easy", "a/b"]);
        let metric = |set, what| Some(EvalMetric { set, what });
        use EvalNumber::{PassAt, Reward};
        for (name, expect) in [
            ("reward", metric(None, Reward)),
            ("score", metric(None, Reward)),
            ("pass_at_4", metric(None, PassAt(4))),
            ("easy/reward", metric(Some(0), Reward)),
            ("a/b/pass_at_4", metric(Some(1), PassAt(4))),
            ("pass_at_3", None),
            ("pass_at_8", None),
            ("pass_at_", None),
            ("hard/reward", None),
            ("easy/", None),
            ("", None),
        ] {
            assert_eq!(EvalMetric::parse(name, &sets, 4), expect, "{name}");
        }
        for name in EvalMetric::names(&sets, 4) {
            assert!(EvalMetric::parse(&name, &sets, 4).is_some(), "{name}");
        }
        assert_eq!(EvalMetric::names(&[], 4), ["reward"]);
        assert_eq!(EvalMetric::parse("pass_at_1", &[], 1), None);
    }
}
