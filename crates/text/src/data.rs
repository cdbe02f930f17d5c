//! Prompt data: JSON lines, read one at a time, or Parquet. A bad row is an error with file, line and column; no row is
//! skipped. All columns but the prompt go to the reward unchanged.

use crate::Message;
use crate::message::listed;
use crate::parquet_file::{bad_parquet, each_row, is_parquet};
use plimsoll_base::{Error, Result, json_with_digits, nearest_name, open_regular};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::ops::ControlFlow;
use std::path::Path;

const LINE_BYTES_MAX: u64 = 16 << 20;
pub(crate) const ROWS_MAX: usize = 1 << 24;
/// Most lines of a file or of stdin, with empty ones, which are no rows.
const LINES_MAX: usize = 2 * ROWS_MAX;

#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    Text(String),
    /// A conversation for the chat template.
    Messages(Vec<Message>),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub prompt: Prompt,
    pub columns: Map<String, Value>,
}

impl Prompt {
    /// Returns the messages, if it is a conversation.
    pub fn messages(&self) -> &[Message] {
        match self {
            Prompt::Text(_) => &[],
            Prompt::Messages(messages) => messages,
        }
    }

    /// Leaves fields out of its messages.
    pub(crate) fn ignore(&mut self, names: &[String]) {
        if let Prompt::Messages(messages) = self {
            ignore(messages, names);
        }
    }
}

/// Leaves fields out of messages.
pub(crate) fn ignore(messages: &mut [Message], names: &[String]) {
    for message in messages {
        message.fields.retain(|name, _| !names.contains(name));
    }
}

impl Row {
    /// Leaves columns and fields of messages out.
    pub fn ignore(&mut self, names: &[String]) {
        self.columns.retain(|name, _| !names.contains(name));
        self.prompt.ignore(names);
    }
}

/// Reads prompts from JSON lines or Parquet, and calls `visit` with each row and its index.
///
/// Errors: `data-missing`, `data-empty`, `data-bad-json`, `data-bad-parquet`, `data-column-missing`, `data-bad-prompt`;
/// those of `visit`.
pub fn each_prompt(
    path: &Path,
    prompt_column: &str,
    visit: impl FnMut(usize, Row) -> Result<()>,
) -> Result<()> {
    first_prompts(path, prompt_column, Part::WHOLE, visit).map(drop)
}

/// Reads prompts from JSON lines of `reader`, which may be empty. Errors call it `name`.
///
/// Errors: `data-bad-json`, `data-column-missing`, `data-bad-prompt`; those of `visit`.
pub fn prompts_of_lines(
    name: &Path,
    reader: impl BufRead,
    prompt_column: &str,
    mut visit: impl FnMut(Row) -> Result<()>,
) -> Result<()> {
    each_line(name, reader, &mut |mut object, place, _| {
        let value = take(&mut object, prompt_column, place)?;
        visit(Row { prompt: prompt_of(value, prompt_column, place)?, columns: object })?;
        Ok(ControlFlow::Continue(()))
    })
}

/// Limits on the part of a file to read: up to the row that reaches one of these numbers.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub rows: usize,
    /// Bytes of the rows as JSON lines.
    pub bytes: usize,
}

impl Part {
    pub const WHOLE: Part = Part { rows: usize::MAX, bytes: usize::MAX };
}

/// Calls `visit` with the prompts in a part of the file. Returns the number of rows read if there may be more.
///
/// Errors: those of `each_prompt`.
pub fn first_prompts(
    path: &Path,
    prompt_column: &str,
    part: Part,
    mut visit: impl FnMut(usize, Row) -> Result<()>,
) -> Result<Option<usize>> {
    let mut index = 0;
    let is_whole = each_object(path, part, |mut object, place| {
        let value = take(&mut object, prompt_column, place)?;
        visit(index, Row { prompt: prompt_of(value, prompt_column, place)?, columns: object })?;
        index += 1;
        Ok(())
    })?;
    Ok((!is_whole).then_some(index))
}

/// The position of a row, for error messages.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    path: &'a Path,
    /// The line, or the row of a file without lines; from 1.
    line: usize,
}

