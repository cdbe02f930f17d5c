//! A safetensors file that several processes of one host write together: each writes its bytes in their places, and the
//! running SHA-256 passes from one process to the next in byte order.

use crate::pieces::FileRecord;
use crate::stream::{Sums, WINDOW_BYTES, each_stored, forget_pages, write_error};
use crate::writer::{TensorDecl, tensors_header};
use plimsoll_base::{DType, Error, Result};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// One process's handle of the file.
#[derive(Debug)]
pub struct SharedWriter {
    file: File,
    path: PathBuf,
    /// Start of the data.
    start: u64,
    data_bytes: u64,
    sums: Sums,
    /// Bytes written since the last flush to the disk.
    unsettled_bytes: u64,
    /// True for the creating process until the file is finished: an unfinished file is removed.
    removes: bool,
}

impl SharedWriter {
    /// Creates the file and writes its header.
    ///
    /// Errors: `disk-full`, `write-failed`, `size-overflow`.
    pub fn create(path: &Path, tensors: &[TensorDecl]) -> Result<SharedWriter> {
        head(tensors)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = file.map_err(|e| write_error(path, &e))?;
        let mut writer = SharedWriter::over(file, path, tensors)?;
        writer.removes = true;
        let head = head(tensors)?.0;
        writer.file.write_all_at(&head, 0).map_err(|e| write_error(path, &e))?;
        Ok(writer)
    }

    /// Opens a file that another process created with the same tensors, by its `link`. Errors use that process's path.
    ///
    /// Errors: `ranks-window` if the link leads to no such file; `size-overflow`.
    pub fn join(link: &str, tensors: &[TensorDecl]) -> Result<SharedWriter> {
        let mut parts = link.splitn(3, '\n');
        let mut part = || parts.next().unwrap_or_default();
        let (open, id, path) = (part(), part(), PathBuf::from(part()));
        let refused = |what: &str| {
            Error::new("ranks-window", format!("{} at {open}: {what}", path.display()))
                .hint("all ranks must run as one user and see each other's processes in /proc")
        };
        let file = OpenOptions::new().read(true).write(true).open(open);
        let file = file.map_err(|err| refused(&err.to_string()))?;
        if identity(&file).as_deref() != Some(id) {
            return Err(refused("it is another file"));
        }
        SharedWriter::over(file, &path, tensors)
    }

    fn over(file: File, path: &Path, tensors: &[TensorDecl]) -> Result<SharedWriter> {
        let (head, data_bytes) = head(tensors)?;
        let mut sums = Sums::default();
        sums.update(&head);
        let (path, start) = (path.to_path_buf(), head.len() as u64);
        Ok(SharedWriter { file, path, start, data_bytes, sums, unsettled_bytes: 0, removes: false })
    }

    /// Returns a link to the open file for this user's other processes, whatever folders they see.
    pub fn link(&self) -> String {
        let (id, path) = (identity(&self.file).unwrap_or_default(), self.path.display());
        format!("/proc/{}/fd/{}\n{id}\n{path}", std::process::id(), self.file.as_raw_fd())
    }

    /// Writes values as `dtype` (f32 or bf16, round to nearest even) from data byte `at` on, through `scratch`, which
    /// may be small. Returns the byte after them.
    ///
    /// Errors: `disk-full`, `write-failed`.
    pub fn put_f32_as(&mut self, at: u64, dtype: DType, values: &[f32], scratch: &mut [u8]) -> Result<u64> {
        let mut next = at;
        each_stored(dtype, values, scratch, |bytes| {
            let end = next + bytes.len() as u64;
            assert!(end <= self.data_bytes, "the header declares fewer bytes of tensors");
            self.file.write_all_at(bytes, self.start + next).map_err(|e| write_error(&self.path, &e))?;
            next = end;
            Ok(())
        })?;
        self.unsettled_bytes += next - at;
        Ok(next)
    }

    /// Sums the next `bytes` bytes of the file, which this process has written, by reading them back through `scratch`.
    ///
    /// Errors: `write-failed`.
    pub fn sum(&mut self, bytes: u64, scratch: &mut [u8]) -> Result<()> {
        let end = self.sums.bytes() + bytes;
        while self.sums.bytes() < end {
            let n = (end - self.sums.bytes()).min(scratch.len() as u64) as usize;
            let read = self.file.read_exact_at(&mut scratch[..n], self.sums.bytes());
            read.map_err(|e| write_error(&self.path, &e))?;
            self.sums.update(&scratch[..n]);
        }
        Ok(())
    }

    /// Returns the sums so far, for the process that sums the next bytes.
    pub fn sums(&self) -> Vec<u8> {
        self.sums.to_bytes()
    }

    /// Continues from another process's `sums`.
    ///
    /// Errors: `write-failed` if they are invalid.
    pub fn set_sums(&mut self, of: &[u8]) -> Result<()> {
        self.sums = Sums::from_bytes(of).ok_or_else(|| self.broken("sums of another form"))?;
        Ok(())
    }

    /// Flushes this process's bytes to the disk, if they are many, and frees their pages. All must be summed.
    ///
    /// Errors: `disk-full`, `write-failed`.
    pub fn settle(&mut self) -> Result<()> {
        if self.unsettled_bytes >= WINDOW_BYTES {
            self.file.sync_data().map_err(|e| write_error(&self.path, &e))?;
            forget_pages(&self.file);
            self.unsettled_bytes = 0;
        }
        Ok(())
    }

