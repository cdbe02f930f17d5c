//! The memory of a data file's rows, from one reading of it.

use crate::data::{Part, ROWS_MAX, each_object_with, missing, open};
use crate::images::sources;
use crate::message::listed;
use crate::parquet_file::{each_row, reading};
use plimsoll_base::{Bytes, Result};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;

/// Bytes of an allocation besides those asked for: its header, and the end that is not asked for.
const ALLOCATION: u64 = 24;
/// Levels of a row; the parser refuses one with more.
const LEVELS_MAX: usize = 128;
/// Copies of the longest line as it is read: a buffer that doubles as it grows, and a text without its escapes.
const LINE_COPIES: u64 = 3;
/// Copies of the longest row with images: two wait, one is made, one is visited, and its images are decoded from text.
const IMAGE_ROW_COPIES: u64 = 5;

/// The size of a data file, in the numbers that determine memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSize {
    /// The rows as JSON lines.
    pub json: Bytes,
    /// The longest of them.
    pub longest: Bytes,
    pub rows: u64,
    /// Host memory of the rows' values, without the characters of texts: lists and tables with the room to which they
    /// grow, and the allocations of texts and keys.
    pub values: Bytes,
    /// Host memory for reading, without the rows.
    pub reading: Bytes,
    /// Content of images that rows hold themselves, and the most of one row; none of it is in the rows above.
    pub images: Bytes,
    pub images_longest: Bytes,
    /// Images of all rows, named or held.
    pub num_images: u64,
}

/// Measures a data file by reading all of it. `images` names the column of images, whose content is counted apart; a
/// row's images are in memory one row after another.
///
/// Errors: `data-missing`, `data-bad-parquet`, and with `images` those of the rows.
pub fn file_size(path: &Path, images: Option<&str>) -> Result<FileSize> {
    let (file, is_packed) = open(path)?;
    if let Some(column) = images {
        return size_with_images(path, file, is_packed, column);
    }
    if !is_packed {
        return size_of_lines(file).map_err(|err| missing(path, &err));
    }
    let again = file.try_clone().map_err(|err| missing(path, &err))?;
    let mut size = FileSize { reading: Bytes(reading(path, again)?), ..FileSize::default() };
    each_row(path, file, ROWS_MAX, None, |_, object| {
        size.add(object);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(size)
}

impl FileSize {
    fn add(&mut self, object: Map<String, Value>) {
        let row = Value::Object(object);
        let bytes = row.to_string().len() as u64 + 1;
        self.json.0 += bytes;
        self.longest.0 = self.longest.0.max(bytes);
        self.rows += 1;
        self.values.0 += bytes_of(&row);
    }
}

/// Measures rows without their images, and the images.
fn size_with_images(path: &Path, file: File, is_packed: bool, column: &str) -> Result<FileSize> {
    let mut size = FileSize::default();
    let mut longest_whole = 0;
    each_object_with(path, Part::WHOLE, Some(column), |mut object, _| {
        let images = object.shift_remove(column).unwrap_or(Value::Null);
        let text = images.to_string().len() as u64;
        let mut held = 0;
        for image in sources(images) {
            size.num_images += 1;
            // What is wrong with an image is found where it is read.
            held += image.map_or(0, |image| image.held_bytes());
        }
        size.images.0 += held;
        size.images_longest.0 = size.images_longest.0.max(held);
        let before = size.json.0;
        size.add(object);
        longest_whole = longest_whole.max(size.json.0 - before + text);
        Ok(())
    })?;
    size.reading.0 = IMAGE_ROW_COPIES * longest_whole;
    if is_packed {
        size.reading.0 += reading(path, file)?;
    }
    Ok(size)
}

fn bytes_of(value: &Value) -> u64 {
    match value {
        Value::Object(object) => {
            let keys = object.len() as u64 * ALLOCATION;
            table_bytes(object.len() as u64) + keys + object.values().map(bytes_of).sum::<u64>()
        }
        Value::Array(list) => list_bytes(list.len() as u64) + list.iter().map(bytes_of).sum::<u64>(),
        // A list of messages in a text is read as one.
        Value::String(text) => ALLOCATION + listed(text).map_or(0, |list| bytes_of(&Value::Array(list))),
        _ => 0,
    }
}

/// Returns the bytes of a list's values: it grows to 4 and then doubles.
fn list_bytes(values: u64) -> u64 {
    match values {
        0 => 0,
        _ => values.next_power_of_two().max(4) * size_of::<Value>() as u64 + ALLOCATION,
    }
}

/// Returns the bytes of an object's entries, each with its hash, and of the table that finds them, which is never
/// fuller than seven eighths and doubles.
fn table_bytes(entries: u64) -> u64 {
    if entries == 0 {
        return 0;
    }
    let places = (8 * entries).div_ceil(7).next_power_of_two().max(4);
    places * 7 / 8 * size_of::<(u64, String, Value)>() as u64 + 9 * places + 16 + 2 * ALLOCATION
}

fn size_of_lines(mut file: File) -> std::io::Result<FileSize> {
    let (mut size, mut buffer, mut scan) = (FileSize::default(), vec![0; 64 << 10], Scan::default());
    let mut line = 0;
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            size.reading.0 = LINE_COPIES * size.longest.0;
            return Ok(size);
        }
        size.json.0 += read as u64;
        for part in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
            line += part.len() as u64;
            size.longest.0 = size.longest.0.max(line);
            part.iter().for_each(|byte| scan.see(*byte, &mut size));
            if part.ends_with(b"\n") {
                (line, scan) = (0, Scan::default());
            }
        }
    }
}

