//! Writing what must last: a safetensors file streamed tensor by tensor, and small files that appear whole or not at all.
//! Every byte is counted against the declaration and hashed on its way; a file that is not finished is removed.
//! What is streamed does not stay in the page cache: a save costs its caller's buffer, not the size of its files.

use crate::pieces::{FileRecord, PieceSums, hex};
use plimsoll_base::{Bytes, DType, Error, Result};
use rustix::fs::{Advice, fadvise};
use serde_json::{Map, json};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes after which a streamed file is put on the disk and its pages are given back. Dirty pages count against a
/// container's limit and cannot be reclaimed, so they are bounded too; 16 MiB is a few milliseconds of writing.
const WINDOW_BYTES: u64 = 16 << 20;

/// Counts and sums the bytes of a file as they pass.
#[derive(Debug, Default)]
struct Sums {
    sha256: Sha256,
    pieces: PieceSums,
    bytes: u64,
}

impl Sums {
    fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        self.pieces.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    fn finish(self) -> FileRecord {
        let (sha256, pieces) = (hex(&self.sha256.finalize()), Some(self.pieces.finish()));
        FileRecord { bytes: self.bytes, sha256, pieces }
    }
}

/// One tensor to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDecl {
    /// Name in the header.
    pub name: String,
    /// How elements are stored.
    pub dtype: DType,
    /// Slowest axis first.
    pub shape: Vec<u64>,
}

/// Elements of arrays that are no weights, under the format's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names say it.
pub enum ArrayElement {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F32,
    F64,
}

/// An array to be written: a column of recorded experience, for example.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayDecl {
    /// Name in the header.
    pub name: String,
    /// Type of an element.
    pub element: ArrayElement,
    /// Slowest axis first.
    pub shape: Vec<u64>,
}

impl ArrayElement {
    const fn name_and_bytes(self) -> (&'static str, u64) {
        match self {
            ArrayElement::Bool => ("BOOL", 1),
            ArrayElement::I8 => ("I8", 1),
            ArrayElement::I16 => ("I16", 2),
            ArrayElement::I32 => ("I32", 4),
            ArrayElement::I64 => ("I64", 8),
            ArrayElement::U8 => ("U8", 1),
            ArrayElement::U16 => ("U16", 2),
            ArrayElement::U32 => ("U32", 4),
            ArrayElement::U64 => ("U64", 8),
            ArrayElement::F32 => ("F32", 4),
            ArrayElement::F64 => ("F64", 8),
        }
    }
}

/// A safetensors file being written, its tensors in the order of the declaration.
#[derive(Debug)]
pub struct SafetensorsWriter {
    file: Option<File>,
    path: PathBuf,
    sums: Sums,
    written_bytes: u64,
    data_bytes: u64,
    /// Bytes that are on the disk and out of the page cache.
    settled_bytes: u64,
}

impl SafetensorsWriter {
    /// Creates the file and writes its header; `metadata` is added to `{"format": "pt"}`.
    ///
    /// Errors: `disk-full`, `write-failed`, `size-overflow`.
    pub fn create(
        path: &Path,
        tensors: &[TensorDecl],
        metadata: &[(String, String)],
    ) -> Result<SafetensorsWriter> {
        let entries =
            tensors.iter().map(|t| (t.name.as_str(), stored_name(t.dtype), t.dtype.bytes(), &t.shape[..]));
        SafetensorsWriter::start(path, header(entries, metadata)?)
    }

    /// The same for arrays that are no weights.
    ///
    /// Errors: `disk-full`, `write-failed`, `size-overflow`.
    pub fn create_arrays(
        path: &Path,
        arrays: &[ArrayDecl],
        metadata: &[(String, String)],
    ) -> Result<SafetensorsWriter> {
        let entries = arrays.iter().map(|array| {
            let (name, bytes) = array.element.name_and_bytes();
            (array.name.as_str(), name, bytes, &array.shape[..])
        });
        SafetensorsWriter::start(path, header(entries, metadata)?)
    }

    fn start(path: &Path, (header, data_bytes): (Vec<u8>, u64)) -> Result<SafetensorsWriter> {
        let file = File::create(path).map_err(|e| write_error(path, &e))?;
        let mut writer = SafetensorsWriter {
            file: Some(file),
            path: path.to_path_buf(),
            sums: Sums::default(),
            written_bytes: 0,
            data_bytes,
            settled_bytes: 0,
        };
        writer.put(&(header.len() as u64).to_le_bytes())?;
        writer.put(&header)?;
        Ok(writer)
    }

