//! The folder of images. A row names files in it and nowhere else: data come from others, and a name may be
//! `../../.ssh/id_ed25519`, or a link to it.

use plimsoll_base::{Error, Result, open_regular, shown, shown_path};
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

/// Longest image that is read.
pub const IMAGE_BYTES_MAX: u64 = 64 << 20;

/// A folder with the images that rows name.
#[derive(Clone, Debug)]
pub struct ImageFolder {
    /// Without links.
    folder: PathBuf,
    /// Where the files of a snapshot in the hub's cache are, to which its names are links.
    blobs: Option<PathBuf>,
}

impl ImageFolder {
    /// Returns the folder `named`, or that of a data file.
    ///
    /// Errors: `image-missing`.
    pub fn of(data: &Path, named: Option<&Path>) -> Result<ImageFolder> {
        let of_data = data.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = named.or(of_data).unwrap_or(Path::new("."));
        let folder = folder.canonicalize().map_err(|err| {
            Error::io("image-missing", folder, &err).hint("set data.image_folder to the folder of the images")
        })?;
        let blobs = blobs_of(&folder);
        Ok(ImageFolder { folder, blobs })
    }

    /// Returns the file of the folder that a row names, without links. The name is relative to the folder, or the
    /// whole path of a file in it. A link of a snapshot in the hub's cache may lead to the files of its data set.
    ///
    /// Errors: `image-missing`; `image-outside-folder` for a file elsewhere, also by a link.
    pub fn path_of(&self, name: &str) -> Result<PathBuf> {
        let outside = || {
            Error::new("image-outside-folder", format!("{} is outside the folder of images", shown(name)))
                .fact(format!("the folder: {}", shown_path(&self.folder)))
                .hint("copy it there, or set data.image_folder to a folder with all images")
        };
        if Path::new(name).components().any(|part| part == Component::ParentDir) {
            return Err(outside());
        }
        let found = self.folder.join(name).canonicalize().map_err(|err| self.missing(name, &err))?;
        let is_of_data_set = self.blobs.as_ref().is_some_and(|blobs| found.parent() == Some(blobs));
        if found.starts_with(&self.folder) || is_of_data_set { Ok(found) } else { Err(outside()) }
    }

    /// Reads a file that a row names.
    ///
    /// Errors: those of `path_of`; `image-too-large`.
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let missing = |err: std::io::Error| self.missing(name, &err);
        let file = open_regular(&self.path_of(name)?).map_err(missing)?;
        let mut bytes = Vec::new();
        file.take(IMAGE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(missing)?;
        if bytes.len() as u64 > IMAGE_BYTES_MAX {
            let message = format!("{} has more than {IMAGE_BYTES_MAX} bytes", shown(name));
            return Err(Error::new("image-too-large", message).hint("make it smaller"));
        }
        Ok(bytes)
    }
    fn missing(&self, name: &str, err: &std::io::Error) -> Error {
        Error::new("image-missing", format!("{}: {err}", shown(name)))
            .fact(format!("looked for in {}", shown_path(&self.folder)))
            .hint("names are relative to the folder of the data file, or to data.image_folder")
    }
}

/// Returns the files of the data set of which `folder` is a snapshot: `datasets--org--name/snapshots/COMMIT/...` has
/// links to `datasets--org--name/blobs`.
fn blobs_of(folder: &Path) -> Option<PathBuf> {
    let snapshots = folder.ancestors().skip(1).find(|above| above.ends_with("snapshots"))?;
    let data_set = snapshots.parent()?;
    let is_data_set = data_set.file_name()?.to_str()?.starts_with("datasets--");
    let blobs = data_set.join("blobs");
    // A link in its place would lead elsewhere.
    let is_its_own = blobs.canonicalize().is_ok_and(|found| found == blobs);
    (is_data_set && is_its_own).then_some(blobs)
}
