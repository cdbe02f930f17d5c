//! The sets that a run trains and is evaluated on, and the checks of their lists.

use super::data_sets::{DataSet, DataSets, SETS_MAX};
use super::provenance::Provenance;
use super::sections::{Data, Eval, RunFile};
use plimsoll_base::{Error, Result};
use std::collections::BTreeSet;

/// Longest name, which becomes part of a file's name.
const NAME_BYTES_MAX: usize = 64;
/// The value of `data.eval` for no evaluation.
const NO_EVAL: &str = "none";

impl Data {
    /// Returns the evaluation sets of a run or a command with their names: `data.eval`, or the test sets of the
    /// built-in tasks in `data.prompts`.
    pub fn eval_sets(&self) -> Vec<(String, String)> {
        let of = |sets: &DataSets, wanted: &dyn Fn(&DataSet) -> bool| {
            let sets = sets.named().filter(|(_, set)| wanted(set));
            sets.map(|(name, set)| (name, set.path.clone())).collect()
        };
        match (&self.eval, &self.prompts) {
            _ if self.asks_no_eval() => Vec::new(),
            (Some(eval), _) => of(eval, &|_| true),
            (None, Some(prompts)) => of(prompts, &DataSet::is_builtin),
            (None, None) => Vec::new(),
        }
    }

    pub(crate) fn asks_no_eval(&self) -> bool {
        self.eval.as_ref().is_some_and(|eval| eval.is_one && eval.sets[0].path == NO_EVAL)
    }

    pub fn files(&self) -> impl Iterator<Item = &str> {
        let sets = [&self.prompts, &self.eval].into_iter().flatten().flat_map(|sets| sets.sets.iter());
        sets.filter(|set| !set.is_builtin() && set.path != NO_EVAL).map(|set| set.path.as_str())
    }
}

impl RunFile {
    /// True if episodes are evaluated: where `[eval]`, `data.eval` or `environment.eval_rows` say so. An episode can
    /// take minutes, so 256 of them are not a default.
    pub fn evaluates_episodes(&self) -> bool {
        let asked = self.eval != Eval::default()
            || self.data.eval.is_some()
            || self.environment.as_ref().is_some_and(|environment| environment.eval_rows.is_some());
        asked && !self.data.asks_no_eval()
    }

    /// Returns the evaluation sets of the run with their names; a default test set only with a reward or pairs to
    /// measure by.
    pub fn eval_sets(&self) -> Vec<(String, String)> {
        if let Some(environment) = &self.environment {
            // Its evaluation episodes are a set with its name.
            let set = (environment.env.clone(), environment.env.clone());
            return if self.evaluates_episodes() { vec![set] } else { Vec::new() };
        }
        let measures = self.method.needs().learns_from.is_judged() || !self.reward.is_empty();
        match (&self.data.eval, measures) {
            (None, false) => Vec::new(),
            _ => self.data.eval_sets(),
        }
    }
}

/// Checks the sets of `key`; those of an evaluation have no weights.
pub(super) fn check(sets: &DataSets, key: &str, weighted: bool, at: &Provenance) -> Result<()> {
    let bad = |key: &str, what: String, hint: &str| {
        Err(at.error("bad-value", key, &format!("`{key}` {what}")).hint(hint))
    };
    if sets.sets.is_empty() {
        return bad(key, "is an empty list".into(), "name a data set, or remove it");
    }
    if sets.sets.len() > SETS_MAX {
        return bad(
            key,
            format!("has {} sets; it takes {SETS_MAX}", sets.sets.len()),
            "join some of the files",
        );
    }
    let mut names = BTreeSet::new();
    for (index, (name, set)) in sets.named().enumerate() {
        let place = if sets.is_one { key.to_string() } else { format!("{key}.{index}") };
        if set.path.is_empty() {
            return bad(&place, "is empty".into(), "give it a value, or remove it");
        }
        if sets.is_one {
            continue;
        }
        let weight = format!("{place}.weight");
        match set.weight {
            Some(_) if !weighted => {
                let message = format!("`{weight}` is set, but an evaluation samples every prompt of a set");
                return Err(at.error("contradictory-keys", &weight, &message).hint("remove it"));
            }
            Some(value) if !(value > 0.0 && value.is_finite()) => {
                let takes = "a finite number above 0";
                return bad(
                    &weight,
                    format!("is {value}; it takes {takes}"),
                    "remove a set that is not needed",
                );
            }
            _ => {}
        }
        check_name(&name, &place, at)?;
        if !names.insert(name.clone()) {
            let message = format!("`{key}` has two sets with the name `{name}`");
            return Err(at
                .error("data-same-name", &place, &message)
                .hint(format!("give one of them another: {{ path = \"{}\", name = \"...\" }}", set.path)));
        }
    }
    Ok(())
}

/// Checks a name, which becomes part of a metric's and of a file's name.
fn check_name(name: &str, place: &str, at: &Provenance) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.starts_with('.') && name.chars().all(fits) {
        return Ok(());
    }
    let key = format!("{place}.name");
    let message =
        format!("`{key}` is `{name}`; it takes up to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`");
    Err(at.error("bad-value", &key, &message).hint("give the set a name: { path = \"...\", name = \"...\" }"))
}

/// Returns the error of a list whose filter or order needs rows of a file.
pub fn no_rows_to_filter(name: &str, column: &str) -> Error {
    Error::new("data-column-missing", format!("{name}: a task has no column `{column}`"))
        .hint("remove data.pass_rate_column, or give prompts as a file")
}
