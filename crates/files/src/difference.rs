//! Finds where a file differs from its record: which bytes, and of which tensors.

use crate::pieces::{FileRecord, PieceSums, hex, joined};
use crate::safetensors_dir::tensors_at;
use plimsoll_base::open_regular;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Most ranges listed in a difference; the others are counted.
const RANGES_MAX: usize = 16;
/// Most tensors named per range.
const TENSORS_NAMED: usize = 3;
const READ_BYTES: usize = 1 << 20;
/// How a file differs from its record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub bytes: u64,
    pub expected_bytes: u64,
    /// SHA-256 of the file's first `expected_bytes` bytes, or of all if there are fewer.
    pub sha256: String,
    pub expected_sha256: String,
    /// The first sixteen ranges that differ, ascending; empty if the record has no sums of pieces.
    pub ranges: Vec<DamagedRange>,
    pub num_ranges: usize,
}

/// Bytes of a file that differ from what was written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DamagedRange {
    pub first_byte: u64,
    pub last_byte: u64,
    /// CRC-32 of the range; `None` if its bytes are missing.
    pub crc32: Option<String>,
    pub expected_crc32: Option<String>,
    /// Tensors of a safetensors file that the range touches, or `its header`.
    pub tensors: Vec<String>,
}

/// Reads a file and compares it with its record; `None` if they agree.
///
/// Errors: those of reading, with the byte at which the disk failed.
pub fn difference(path: &Path, expect: &FileRecord) -> io::Result<Option<Difference>> {
    let expected = expect.pieces.as_ref().and_then(|pieces| Some((pieces.bytes, pieces.sums(expect.bytes)?)));
    let file = open_regular(path)?;
    let bytes = file.metadata()?.len();
    let mut sums = expected.as_ref().map(|(piece_bytes, _)| PieceSums::of(*piece_bytes));
    let mut sha256 = Sha256::new();
    let (mut buffer, mut offset) = (vec![0; READ_BYTES], 0u64);
    while offset < expect.bytes {
        let due = (expect.bytes - offset).min(READ_BYTES as u64) as usize;
        let read = file.read_at(&mut buffer[..due], offset);
        let n = match read {
            Ok(0) => break,
            Ok(n) => n,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => continue,
            Err(err) => return Err(io::Error::new(err.kind(), format!("reading at byte {offset}: {err}"))),
        };
        sha256.update(&buffer[..n]);
        if let Some(sums) = &mut sums {
            sums.update(&buffer[..n]);
        }
        offset += n as u64;
    }
    let sha256 = hex(&sha256.finalize());
    if sha256 == expect.sha256 && bytes == expect.bytes {
        return Ok(None);
    }
    let (there, mut ranges) = (offset, Vec::new());
    if let (Some((piece_bytes, expected)), Some(sums)) = (expected, sums) {
        ranges = damaged_ranges(piece_bytes, &sums.sums(), &expected, there, expect.bytes);
    }
    let missing = |first, last| DamagedRange::of(first..last, None, None);
    if there < expect.bytes {
        ranges.push(missing(there, expect.bytes));
    }
    if bytes > expect.bytes {
        ranges.push(missing(expect.bytes, bytes));
    }
    let num_ranges = ranges.len();
    ranges.truncate(RANGES_MAX);
    name_tensors(path, expect.bytes, &mut ranges);
    let expected_sha256 = expect.sha256.clone();
    Ok(Some(Difference { bytes, expected_bytes: expect.bytes, sha256, expected_sha256, ranges, num_ranges }))
}

/// Returns the ranges whose sums differ, neighbours joined. Only the first `there` of `bytes` bytes were read.
fn damaged_ranges(
    piece_bytes: u64,
    found: &[u32],
    expected: &[u32],
    there: u64,
    bytes: u64,
) -> Vec<DamagedRange> {
    let mut ranges: Vec<(Range<u64>, u32, u32)> = Vec::new();
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let first = index as u64 * piece_bytes;
        let end = bytes.min(first.saturating_add(piece_bytes));
        if found == expected || end > there {
            continue; // A piece that is cut is among the missing bytes.
        }
        match ranges.last_mut() {
            Some((range, all_found, all_expected)) if range.end == first => {
                range.end = end;
                *all_found = joined(*all_found, found, end - first);
                *all_expected = joined(*all_expected, expected, end - first);
            }
            _ => ranges.push((first..end, found, expected)),
        }
    }
    let range = |(range, found, expected)| DamagedRange::of(range, Some(found), Some(expected));
    ranges.into_iter().map(range).collect()
}

impl DamagedRange {
    fn of(range: Range<u64>, found: Option<u32>, expected: Option<u32>) -> DamagedRange {
        let digits = |sum: Option<u32>| sum.map(|sum| format!("{sum:08x}"));
        let (first_byte, last_byte) = (range.start, range.end - 1);
        let (crc32, expected_crc32) = (digits(found), digits(expected));
        DamagedRange { first_byte, last_byte, crc32, expected_crc32, tensors: Vec::new() }
    }

