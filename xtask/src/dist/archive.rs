//! The archive of a release, in cargo-binstall's layout: one folder, named like the archive.

use super::files::{File, Kind};
use super::package::{Package, Packed, TARGET};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// Packs the files in order, with timestamp `epoch`.
pub fn pack(package: &Package, files: &[File], epoch: i64) -> Result<Packed, String> {
    let folder = format!("{}-{}-{TARGET}", package.name, package.version);
    // Compressed at level 9, without a name or a timestamp of its own.
    let mut archive = Builder::new(GzBuilder::new().write(Vec::new(), Compression::best()));
    for file in files {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(if file.kind == Kind::Binary { 0o755 } else { 0o644 });
        header.set_mtime(epoch.max(0) as u64);
        header.set_size(file.bytes.len() as u64);
        header.set_uid(0);
        header.set_gid(0);
        let path = format!("{folder}/{}", path(file));
        archive.append_data(&mut header, &path, &file.bytes[..]).map_err(|err| format!("{path}: {err}"))?;
    }
    let bytes =
        archive.into_inner().and_then(|gzip| gzip.finish()).map_err(|err| format!("{folder}: {err}"))?;
    Ok(Packed { name: format!("{folder}.tar.gz"), bytes })
}

fn path(file: &File) -> String {
    match file.kind {
        Kind::Bash | Kind::Zsh | Kind::Fish => format!("completions/{}", file.name),
        Kind::Man => format!("man/{}", file.name),
        // The package is in wheels alone.
        Kind::Binary | Kind::License | Kind::Readme | Kind::Python => file.name.clone(),
    }
}
