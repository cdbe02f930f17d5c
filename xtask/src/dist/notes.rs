//! `cargo xtask notes VERSION`: prints the notes of a release: what the changelog says of that version.

use super::package::Package;
use std::path::Path;
use std::process::ExitCode;

const CHANGELOG: &str = "CHANGELOG.md";
/// Begins the line above what a version changed.
const HEADING: &str = "## ";

/// Prints the notes of `version`, which may have the `v` of a tag. Exit code 1 if the repository has another one.
pub fn run(version: &str, root: &Path) -> ExitCode {
    let version = version.strip_prefix('v').unwrap_or(version);
    let read = || std::fs::read_to_string(root.join(CHANGELOG)).map_err(|err| format!("{CHANGELOG}: {err}"));
    let notes = Package::read(root).and_then(|package| {
        if package.version == version {
            notes(&read()?, version, &package.repository)
        } else {
            Err(format!("Cargo.toml has version {}, not {version}", package.version))
        }
    });
    match notes {
        Ok(notes) => {
            print!("{notes}");
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("notes: {what}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the section of a version, without its heading. Links to files lead to those of the version's tag.
fn notes(changelog: &str, version: &str, repository: &str) -> Result<String, String> {
    let sections: Vec<&str> = changelog.split(&format!("\n{HEADING}")).skip(1).collect();
    // A heading is `0.1.0`, `[0.1.0]` or one of them with a date.
    let name = |section: &str| {
        let word = section.split_whitespace().next().unwrap_or_default();
        word.trim_start_matches('[').trim_end_matches(']').to_string()
    };
    let Some(section) = sections.iter().find(|section| name(section) == version) else {
        let names: Vec<String> = sections.iter().map(|section| name(section)).collect();
        return Err(format!("{CHANGELOG} has no section {version}, only {}", names.join(", ")));
    };
    let text = section.split_once('\n').map_or("", |(_, text)| text).trim();
    let mut parts = text.split("](");
    let first = parts.next().unwrap_or_default().to_string();
    let led = parts.fold(first, |text, part| {
        if is_address(part) || part.starts_with('#') {
            format!("{text}]({part}")
        } else {
            format!("{text}]({repository}/blob/v{version}/{part}")
        }
    });
    Ok(format!("{led}\n"))
}

/// Returns true if the link that `text` begins with is an address.
fn is_address(text: &str) -> bool {
    text.split(')').next().is_some_and(|link| link.contains("://"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_the_section_of_the_version() {
        let text = "# Changelog\n\n## Unreleased\n\n- c\n\n## [0.2.0] - 2026-12-01\n\n### Added\n- [b](docs/b.md#c), \
                    [d](https://d/e), [f](#g)\n\n## 0.1.0\n- a\n";
        for (version, expect) in [
            ("0.1.0", Ok("- a\n")),
            ("0.2.0", Ok("### Added\n- [b](u/blob/v0.2.0/docs/b.md#c), [d](https://d/e), [f](#g)\n")),
            ("0.2", Err("CHANGELOG.md has no section 0.2, only Unreleased, 0.2.0, 0.1.0")),
        ] {
            let found = notes(text, version, "u");
            assert_eq!(found.as_deref().map_err(String::as_str), expect, "{version}");
        }
    }

    #[test]
    fn this_changelog_is_read() {
        let text = std::fs::read_to_string(crate::repository_root().join(CHANGELOG)).expect("it is there");
        let newest = text.lines().find_map(|line| line.strip_prefix(HEADING)).expect("it has a version");
        let newest = newest.split(' ').next().unwrap_or_default();
        assert!(notes(&text, newest, "u").expect("it is there").starts_with("### "));
    }
}
