//! The manifest of a checkpoint, read first: lengths and checksums of its files, and its own, to find any changed byte.

use plimsoll_base::{Error, Result, open_regular, shown};
use plimsoll_files::{Difference, FileRecord, difference, digest};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path};

/// File name in a checkpoint.
pub const MANIFEST: &str = "manifest.json";
/// Newest checkpoint format that this build writes and reads. Format 1 has no sums of pieces.
pub const FORMAT: u64 = 2;
/// Longest manifest; a larger file is something else.
const MANIFEST_BYTES_MAX: u64 = 4 << 20;

/// The files of a checkpoint and their checksums.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: u64,
    pub step: u32,
    /// False for weights alone, left by a run that failed inside a step.
    pub resumable: bool,
    /// The model that the run began with.
    pub source: String,
    pub version: String,
    /// Files by path in the folder, without the manifest itself.
    pub files: BTreeMap<String, FileRecord>,
}

/// A file of a checkpoint that differs from what was written.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its path in the checkpoint.
    pub file: String,
    /// The fault: the bytes, the tensors, the sums.
    pub what: String,
    /// `None` if it could not be read.
    pub difference: Option<Difference>,
}

impl Manifest {
    pub fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }

    /// Returns the text of the file: JSON whose last member is the SHA-256 of the rest.
    pub fn to_text(&self) -> String {
        let mut value = serde_json::to_value(self).expect("a manifest is plain data");
        let pretty =
            |value: &Value| serde_json::to_string_pretty(value).expect("a JSON value has a JSON text");
        value["sha256"] = digest(pretty(&value).as_bytes()).into();
        pretty(&value) + "\n"
    }

    /// Reads the manifest of a checkpoint.
    ///
    /// Errors: `checkpoint-damaged` if it differs from what was written; `checkpoint-newer`.
    pub fn read(folder: &Path) -> Result<Manifest> {
        let path = folder.join(MANIFEST);
        refuse_link(folder, "the checkpoint")?;
        let meta = refuse_link(&path, "it")?;
        if !meta.is_file() {
            return Err(damaged(&path, "it is not a regular file"));
        }
        if meta.len() > MANIFEST_BYTES_MAX {
            return Err(damaged(&path, &format!("{} bytes, the limit is {MANIFEST_BYTES_MAX}", meta.len())));
        }
        let text = open_regular(&path)
            .and_then(std::io::read_to_string)
            .map_err(|err| damaged(&path, &err.to_string()))?;
        let mut value: Value = serde_json::from_str(&text).map_err(|err| {
            let what = format!("not valid JSON at byte {}: {err}", byte_of(&text, err.line(), err.column()));
            damaged(&path, &what)
        })?;
        match value["format"].as_u64() {
            Some(format) if format > FORMAT => return Err(newer(&path, format, &value)),
            Some(_) => {}
            None => return Err(damaged(&path, "it names no format")),
        }
        let sealed = value.as_object_mut().expect("it has a member").shift_remove("sha256");
        let manifest: Manifest =
            serde_json::from_value(value).map_err(|err| damaged(&path, &err.to_string()))?;
        if manifest.to_text() != text {
            return Err(damaged(&path, &self_difference(&text, &manifest, sealed.as_ref())));
        }
        Ok(manifest)
    }

    /// Reads every file and checks it against the manifest.
    ///
    /// Errors: `checkpoint-damaged` names the first such file and lists the others.
    pub fn verify(&self, folder: &Path) -> Result<()> {
        let mut findings = self.findings(folder).into_iter();
        let Some(Finding { file, what, .. }) = findings.next() else { return Ok(()) };
        let error = damaged(&folder.join(file), &what);
        let line = |Finding { file, what, .. }| format!("{}: {what}", folder.join(file).display());
        Err(findings.map(line).fold(error, Error::fact))
    }

    /// Reads every file and returns those that differ from the manifest.
    pub fn findings(&self, folder: &Path) -> Vec<Finding> {
        let found = |(name, record): (&String, &FileRecord)| {
            let (what, difference) = check(folder, name, record).err()?;
            Some(Finding { file: name.clone(), what, difference })
        };
        self.files.iter().filter_map(found).collect()
    }
}

