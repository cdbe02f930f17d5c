//! Who reads the columns of rows: what is not read is named once, before the run.

use crate::data::dataset::SetCounts;
use plimsoll_config::{LearnsFrom, RunSpec};
use plimsoll_text::TEMPLATE_COLUMNS;

/// Columns of pairs and of labelled answers besides prompts.
const OF_PAIRS: [&str; 3] = ["chosen", "rejected", "margin"];
const OF_LABELS: [&str; 3] = ["completion", "label", "prompt"];
const OF_ANSWERS: [&str; 3] = ["messages", "prompt", "completion"];

/// Says for each set what of its rows is not read, next to what is read; nothing where all is read.
pub(crate) fn unread_words<'d>(run: &RunSpec, sets: impl Iterator<Item = SetCounts<'d>>) -> Vec<String> {
    let all = rewards_read_all(run);
    sets.filter_map(|(name, counts)| counts.words(name, |column| all || is_read(run, column))).collect()
}

/// Returns true if some reward or estimator gets every column.
fn rewards_read_all(run: &RunSpec) -> bool {
    let gets_all = |kind: &str| kind.contains(':') || ["judge", "model", "code"].contains(&kind);
    run.estimator().is_some() || run.rewards.iter().any(|reward| gets_all(&reward.kind))
}

fn is_read(run: &RunSpec, column: &str) -> bool {
    let root = |name: &str| name.split('.').next() == Some(column);
    let data = &run.data;
    let of_method: &[&str] = match run.method().needs().learns_from {
        LearnsFrom::Samples => &[],
        LearnsFrom::Completions => &OF_ANSWERS,
        LearnsFrom::Pairs => &OF_PAIRS,
        LearnsFrom::Labels => &OF_LABELS,
    };
    // verl's rows have the answer in `reward_model`.
    let answers = run.rewards.iter().any(|reward| root(&reward.answer_column) || column == "reward_model");
    let teacher = run.distill().and_then(|distill| distill.prompt.as_deref());
    of_method.contains(&column)
        || column == data.prompt_column
        || TEMPLATE_COLUMNS.contains(&column)
        || data.pass_rate_column.as_deref().is_some_and(root)
        || answers
        || teacher.is_some_and(|prompt| prompt.contains(&format!("{{{column}")))
}
