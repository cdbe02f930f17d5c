//! `python:FILE.py:FUNCTION`: a function of yours, in worker processes.

use crate::case::Case;
use crate::scorer::{Reading, Scorer, Start, answer};
use plimsoll_base::Result;
use plimsoll_worker::{Batch, Columns, PythonFunction, PythonSpec, Scores};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

struct Python {
    function: PythonFunction,
    answer_column: String,
}

/// Reads `FILE.py:FUNCTION`.
pub(crate) fn read(argument: Option<&str>) -> Option<Reading> {
    let (file, function) = argument?.rsplit_once(':')?;
    if file.is_empty() || function.is_empty() {
        return None;
    }
    let (file, name) = (Path::new(file).to_path_buf(), function.to_string());
    Some(Reading::starts(function, |Start { spec, limits, stop, words, .. }| {
        let python = PythonSpec {
            file,
            function: name,
            signature: spec.signature,
            python: spec.python.clone(),
            memory: spec.worker_memory,
            network: spec.network,
            steps: spec.steps,
            words,
        };
        let function = PythonFunction::start(&python, limits, stop)?;
        Ok(Box::new(Python { function, answer_column: spec.answer_column.clone() }))
    }))
}

impl Scorer for Python {
    fn check(&mut self, columns: &Columns) -> Result<()> {
        self.function.check(columns)
    }

    fn score(&mut self, cases: &[Arc<Case>], steps: [u32; 2]) -> Result<Scores> {
        self.function.call(&[batch(cases, &self.answer_column, steps)]).remove(0)
    }
}

fn batch(cases: &[Arc<Case>], answer_column: &str, steps: [u32; 2]) -> Batch {
    let prompts = cases.iter().map(|case| &case.prompt);
    Batch {
        prompts: prompts
            .clone()
            .map(|p| p.messages.as_deref().cloned().unwrap_or_else(|| json!(p.text)))
            .collect(),
        rendered: prompts.clone().map(|p| p.rendered.clone()).collect(),
        responses: cases.iter().map(|case| case.response.clone()).collect(),
        completions: cases.iter().map(|case| case.completion.clone()).collect(),
        response_ids: cases.iter().map(|case| case.response_ids.clone()).collect(),
        answers: cases.iter().map(|case| answer(&case.prompt.columns, answer_column).clone()).collect(),
        images: prompts.clone().map(|p| p.images.clone()).collect(),
        columns: prompts.map(|p| p.columns.clone()).collect(),
        steps,
    }
}
