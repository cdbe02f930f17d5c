//! Checks the page sizes that a Parquet file declares before anything is decoded: a header of a few bytes may ask for
//! gigabytes. Reads page headers (Thrift's compact protocol) and skips the pages.

use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

/// Longest page, stored or decoded. Writers aim at 1 MiB, but some check only every 1,024 rows.
const PAGE_BYTES_MAX: u64 = 256 << 20;
/// Longest page header; long minima and maxima take kilobytes.
const HEADER_BYTES_MAX: u64 = 16 << 20;
/// Most values of a list column in a row group, plus one per four bytes: equal short words pack well.
const LIST_VALUES_MAX: u64 = 1 << 24;
/// Most bytes by which a column's pages may exceed its metadata: writers count headers differently.
const DECODED_BYTES_SLACK: u64 = 1 << 20;
/// Nesting of structs in a header.
const DEPTH_MAX: u32 = 8;
/// Host bytes of a decoded dictionary value.
const DICTIONARY_VALUE_BYTES: u64 = 40;
/// Bytes read at once: most headers are shorter, and the page after it is skipped.
const BUFFER_BYTES: usize = 512;

/// The sizes in a header.
#[derive(Debug, Default)]
struct PageHeader {
    decoded_bytes: i64,
    stored_bytes: i64,
    dictionary_values: i64,
    data_values: i64,
}

/// Reads all page headers. Returns the most bytes of reading: per column its dictionary and a page, stored and decoded.
///
/// Errors: a sentence, if a size exceeds its limit or contradicts another.
pub(crate) fn reading_bytes(file: &File, metadata: &ParquetMetaData) -> Result<u64, String> {
    let file_bytes = file.metadata().map_err(|err| err.to_string())?.len();
    let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
    let mut largest = 0;
    for (g, group) in metadata.row_groups().iter().enumerate() {
        let mut bytes = 0;
        for chunk in group.columns() {
            let chunk_bytes = walk(&mut reader, file_bytes, chunk, group.num_rows());
            bytes += chunk_bytes.map_err(|what| {
                format!("row group {g}, column `{}`: {what}", chunk.column_path().string())
            })?;
        }
        largest = largest.max(bytes);
    }
    Ok(largest)
}

/// Returns the most bytes that reading one column of one row group takes.
fn walk(
    reader: &mut BufReader<&File>,
    file_bytes: u64,
    chunk: &ColumnChunkMetaData,
    rows: i64,
) -> Result<u64, String> {
    let [stored, claimed, values, rows] =
        [chunk.compressed_size(), chunk.uncompressed_size(), chunk.num_values(), rows]
            .map(|number| u64::try_from(number).unwrap_or(u64::MAX));
    let start = chunk.dictionary_page_offset().filter(|&at| at > 0).unwrap_or(chunk.data_page_offset());
    let start = u64::try_from(start).map_err(|_| "its offset is negative".to_string())?;
    let end = start.checked_add(stored).filter(|&end| end <= file_bytes);
    let end = end.ok_or("it lies outside the file")?;
    match chunk.column_descr().max_rep_level() {
        0 if values != rows => return Err(format!("it has {values} values in {rows} rows")),
        0 => {}
        _ if values < rows => return Err(format!("it has {values} values in {rows} rows")),
        _ if values > LIST_VALUES_MAX.saturating_add(claimed / 4) => {
            return Err(format!("it claims {values} values in {claimed} bytes"));
        }
        _ => {}
    }
    let (mut at, mut page, mut dictionary, mut seen, mut total) = (start, 0, 0, 0u64, 0u64);
    while at < end && seen < values {
        reader.seek(SeekFrom::Start(at)).map_err(|err| err.to_string())?;
        let mut thrift = Thrift { inner: reader.by_ref().take(HEADER_BYTES_MAX.min(end - at)), used: 0 };
        let header = thrift.page_header()?;
        let used = thrift.used;
        let size = |bytes: i64| u64::try_from(bytes).ok().filter(|&bytes| bytes <= PAGE_BYTES_MAX);
        let (Some(stored), Some(decoded)) = (size(header.stored_bytes), size(header.decoded_bytes)) else {
            let (a, b) = (header.stored_bytes, header.decoded_bytes);
            return Err(format!("a page claims {a} bytes, {b} decoded; at most {PAGE_BYTES_MAX} are read"));
        };
        let count = |values: i64| u64::try_from(values).map_err(|_| "a page claims a negative count");
        let (words, data) = (count(header.dictionary_values)?, count(header.data_values)?);
        // A dictionary value takes at least one bit.
        if words > 8 * decoded.max(stored) {
            return Err(format!("a dictionary claims {words} values in {decoded} bytes"));
        }
        seen = seen.saturating_add(data);
        if words > 0 {
            dictionary = stored + decoded + words * DICTIONARY_VALUE_BYTES;
        }
        page = page.max(stored + decoded);
        total += decoded;
        if total > claimed.saturating_add(DECODED_BYTES_SLACK) {
            return Err(format!("its pages claim {total} bytes decoded, its metadata {claimed}"));
        }
        at = at.checked_add(used + stored).filter(|&at| at <= end).ok_or("a page is cut off")?;
    }
    if seen != values {
        return Err(format!("its pages hold {seen} values, its metadata says {values}"));
    }
    Ok(dictionary + page)
}

