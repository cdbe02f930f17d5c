//! Labelled rows: a prompt with one answer, and whether it is a desirable one.

use crate::SftRow;
use crate::data::{Place, prompt_of, take};
use crate::images::{ImageColumns, ImageRow, each_answered};
use crate::pairs::{NamedPrompts, PairRow, as_pair, row_of};
use crate::supervised::{completion_of, taken_completion};
use plimsoll_base::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

const LABEL: &str = "label";

/// One answer with its label.
#[derive(Clone, Debug, PartialEq)]
pub struct LabelledRow {
    pub answer: SftRow,
    pub is_desirable: bool,
    pub columns: Map<String, Value>,
}

/// Reads rows `{prompt, completion, label}`, with labels true and false or 1 and 0. A pair, `{prompt, chosen,
/// rejected}`, is two of them, and a row of the file is one list. `images` names the column of images, if any is read.
/// Fields and columns called as in `ignored` are left out.
///
/// Errors: those of `each_prompt`; `label-invalid`; `labels-all-equal` if all answers have one label.
pub fn load_labelled(
    path: &Path,
    prompt_column: &str,
    ignored: &[String],
    images: Option<ImageColumns>,
) -> Result<Vec<ImageRow<Vec<LabelledRow>>>> {
    let prompts = NamedPrompts::of(prompt_column);
    let rows = each_answered(path, images, as_pair, |object, place| {
        prompts.see(&object);
        if object.contains_key("chosen") && !object.contains_key(LABEL) {
            row_of(object, prompt_column, ignored, place).map(|pair| halves(pair).to_vec())
        } else {
            one(object, prompt_column, ignored, place).map(|row| vec![row])
        }
    })?;
    prompts.finish(path)?;
    let answers = rows.iter().map(|of| of.row.len()).sum::<usize>();
    let desirable = rows.iter().flat_map(|of| &of.row).filter(|row| row.is_desirable).count();
    if answers > 0 && (desirable == 0 || desirable == answers) {
        let which = desirable > 0;
        let message = format!("{}: all {answers} labels are {which}", path.display());
        return Err(Error::new("labels-all-equal", message)
            .hint("kto compares desirable answers with undesirable ones: add rows of the other label")
            .hint("to learn from good answers alone, set method = \"sft\""));
    }
    Ok(rows)
}

/// Returns the chosen answer of a pair as a desirable one, and the rejected as an undesirable one.
pub fn halves(pair: PairRow) -> [LabelledRow; 2] {
    let PairRow { prompt, chosen, rejected, columns, .. } = pair;
    [(chosen, true), (rejected, false)].map(|(completion, is_desirable)| LabelledRow {
        answer: SftRow::Answer { prompt: prompt.clone(), completion },
        is_desirable,
        columns: columns.clone(),
    })
}

/// Returns the half of a pair that its place in a stream has: right ones at even places.
pub(crate) fn of_place(pair: PairRow, index: u64) -> LabelledRow {
    let [desirable, undesirable] = halves(pair);
    if index.is_multiple_of(2) { desirable } else { undesirable }
}

fn one(
    mut object: Map<String, Value>,
    prompt_column: &str,
    ignored: &[String],
    place: Place,
) -> Result<LabelledRow> {
    let is_desirable = label(object.shift_remove(LABEL).as_ref(), place)?;
    let prompt = prompt_of(take(&mut object, prompt_column, place)?, prompt_column, place)?;
    let completion = completion_of(taken_completion(&mut object, place)?, place)?;
    let mut answer = SftRow::Answer { prompt, completion };
    answer.ignore(ignored);
    object.retain(|name, _| !ignored.contains(name));
    Ok(LabelledRow { answer, is_desirable, columns: object })
}

fn label(value: Option<&Value>, place: Place) -> Result<bool> {
    match value {
        Some(Value::Bool(label)) => Ok(*label),
        Some(Value::Number(number)) if number.as_f64() == Some(1.0) => Ok(true),
        Some(Value::Number(number)) if number.as_f64() == Some(0.0) => Ok(false),
        other => {
            let found = other.map_or("no `label`".to_string(), |value| format!("the label {value}"));
            Err(Error::new("label-invalid", format!("{}: {found}", place.words()))
                .hint("a row of kto is {\"prompt\": ..., \"completion\": ..., \"label\": true or false}"))
        }
    }
}
