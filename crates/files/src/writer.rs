//! Writes durable files: safetensors streamed by tensor, small files atomically. Counts bytes against the declaration.

use crate::no_link::create_part;
use crate::pieces::{FileRecord, hex};
use crate::stream::{Stream, Sums, each_stored, write_error};
use plimsoll_base::{Bytes, DType, Error, Result, open_folder, open_regular};
use serde_json::{Map, json};
use sha2::{Digest, Sha256};
use std::fs::OpenOptions;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// One tensor to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorDecl {
    /// Name in the header.
    pub name: String,
    /// Dtype of its elements.
    pub dtype: DType,
    /// Slowest axis first.
    pub shape: Vec<u64>,
}

impl TensorDecl {
    /// Returns the bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.bytes()
    }
}

/// Element types of arrays that are not weights, under the format's names.
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
    stream: Stream,
    written_bytes: u64,
    data_bytes: u64,
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
        SafetensorsWriter::start(path, tensors_header(tensors, metadata)?)
    }

    /// Creates a file of arrays that are not weights.
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
        let mut stream = Stream::create(path)?;
        stream.put(&(header.len() as u64).to_le_bytes())?;
        stream.put(&header)?;
        Ok(SafetensorsWriter { stream, written_bytes: 0, data_bytes })
    }

    /// Appends stored bytes of the due tensor.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.written_bytes + bytes.len() as u64;
        if written > self.data_bytes {
            return Err(self.miscounted(written));
        }
        self.written_bytes = written;
        self.stream.put(bytes)
    }

    /// Appends values as `dtype` (f32 or bf16, round to nearest even), through `scratch`, which may be small.
    pub fn write_f32_as(&mut self, dtype: DType, values: &[f32], scratch: &mut [u8]) -> Result<()> {
        each_stored(dtype, values, scratch, |bytes| self.write(bytes))
    }

    /// Requires that every declared byte was written, flushes to the disk and returns the file's record.
    pub fn finish(self) -> Result<FileRecord> {
        if self.written_bytes != self.data_bytes {
            return Err(self.miscounted(self.written_bytes));
        }
        self.stream.finish()
    }

    fn miscounted(&self, written: u64) -> Error {
        let message = format!(
            "{}: {written} bytes of tensors written, the header declares {}",
            self.stream.path().display(),
            self.data_bytes
        );
        Error::new("write-failed", message).hint("this is a defect of plimsoll: please report it")
    }
}

/// Writes a new file and flushes it to the disk; its name lasts after `fsync_dir` of the folder.
///
/// Errors: `disk-full`, `write-failed`, including for an existing name.
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

/// Writes a new file line by line, holding one line at a time.
///
/// Errors: those of `write_new`.
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

/// Returns the SHA-256 of some bytes, in hex.
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Reads a file to its end through a buffer of 1 MiB and returns its record.
pub fn record_of(path: &Path) -> std::io::Result<FileRecord> {
    let mut file = open_regular(path)?;
    let (mut buffer, mut sums) = (vec![0; 1 << 20], Sums::default());
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(sums.finish()),
            n => sums.update(&buffer[..n]),
        }
    }
}

/// Makes created, renamed or removed names in `dir` durable.
pub fn fsync_dir(dir: &Path) -> Result<()> {
    open_folder(dir).and_then(|d| d.sync_all()).map_err(|e| write_error(dir, &e))
}

/// Replaces the whole file at `path`: a temporary name, fsync, rename, fsync of the folder. Follows no link.
///
/// Errors: `disk-full`, `write-failed`.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, bytes, false)
}

/// Replaces a file that may hold a secret: as `write_atomic`, readable by its owner alone.
///
/// Errors: `disk-full`, `write-failed`.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    replace(path, bytes, true)
}

fn replace(path: &Path, bytes: &[u8], is_private: bool) -> Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let part = part_path(folder, &name);
    let written = create_part(&part, is_private)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&part, path));
    if let Err(e) = written {
        let _ = std::fs::remove_file(&part);
        return Err(write_error(path, &e));
    }
    fsync_dir(folder)
}

/// Returns a temporary name in `folder` that no other thread or process uses.
pub(crate) fn part_path(folder: &Path, name: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    folder.join(format!(".{name}.{}.{}.part", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}

const fn stored_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::Bf16 => "BF16",
        DType::U32 => "U32",
        DType::U8 | DType::E4M3 | DType::E5M3 => "U8",
    }
}

/// Returns the header of tensors, and the bytes of their data.
pub(crate) fn tensors_header(
    tensors: &[TensorDecl],
    metadata: &[(String, String)],
) -> Result<(Vec<u8>, u64)> {
    let entries =
        tensors.iter().map(|t| (t.name.as_str(), stored_name(t.dtype), t.dtype.bytes(), &t.shape[..]));
    header(entries, metadata)
}

/// Returns the header of entries (name, stored type, element bytes, shape), and the bytes of their data.
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
            let file = std::fs::File::options().write(true).open("/dev/full").unwrap();
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