/// The part of Thrift's compact protocol that page headers use.
struct Thrift<R> {
    inner: R,
    used: u64,
}

impl<R: Read> Thrift<R> {
    fn page_header(&mut self) -> Result<PageHeader, String> {
        let (mut header, mut id) = (PageHeader::default(), 0);
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (2, 5) => header.decoded_bytes = self.integer()?,
                (3, 5) => header.stored_bytes = self.integer()?,
                (5 | 8, 12) => header.data_values = self.first_integer()?,
                (7, 12) => header.dictionary_values = self.first_integer()?,
                _ => self.skip(kind, DEPTH_MAX)?,
            }
        }
        Ok(header)
    }

    /// Reads a struct and returns its field 1, an integer.
    fn first_integer(&mut self) -> Result<i64, String> {
        let (mut number, mut id) = (0, 0);
        while let Some(kind) = self.field(&mut id)? {
            match (id, kind) {
                (1, 5) => number = self.integer()?,
                _ => self.skip(kind, DEPTH_MAX)?,
            }
        }
        Ok(number)
    }

    /// Reads the next field's header: stores its id in `id`, returns its type, or `None` at the end of the struct.
    fn field(&mut self, id: &mut i64) -> Result<Option<u8>, String> {
        let byte = self.byte()?;
        match (byte >> 4, byte & 15) {
            (_, 0) => return Ok(None),
            (0, _) => *id = self.integer()?,
            (step, _) => *id = id.saturating_add(i64::from(step)),
        }
        Ok(Some(byte & 15))
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Result<(), String> {
        let deeper = depth.checked_sub(1).ok_or("a page header is nested too deeply")?;
        match kind {
            1 | 2 => Ok(()), // A field's boolean is its type.
            3 => self.byte().map(drop),
            4..=6 => self.integer().map(drop),
            7 => self.pass(8),
            8 => {
                let length = self.varint()?;
                self.pass(length)
            }
            9 | 10 => {
                let byte = self.byte()?;
                let length = if byte >> 4 == 15 { self.varint()? } else { u64::from(byte >> 4) };
                for _ in 0..length {
                    match byte & 15 {
                        1 | 2 => self.byte().map(drop)?, // An element's boolean is a byte.
                        kind => self.skip(kind, deeper)?,
                    }
                }
                Ok(())
            }
            12 => {
                let mut id = 0;
                while let Some(kind) = self.field(&mut id)? {
                    self.skip(kind, deeper)?;
                }
                Ok(())
            }
            other => Err(format!("a page header has a field of type {other}")),
        }
    }

    /// Reads a signed integer in zigzag form.
    fn integer(&mut self) -> Result<i64, String> {
        let bits = self.varint()?;
        Ok((bits >> 1) as i64 ^ -((bits & 1) as i64))
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut bits = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            bits |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(bits);
            }
        }
        Err("a page header holds a number of more than 64 bits".into())
    }

    fn byte(&mut self) -> Result<u8, String> {
        let mut byte = [0];
        self.inner.read_exact(&mut byte).map_err(|_| "a page header is cut off")?;
        self.used += 1;
        Ok(byte[0])
    }

    fn pass(&mut self, bytes: u64) -> Result<(), String> {
        let passed = std::io::copy(&mut self.inner.by_ref().take(bytes), &mut std::io::sink());
        self.used = self.used.saturating_add(bytes);
        match passed {
            Ok(passed) if passed == bytes => Ok(()),
            _ => Err("a page header is cut off".into()),
        }
    }
}