/// Returns the byte offset of a position in a JSON error.
fn byte_of(text: &str, line: usize, column: usize) -> usize {
    let before: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
    (before + column.saturating_sub(1)).min(text.len())
}

/// Describes how a manifest differs from its own checksum.
fn self_difference(text: &str, manifest: &Manifest, sealed: Option<&Value>) -> String {
    let again = manifest.to_text();
    let first = text.bytes().zip(again.bytes()).position(|(a, b)| a != b);
    let at = first.unwrap_or(text.len().min(again.len()));
    let sum = |text: &str| serde_json::from_str::<Value>(text).ok()?["sha256"].as_str().map(str::to_string);
    match (sealed.and_then(Value::as_str), sum(&again)) {
        (Some(sealed), Some(found)) if sealed != found => {
            format!("its own checksum does not match: SHA-256 {found}, expected {}", shown(sealed))
        }
        _ => {
            format!("its own checksum does not match: from byte {at} on it is not the text that was written")
        }
    }
}

/// Says what is wrong with a file: words, and where it differs if it is readable.
type Wrong = (String, Option<Difference>);

fn check(folder: &Path, name: &str, expect: &FileRecord) -> std::result::Result<(), Wrong> {
    let mut parts = Path::new(name).components();
    if !parts.all(|part| matches!(part, Component::Normal(_))) {
        return Err(("the manifest names a place outside the checkpoint".into(), None));
    }
    let path = folder.join(name);
    for above in path.ancestors().take_while(|above| *above != folder) {
        if above.symlink_metadata().is_ok_and(|meta| meta.is_symlink()) {
            return Err(("it is a symbolic link, a checkpoint holds files".into(), None));
        }
    }
    match path.symlink_metadata() {
        Err(err) if err.kind() == ErrorKind::NotFound => {
            return Err((format!("it is missing, {} bytes are expected", expect.bytes), None));
        }
        Err(err) => return Err((err.to_string(), None)),
        Ok(meta) if !meta.is_file() => return Err(("it is not a regular file".into(), None)),
        Ok(_) => {}
    }
    match difference(&path, expect) {
        Ok(None) => Ok(()),
        Ok(Some(difference)) => Err((difference.to_string(), Some(difference))),
        Err(err) => Err((err.to_string(), None)),
    }
}

fn refuse_link(path: &Path, what: &str) -> Result<fs::Metadata> {
    let meta = path.symlink_metadata().map_err(|err| match err.kind() {
        ErrorKind::NotFound => damaged(path, &format!("{what} is missing")),
        _ => damaged(path, &err.to_string()),
    })?;
    if meta.is_symlink() {
        Err(damaged(path, &format!("{what} is a symbolic link, a checkpoint holds files")))
    } else {
        Ok(meta)
    }
}

/// Returns the error for a checkpoint that differs from what was written.
fn damaged(path: &Path, what: &str) -> Error {
    Error::new("checkpoint-damaged", format!("{}: {what}", path.display()))
}

