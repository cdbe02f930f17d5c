//! Suggests the name or path that a misspelt one was meant to be. Reads only the names in one folder.

use crate::Error;
use std::path::{Component, Path, PathBuf};

/// Most names of a folder to compare.
const NAMES_MAX: usize = 10_000;

impl Error {
    /// Adds where a missing relative `path` was looked for, and the path that was probably meant, if one is near.
    pub fn near(self, path: &Path) -> Error {
        // Shown here, it would be with the password that it may have.
        if path.to_string_lossy().contains("://") {
            return self.hint("this is an address, and a file is expected: fetch it first");
        }
        let whole = std::path::absolute(path).ok().filter(|_| path.is_relative());
        let error = match whole {
            Some(whole) => self.fact(format!("looked for at {}", whole.display())),
            None => self,
        };
        match nearest_path(path) {
            Some(near) => error.hint(format!("did you mean {}?", near.display())),
            None => error,
        }
    }
}

/// Returns the path probably meant by a missing `path`: its first missing part becomes the nearest name in that folder.
pub fn nearest_path(path: &Path) -> Option<PathBuf> {
    let mut there = PathBuf::new();
    let mut parts = path.components();
    while let Some(part) = parts.next() {
        let next = there.join(part);
        if next.symlink_metadata().is_ok() || !matches!(part, Component::Normal(_)) {
            there = next;
            continue;
        }
        let folder = if there.as_os_str().is_empty() { Path::new(".") } else { &there };
        let names = std::fs::read_dir(folder).ok()?.take(NAMES_MAX).flatten();
        let names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        let mut near = there.join(nearest_file(part.as_os_str().to_str()?, &names)?);
        near.extend(parts);
        return near.exists().then_some(near);
    }
    None
}

/// Returns the name that `wanted` was probably meant to be: a third of its letters may differ, and their case.
pub fn nearest_name<'n>(wanted: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let wanted = wanted.to_lowercase();
    let near =
        names.into_iter().map(|name| (strsim::damerau_levenshtein(&wanted, &name.to_lowercase()), name));
    near.filter(|(letters, name)| *letters <= (name.len().min(wanted.len()) / 3).max(1))
        .min()
        .map(|(_, name)| name)
}

/// Returns the nearest file name: a third of the letters before the extension may differ, and the extension.
fn nearest_file<'n>(wanted: &str, names: &'n [String]) -> Option<&'n str> {
    let split = |name: &str| {
        let lower = name.to_lowercase();
        match lower.rsplit_once('.') {
            Some((stem, end)) if !stem.is_empty() => (stem.to_string(), end.to_string()),
            _ => (lower, String::new()),
        }
    };
    let (stem, end) = split(wanted);
    let distance = |name: &str| {
        let (other, other_end) = split(name);
        (
            strsim::damerau_levenshtein(&stem, &other),
            strsim::damerau_levenshtein(&end, &other_end),
            other.len(),
        )
    };
    let near = names.iter().map(|name| (distance(name), name));
    let near = near.filter(|((letters, _, length), _)| {
        *letters <= (length.min(&stem.len()) / 3).max(1) && letters < length.min(&stem.len())
    });
    near.min().map(|(_, name)| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_one_whose_letters_hardly_differ() {
        let names: Vec<String> = ["mine.jsonl", "mine.txt", "train.parquet", "Data", "b.py", "my_reward.py"]
            .map(String::from)
            .to_vec();
        for (wanted, expect) in [
            ("mnie.jsonl", Some("mine.jsonl")),
            ("mine.json", Some("mine.jsonl")),
            ("mine.text", Some("mine.txt")),
            ("train.jsonl", Some("train.parquet")),
            ("data", Some("Data")),
            ("my_rewrad.py", Some("my_reward.py")),
            ("a.py", None),
            ("other.jsonl", None),
            ("", None),
        ] {
            assert_eq!(nearest_file(wanted, &names), expect, "{wanted}");
        }
    }

    #[test]
    fn the_nearest_name_of_a_column_is_one_whose_letters_hardly_differ() {
        let names = ["answer", "Label", "ground_truth", "id"];
        for (wanted, expect) in [
            ("anser", Some("answer")),
            ("label", Some("Label")),
            ("ground_truht", Some("ground_truth")),
            ("target", None),
        ] {
            assert_eq!(nearest_name(wanted, names), expect, "{wanted}");
        }
    }

    #[test]
    fn an_error_says_where_a_relative_path_was_looked_for() {
        let here = std::env::current_dir().unwrap();
        let error = Error::new("data-missing", "none").near(Path::new("no/such.jsonl"));
        assert_eq!(error.facts, [format!("looked for at {}", here.join("no/such.jsonl").display())]);
        assert!(Error::new("data-missing", "none").near(Path::new("/no/such.jsonl")).facts.is_empty());
    }

    #[test]
    fn a_folder_may_be_the_part_that_is_misspelt() {
        let folder = std::env::temp_dir().join(format!("plimsoll-near-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("models/small")).unwrap();
        let near = |path: &str| nearest_path(&folder.join(path));
        assert_eq!(near("modles/small"), Some(folder.join("models/small")));
        std::fs::write(folder.join("models/small/config.json"), "{}").unwrap();
        assert_eq!(near("models/smal/config.jsn"), None, "two parts are misspelt");
        assert_eq!(near("models/small/confg.json"), Some(folder.join("models/small/config.json")));
        assert_eq!(near("models/smal"), Some(folder.join("models/small")));
        assert_eq!(near("modles/large"), None, "no such model in the nearest folder");
        assert_eq!(near("models/small"), None, "it is there");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
