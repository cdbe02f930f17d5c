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
        Ok(ImageFolder { folder })
    }

    /// Reads a file of the folder. The name is relative to the folder, or the whole path of a file in it.
    ///
    /// Errors: `image-missing`; `image-outside-folder` for a file elsewhere, also by a link; `image-too-large`.
    pub(super) fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.folder.join(name);
        let missing = |err: std::io::Error| {
            Error::new("image-missing", format!("{}: {err}", shown(name)))
                .fact(format!("looked for in {}", shown_path(&self.folder)))
                .hint("names are relative to the folder of the data file, or to data.image_folder")
        };
        let outside = || {
            Error::new("image-outside-folder", format!("{} is outside the folder of images", shown(name)))
                .fact(format!("the folder: {}", shown_path(&self.folder)))
                .hint("copy it there, or set data.image_folder to a folder with all images")
        };
        if Path::new(name).components().any(|part| part == Component::ParentDir) {
            return Err(outside());
        }
        let found = path.canonicalize().map_err(missing)?;
        if !found.starts_with(&self.folder) {
            return Err(outside());
        }
        let file = open_regular(&found).map_err(missing)?;
        let mut bytes = Vec::new();
        file.take(IMAGE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(missing)?;
        if bytes.len() as u64 > IMAGE_BYTES_MAX {
            let message = format!("{} has more than {IMAGE_BYTES_MAX} bytes", shown(name));
            return Err(Error::new("image-too-large", message).hint("make it smaller"));
        }
        Ok(bytes)
    }
}
