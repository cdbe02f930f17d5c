//! Columns of the data that keys name. A name that no row has is refused: what reads the column would get nothing from
//! every row, and most readers take nothing for an answer.

use super::sections::{Data, Reward};
use plimsoll_base::{Error, Result, nearest_name};
use plimsoll_reward::column;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Most columns that a message lists.
const COLUMNS_LISTED: usize = 20;

/// A key of the run file and the column that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedColumn {
    pub key: String,
    pub column: String,
}

impl NamedColumn {
    /// Returns the columns named for answers. The default of `data.answer_column` names none: data may have no answers.
    pub(crate) fn of_answers(data: &Data, rewards: &[Reward]) -> Vec<NamedColumn> {
        let named = |key: String, column: &String| NamedColumn { key, column: column.clone() };
        let of_data = (data.answer_column != Data::default().answer_column)
            .then(|| named("data.answer_column".into(), &data.answer_column));
        let of_rewards = rewards.iter().enumerate().filter_map(|(index, reward)| {
            Some(named(format!("reward.{index}.answer_column"), reward.answer_column.as_ref()?))
        });
        of_data.into_iter().chain(of_rewards).collect()
    }
}

/// Looks for named columns in the rows of a run, one row at a time.
#[derive(Debug)]
pub struct ColumnSearch<'c> {
    /// Those that no row had yet.
    wanted: Vec<&'c NamedColumn>,
    there: BTreeSet<String>,
    rows: u64,
}

impl<'c> ColumnSearch<'c> {
    /// Begins a search for all of `named`.
    pub fn new(named: &'c [NamedColumn]) -> ColumnSearch<'c> {
        ColumnSearch { wanted: named.iter().collect(), there: BTreeSet::new(), rows: 0 }
    }

    /// Looks at the columns of a row, which do not include its prompt.
    pub fn see(&mut self, columns: &Map<String, Value>) {
        if self.wanted.is_empty() {
            return;
        }
        self.rows += 1;
        self.wanted.retain(|named| column(columns, &named.column).is_none());
        for name in columns.keys() {
            if self.there.len() < COLUMNS_LISTED && !self.there.contains(name) {
                self.there.insert(name.clone());
            }
        }
    }

    /// Requires that each named column was in some row, if there were rows.
    ///
    /// Errors: `data-column-missing`.
    pub fn finish(self) -> Result<()> {
        let Some(NamedColumn { key, column }) = self.wanted.first().filter(|_| self.rows > 0) else {
            return Ok(());
        };
        let there: Vec<&str> = self.there.iter().map(String::as_str).collect();
        let message = format!("`{key}` names the column `{column}`, which no row has");
        let error =
            Error::usage("data-column-missing", message).fact(format!("rows looked at: {}", self.rows)).fact(
                format!("columns there: {}", if there.is_empty() { "none".into() } else { there.join(", ") }),
            );
        Err(match nearest_name(column, there) {
            Some(near) => error.hint(format!("did you mean `{near}`? --set {key}={near}")),
            None => error.hint(format!("set {key} to a column of the data, or remove it")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns the error of a search for `name` in rows, or an empty text.
    fn searched(name: &str, rows: &[Value]) -> String {
        let named = [NamedColumn { key: "data.answer_column".into(), column: name.into() }];
        let mut search = ColumnSearch::new(&named);
        rows.iter().for_each(|row| search.see(row.as_object().expect("an object")));
        search.finish().err().map_or(String::new(), |error| format!("{error:?}"))
    }

    #[test]
    fn a_column_must_be_in_some_row() {
        let rows = [json!({"id": 1}), json!({"id": 2, "answer": null, "deep": {"truth": 3}})];
        for there in ["answer", "deep.truth", "id"] {
            assert_eq!(searched(there, &rows), "", "{there}");
        }
        let error = searched("anser", &rows);
        for part in ["data-column-missing", "no row has", "answer, deep, id", "data.answer_column=answer"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        assert!(searched("deep.lie", &rows).contains("or remove it"));
        assert_eq!(searched("anser", &[]), "", "no row says nothing");
    }

    #[test]
    fn a_default_names_no_column() {
        let reward =
            |column: Option<&str>| Reward { answer_column: column.map(String::from), ..Reward::default() };
        let keys = |data: &Data, rewards: &[Reward]| -> Vec<String> {
            NamedColumn::of_answers(data, rewards).into_iter().map(|named| named.key).collect()
        };
        assert!(keys(&Data::default(), &[reward(None)]).is_empty());
        let data = Data { answer_column: "label".into(), ..Data::default() };
        let named = keys(&data, &[reward(None), reward(Some("ground_truth"))]);
        assert_eq!(named, ["data.answer_column", "reward.1.answer_column"]);
    }
}
