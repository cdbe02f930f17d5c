//! Evaluation sets of held-out prompts or pairs.

use crate::data::dataset::{Dataset, Item, TextModel};
use crate::data::pairs;
use plimsoll_base::Result;
use plimsoll_config::Data;

/// Held-out prompts with their name.
#[derive(Clone, Debug, Default)]
pub struct EvalSet {
    /// The name in events, samples and metrics.
    pub name: String,
    pub items: Vec<Item>,
}

impl EvalSet {
    /// Returns sets of episodes, whose prompts their environment makes.
    pub(crate) fn of_episodes(sets: Vec<(String, String)>) -> Vec<EvalSet> {
        sets.into_iter().map(|(name, _)| EvalSet { name, items: Vec::new() }).collect()
    }

    /// Opens sets of prompts or of pairs, each given by name and path; at most `max` rows of each.
    pub(crate) fn open_all(
        sets: Vec<(String, String)>,
        data: &Data,
        text: &TextModel,
        max: Option<u32>,
        has_pairs: bool,
    ) -> Result<Vec<EvalSet>> {
        let open = |(name, path): (String, String)| {
            let items = match has_pairs {
                true => pairs::test_items(&path, data, text, max)?,
                false => Dataset::test_items(&path, data, text, max)?,
            };
            Ok(EvalSet { name, items })
        };
        sets.into_iter().map(open).collect()
    }
}
