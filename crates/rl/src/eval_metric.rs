//! What decides which checkpoint is the best, by name: a number of one evaluation set, or the mean over all of them.

use crate::eval::EvalReport;
use crate::runfile::RunFile;
use plimsoll_algo::pass_at_k::powers_up_to;

/// What `eval.metric` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvalMetric {
    /// The set by its place; none is the mean over the sets.
    set: Option<usize>,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Reward,
    PassAt(u32),
}

/// Means of each set weigh the same, however many prompts it has.
pub fn mean_over_sets(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let sets = values.len().max(1) as f64;
    values.sum::<f64>() / sets
}

impl EvalMetric {
    /// The metric of a checked run file.
    pub fn of(run: &RunFile) -> Option<EvalMetric> {
        EvalMetric::parse(&run.eval.metric, &sets_of(run), samples_of(run))
    }

    /// Every name that a run measures.
    pub fn names_of(run: &RunFile) -> Vec<String> {
        EvalMetric::names(&sets_of(run), samples_of(run))
    }

    fn names(sets: &[String], samples: u32) -> Vec<String> {
        let pass = powers_up_to(samples).map(|k| format!("pass_at_{k}"));
        let of_all: Vec<String> = ["reward".to_string()].into_iter().chain(pass).collect();
        match sets {
            // Without an evaluation nothing is the best.
            [] => vec!["reward".into()],
            [_] => of_all,
            sets => {
                let of_one =
                    |set: &String| of_all.iter().map(|what| format!("{set}/{what}")).collect::<Vec<_>>();
                of_all.iter().cloned().chain(sets.iter().flat_map(of_one)).collect()
            }
        }
    }

    /// The metric of that name; `score` is another word for `reward`.
    fn parse(name: &str, sets: &[String], samples: u32) -> Option<EvalMetric> {
        let (set, what) = match name.rsplit_once('/') {
            Some((set, what)) => (Some(sets.iter().position(|name| name == set)?), what),
            None => (None, name),
        };
        let what = match what.strip_prefix("pass_at_") {
            None if matches!(what, "reward" | "score") => What::Reward,
            None => return None,
            Some(_) if sets.is_empty() => return None,
            Some(k) => {
                let k: u32 = k.parse().ok()?;
                What::PassAt(powers_up_to(samples).find(|&power| power == k)?)
            }
        };
        Some(EvalMetric { set, what })
    }

    /// Its value; `reports` has one entry a set.
    pub fn value(self, reports: &[EvalReport]) -> f64 {
        let one = |report: &EvalReport| match self.what {
            What::Reward => report.score,
            What::PassAt(k) => report.pass_at_k.get(&k).copied().unwrap_or(0.0),
        };
        match self.set {
            Some(set) => one(&reports[set]),
            None => mean_over_sets(reports.iter().map(one)),
        }
    }
}

fn sets_of(run: &RunFile) -> Vec<String> {
    run.eval_sets().into_iter().map(|(name, _)| name).collect()
}

/// Samples a prompt; none where pairs alone are scored.
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
        let report = |score, pass| EvalReport {
            score,
            pass_at_k: [(1, score), (4, pass)].into(),
            ..EvalReport::default()
        };
        let reports = [report(0.5, 0.75), report(0.25, 1.0)];
        for (name, expect) in [
            ("reward", Some(0.375)),
            ("score", Some(0.375)),
            ("pass_at_4", Some(0.875)),
            ("easy/reward", Some(0.5)),
            ("a/b/pass_at_4", Some(1.0)),
            ("pass_at_3", None),
            ("pass_at_8", None),
            ("pass_at_", None),
            ("hard/reward", None),
            ("easy/", None),
            ("", None),
        ] {
            let metric = EvalMetric::parse(name, &sets, 4);
            assert_eq!(metric.map(|metric| metric.value(&reports)), expect, "{name}");
        }
        for name in EvalMetric::names(&sets, 4) {
            assert!(EvalMetric::parse(&name, &sets, 4).is_some(), "{name}");
        }
        assert_eq!(EvalMetric::names(&[], 4), ["reward"]);
        assert_eq!(EvalMetric::parse("pass_at_1", &[], 1), None);
    }
}