/// Where in a line the counting is: a file that is not JSON has any size, and is refused as it is read.
#[derive(Default)]
struct Scan {
    in_text: bool,
    is_escaped: bool,
    /// The last byte that is not blank.
    before: u8,
    /// Commas of each list and object that is open.
    commas: Vec<u64>,
    /// The list of messages that the text may be, and its size so far.
    listed: Option<Box<(Scan, FileSize)>>,
    /// The last characters of a text that may be such a list, and whether it names a role.
    tail: [u8; 4],
    has_role: bool,
}

impl Scan {
    /// Looks at a byte. Each byte of a file passes here.
    #[inline]
    fn see(&mut self, byte: u8, size: &mut FileSize) {
        if self.in_text {
            self.in_text = byte != b'"' || self.is_escaped;
            self.see_of_text(byte, size);
            self.is_escaped = byte == b'\\' && !self.is_escaped;
            return;
        }
        match byte {
            b'"' => {
                self.in_text = true;
                size.values.0 += ALLOCATION;
                (self.listed, self.tail, self.has_role) = (None, [0; 4], false);
            }
            b'{' | b'[' if self.commas.len() < LEVELS_MAX => self.commas.push(0),
            b',' => {
                if let Some(commas) = self.commas.last_mut() {
                    *commas += 1;
                }
            }
            b'}' | b']' => {
                let is_empty = matches!(self.before, b'{' | b'[');
                let values = self.commas.pop().map_or(0, |commas| commas + u64::from(!is_empty));
                size.values.0 += if byte == b'}' { table_bytes(values) } else { list_bytes(values) };
                size.rows += u64::from(self.commas.is_empty());
            }
            _ => {}
        }
        if !byte.is_ascii_whitespace() {
            self.before = byte;
        }
    }

    /// Looks at a byte of a text that may be a list of messages, which is read as one.
    fn see_of_text(&mut self, byte: u8, size: &mut FileSize) {
        let is_first = self.tail == [0; 4];
        self.tail.rotate_left(1);
        self.tail[3] = byte;
        self.has_role |= &self.tail == b"role";
        if is_first && byte == b'[' {
            self.listed = Some(Box::default());
        }
        let Some((inner, of_list)) = self.listed.as_deref_mut() else { return };
        match (self.in_text, self.is_escaped, byte) {
            (false, ..) => {
                let found = std::mem::take(&mut of_list.values);
                self.listed = None;
                if self.has_role {
                    size.values += found;
                }
            }
            (true, false, b'\\') => {}
            // Escapes of a text within the list are those of the list.
            (true, true, b'"' | b'\\' | b'/') | (true, false, _) => inner.see(byte, of_list),
            (true, true, _) => {}
        }
    }
}