    /// Appends stored bytes of the tensor that is due.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.written_bytes + bytes.len() as u64;
        if written > self.data_bytes {
            return Err(self.miscounted(written));
        }
        self.written_bytes = written;
        self.put(bytes)
    }

    /// Appends values as `dtype` (f32 or bf16, round to nearest even), through `scratch`, which may be small.
    pub fn write_f32_as(&mut self, dtype: DType, values: &[f32], scratch: &mut [u8]) -> Result<()> {
        let width = dtype.bytes() as usize;
        assert!(scratch.len() >= width, "scratch of {} bytes holds no element", scratch.len());
        assert!(matches!(dtype, DType::F32 | DType::Bf16), "weights are written as f32 or bf16");
        for chunk in values.chunks(scratch.len() / width) {
            let out = &mut scratch[..chunk.len() * width];
            match dtype {
                DType::F32 => {
                    for (bytes, value) in out.chunks_exact_mut(4).zip(chunk) {
                        bytes.copy_from_slice(&value.to_le_bytes());
                    }
                }
                _ => {
                    for (bytes, &value) in out.chunks_exact_mut(2).zip(chunk) {
                        bytes.copy_from_slice(&to_bf16(value).to_le_bytes());
                    }
                }
            }
            self.write(out)?;
        }
        Ok(())
    }

    /// Requires that every declared byte was written, flushes to the disk and says what the file must be.
    pub fn finish(mut self) -> Result<FileRecord> {
        if self.written_bytes != self.data_bytes {
            return Err(self.miscounted(self.written_bytes));
        }
        let file = self.file.as_ref().expect("the file is open until finish");
        file.sync_all().map_err(|e| write_error(&self.path, &e))?;
        forget_pages(file);
        self.file = None; // kept: drop removes only what is still open
        Ok(std::mem::take(&mut self.sums).finish())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let file = self.file.as_mut().expect("the file is open until finish");
        file.write_all(bytes).map_err(|e| write_error(&self.path, &e))?;
        self.sums.update(bytes);
        if self.sums.bytes - self.settled_bytes >= WINDOW_BYTES {
            file.sync_data().map_err(|e| write_error(&self.path, &e))?;
            forget_pages(file);
            self.settled_bytes = self.sums.bytes;
        }
        Ok(())
    }

    fn miscounted(&self, written: u64) -> Error {
        let message = format!(
            "{}: {written} bytes of tensors written, the header declares {}",
            self.path.display(),
            self.data_bytes
        );
        Error::new("write-failed", message).hint("this is a defect of plimsoll: please report it")
    }
}

impl Drop for SafetensorsWriter {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns a value as files of the dtype hold it: bf16 to the nearest, ties to even.
pub fn stored(dtype: DType, x: f32) -> f32 {
    if dtype == DType::Bf16 { half::bf16::from_bits(to_bf16(x)).to_f32() } else { x }
}

/// bf16 bits of a number, rounded to nearest even: without a branch, so that billions of them are vectorised.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    // A NaN keeps its sign and becomes quiet; rounding could carry it over into infinity.
    let nan = (bits >> 16) as u16 | 0x40;
    if value.is_nan() { nan } else { rounded }
}

/// Gives back the pages of a file that are on the disk. Where the system does not take the advice they stay, and are
/// reclaimable.
fn forget_pages(file: &File) {
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

/// Writes a file that is not there yet and puts it on the disk; its name lasts after `fsync_dir` of the folder.
///
/// Errors: `disk-full`, `write-failed`, also where something has that name already.
pub fn write_new(path: &Path, bytes: &[u8]) -> Result<FileRecord> {
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.map_err(|e| write_error(path, &e))?;
    let mut sums = Sums::default();
    sums.update(bytes);
    Ok(sums.finish())
}

/// As above, for a file that is made line by line, of which one is held at a time.
///
/// Errors: as `write_new`.
pub fn write_new_lines(path: &Path, lines: impl Iterator<Item = String>) -> Result<FileRecord> {
    let mut sums = Sums::default();
    let write = || {
        let mut file = BufWriter::new(OpenOptions::new().write(true).create_new(true).open(path)?);
        for mut line in lines {
            line.push('\n');
            file.write_all(line.as_bytes())?;
            sums.update(line.as_bytes());
        }
        file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
    };
    write().map_err(|e| write_error(path, &e))?;
    Ok(sums.finish())
}

/// SHA-256 of some bytes, in hex.
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Reads a file to its end through a buffer of 1 MiB and says what it is.
pub fn record_of(path: &Path) -> std::io::Result<FileRecord> {
    let mut file = File::open(path)?;
    let (mut buffer, mut sums) = (vec![0; 1 << 20], Sums::default());
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(sums.finish()),
            n => sums.update(&buffer[..n]),
        }
    }
}

/// Makes names that were created, renamed or removed in `dir` last.
pub fn fsync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(|e| write_error(dir, &e))
}

/// Replaces the file at `path` as a whole: a temporary name, fsync, rename, fsync of the folder.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = part_path(folder, &name);
    let written = File::create(&part)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&part, path));
    if let Err(e) = written {
        let _ = std::fs::remove_file(&part);
        return Err(write_error(path, &e));
    }
    fsync_dir(folder)
}

