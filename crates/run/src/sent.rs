//! Sends hosts that do not see rank 0's run directory what a resume needs: run file, plan, log, and the checkpoints
//! that rank 0 would resume from, through the group, piece by piece, checked by hash.

use crate::resume::candidates;
use crate::run_dir::{step_name, unwritable};
use crate::views::{FILES, temporary};
use plimsoll_base::{Bytes, Error, Result, open_regular};
use plimsoll_files::{digest, record_of};
use plimsoll_ranks::Group;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};

/// Bytes sent at once.
const PIECE_BYTES: usize = 4 << 20;

/// A file to send.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    /// Path below the run directory.
    name: PathBuf,
    bytes: u64,
    sha256: String,
}

/// Holds what this rank's host received.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Where it is; `None` on hosts that see the run directory.
    pub(crate) path: Option<PathBuf>,
    /// A line for rank 0 to show the user.
    pub(crate) note: Option<String>,
    /// Kept by the rank that wrote it, until all ranks of its host have hard links to it.
    _folder: Option<(File, tempfile::TempDir)>,
}

/// Sends what a run in `of` resumes from to hosts that see something else there. Every rank must call it.
///
/// Errors: `run-dir-unwritable`, `disk-full`, `checkpoint-damaged`, `rank-lost`.
pub(crate) fn send(group: &Group, of: &Path, previous_good: bool) -> Result<Sent> {
    let sights = group.all_gather(sight(of).as_bytes())?;
    let lacks = |rank: &usize| sights[*rank] != sights[0];
    let lacking: Vec<usize> = (0..group.ranks()).filter(lacks).collect();
    let mut sent = Sent { path: None, note: None, _folder: None };
    if lacking.is_empty() {
        return Ok(sent);
    }
    let own = if group.rank() == 0 { entries(of, previous_good)? } else { Vec::new() };
    let text = serde_json::to_vec(&own).expect("plain data has a JSON form");
    let entries: Vec<Entry> =
        serde_json::from_slice(&group.all_gather(&text)?[0]).map_err(|err| torn(&err.to_string()))?;
    let is_lacking = group.near().iter().any(|rank| lacking.contains(rank));
    let writes = is_lacking && group.near()[0] == group.rank();
    let folder = writes.then(temporary).transpose()?;
    let to = folder.as_ref().map(|(_, folder)| folder.path());
    for entry in &entries {
        pass(group, of, to, entry)?;
    }
    // The ranks of a host learn where its first rank wrote.
    let path = to.map_or(String::new(), |path| path.display().to_string());
    let paths = group.near_gather(path.as_bytes())?;
    if is_lacking {
        sent.path = Some(String::from_utf8_lossy(&paths[0]).into_owned().into());
    }
    if group.rank() == 0 {
        let bytes = Bytes(entries.iter().map(|entry| entry.bytes).sum());
        let ranks: Vec<String> = lacking.iter().map(usize::to_string).collect();
        sent.note = Some(format!(
            "{} is not what ranks {} see there: {} files, {bytes}, went to them",
            of.display(),
            ranks.join(", "),
            entries.len()
        ));
    }
    sent._folder = folder;
    Ok(sent)
}

/// Returns a checksum of what a resume reads, except tensors, whose sums are in manifests.
fn sight(of: &Path) -> String {
    let bytes = |path: &Path| {
        let mut bytes = Vec::new();
        open_regular(path).and_then(|mut file| file.read_to_end(&mut bytes)).map(|_| bytes)
    };
    let read = |path: PathBuf| bytes(&path).map_or_else(|_| "none".into(), |bytes| digest(&bytes));
    let mut text = read(of.join("run.toml"));
    let mut steps = step_folders(of);
    steps.sort();
    for step in steps {
        let manifest = read(of.join("checkpoints").join(&step).join(crate::checkpoint::MANIFEST));
        text += &format!(" {} {manifest}", step.display());
    }
    digest(text.as_bytes())
}

fn step_folders(of: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(of.join("checkpoints")).into_iter().flatten().flatten();
    let names = entries.map(|entry| PathBuf::from(entry.file_name()));
    names.filter(|name| name.to_string_lossy().starts_with("step-")).collect()
}

/// Lists what a run in `of` resumes from.
fn entries(of: &Path, previous_good: bool) -> Result<Vec<Entry>> {
    let mut names: Vec<PathBuf> =
        FILES.iter().map(PathBuf::from).filter(|name| of.join(name).is_file()).collect();
    for step in candidates(of, previous_good) {
        list(of, &Path::new("checkpoints").join(step_name(step)), &mut names)
            .map_err(|err| unwritable(of, &err))?;
    }
    let entry = |name: PathBuf| {
        let path = of.join(&name);
        let record = record_of(&path).map_err(|err| unwritable(&path, &err))?;
        Ok(Entry { name, bytes: record.bytes, sha256: record.sha256 })
    };
    names.into_iter().map(entry).collect()
}

/// Adds the files of a folder.
fn list(of: &Path, folder: &Path, names: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(of.join(folder))? {
        let entry = entry?;
        let name = folder.join(entry.file_name());
        match entry.file_type()? {
            kind if kind.is_dir() => list(of, &name, names)?,
            kind if kind.is_file() => names.push(name),
            _ => {}
        }
    }
    Ok(())
}

/// Passes a file of rank 0's `of` to the ranks that give a folder.
fn pass(group: &Group, of: &Path, to: Option<&Path>, entry: &Entry) -> Result<()> {
    let plain = entry.name.components().all(|part| matches!(part, Component::Normal(_)));
    let path = to.filter(|_| plain).map(|to| to.join(&entry.name));
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |err: std::io::Error| unwritable(&path, &err)
    };
    let from = of.join(&entry.name);
    let mut source = if group.rank() == 0 { Some(open_regular(&from).map_err(failed(&from))?) } else { None };
    let mut written = path.as_deref().map(|path| create(path).map_err(failed(path))).transpose()?;
    for start in (0..entry.bytes).step_by(PIECE_BYTES) {
        let mut piece = Vec::new();
        if let Some(source) = &mut source {
            piece.resize(PIECE_BYTES.min((entry.bytes - start) as usize), 0);
            source.read_exact(&mut piece).map_err(failed(&from))?;
        }
        let piece = group.all_gather(&piece)?.swap_remove(0);
        if let (Some(file), Some(path)) = (&mut written, &path) {
            file.write_all(&piece).map_err(failed(path))?;
        }
    }
    match path {
        Some(path) if record_of(&path).map_err(failed(&path))?.sha256 != entry.sha256 => {
            Err(torn(&format!("{} arrived with another hash", entry.name.display())))
        }
        _ => Ok(()),
    }
}

fn create(path: &Path) -> std::io::Result<File> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    File::create_new(path)
}

fn torn(why: &str) -> Error {
    Error::new("checkpoint-damaged", format!("what rank 0 sent of its run directory: {why}")).hint(
        "start the same command again; if it comes again, `plimsoll checkpoint verify` on rank 0's host",
    )
}
