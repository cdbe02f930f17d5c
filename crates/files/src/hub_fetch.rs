//! Fetches one file of a hub data set, in the hub's own cache layout: `datasets--org--name/{blobs,refs,snapshots}`.

use crate::hub::{Hub, agent, known_commit, note_revision};
use crate::hub_data::{HubData, is_path};
use crate::no_link::make_folders;
use plimsoll_base::{Error, Result};
use std::path::{Path, PathBuf};

/// Most files of a snapshot to list.
const FILES_MAX: usize = 10_000;

/// A file of a data set on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    pub path: PathBuf,
    pub commit: String,
}

/// Finds the file of `data` locally, or fetches it if `allow_download`. `split` is the default for a name without one.
///
/// Errors: `data-not-local`, `data-hub-file`, `hub-unreachable`, `hub-refused`, and those of writing to the cache.
pub fn hub_file(data: &HubData, split: &str, allow_download: bool) -> Result<HubFile> {
    resolve_with(&Hub::from_env()?, data, split, allow_download)
}

fn resolve_with(hub: &Hub, data: &HubData, split: &str, allow_download: bool) -> Result<HubFile> {
    let folder = hub.cache.join(format!("datasets--{}", data.repo.replace('/', "--")));
    let revision = data.revision.as_deref().unwrap_or("main");
    if let Some(found) = local(&folder, revision, data, split) {
        return Ok(found);
    }
    if hub.offline || !allow_download {
        let message = format!("{data}: not in {}", folder.display());
        return Err(Error::new("data-not-local", message).hint(if hub.offline {
            "HF_HUB_OFFLINE is set: unset it, or fetch the data where there is a network"
        } else {
            "`plimsoll train` fetches it; a plan does not"
        }));
    }
    let agent = agent();
    let (repo, endpoint) = (&data.repo, &hub.endpoint);
    let url = format!("{endpoint}/api/datasets/{repo}/revision/{}", revision.replace('/', "%2F"));
    let (commit, files) = hub.listing(&agent, &url, repo, is_path)?;
    let name = data.choose(&files, split)?;
    let below = Path::new("snapshots").join(&commit).join(name);
    let snapshot = below.parent().expect("a file lies in a snapshot");
    for below in [snapshot, Path::new("blobs"), Path::new("refs")] {
        make_folders(&folder, below)?;
    }
    let path = folder.join(&below);
    hub.fetch(&agent, &format!("{endpoint}/datasets/{repo}/resolve/{commit}/{name}"), repo, &folder, &path)?;
    note_revision(&folder, revision, &commit)?;
    Ok(HubFile { path, commit })
}

/// Returns the file of a local snapshot, if exactly one fits.
fn local(folder: &Path, revision: &str, data: &HubData, split: &str) -> Option<HubFile> {
    let commit = known_commit(folder, revision)?;
    let snapshot = folder.join("snapshots").join(&commit);
    let mut files = Vec::new();
    list(&snapshot, &mut PathBuf::new(), &mut files);
    let name = data.choose(&files, split).ok()?;
    Some(HubFile { path: snapshot.join(name), commit })
}

/// Lists the files below `folder` by their paths in it.
fn list(folder: &Path, below: &mut PathBuf, files: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder.join(&*below)).into_iter().flatten().flatten() {
        below.push(entry.file_name());
        let text = below.to_string_lossy().into_owned();
        // A link whose blob is gone is no file.
        match folder.join(&*below).metadata() {
            Ok(meta) if meta.is_dir() && is_path(&text) => list(folder, below, files),
            Ok(meta) if meta.is_file() && files.len() < FILES_MAX => files.push(text),
            _ => {}
        }
        below.pop();
    }
}

#[cfg(test)]
#[path = "hub_fetch_tests.rs"]
mod tests;