/// A temporary name next to `name` that no other thread or process uses.
pub(crate) fn part_path(folder: &Path, name: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    folder.join(format!(".{name}.{}.{}.part", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// `disk-full` where the system says so, else `write-failed`.
pub fn write_error(path: &Path, err: &std::io::Error) -> Error {
    match err.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Error::io("disk-full", path, err).hint("make room, or choose another directory on a larger disk")
        }
        _ => Error::io("write-failed", path, err).hint("check that the directory exists and may be written"),
    }
}

const fn stored_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::Bf16 => "BF16",
        DType::U32 => "U32",
        DType::U8 | DType::E4M3 | DType::E5M3 => "U8",
    }
}

/// The header of entries (name, stored type, bytes of an element, shape), and the bytes of their data.
fn header<'a>(
    entries: impl Iterator<Item = (&'a str, &'static str, u64, &'a [u64])>,
    metadata: &[(String, String)],
) -> Result<(Vec<u8>, u64)> {
    let mut notes = Map::from_iter([("format".to_string(), json!("pt"))]);
    notes.extend(metadata.iter().map(|(key, value)| (key.clone(), json!(value))));
    let mut map = Map::from_iter([("__metadata__".to_string(), notes.into())]);
    let mut offset = 0u64;
    for (name, dtype, element_bytes, shape) in entries {
        let bytes = Bytes::checked(shape, element_bytes)?.0;
        let end = Bytes::checked(&[offset.saturating_add(bytes)], 1)?.0;
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [offset, end] });
        let twice = map.insert(name.to_string(), entry).is_some();
        assert!(!twice, "tensor `{name}` is declared twice");
        offset = end;
    }
    let mut text = serde_json::to_vec(&map).expect("a map of plain values is JSON");
    text.resize(text.len().next_multiple_of(8), b' '); // the data begins on a multiple of 8 bytes
    Ok((text, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decl(name: &str, dtype: DType, shape: &[u64]) -> TensorDecl {
        TensorDecl { name: name.into(), dtype, shape: shape.to_vec() }
    }

    #[test]
    fn the_reference_reader_reads_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let tensors =
            [decl("b", DType::F32, &[2, 3]), decl("a", DType::Bf16, &[5]), decl("c", DType::U8, &[1])];
        let mut writer = SafetensorsWriter::create(&path, &tensors, &[("step".into(), "7".into())]).unwrap();
        let values = [0.0, 1.0, -2.0, 3.5, 1e-3, 1.003_906_3];
        let mut scratch = [0; 7]; // one f32 at a time, three bf16 at a time
        writer.write_f32_as(DType::F32, &values, &mut scratch).unwrap();
        writer.write_f32_as(DType::Bf16, &values[..5], &mut scratch).unwrap();
        writer.write(&[9]).unwrap();
        let record = writer.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(record.sha256, hex(&Sha256::digest(&bytes)));
        assert_eq!(record, record_of(&path).unwrap());
        assert_eq!(write_new(&path, b"x").unwrap_err().slug, "write-failed");
        let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let stored: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(read.tensor("b").unwrap().data(), stored);
        assert_eq!(read.tensor("a").unwrap().shape(), [5]);
        assert_eq!(read.tensor("c").unwrap().data(), [9]);
        let (_, meta) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(meta.metadata().as_ref().unwrap()["format"], "pt");
    }

    #[test]
    fn bf16_is_rounded_as_half_does() {
        let special =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, -f32::NAN, f32::MAX, f32::MIN_POSITIVE];
        let payload = f32::from_bits(0x7f80_0001);
        let spread = (0..=u32::MAX).step_by(65_521).map(f32::from_bits);
        for value in special.into_iter().chain([payload]).chain(spread) {
            assert_eq!(
                to_bf16(value),
                half::bf16::from_f32(value).to_bits(),
                "{value} {:#x}",
                value.to_bits()
            );
        }
    }

    #[test]
    fn too_few_and_too_many_bytes_leave_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let tensors = [decl("a", DType::F32, &[2])];
        let mut writer = SafetensorsWriter::create(&path, &tensors, &[]).unwrap();
        writer.write(&[0; 7]).unwrap();
        assert_eq!(writer.write(&[0; 2]).unwrap_err().slug, "write-failed");
        assert_eq!(writer.finish().unwrap_err().slug, "write-failed");
        assert!(!path.exists());
    }

    #[test]
    fn a_full_disk_and_a_missing_folder_are_named() {
        if Path::new("/dev/full").exists() {
            let file = File::options().write(true).open("/dev/full").unwrap();
            let err = (&file).write_all(&[0; 16]).unwrap_err();
            assert_eq!(write_error(Path::new("/dev/full"), &err).slug, "disk-full");
        }
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone").join("x");
        assert_eq!(write_atomic(&gone, b"x").unwrap_err().slug, "write-failed");
        assert_eq!(SafetensorsWriter::create(&gone, &[], &[]).unwrap_err().slug, "write-failed");
    }

    #[test]
    fn an_atomic_write_replaces_the_file_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        for text in ["one", "two"] {
            write_atomic(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_overflowing_declaration_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let tensors = [decl("a", DType::F32, &[1 << 40, 1 << 40])];
        assert_eq!(SafetensorsWriter::create(&path, &tensors, &[]).unwrap_err().slug, "size-overflow");
        assert!(!path.exists());
    }
}
