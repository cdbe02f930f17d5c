//! Files of a folder as a tar, whose length is known before any is read.

use plimsoll_base::{Error, Result, open_regular};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

const BLOCK: u64 = 512;
/// Most files of a store.
const FILES_MAX: usize = 4096;
/// Longest name in a header.
const NAME_BYTES: usize = 100;
/// Sizes from here on do not fit the eleven octal digits of a header.
const OCTAL_END: u64 = 1 << 33;
/// Bytes of a piece of a file.
const PIECE_BYTES: u64 = 256 << 10;

/// A file to send.
#[derive(Clone, Debug)]
pub struct StoredFile {
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
}

/// Returns the regular files of a folder by their names; what is in folders below it is not among them.
///
/// Errors: `tinker-not-found` where the folder is gone; `io-error`.
pub fn files_of(folder: &Path) -> Result<Vec<StoredFile>> {
    let failed = |err: std::io::Error| match err.kind() {
        std::io::ErrorKind::NotFound => Error::new("tinker-not-found", "the files of these weights are gone"),
        _ => Error::io("io-error", folder, &err),
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let about = std::fs::symlink_metadata(entry.path()).map_err(failed)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if about.is_file() && name.len() < NAME_BYTES {
            files.push(StoredFile { name, path: entry.path(), bytes: about.len() });
        }
        if files.len() > FILES_MAX {
            return Err(Error::new("io-error", format!("a store with more than {FILES_MAX} files")));
        }
    }
    files.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(files)
}

/// Returns the bytes of a tar of these files.
pub fn tar_bytes(files: &[StoredFile]) -> u64 {
    files.iter().map(|file| BLOCK + file.bytes.next_multiple_of(BLOCK)).sum::<u64>() + 2 * BLOCK
}

/// Gives the pieces of a tar to `send`, which returns false once its reader is gone.
///
/// Errors: those of `write_file`.
pub fn write_tar(files: &[StoredFile], send: &mut dyn FnMut(Vec<u8>) -> bool) -> std::io::Result<()> {
    for file in files {
        if !send(header(file).to_vec()) || !write_file(file, send)? {
            return Ok(());
        }
        let rest = (file.bytes.next_multiple_of(BLOCK) - file.bytes) as usize;
        if rest > 0 && !send(vec![0; rest]) {
            return Ok(());
        }
    }
    send(vec![0; 2 * BLOCK as usize]);
    Ok(())
}

/// Gives the bytes of a file to `send`: as many as it had when it was listed. Returns false once its reader is gone.
///
/// Errors: those of reading; a file that has become shorter.
pub fn write_file(file: &StoredFile, send: &mut dyn FnMut(Vec<u8>) -> bool) -> std::io::Result<bool> {
    let mut opened: Option<File> = None;
    let mut left = file.bytes;
    while left > 0 {
        let opened = match &mut opened {
            Some(file) => file,
            none => none.insert(open_regular(&file.path)?),
        };
        let mut piece = vec![0; PIECE_BYTES.min(left) as usize];
        opened.read_exact(&mut piece)?;
        left -= piece.len() as u64;
        if !send(piece) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes the header of a file, as ustar has it; a size beyond its digits is a number in base 256.
fn header(file: &StoredFile) -> [u8; BLOCK as usize] {
    let mut header = [0; BLOCK as usize];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, file.name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    if file.bytes < OCTAL_END {
        put(124, format!("{:011o}\0", file.bytes).as_bytes());
    } else {
        put(124, &[0x80, 0, 0, 0]);
        put(128, &file.bytes.to_be_bytes());
    }
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tar_has_the_bytes_that_were_announced_and_what_no_file_is_stays_out() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("b"), vec![7; 1000]).unwrap();
        std::fs::write(folder.path().join("a"), "").unwrap();
        std::fs::create_dir(folder.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).unwrap();
        let files = files_of(folder.path()).unwrap();
        assert_eq!(files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let mut tar = Vec::new();
        let mut give = |piece: Vec<u8>| {
            tar.extend(piece);
            true
        };
        write_tar(&files, &mut give).unwrap();
        assert_eq!(tar.len() as u64, tar_bytes(&files));
        assert_eq!((&tar[512..513], &tar[1024..2024]), (&b"b"[..], &[7; 1000][..]));
        let large = StoredFile { name: "x".into(), path: PathBuf::new(), bytes: OCTAL_END + 5 };
        assert_eq!(header(&large)[124..136], [0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 5]);
        std::fs::write(folder.path().join("b"), "less").unwrap();
        assert!(write_tar(&files, &mut |_| true).is_err());
        assert_eq!(files_of(&folder.path().join("gone")).unwrap_err().slug, "tinker-not-found");
    }
}
