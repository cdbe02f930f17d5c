//! Reads rows of a Parquet file as JSON objects: structs become objects, lists arrays, text strings. Holds one page of
//! each column. Checks sizes first, since files are not trusted; a panic of the decoder becomes a named error.

use crate::images::data_uri;
use crate::parquet_pages::reading_bytes;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use plimsoll_base::{Error, Result, json_with_digits};
use serde_json::{Map, Number, Value};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};

/// The decoding thread. A panic in it is the file's fault; only the reader reports it.
pub const PARQUET_THREAD: &str = "parquet";

/// The first and last bytes of a file.
const MAGIC: &[u8; 4] = b"PAR1";
/// Longest metadata; a file with a thousand columns and a thousand row groups has less.
const METADATA_BYTES_MAX: u64 = 64 << 20;
/// Rows between the decoder and its reader.
const ROWS_IN_FLIGHT: usize = 64;
/// The same for rows with images, which take megabytes.
const IMAGE_ROWS_IN_FLIGHT: usize = 2;

/// Returns true if a file begins with Parquet's magic.
pub(crate) fn is_parquet(file: &mut File) -> std::io::Result<bool> {
    let mut start = [0; 4];
    let read = file.read_exact(&mut start);
    file.seek(SeekFrom::Start(0))?;
    Ok(read.is_ok() && &start == MAGIC)
}

