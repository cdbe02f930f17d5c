//! Data sets of the hub: an `hf:` name becomes a file of the hub's cache before anything is read.

use plimsoll_base::Result;
use plimsoll_files::{HubData, hub_file};

/// The split of evaluation sets whose names say none.
pub const HELD_OUT: &str = "test";

/// A data set of the hub, as a file of its cache.
pub struct Found {
    pub file: String,
    /// The name at its commit.
    pub pinned: String,
    /// The name without a commit, as users write it.
    pub shown: String,
}

/// Replaces the `hf:` names among the paths of evaluation sets (name, path).
pub fn localise_sets(sets: &mut [(String, String)], allow_download: bool) -> Result<()> {
    for (name, path) in sets {
        let Some(found) = find(path, HELD_OUT, allow_download)? else { continue };
        if name == path {
            *name = found.shown;
        }
        *path = found.file;
    }
    Ok(())
}

/// Returns the file that an `hf:` name means, fetching it if `allow_download` says so; none for another name. `split`
/// is meant where it names none.
///
/// Errors: `data-hub-name`; those of `hub_file`.
pub fn find(path: &str, split: &str, allow_download: bool) -> Result<Option<Found>> {
    let Some(data) = HubData::parse(path).transpose()? else { return Ok(None) };
    let found = hub_file(&data, split, allow_download)?;
    let file = found.path.display().to_string();
    Ok(Some(Found {
        file,
        pinned: data.pinned(&found.commit).to_string(),
        shown: data.unpinned().to_string(),
    }))
}
