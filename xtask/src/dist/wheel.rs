//! The wheel of a release: the Python package, the binary, which pip puts among its scripts, and completions and manual
//! pages where shells and `man` look for them. Source: the binary distribution format of the packaging guide.

use super::elf::Version;
use super::files::{File, Kind};
use super::package::{Package, Packed};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{Datelike, Timelike};
use sha2::{Digest, Sha256};
use std::io::{Cursor, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

/// The name on a package index, where `plimsoll` is another project.
const DISTRIBUTION: &str = "plimsoll-rl";

/// Packs the files as a wheel for machines with `glibc` or newer; each file has timestamp `epoch`.
pub fn pack(package: &Package, files: &[&File], glibc: Version, epoch: i64) -> Result<Packed, String> {
    let stem = format!("{}-{}", DISTRIBUTION.replace('-', "_"), package.version);
    let is_native = files.iter().any(|file| file.kind == Kind::Python && file.name.ends_with(".so"));
    let python = if is_native { "cp310-abi3" } else { "py3-none" };
    let tag = format!("{python}-manylinux_{}_{}_x86_64", glibc.0, glibc.1);
    let mut entries: Vec<(String, &[u8], u32)> = Vec::new();
    for file in files {
        let mode = if file.kind == Kind::Binary { 0o755 } else { 0o644 };
        entries.extend(path(&stem, file).map(|path| (path, &file.bytes[..], mode)));
    }
    let info = format!("{stem}.dist-info");
    let (metadata, wheel) = (metadata(package), wheel_file(&tag));
    entries.push((format!("{info}/METADATA"), metadata.as_bytes(), 0o644));
    entries.push((format!("{info}/WHEEL"), wheel.as_bytes(), 0o644));
    let record = record(&entries, &info);
    // Last, as the format recommends.
    entries.push((format!("{info}/RECORD"), record.as_bytes(), 0o644));

    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .compression_level(Some(9))
        .last_modified_time(time(epoch)?);
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, bytes, mode) in entries {
        zip.start_file(&path, options.unix_permissions(mode)).map_err(|err| format!("{path}: {err}"))?;
        zip.write_all(bytes).map_err(|err| format!("{path}: {err}"))?;
    }
    let bytes = zip.finish().map_err(|err| format!("{stem}: {err}"))?.into_inner();
    Ok(Packed { name: format!("{stem}-{tag}.whl"), bytes })
}

/// Returns the path of a file in the wheel; `None` for README.md, which is in the metadata.
fn path(stem: &str, file: &File) -> Option<String> {
    let folder = match file.kind {
        Kind::Binary => "data/scripts",
        Kind::Bash => "data/data/share/bash-completion/completions",
        Kind::Zsh => "data/data/share/zsh/site-functions",
        Kind::Fish => "data/data/share/fish/vendor_completions.d",
        Kind::Man => "data/data/share/man/man1",
        Kind::License => "dist-info/licenses",
        Kind::Python => return Some(file.name.clone()),
        Kind::Readme => return None,
    };
    Some(format!("{stem}.{folder}/{}", file.name))
}

fn metadata(package: &Package) -> String {
    let Package { version, description, license, repository, keywords, readme, .. } = package;
    format!(
        "\
Metadata-Version: 2.4
Name: {DISTRIBUTION}
Version: {version}
Summary: {description}
Keywords: {}
License-Expression: {license}
License-File: LICENSE
Requires-Python: >=3.10
Provides-Extra: collect
Requires-Dist: numpy>=1.26; extra == \"collect\"
Requires-Dist: gymnasium>=1.1; extra == \"collect\"
Project-URL: Source, {repository}
Description-Content-Type: text/markdown

{readme}",
        keywords.join(",")
    )
}

fn wheel_file(tag: &str) -> String {
    format!("Wheel-Version: 1.0\nGenerator: xtask dist\nRoot-Is-Purelib: false\nTag: {tag}\n")
}

/// Returns the list of all files with checksum and length; it lists itself without them.
fn record(entries: &[(String, &[u8], u32)], info: &str) -> String {
    let line = |(path, bytes, _): &(String, &[u8], u32)| {
        format!("{path},sha256={},{}\n", URL_SAFE_NO_PAD.encode(Sha256::digest(bytes)), bytes.len())
    };
    entries.iter().map(line).collect::<String>() + &format!("{info}/RECORD,,\n")
}

/// Converts a time to that of zip files, which begin in 1980.
fn time(epoch: i64) -> Result<DateTime, String> {
    let time = chrono::DateTime::from_timestamp(epoch, 0).ok_or(format!("{epoch} seconds are no time"))?;
    let part = |number: u32| number as u8;
    let (day, clock) = (time.date_naive(), time.time());
    let year = u16::try_from(day.year()).unwrap_or(0);
    let (hour, minute, second) = (part(clock.hour()), part(clock.minute()), part(clock.second()));
    DateTime::from_date_and_time(year, part(day.month()), part(day.day()), hour, minute, second)
        .map_err(|_| format!("{epoch} seconds are before 1980 or after 2107, which a wheel cannot say"))
}
