//! Data sets of the Hugging Face hub: `hf:org/name`, `hf:org/name/SPLIT`, `hf:org/name/SUBSET/SPLIT` or
//! `hf:org/name/FILE`, then `@REVISION`. Each resolves to one JSONL or Parquet file; refuses a name with several.

use crate::source::{is_repo, is_revision};
use plimsoll_base::{Error, Result};
use std::fmt;

/// Most folders above a file.
const DEPTH_MAX: usize = 8;
/// Most candidates, or existing files, to list.
const SHOWN_MAX: usize = 12;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubData {
    /// `org/name`.
    pub repo: String,
    /// A branch, tag or commit; `main` if absent.
    pub revision: Option<String>,
    /// Subset and split, split alone, or the path of a file; may be empty.
    pub path: Vec<String>,
}

impl HubData {
    /// Reads a name; `None` if it does not begin with `hf:`.
    ///
    /// Errors: `data-hub-name`.
    pub fn parse(text: &str) -> Option<Result<HubData>> {
        let rest = text.strip_prefix("hf:")?;
        let invalid = || {
            Error::usage("data-hub-name", format!("`{text}` is no name of a data set on the hub"))
                .hint("write hf:org/name, hf:org/name/SPLIT, hf:org/name/SUBSET/SPLIT or hf:org/name/FILE.parquet")
                .hint("a branch, tag or commit follows the name: hf:org/name@REVISION/SPLIT")
        };
        let mut parts = rest.split('/');
        let (Some(org), Some(name)) = (parts.next(), parts.next()) else { return Some(Err(invalid())) };
        let (name, revision) = match name.split_once('@') {
            Some((name, revision)) => (name, Some(revision.to_string())),
            None => (name, None),
        };
        let repo = format!("{org}/{name}");
        let path: Vec<String> = parts.map(str::to_string).collect();
        let is_good = is_repo(&repo)
            && revision.as_deref().is_none_or(is_revision)
            && path.len() <= DEPTH_MAX
            && path.iter().all(|part| is_part(part))
            && (path.len() <= 2 || path.last().is_some_and(|last| is_data(last)));
        Some(if is_good { Ok(HubData { repo, revision, path }) } else { Err(invalid()) })
    }

    /// Returns the name with the revision `commit`.
    pub fn pinned(&self, commit: &str) -> HubData {
        HubData { revision: Some(commit.into()), ..self.clone() }
    }

    /// Returns the name without a revision, for people.
    pub fn unpinned(&self) -> HubData {
        HubData { revision: None, ..self.clone() }
    }

    /// Returns the one file of `files` that the name refers to.
    ///
    /// Errors: `data-hub-file`.
    pub(crate) fn choose<'f>(&self, files: &'f [String], split: &str) -> Result<&'f str> {
        let data: Vec<&String> = files.iter().filter(|file| is_data(file)).collect();
        let whole = self.path.join("/");
        if let Some(file) = data.iter().find(|file| ***file == whole) {
            return Ok(file);
        }
        let (subset, split) = match self.path.as_slice() {
            [] => (None, split),
            [split] => (None, split.as_str()),
            [subset, split, ..] => (Some(subset.as_str()), split.as_str()),
        };
        let fits: Vec<&&String> = data.iter().filter(|file| is_of(file, subset, split)).collect();
        match fits.as_slice() {
            [one] if !is_shard(one) => Ok(one),
            [] => Err(self.no_choice(&format!("no file of it is the split `{split}`"), &data)),
            several => {
                let several: Vec<&String> = several.iter().map(|file| **file).collect();
                Err(self.no_choice(&format!("several files of it are the split `{split}`"), &several))
            }
        }
    }

    fn no_choice(&self, what: &str, files: &[&String]) -> Error {
        let error = Error::new("data-hub-file", format!("hf:{}: {what}", self.repo));
        let shown = files.iter().take(SHOWN_MAX).fold(error, |error, file| error.fact(file.as_str()));
        match files.first() {
            Some(file) => shown
                .hint(format!("name one: hf:{}/{file}", self.repo))
                .hint("of several, give a list: prompts = [\"hf:...\", \"hf:...\"]"),
            None => {
                shown.hint("it has no .jsonl and no .parquet file: fetch it by other means, and name a file")
            }
        }
    }
}

impl fmt::Display for HubData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        self.revision.iter().try_for_each(|revision| write!(f, "@{revision}"))?;
        self.path.iter().try_for_each(|part| write!(f, "/{part}"))
    }
}