impl Place<'_> {
    pub(crate) fn words(&self) -> String {
        format!("{}:{}", self.path.display(), self.line)
    }
}

pub(crate) fn missing(path: &Path, err: &std::io::Error) -> Error {
    Error::io("data-missing", path, err)
        .near(path)
        .hint("check data.prompts and data.eval in the run file; paths are relative to where you are")
}

/// Opens a data file. Returns true for Parquet.
pub(crate) fn open(path: &Path) -> Result<(File, bool)> {
    let missing = |err: std::io::Error| missing(path, &err);
    if !std::fs::metadata(path).map_err(missing)?.is_file() {
        let message = format!("{}: not a regular file", path.display());
        return Err(Error::new("data-missing", message)
            .hint("data.prompts names a JSONL or Parquet file or builtin:TASK"));
    }
    let mut file = open_regular(path).map_err(missing)?;
    let is_packed = is_parquet(&mut file).map_err(missing)?;
    if !is_packed && path.extension().is_some_and(|end| end == "parquet") {
        return Err(bad_parquet(path, "it does not begin as a Parquet file does"));
    }
    Ok((file, is_packed))
}

/// Calls `visit` with each row of a file of JSON lines or Parquet, and its line or row, from 1.
///
/// Errors: those of `each_prompt` except those about prompts; those of `visit`.
pub fn each_row_of(path: &Path, visit: impl FnMut(usize, Map<String, Value>) -> Result<()>) -> Result<()> {
    first_rows_of(path, Part::WHOLE, visit).map(drop)
}

/// Calls `visit` with the rows in a part of the file. Returns the number of rows read if there may be more.
///
/// Errors: those of `each_row_of`.
pub fn first_rows_of(
    path: &Path,
    part: Part,
    mut visit: impl FnMut(usize, Map<String, Value>) -> Result<()>,
) -> Result<Option<usize>> {
    let mut rows = 0;
    let is_whole = each_object(path, part, |object, place| {
        rows += 1;
        visit(place.line, object)
    })?;
    Ok((!is_whole).then_some(rows))
}

/// Calls `visit` with each row of JSON lines from `reader`, such as stdin, which may be empty. Errors call it `name`.
pub fn each_line_of(
    name: &Path,
    reader: impl BufRead,
    mut visit: impl FnMut(usize, Map<String, Value>) -> Result<()>,
) -> Result<()> {
    each_line(name, reader, &mut |object, place, _| {
        visit(place.line, object)?;
        Ok(ControlFlow::Continue(()))
    })
}

/// Calls `visit` with each row of a part of a file, which must not be empty. Returns true if the file ends with it.
fn each_object(
    path: &Path,
    part: Part,
    visit: impl FnMut(Map<String, Value>, Place) -> Result<()>,
) -> Result<bool> {
    each_object_with(path, part, None, visit)
}

/// Does what `each_object` does. The column `images` of a Parquet file may hold bytes.
pub(crate) fn each_object_with(
    path: &Path,
    part: Part,
    images: Option<&str>,
    mut visit: impl FnMut(Map<String, Value>, Place) -> Result<()>,
) -> Result<bool> {
    let (file, is_packed) = open(path)?;
    let (mut rows, mut bytes) = (0, 0);
    let mut is_whole = true;
    let mut count = |object: Map<String, Value>, place: Place<'_>, row_bytes: usize| {
        (rows, bytes) = (rows + 1, bytes + row_bytes);
        visit(object, place)?;
        is_whole = rows < part.rows && bytes < part.bytes;
        Ok(if is_whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    };
    if is_packed {
        each_row(path, file, ROWS_MAX, images, |line, object| {
            // The length as JSON limits the work. It costs time itself, so it is not computed without a limit.
            let row_bytes =
                if part.bytes == usize::MAX { 0 } else { Value::from(object.clone()).to_string().len() };
            count(object, Place { path, line }, row_bytes)
        })?
    } else {
        each_line(path, BufReader::new(file), &mut count)?
    }
    if rows == 0 {
        return Err(Error::new("data-empty", format!("{}: no rows", path.display()))
            .hint("write one JSON object a line, such as {\"prompt\": \"2+2=\", \"ground_truth\": \"4\"}"));
    }
    Ok(is_whole)
}