/// Calls `visit` with each row and its number, from 1, until it breaks. Refuses a file of more than `rows_max` rows.
/// The column `images` may hold bytes, which become data URIs.
///
/// Errors: `data-bad-parquet`, those of `visit`.
pub(crate) fn each_row(
    path: &Path,
    file: File,
    rows_max: usize,
    images: Option<&str>,
    visit: impl FnMut(usize, Map<String, Value>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let in_flight = if images.is_some() { IMAGE_ROWS_IN_FLIGHT } else { ROWS_IN_FLIGHT };
    decoding(path, in_flight, |rows| read(file, rows_max, images, rows), visit).map(drop)
}

/// Returns the most host bytes that reading the file takes, besides its rows.
///
/// Errors: `data-bad-parquet`.
pub(crate) fn reading(path: &Path, file: File) -> Result<u64> {
    let mut bytes = 0;
    decoding(path, 1, |_| open(file).map(|(_, reading)| reading), |_, _| Ok(ControlFlow::Continue(())))
        .map(|found| bytes = found)?;
    Ok(bytes)
}

/// Runs `work` in its own thread and `visit` in this one.
fn decoding<T: Send>(
    path: &Path,
    in_flight: usize,
    work: impl FnOnce(&SyncSender<Map<String, Value>>) -> std::result::Result<T, String> + Send,
    mut visit: impl FnMut(usize, Map<String, Value>) -> Result<ControlFlow<()>>,
) -> Result<T> {
    std::thread::scope(|scope| {
        let (send, receive) = sync_channel(in_flight);
        let thread = std::thread::Builder::new().name(PARQUET_THREAD.into());
        let thread = thread.spawn_scoped(scope, move || work(&send)).map_err(|err| {
            Error::new("thread-not-started", format!("{}: no thread to read it: {err}", path.display()))
        })?;
        let visited = receive.iter().enumerate().try_for_each(|(i, object)| match visit(i + 1, object) {
            Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
            Ok(ControlFlow::Break(())) => ControlFlow::Break(Ok(())),
            Err(error) => ControlFlow::Break(Err(error)),
        });
        drop(receive); // The thread cannot send any more, and ends.
        let decoded = thread.join();
        visited.break_value().transpose()?;
        match decoded {
            Ok(result) => result.map_err(|what| bad_parquet(path, &what)),
            Err(_) => Err(bad_parquet(path, "its pages contradict its schema")),
        }
    })
}

/// Opens a reader after checking its sizes. Returns the bytes that it takes.
fn open(mut file: File) -> std::result::Result<(SerializedFileReader<File>, u64), String> {
    let words = |err: std::io::Error| err.to_string();
    let mut end = [0; 8];
    file.seek(SeekFrom::End(-8)).and_then(|_| file.read_exact(&mut end)).map_err(|_| "it is cut off")?;
    if &end[4..] != MAGIC {
        return Err("it does not end as a Parquet file does: it is cut off, or encrypted".into());
    }
    let metadata_bytes = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
    let file_bytes = file.metadata().map_err(words)?.len();
    if metadata_bytes > METADATA_BYTES_MAX.min(file_bytes) {
        return Err(format!("it claims {metadata_bytes} bytes of metadata in {file_bytes}"));
    }
    let pages = file.try_clone().map_err(words)?;
    let reader = SerializedFileReader::new(file).map_err(|err| err.to_string())?;
    let bytes = reading_bytes(&pages, reader.metadata())?;
    Ok((reader, bytes + metadata_bytes))
}

fn read(
    file: File,
    rows_max: usize,
    images: Option<&str>,
    rows: &SyncSender<Map<String, Value>>,
) -> std::result::Result<(), String> {
    let (reader, _) = open(file)?;
    let claimed = reader.metadata().row_groups().iter();
    let claimed = claimed.map(|group| group.num_rows()).fold(0i64, i64::saturating_add);
    if usize::try_from(claimed).map_or(true, |claimed| claimed > rows_max) {
        return Err(format!("it claims {claimed} rows; at most {rows_max} are read"));
    }
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(|err| err.to_string())?;
        for row in group.get_row_iter(None).map_err(|err| err.to_string())? {
            if rows.send(object(row.map_err(|err| err.to_string())?, |name| images == Some(name))?).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Converts a row or a struct. `is_binary` tells which fields may hold bytes.
fn object(row: Row, is_binary: impl Fn(&str) -> bool) -> std::result::Result<Map<String, Value>, String> {
    let one = |(name, field): (String, Field)| match json(field, is_binary(&name)) {
        Ok(value) => Ok((name, value)),
        Err(what) => Err(format!("column `{name}`: {what}")),
    };
    row.into_columns().into_iter().map(one).collect()
}

/// Converts a value. Numbers that JSON lacks become null, as in pandas; dates and times become text, and so do bytes
/// where they are expected.
fn json(field: Field, is_binary: bool) -> std::result::Result<Value, String> {
    let float = |number: f64| Number::from_f64(number).map_or(Value::Null, Value::Number);
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => value.into(),
        Field::Byte(number) => number.into(),
        Field::Short(number) => number.into(),
        Field::Int(number) => number.into(),
        Field::Long(number) => number.into(),
        Field::UByte(number) => number.into(),
        Field::UShort(number) => number.into(),
        Field::UInt(number) => number.into(),
        Field::ULong(number) => number.into(),
        Field::Float16(number) => float(f64::from(number)),
        Field::Float(number) => float(f64::from(number)),
        Field::Double(number) => float(number),
        Field::Str(text) => text.into(),
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => text.into(),
            Err(_) if is_binary => data_uri(bytes.data()),
            Err(_) => {
                return Err(
                    "it holds bytes that are no text; if they are images, set data.images to it".into()
                );
            }
        },
        Field::Group(row) => Value::Object(object(row, |_| is_binary)?),
        Field::ListInternal(list) => list
            .elements()
            .iter()
            .map(|field| json(field.clone(), is_binary))
            .collect::<std::result::Result<_, _>>()?,
        Field::MapInternal(map) => {
            let entry = |(key, value): &(Field, Field)| {
                let key = match json(key.clone(), false)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                Ok((key, json(value.clone(), is_binary)?))
            };
            Value::Object(map.entries().iter().map(entry).collect::<std::result::Result<_, String>>()?)
        }
        Field::Decimal(_) => decimal(&field.to_string())?,
        // Dates and times, as the decoder writes them.
        other => Value::String(other.to_string()),
    })
}

/// Converts a decimal as a row of JSON has it: a number if one holds all its digits, else the digits as text. The
/// decoder ends a whole number with a point.
fn decimal(text: &str) -> std::result::Result<Value, String> {
    let text = text.strip_suffix('.').unwrap_or(text);
    json_with_digits(text).map_err(|_| format!("it holds `{text:.40}`, which is no decimal"))
}

pub(crate) fn bad_parquet(path: &Path, what: &str) -> Error {
    Error::new("data-bad-parquet", format!("{}: {what}", path.display()))
        .hint("write it again: python -c \"import pandas; pandas.read_parquet('a.parquet').to_parquet('b.parquet')\"")
        .hint("or give the rows as JSON lines")
}
