//! The run directory: whether other hosts see what rank 0's host writes there, and how fast that writes.

use crate::group::Group;
use crate::token::random_secret;
use plimsoll_base::Result;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes written to measure speed, in pieces, each with fsync; a slow disk writes fewer.
const BYTES: usize = 64 << 20;
const PIECE_BYTES: usize = 8 << 20;
const LONG_ENOUGH: Duration = Duration::from_secs(2);
/// A network file system may show a new file later.
const SEEN_WITHIN: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(20);

/// Holds what a rank found about the run directory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Directory {
    /// The folder, or its nearest ancestor that exists.
    pub path: PathBuf,
    /// True if this rank sees there what rank 0 wrote.
    pub is_shared: bool,
    /// Write speed with fsync, measured by rank 0.
    pub bytes_per_second: Option<f64>,
    /// Why rank 0 could not write.
    pub refused: Option<String>,
}

/// Tests the directory with all ranks, which must call it together. Leaves nothing there.
///
/// Errors: `rank-lost`, `ranks-unreachable`.
pub(crate) fn try_it(group: &Group, folder: &Path) -> Result<Directory> {
    let path = nearest(folder);
    let mut found = Directory { path: path.clone(), ..Directory::default() };
    let mut own = None;
    if group.rank() == 0 {
        match Probe::write(&path) {
            Ok(probe) => {
                found.bytes_per_second = probe.bytes_per_second;
                own = Some(probe);
            }
            Err(err) => found.refused = Some(err.to_string()),
        }
    }
    let said = own.as_ref().map_or(Vec::new(), |probe| probe.name.clone().into_bytes());
    let said = group.all_gather(&said)?.swap_remove(0);
    let name = String::from_utf8(said).unwrap_or_default();
    // Only a plain name, so that another process's message cannot lead elsewhere.
    let is_name = !name.is_empty() && !name.contains('/');
    found.is_shared = is_name && (group.rank() == 0 || sees(&path.join(&name), &name));
    // The file is removed after all have looked.
    group.barrier()?;
    drop(own);
    Ok(found)
}

fn nearest(folder: &Path) -> PathBuf {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.into());
    absolute.ancestors().find(|place| place.is_dir()).unwrap_or(Path::new("/")).to_path_buf()
}

/// Waits for a file that begins with its own name.
fn sees(path: &Path, name: &str) -> bool {
    let begun = Instant::now();
    loop {
        let text = fs::read(path.with_extension("txt")).unwrap_or_default();
        if text == name.as_bytes() {
            return true;
        }
        if begun.elapsed() >= SEEN_WITHIN {
            return false;
        }
        std::thread::sleep(LOOK);
    }
}

/// Files of rank 0, removed on drop.
struct Probe {
    name: String,
    files: Vec<PathBuf>,
    bytes_per_second: Option<f64>,
}

impl Probe {
    fn write(folder: &Path) -> std::io::Result<Probe> {
        let name = format!(".plimsoll-doctor-{}", random_secret()?);
        let mut probe = Probe { files: Vec::new(), bytes_per_second: None, name };
        let mut new = |ending: &str| {
            let path = folder.join(format!("{}.{ending}", probe.name));
            let file = OpenOptions::new().write(true).create_new(true).open(&path);
            probe.files.extend(file.is_ok().then_some(path));
            file
        };
        let (words, speed) = (new("txt")?, new("bin")?);
        (&words).write_all(probe.name.as_bytes())?;
        words.sync_all()?;
        probe.bytes_per_second = Some(write_speed(&speed)?);
        Ok(probe)
    }
}

fn write_speed(mut file: &File) -> std::io::Result<f64> {
    let piece = vec![0x5a; PIECE_BYTES];
    let (begun, mut written) = (Instant::now(), 0);
    while written < BYTES && begun.elapsed() < LONG_ENOUGH {
        file.write_all(&piece)?;
        file.sync_all()?;
        written += PIECE_BYTES;
    }
    Ok(written as f64 / begun.elapsed().as_secs_f64().max(1e-9))
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.files.iter().for_each(|path| drop(fs::remove_file(path)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_seen_in_its_folder_alone_and_removed() {
        let folder = std::env::temp_dir().join(format!("plimsoll-survey-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        assert_eq!(nearest(&folder.join("not/there")), folder);
        let probe = Probe::write(&folder).expect("it can be written");
        assert!(sees(&folder.join(&probe.name), &probe.name));
        assert!(probe.bytes_per_second.is_some_and(|rate| rate > 0.0));
        let name = probe.name.clone();
        drop(probe);
        assert!(!sees(&folder.join(&name), &name));
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0);
        fs::remove_dir(&folder).expect("it is empty");
        assert!(Probe::write(&folder).is_err());
    }
}