    /// Describes the range for a message; `bytes` is the expected length of the file.
    fn words(&self, bytes: u64) -> String {
        let DamagedRange { first_byte, last_byte, crc32, expected_crc32, tensors } = self;
        let place = format!("bytes {first_byte} to {last_byte}");
        if *first_byte >= bytes {
            return format!("{place} are too many");
        }
        let others = tensors.len().saturating_sub(TENSORS_NAMED);
        let mut named = tensors[..tensors.len().min(TENSORS_NAMED)].join(", ");
        if others > 0 {
            named += &format!(" and {others} more");
        }
        let named = if named.is_empty() { named } else { format!(" ({named})") };
        match (crc32, expected_crc32) {
            (Some(found), Some(expected)) => {
                format!("{place}{named} have CRC-32 {found}, expected {expected}")
            }
            _ => format!("{place}{named} are missing"),
        }
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut words: Vec<String> = Vec::new();
        if self.bytes != self.expected_bytes {
            words.push(format!("{} bytes, expected {}", self.bytes, self.expected_bytes));
        }
        words.extend(self.ranges.iter().take(TENSORS_NAMED).map(|range| range.words(self.expected_bytes)));
        match self.num_ranges.saturating_sub(TENSORS_NAMED) {
            0 => {}
            others => words.push(format!("{others} more such ranges")),
        }
        // The digest of a truncated file adds nothing to its length.
        if self.bytes == self.expected_bytes {
            words.push(format!("SHA-256 {}, expected {}", self.sha256, self.expected_sha256));
        }
        f.write_str(&words.join("; "))
    }
}

/// Adds the names of tensors in the ranges of a safetensors file, if its header is still readable.
fn name_tensors(path: &Path, bytes: u64, ranges: &mut [DamagedRange]) {
    if path.extension().is_none_or(|extension| extension != "safetensors") {
        return;
    }
    let Ok((data_start, tensors)) = tensors_at(path) else {
        // The damage is in the length or the text of the header.
        for range in ranges.iter_mut().take(1).filter(|range| range.first_byte == 0) {
            range.tensors.push("its header".into());
        }
        return;
    };
    for range in ranges.iter_mut().filter(|range| range.first_byte < bytes) {
        let touches = |span: &Range<u64>| span.start <= range.last_byte && range.first_byte < span.end;
        let header = touches(&(0..data_start)).then(|| "its header".to_string());
        let named = tensors.iter().filter(|(_, span)| touches(span)).map(|(name, _)| format!("`{name}`"));
        range.tensors = header.into_iter().chain(named).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::Pieces;
    use crate::writer::{SafetensorsWriter, TensorDecl, record_of};
    use plimsoll_base::DType;

    fn write(path: &Path, elements: u64) -> FileRecord {
        let decl = |name: &str| TensorDecl { name: name.into(), dtype: DType::F32, shape: vec![elements] };
        let mut writer = SafetensorsWriter::create(path, &[decl("one"), decl("two")], &[]).unwrap();
        let values: Vec<f32> = (0..2 * elements).map(|i| i as f32).collect();
        writer.write_f32_as(DType::F32, &values, &mut [0; 4096]).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn damage_is_named_by_its_bytes_and_its_tensor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let record = write(&path, 5000);
        assert_eq!(record, record_of(&path).unwrap());
        assert_eq!(difference(&path, &record).unwrap(), None);
        let good = std::fs::read(&path).unwrap();
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bad = good.clone();
            change(&mut bad);
            std::fs::write(&path, bad).unwrap();
            difference(&path, &record).unwrap().expect("a difference")
        };
        let found = with(&|bytes| bytes[9000] ^= 1);
        let [range] = &found.ranges[..] else { panic!("{found:?}") };
        assert_eq!(
            (range.first_byte, range.last_byte, &range.tensors[..]),
            (8192, 12287, &["`one`".into()][..])
        );
        let (sum, expected) = (crc32fast::hash(&good[8192..12288]), range.expected_crc32.as_deref());
        assert_eq!(expected, Some(format!("{sum:08x}").as_str()));
        assert!(found.to_string().contains("bytes 8192 to 12287 (`one`) have CRC-32 "), "{found}");
        assert!(found.to_string().contains("; SHA-256 "), "{found}");
        // Two pieces in a row are one range, with the sum of both.
        let found = with(&|bytes| bytes[20000..26000].fill(0));
        let [range] = &found.ranges[..] else { panic!("{found:?}") };
        assert_eq!((range.first_byte, range.last_byte, range.tensors.len()), (16384, 28671, 2));
        let sum = crc32fast::hash(&good[16384..28672]);
        assert_eq!(range.expected_crc32.as_deref(), Some(format!("{sum:08x}").as_str()));
        let found = with(&|bytes| bytes[3] ^= 1);
        assert_eq!(found.ranges[0].tensors, ["its header"]);
        let (all, cut) = (good.len(), good.len() - 100);
        let found = with(&|bytes| bytes.truncate(cut)).to_string();
        let expect = format!("{cut} bytes, expected {all}; bytes {cut} to {} (`two`) are missing", all - 1);
        assert_eq!(found, expect);
        let found = with(&|bytes| bytes.push(0)).to_string();
        assert_eq!(found, format!("{} bytes, expected {all}; bytes {all} to {all} are too many", all + 1));
    }

    #[test]
    fn a_record_without_pieces_or_with_those_of_another_file_still_tells_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let record = write(&path, 50);
        std::fs::write(&path, vec![0; record.bytes as usize]).unwrap();
        let wrong = |bytes, crc32: &str| Some(Pieces { bytes, crc32: crc32.into() });
        for pieces in [None, wrong(0, ""), wrong(4096, "12"), wrong(4096, "zzzzzzzz"), wrong(u64::MAX, "")] {
            let record = FileRecord { pieces, ..record.clone() };
            let found = difference(&path, &record).unwrap().expect("a difference");
            assert!(found.ranges.is_empty() && found.to_string().starts_with("SHA-256 "), "{found}");
        }
    }
}
