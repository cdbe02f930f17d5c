//! Event files for TensorBoard: every metric of every step, and evaluations, as scalars. A file is a list of records,
//! each with its length and two checksums (TFRecord); a record is one protocol buffer message, `Event`.

use super::line::Line;
use super::tail::{Look, Tail};
use plimsoll_base::{Error, Result};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

const READ_BYTES: u64 = 1 << 20;

/// Writes the run in `dir` to `out`/`name`. Returns the file and the number of its records.
///
/// Errors: `run-dir-unreadable`, `export-exists`, `write-failed`, `disk-full`.
pub fn export(dir: &Path, name: &str, out: &Path) -> Result<(PathBuf, u64)> {
    let folder = out.join(name);
    let path = folder.join("events.out.tfevents.0.plimsoll");
    if path.exists() {
        return Err(Error::new("export-exists", format!("{} is there already", path.display()))
            .hint("choose another folder, or remove it"));
    }
    let begun = begun_at(dir);
    let failed = |err: &io::Error| match err.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Error::io("disk-full", &path, err).hint("make room, or choose another directory on a larger disk")
        }
        _ => Error::io("write-failed", &path, err).hint("choose a directory that you may write"),
    };
    fs::create_dir_all(&folder).map_err(|err| failed(&err))?;
    let file = File::create_new(&path).map_err(|err| failed(&err))?;
    let written = write(dir, begun, BufWriter::new(file)).map_err(|err| failed(&err))?;
    Ok((path, written))
}

/// Returns when the run file was written, in seconds since 1970; the log counts from the run's start.
fn begun_at(dir: &Path) -> f64 {
    let time = fs::metadata(dir.join("run.toml")).and_then(|meta| meta.modified()).ok();
    time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |since| since.as_secs_f64())
}

fn write(dir: &Path, begun: f64, mut out: impl Write) -> io::Result<u64> {
    let mut version = Vec::new();
    field_double(&mut version, 1, begun);
    field_bytes(&mut version, 3, b"brain.Event:2");
    record(&mut out, &version)?;
    let (mut tail, mut count, mut result) = (Tail::new(&dir.join("events.jsonl")), 1, Ok(()));
    if tail.look() == Look::Gone {
        return Ok(count);
    }
    loop {
        let read = tail.read(READ_BYTES, |_, bytes| {
            let event = Line::parse(bytes).and_then(|line| message(&line, begun));
            if let (Some(event), Ok(())) = (event, &result) {
                result = record(&mut out, &event);
                count += 1;
            }
        })?;
        if read == 0 || result.is_err() {
            result?;
            out.flush()?;
            return Ok(count);
        }
    }
}

/// Encodes `Event { wall_time = 1, step = 2, summary = 5 }`; `None` without a number.
fn message(line: &Line<'_>, begun: f64) -> Option<Vec<u8>> {
    let mut summary = Vec::new();
    match line.event.as_ref() {
        "step" => line.numbers().for_each(|(name, value)| scalar(&mut summary, name, value)),
        "eval" => {
            scalar(&mut summary, &format!("eval/{}", line.set.as_deref().unwrap_or("score")), line.score?)
        }
        _ => return None,
    }
    let mut event = Vec::new();
    field_double(&mut event, 1, begun + line.seconds_since_start.unwrap_or(0.0));
    varint(&mut event, 2 << 3);
    varint(&mut event, u64::from(line.step?));
    field_bytes(&mut event, 5, &summary);
    Some(event)
}

/// Encodes `Summary.Value { tag = 1, simple_value = 2 }`, which is field 1 of `Summary`.
fn scalar(summary: &mut Vec<u8>, tag: &str, value: f64) {
    let mut one = Vec::new();
    field_bytes(&mut one, 1, tag.as_bytes());
    // Field 2, 32 bits.
    varint(&mut one, 2 << 3 | 5);
    one.extend_from_slice(&(value as f32).to_le_bytes());
    field_bytes(summary, 1, &one);
}

fn field_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn field_double(out: &mut Vec<u8>, field: u64, value: f64) {
    varint(out, field << 3 | 1);
    out.extend_from_slice(&value.to_le_bytes());
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn record(out: &mut impl Write, data: &[u8]) -> io::Result<()> {
    let length = (data.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked(crc32c(&length)).to_le_bytes())?;
    out.write_all(data)?;
    out.write_all(&masked(crc32c(data)).to_le_bytes())
}

/// Masks a checksum as TFRecord does, so that checksums of data that contains checksums differ.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Computes CRC-32C (Castagnoli), byte by byte. Source: RFC 3720, B.4.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    !bytes.iter().fold(!0, |crc, byte| TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ crc >> 8)
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let (mut crc, mut bit) = (i as u32, 0);
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, B.4, and the check value of the catalogue of CRCs.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    /// Reads the records back: (step, tag, value).
    fn scalars(bytes: &[u8]) -> Vec<(u64, String, f32)> {
        let (mut at, mut found) = (0, Vec::new());
        while at < bytes.len() {
            let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            let crc = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            assert_eq!(crc(at + 8), masked(crc32c(&bytes[at..at + 8])));
            let data = &bytes[at + 12..at + 12 + length];
            assert_eq!(crc(at + 12 + length), masked(crc32c(data)));
            at += 16 + length;
            let fields = fields(data);
            let step = fields.iter().find(|field| field.0 == 2).map_or(0, |field| field.1);
            for summary in fields.iter().filter(|field| field.0 == 5) {
                for value in self::fields(&summary.2) {
                    let parts = self::fields(&value.2);
                    let tag = String::from_utf8(parts[0].2.clone()).unwrap();
                    found.push((step, tag, f32::from_le_bytes(parts[1].2.clone().try_into().unwrap())));
                }
            }
        }
        found
    }

    fn fields(mut data: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        let number = |data: &mut &[u8]| {
            let (mut value, mut shift) = (0u64, 0);
            loop {
                let byte = data[0];
                *data = &data[1..];
                value |= u64::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    return value;
                }
            }
        };
        let mut found = Vec::new();
        while !data.is_empty() {
            let key = number(&mut data);
            let (value, length) = match key & 7 {
                0 => (number(&mut data), 0),
                1 => (0, 8),
                5 => (0, 4),
                _ => (0, number(&mut data) as usize),
            };
            found.push((key >> 3, value, data[..length].to_vec()));
            data = &data[length..];
        }
        found
    }

    #[test]
    fn every_number_of_a_step_is_a_scalar_and_none_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let log = "{\"event\":\"started\"}\n\
            {\"event\":\"eval\",\"step\":0,\"set\":\"math\",\"score\":0.25,\"seconds_since_start\":1}\n\
            {\"event\":\"step\",\"step\":300,\"reward\":0.5,\"metrics\":{\"kl\":null,\"entropy\":1.5,\"reward\":0.5}}\n{\"torn";
        fs::write(folder.path().join("events.jsonl"), log).unwrap();
        let out = folder.path().join("out");
        let (path, count) = export(folder.path(), "a", &out).unwrap();
        assert_eq!(count, 3);
        let found = scalars(&fs::read(&path).unwrap());
        let expect = [(0, "eval/math", 0.25), (300, "entropy", 1.5), (300, "reward", 0.5)];
        assert_eq!(found, expect.map(|(step, tag, value)| (step, tag.to_string(), value)));
        assert_eq!(export(folder.path(), "a", &out).unwrap_err().slug, "export-exists");
    }
}
