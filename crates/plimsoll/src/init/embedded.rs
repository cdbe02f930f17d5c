//! The run files of `runs/`, by name.

use plimsoll_base::Error;
use std::path::Path;

/// (name, text), sorted by name.
pub const RUNS: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/runs.in"));

/// Returns the text of `name` for a file at `output`.
///
/// Its comments name run files by their paths in the repository; here they are in one folder.
/// Errors: `run-file-unknown`.
pub fn text(name: &str, output: &Path) -> plimsoll_base::Result<String> {
    let Some((_, text)) = RUNS.iter().find(|(known, _)| *known == name) else { return Err(unknown(name)) };
    let own = text.replace(&format!("runs/{name}.toml"), &output.display().to_string());
    let renamed =
        |text: String, other: &str| text.replace(&format!("runs/{other}.toml"), &format!("{other}.toml"));
    Ok(RUNS.iter().fold(own, |text, (other, _)| renamed(text, other)))
}

/// Returns a run file's own description: the first sentence of its first comment.
pub fn summary(text: &str) -> String {
    let comment: Vec<&str> = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim).collect();
    let comment = comment.join(" ");
    let end = comment.find(". ").unwrap_or(comment.len());
    comment[..end].trim_end_matches('.').to_string()
}

/// Adds to a missing run file's error how to write it, if an embedded one has its name.
pub fn offer(error: Error, path: &Path) -> Error {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    if error.slug == "run-file-missing" && RUNS.iter().any(|(known, _)| *known == name) {
        error.hint(format!("`plimsoll init {name}` writes {name}.toml"))
    } else {
        error
    }
}

fn unknown(name: &str) -> Error {
    let error = Error::usage("run-file-unknown", format!("no run file is called `{name}`"));
    let asked = name.trim_start_matches("runs/").trim_end_matches(".toml");
    let nearest = RUNS.iter().map(|(known, _)| (strsim::damerau_levenshtein(asked, known), *known)).min();
    match nearest {
        Some((distance, known)) if distance <= (known.len() / 3).max(2) => {
            error.hint(format!("did you mean `{known}`?"))
        }
        _ => error
            .hint("`plimsoll init --list` lists them; without a name `init` writes one for your own model"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_file_says_what_it_is() {
        assert!(RUNS.len() > 20 && RUNS.is_sorted_by_key(|(name, _)| *name));
        for (name, text) in RUNS {
            let summary = summary(text);
            assert!((20..200).contains(&summary.len()), "{name}: {summary}");
        }
    }

    #[test]
    fn names_of_run_files_are_those_that_init_writes() {
        for (name, _) in RUNS {
            let text = text(name, Path::new("mine.toml")).expect("it is in the table");
            assert!(!RUNS.iter().any(|(other, _)| text.contains(&format!("runs/{other}.toml"))), "{name}");
        }
    }

    #[test]
    fn a_missing_run_file_is_offered_if_it_is_in_here() {
        let hints =
            |slug: &'static str, path: &str| offer(Error::usage(slug, "x"), Path::new(path)).hints.len();
        assert_eq!(hints("run-file-missing", "runs/first.toml"), 1);
        assert_eq!(hints("run-file-missing", "first"), 1);
        assert_eq!(hints("run-file-missing", "mine.toml"), 0);
        assert_eq!(hints("run-file-syntax", "first.toml"), 0);
    }
}