fn newer(path: &Path, format: u64, value: &Value) -> Error {
    let version = value["version"].as_str().unwrap_or("a newer version");
    let message = format!(
        "{}: format {format}, written by plimsoll {version}; this build reads formats up to {FORMAT}",
        path.display()
    );
    Error::new("checkpoint-newer", message).hint("use a build at least as new as the one that wrote it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_files::write_new;

    fn checkpoint() -> (tempfile::TempDir, std::path::PathBuf, Manifest) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step-000003");
        fs::create_dir_all(path.join("state")).unwrap();
        let mut files = BTreeMap::new();
        for (name, bytes) in [("model.safetensors", &b"weights"[..]), ("state/state.json", b"{}")] {
            files.insert(name.to_string(), write_new(&path.join(name), bytes).unwrap());
        }
        let (source, version) = ("builtin:nano".to_string(), "0.1.0".to_string());
        let manifest = Manifest { format: FORMAT, step: 3, resumable: true, source, version, files };
        fs::write(path.join(MANIFEST), manifest.to_text()).unwrap();
        (folder, path, manifest)
    }

    #[test]
    fn any_byte_that_changed_is_found() {
        let (_folder, path, manifest) = checkpoint();
        assert_eq!(Manifest::read(&path).unwrap(), manifest);
        manifest.verify(&path).unwrap();
        for name in [MANIFEST, "model.safetensors", "state/state.json"] {
            let good = fs::read(path.join(name)).unwrap();
            for at in 0..good.len() {
                let mut bad = good.clone();
                bad[at] ^= 1 << (at % 8);
                fs::write(path.join(name), &bad).unwrap();
                let found = Manifest::read(&path).and_then(|manifest| manifest.verify(&path));
                let error = found.expect_err(&format!("byte {at} of {name}"));
                assert!(matches!(error.slug, "checkpoint-damaged" | "checkpoint-newer"), "{error}");
            }
            fs::write(path.join(name), &good[..good.len() - 1]).unwrap();
            assert!(Manifest::read(&path).and_then(|m| m.verify(&path)).is_err(), "{name} cut short");
            fs::write(path.join(name), &good).unwrap();
        }
    }

    #[test]
    fn links_missing_files_and_newer_formats_are_named() {
        let (_folder, path, manifest) = checkpoint();
        let weights = path.join("model.safetensors");
        fs::rename(&weights, path.join("elsewhere")).unwrap();
        let error = manifest.verify(&path).unwrap_err();
        assert!(error.message.ends_with("model.safetensors: it is missing, 7 bytes are expected"), "{error}");
        std::os::unix::fs::symlink("elsewhere", &weights).unwrap();
        assert!(manifest.verify(&path).unwrap_err().message.contains("symbolic link"));
        let newer = Manifest { format: FORMAT + 1, version: "9.0.0".into(), ..manifest };
        fs::write(path.join(MANIFEST), newer.to_text()).unwrap();
        let error = Manifest::read(&path).unwrap_err();
        assert_eq!(error.slug, "checkpoint-newer");
        assert!(error.message.contains("9.0.0"), "{error}");
        fs::remove_file(path.join(MANIFEST)).unwrap();
        fs::create_dir(path.join(MANIFEST)).unwrap();
        assert!(Manifest::read(&path).unwrap_err().message.ends_with("it is not a regular file"));
        let outside = FileRecord { bytes: 0, sha256: String::new(), pieces: None };
        assert!(check(&path, "../x", &outside).unwrap_err().0.contains("outside"));
    }

    #[test]
    fn damage_is_named_by_its_bytes_and_format_1_by_its_digest() {
        let (_folder, path, manifest) = checkpoint();
        fs::write(path.join("model.safetensors"), "weighty").unwrap();
        let found = manifest.findings(&path);
        assert!(matches!(&found[..], [one] if one.file == "model.safetensors"), "{found:?}");
        let [range] = &found[0].difference.as_ref().expect("it was read").ranges[..] else {
            panic!("{found:?}")
        };
        assert_eq!((range.first_byte, range.last_byte), (0, 6));
        let error = manifest.verify(&path).unwrap_err();
        assert!(
            error.message.contains("model.safetensors: bytes 0 to 6 (its header) have CRC-32 "),
            "{error}"
        );
        let mut older = Manifest { format: 1, ..manifest };
        older.files.values_mut().for_each(|record| record.pieces = None);
        fs::write(path.join(MANIFEST), older.to_text()).unwrap();
        let error = Manifest::read(&path).and_then(|manifest| manifest.verify(&path)).unwrap_err();
        assert!(error.message.contains("model.safetensors: SHA-256 "), "{error}");
    }

    #[test]
    fn damage_to_the_manifest_is_named_by_its_byte_or_its_digests() {
        let (_folder, path, manifest) = checkpoint();
        let good = manifest.to_text();
        let with = |text: String| {
            fs::write(path.join(MANIFEST), text).unwrap();
            Manifest::read(&path).unwrap_err().message
        };
        let comma = good.find(',').expect("members");
        let message = with(good.replacen(',', ";", 1));
        assert!(message.contains(&format!("not valid JSON at byte {comma}: ")), "{message}");
        let message = with(good.replacen("\"step\": 3", "\"step\": 4", 1));
        assert!(message.contains("checksum does not match: SHA-256 "), "{message}");
        let message = with(good.replacen("\"step\": 3", "\"step\":  3", 1));
        assert!(message.contains(": from byte "), "{message}");
    }
}