    /// Requires that every declared byte was summed, syncs, and returns the file's record. All processes must be done.
    ///
    /// Errors: `disk-full`, `write-failed`.
    pub fn finish(mut self) -> Result<FileRecord> {
        if self.sums.bytes() != self.start + self.data_bytes {
            let (has, wanted) = (self.sums.bytes() - self.start, self.data_bytes);
            return Err(self.broken(&format!("{has} bytes of tensors written, the header declares {wanted}")));
        }
        self.file.sync_all().map_err(|e| write_error(&self.path, &e))?;
        forget_pages(&self.file);
        self.removes = false;
        Ok(std::mem::take(&mut self.sums).finish())
    }

    fn broken(&self, what: &str) -> Error {
        Error::new("write-failed", format!("{}: {what}", self.path.display()))
            .hint("this is a defect of plimsoll: please report it")
    }
}

impl Drop for SharedWriter {
    fn drop(&mut self) {
        if self.removes {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns an identity of the file: process ids and descriptor numbers are reused.
fn identity(file: &File) -> Option<String> {
    let meta = file.metadata().ok()?;
    Some(format!("{}:{}", meta.dev(), meta.ino()))
}

/// Returns everything before the data, and the bytes of the data.
fn head(tensors: &[TensorDecl]) -> Result<(Vec<u8>, u64)> {
    let (header, data_bytes) = tensors_header(tensors, &[])?;
    let mut head = (header.len() as u64).to_le_bytes().to_vec();
    head.extend(header);
    Ok((head, data_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SafetensorsWriter;

    fn tensors() -> Vec<TensorDecl> {
        let of = |name: &str, dtype, n| TensorDecl { name: name.into(), dtype, shape: vec![n] };
        vec![of("a", DType::F32, 9000), of("b", DType::Bf16, 7001)]
    }

    /// Writes pieces in turn from as many hands; returns the record, or the error of the hand that failed.
    fn write_together(path: &Path, hands: usize, values: &[f32]) -> FileRecord {
        let mut writers = vec![SharedWriter::create(path, &tensors()).unwrap()];
        let link = writers[0].link();
        writers.extend((1..hands).map(|_| SharedWriter::join(&link, &tensors()).unwrap()));
        let (a, b) = values.split_at(9000);
        let pieces: Vec<(DType, &[f32])> =
            a.chunks(1000).map(|a| (DType::F32, a)).chain([(DType::Bf16, b)]).collect();
        let mut scratch = [0; 999];
        let mut places = Vec::new();
        let mut at = 0;
        for (index, (dtype, values)) in pieces.iter().enumerate() {
            // The last hand first: places do not depend on who came before.
            places.push((index % hands, at, *dtype, *values));
            at += values.len() as u64 * dtype.bytes();
        }
        for &(hand, at, dtype, values) in places.iter().rev() {
            writers[hand].put_f32_as(at, dtype, values, &mut scratch).unwrap();
        }
        let mut sums = writers[0].sums();
        for &(hand, _, dtype, values) in &places {
            writers[hand].set_sums(&sums).unwrap();
            writers[hand].sum(values.len() as u64 * dtype.bytes(), &mut scratch).unwrap();
            writers[hand].settle().unwrap();
            sums = writers[hand].sums();
        }
        let mut first = writers.remove(0);
        first.set_sums(&sums).unwrap();
        first.finish().unwrap()
    }

    #[test]
    fn a_file_of_several_hands_is_that_of_one() {
        let dir = tempfile::tempdir().unwrap();
        let values: Vec<f32> = (0..16_001).map(|i| (i as f32).sin()).collect();
        let alone = dir.path().join("alone");
        let mut writer = SafetensorsWriter::create(&alone, &tensors(), &[]).unwrap();
        let mut scratch = [0; 64];
        writer.write_f32_as(DType::F32, &values[..9000], &mut scratch).unwrap();
        writer.write_f32_as(DType::Bf16, &values[9000..], &mut scratch).unwrap();
        let record = writer.finish().unwrap();
        for hands in [1, 2, 3, 10, 12] {
            let path = dir.path().join(hands.to_string());
            assert_eq!(write_together(&path, hands, &values), record, "{hands}");
            assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&alone).unwrap(), "{hands}");
        }
    }

    #[test]
    fn what_is_not_finished_goes_with_the_process_that_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m");
        let first = SharedWriter::create(&path, &tensors()).unwrap();
        let mut other = SharedWriter::join(&first.link(), &tensors()).unwrap();
        assert_eq!(other.set_sums(b"short").unwrap_err().slug, "write-failed");
        drop(other);
        let own = std::fs::File::create(dir.path().join("x")).unwrap();
        let named = format!("/proc/{}/fd/{}", std::process::id(), own.as_raw_fd());
        let (_, rest) = first.link().split_once('\n').map(|(a, b)| (a.to_string(), b.to_string())).unwrap();
        for link in [format!("{named}\n{rest}"), format!("/proc/0/fd/0\n{rest}"), String::new()] {
            assert_eq!(SharedWriter::join(&link, &tensors()).unwrap_err().slug, "ranks-window", "{link}");
        }
        assert!(path.exists());
        assert_eq!(first.finish().unwrap_err().slug, "write-failed");
        assert!(!path.exists());
    }
}