fn each_line(
    path: &Path,
    mut reader: impl BufRead,
    visit: &mut impl FnMut(Map<String, Value>, Place, usize) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let (mut rows, mut bytes) = (0, Vec::new());
    for line in 1.. {
        let place = Place { path, line };
        if line > LINES_MAX {
            return Err(bad_json(place, &format!("more than {LINES_MAX} lines, empty ones among them")));
        }
        bytes.clear();
        let read = (&mut reader).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut bytes);
        let read = read.map_err(|err| missing(path, &err))?;
        if read == 0 {
            break;
        }
        if read as u64 > LINE_BYTES_MAX {
            return Err(bad_json(place, &format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        let start = if line == 1 && bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 }; // a byte order mark
        let text = bytes[start..].trim_ascii();
        if text.is_empty() {
            continue;
        }
        if rows == ROWS_MAX {
            return Err(bad_json(place, &format!("more than {ROWS_MAX} rows")));
        }
        rows += 1;
        if visit(parse(text, place)?, place, text.len())?.is_break() {
            break;
        }
    }
    Ok(())
}

fn parse(text: &[u8], place: Place) -> Result<Map<String, Value>> {
    // Numbers that 64 bits do not hold stay texts of their digits, which is how graders compare them.
    let read = std::str::from_utf8(text).map_or_else(|_| serde_json::from_slice(text), json_with_digits);
    match read {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(bad_json(place, "not an object; a file of one JSON list is not read, JSON lines are")),
        Err(e) => {
            let error = bad_json(place, &e.to_string().replace("line 1 column", "column"));
            match place.path.extension().and_then(|end| end.to_str()) {
                Some(end @ ("csv" | "tsv")) => Err(error
                    .hint(format!("{end} files are not read; pandas makes JSON lines of one: read_csv(...).to_json(PATH, orient=\"records\", lines=True)"))),
                _ => Err(error),
            }
        }
    }
}

pub(crate) fn take(object: &mut Map<String, Value>, column: &str, place: Place) -> Result<Value> {
    if let Some(value) = object.shift_remove(column) {
        return Ok(value);
    }
    let there: Vec<String> = object.keys().take(20).map(|k| format!("`{k}`")).collect();
    let message = format!("{}:{}: no column `{column}`", place.path.display(), place.line);
    let error = Error::new("data-column-missing", message)
        .fact(format!("columns there: {}", if there.is_empty() { "none".into() } else { there.join(", ") }));
    let error = match nearest_name(column, object.keys().map(String::as_str)) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error,
    };
    Err(error.hint("set data.prompt_column to the column with the prompt (--set data.prompt_column=NAME)"))
}

pub(crate) fn prompt_of(value: Value, column: &str, place: Place) -> Result<Prompt> {
    let list = match value {
        Value::String(text) => match listed(&text) {
            None => return Ok(Prompt::Text(text)),
            Some(list) => list,
        },
        Value::Array(list) if !list.is_empty() => list,
        _ => return Err(bad_prompt(place, column, "it is neither a text nor a list of messages")),
    };
    let messages: std::result::Result<Vec<Message>, String> = list.into_iter().map(Message::read).collect();
    messages.map(Prompt::Messages).map_err(|e| bad_prompt(place, column, &format!("a message is wrong: {e}")))
}

fn bad_json(place: Place, why: &str) -> Error {
    Error::new("data-bad-json", format!("{}:{}: {why}", place.path.display(), place.line))
        .hint("write one JSON object a line, in UTF-8")
}

pub(crate) fn bad_prompt(place: Place, column: &str, why: &str) -> Error {
    Error::new(
        "data-bad-prompt",
        format!("{}:{}: column `{column}`: {why}", place.path.display(), place.line),
    )
    .hint("a message is {\"role\": \"user\", \"content\": \"...\"}")
}