/// Returns true if a file belongs to a split: `SPLIT.jsonl`, `SPLIT-00000-of-00001.parquet`, `SPLIT/0000.parquet`, in
/// the subset's folder if there is one, else at the top or in `data`, `default` or `main`.
fn is_of(file: &str, subset: Option<&str>, split: &str) -> bool {
    let mut folders: Vec<&str> = file.split('/').collect();
    let name = folders.pop().unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    let is_split = stem == split || stem.strip_prefix(split).is_some_and(|rest| rest.starts_with(['-', '_']));
    if !is_split && folders.pop() != Some(split) {
        return false;
    }
    match (subset, folders.as_slice()) {
        (Some(subset), folders) => folders.first() == Some(&subset) || folders.last() == Some(&subset),
        (None, []) => true,
        (None, [folder]) => ["data", "default", "main"].contains(folder),
        (None, _) => false,
    }
}

/// Returns true if a file is one of several of its split, such as `train-00000-of-00002.parquet`.
fn is_shard(file: &str) -> bool {
    let number = file.rsplit_once("-of-").and_then(|(_, rest)| rest.split('.').next()?.parse::<u32>().ok());
    number.is_some_and(|number| number > 1)
}

fn is_data(file: &str) -> bool {
    [".jsonl", ".parquet"].iter().any(|ending| file.ends_with(ending))
}

/// Returns true for a harmless part of a path.
fn is_part(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 200
        && !text.starts_with('.')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// Returns true if a path of a listing may become one below the cache.
pub(crate) fn is_path(text: &str) -> bool {
    text.split('/').count() <= DEPTH_MAX && text.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<HubData> {
        HubData::parse(text).expect("it begins with hf:")
    }

    #[test]
    fn names_are_read_and_written() {
        for (text, revision, path) in [
            ("hf:openai/gsm8k", None, &[][..]),
            ("hf:openai/gsm8k/train", None, &["train"]),
            ("hf:openai/gsm8k/main/train", None, &["main", "train"]),
            ("hf:openai/gsm8k@e53f048/main/train", Some("e53f048"), &["main", "train"]),
            ("hf:o/n/a/b/c.parquet", None, &["a", "b", "c.parquet"]),
        ] {
            let data = parse(text).expect(text);
            assert_eq!((data.revision.as_deref(), data.to_string()), (revision, text.to_string()));
            assert_eq!(data.path, path);
        }
        assert!(HubData::parse("train.jsonl").is_none());
        assert_eq!(parse("hf:o/n/s").unwrap().pinned("abc").to_string(), "hf:o/n@abc/s");
        assert_eq!(parse("hf:o/n@abc/s").unwrap().unpinned().to_string(), "hf:o/n/s");
    }

    #[test]
    fn names_that_leave_their_place_are_refused() {
        for text in [
            "hf:",
            "hf:gsm8k",
            "hf:../x",
            "hf:o/n/..",
            "hf:o/n@/s",
            "hf:o/n@../s",
            "hf:o/n/a/b/c",
            "hf:o/n//s",
            "hf:o/n/.x",
        ] {
            assert_eq!(parse(text).expect_err(text).slug, "data-hub-name", "{text}");
        }
    }

    #[test]
    fn one_file_is_chosen_or_the_choice_is_named() {
        let files = [
            "README.md",
            "main/train-00000-of-00001.parquet",
            "main/test-00000-of-00001.parquet",
            "socratic/train-00000-of-00001.parquet",
            "extra/train/0000.parquet",
            "big/train-00000-of-00002.parquet",
            "big/train-00001-of-00002.parquet",
            // The other half is not listed.
            "half/train-00000-of-00002.parquet",
            "hard.jsonl",
        ]
        .map(str::to_string);
        let choose = |text: &str, split: &str| parse(text).unwrap().choose(&files, split).map(str::to_string);
        for (text, split, expect) in [
            ("hf:o/n", "train", files[1].as_str()),
            ("hf:o/n", "test", files[2].as_str()),
            ("hf:o/n/test", "train", files[2].as_str()),
            ("hf:o/n/socratic/train", "train", files[3].as_str()),
            ("hf:o/n/extra/train", "train", files[4].as_str()),
            ("hf:o/n/hard", "train", files[8].as_str()),
            ("hf:o/n/big/train-00001-of-00002.parquet", "train", files[6].as_str()),
        ] {
            assert_eq!(choose(text, split).expect(text), expect, "{text} {split}");
        }
        for (text, contains) in [
            ("hf:o/n/valid", "no file of it is the split `valid`"),
            ("hf:o/n/big/train", "several files of it are the split `train`"),
            ("hf:o/n/big/test", "no file"),
            ("hf:o/n/half/train", "several files"),
        ] {
            let error = choose(text, "train").expect_err(text);
            assert_eq!(error.slug, "data-hub-file");
            assert!(error.to_string().contains(contains) && !error.facts.is_empty(), "{error}");
        }
        assert!(is_path("a/b.parquet") && !is_path("../x") && !is_path("a//b") && !is_path("/etc/x"));
    }
}
