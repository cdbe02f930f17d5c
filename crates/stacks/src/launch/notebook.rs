//! Jupyter notebooks (nbformat 4): their code cells as one Python script, and the cell of each line.

use crate::setting::Setting;
use serde_json::Value;

/// The extension of a notebook.
pub(crate) const ENDING: &str = ".ipynb";
/// Magics in a cell's first line that keep it Python.
const STILL_PYTHON: [&str; 4] = ["%%capture", "%%time", "%%timeit", "%%prun"];

#[derive(Debug, Default)]
pub(crate) struct Notebook {
    /// The concatenated code cells.
    pub script: String,
    /// The number of each cell among all cells, from 1, and the line of the script before its first.
    cells: Vec<(usize, usize)>,
}

/// Reads a notebook. The error says what is wrong with it.
pub(crate) fn notebook(text: &str) -> Result<Notebook, String> {
    let value: Value =
        serde_json::from_str(text).map_err(|err| format!("is no notebook: it is not JSON: {err}"))?;
    let version = value.get("nbformat").and_then(Value::as_u64);
    let cells = match (version, value.get("cells").and_then(Value::as_array)) {
        (Some(4), Some(cells)) => cells,
        (Some(4), None) => return Err("is no notebook: it has no `cells`".into()),
        (Some(version), _) => return Err(format!("is a notebook of nbformat {version}, and 4 is read")),
        (None, _) => return Err("is no notebook: it does not say its `nbformat`".into()),
    };
    let (mut found, mut lines) = (Notebook::default(), 0);
    for (index, cell) in cells.iter().enumerate() {
        if cell.get("cell_type").and_then(Value::as_str) != Some("code") {
            continue;
        }
        let source = source_of(cell).ok_or_else(|| format!("has no text in cell {}", index + 1))?;
        let code = python(&source);
        found.cells.push((index + 1, lines));
        lines += code.matches('\n').count();
        found.script += &code;
    }
    Ok(found)
}

/// Returns the text of a cell, which is stored whole or as lines.
fn source_of(cell: &Value) -> Option<String> {
    match cell.get("source")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) => lines.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

/// Returns the lines of a cell, with magics, shell commands and questions replaced by empty lines.
fn python(source: &str) -> String {
    let first = source.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let magic = first.split_whitespace().next().unwrap_or_default();
    let is_other = magic.starts_with("%%") && !STILL_PYTHON.contains(&magic);
    let (mut code, mut goes_on) = (String::with_capacity(source.len() + 1), false);
    for line in source.lines() {
        let start = line.trim_start();
        // `%` before a name is a magic; before anything else it is a remainder.
        let is_magic = start
            .strip_prefix('%')
            .is_some_and(|rest| rest.starts_with(|c: char| c == '%' || c.is_alphabetic()));
        let is_skipped = is_other || goes_on || is_magic || start.starts_with(['!', '?']);
        goes_on = is_skipped && line.ends_with('\\');
        code += if is_skipped { "" } else { line };
        code.push('\n');
    }
    code
}

impl Notebook {
    /// Sets the cell of a setting, and its line in the cell.
    pub fn place(&self, one: Setting) -> Setting {
        let after = self.cells.partition_point(|(_, before)| *before < one.line);
        match after.checked_sub(1).map(|index| self.cells[index]) {
            Some((cell, before)) => Setting { cell, line: one.line - before, ..one },
            None => one,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_of_a_cell_is_python() {
        for (source, expect) in [
            ("a = 1", "a = 1\n"),
            ("%pip install x\na = 1\n!ls\n? a\n", "\na = 1\n\n\n"),
            ("!pip install \\\n  x\na = 1", "\n\na = 1\n"),
            ("%%capture\na = 1", "\na = 1\n"),
            ("\n%%bash\na=1", "\n\n\n"),
            ("a = (7\n  % 4)", "a = (7\n  % 4)\n"),
            ("if x:\n  !ls\n", "if x:\n\n"),
            ("", ""),
        ] {
            assert_eq!(python(source), expect, "{source:?}");
        }
    }

    #[test]
    fn a_line_is_placed_in_its_cell() {
        let text = r##"{"nbformat": 4, "cells": [{"cell_type": "markdown", "source": ["# A"]}, {"cell_type": "code", "source": "a = 1\nb = 2"},
            {"cell_type": "code", "source": ""}, {"cell_type": "code", "source": ["c = 3\n", "d = 4"]}]}"##;
        let notebook = notebook(text).expect("a notebook");
        assert_eq!(notebook.script, "a = 1\nb = 2\nc = 3\nd = 4\n");
        for (line, expect) in [(0, (0, 0)), (1, (2, 1)), (2, (2, 2)), (3, (4, 1)), (4, (4, 2))] {
            let one = notebook.place(Setting::new("x", "", line));
            assert_eq!((one.cell, one.line), expect, "{line}");
        }
    }
}
