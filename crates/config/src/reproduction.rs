//! `runs/reproduce/NAME.toml`: a published number, and the run files that repeat it. It is read like a run file, with
//! the same error messages; its stages are run files that `plan` and `train` take by themselves.

use super::limits::bad_value;
use super::provenance::{FileKind, Provenance, Source};
use super::read::{provenance_of, read_text};
use super::schema::all_keys;
use super::{de, tree};
use plimsoll_base::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// The kind of file, for messages about its keys.
const REPRODUCTION: FileKind = FileKind { name: "a reproduction", keys: || all_keys(&json_schema()) };

/// A published number, and what repeats it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reproduction {
    /// Whose number it is, of which model, on which task; one line.
    pub title: String,
    /// The address of the published number, or `hf:org/name` of a model card.
    pub source: String,
    /// Needs besides the memory and the time that a plan says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
    /// Files that the run files name: rewards, data, tokenizers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<String>,
    pub claim: PublishedClaim,
    /// The runs, one after another.
    pub stage: Vec<ReproductionStage>,
    /// Keys of `eval` that differ from those of the last stage's run file; without the table the number is in that
    /// run's `summary.json`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluate: Option<serde_json::Map<String, serde_json::Value>>,
    /// The sha256 of data, by the name that a run file gives it. That of other data is recorded when it is fetched.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sha256: BTreeMap<String, String>,
}

/// The number that is claimed, and how far from it a run may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PublishedClaim {
    /// A number of `summary.json`, such as `eval_after` or `pairs_after.accuracies`, or with `[evaluate]` one of what
    /// `eval --json` prints, such as `score`.
    pub metric: String,
    /// The published number.
    pub value: f64,
    /// The largest distance from it.
    pub tolerance: f64,
    /// Where the tolerance comes from.
    pub why: String,
    /// Whether the number is shown times 100.
    #[serde(default = "yes")]
    pub percent: bool,
    /// Published evaluations of the last stage: pairs of step and score.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<(u32, f64)>,
}

/// One run of a reproduction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReproductionStage {
    /// Its run file. A `model` that is the `run.dir` of an earlier stage starts from what that stage trained.
    pub run: String,
    /// A model of the same shape, for a plan where the stage's own is not at hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan_model: Option<String>,
    /// Tokens of a prompt and of an answer, for a plan of `sft`, `dpo` or `reward_model` where model or data are not
    /// at hand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan_tokens: Option<(u32, u32)>,
}

fn yes() -> bool {
    true
}

fn json_schema() -> serde_json::Value {
    schemars::schema_for!(Reproduction).to_value()
}

/// Reads the file of a reproduction.
///
/// Errors, all with exit code 2: those of a run file.
pub fn load_reproduction(path: &Path) -> Result<Reproduction> {
    reproduction_of_text(read_text(path)?, path)
}

/// Reads the text of the file of a reproduction at `path`.
///
/// Errors: as `load_reproduction`.
pub fn reproduction_of_text(text: String, path: &Path) -> Result<Reproduction> {
    let source = Source { path: path.display().to_string(), text, kind: &REPRODUCTION };
    let root = tree::parse_file(&source)?;
    let read: Reproduction = de::read(&root, &source)?;
    check(&read, &provenance_of(&root, source))?;
    Ok(read)
}

fn check(read: &Reproduction, at: &Provenance) -> Result<()> {
    let PublishedClaim { value, tolerance, why, .. } = &read.claim;
    if !value.is_finite() {
        return Err(bad_value(at, "claim.value", value, "a finite number"));
    }
    if !(tolerance.is_finite() && *tolerance > 0.0) {
        return Err(bad_value(at, "claim.tolerance", tolerance, "a number above 0"));
    }
    if why.trim().is_empty() {
        return Err(bad_value(at, "claim.why", "\"\"", "a sentence: a tolerance without a reason is a wish"));
    }
    if read.stage.is_empty() {
        return Err(bad_value(at, "stage", "empty", "at least one `[[stage]]` with a run file"));
    }
    let runs = read.stage.iter().enumerate().map(|(i, stage)| (format!("stage.{i}.run"), &stage.run));
    let files = read.files.iter().map(|file| ("files".to_string(), file));
    for (key, file) in runs.chain(files) {
        let is_below = Path::new(file).components().all(|part| matches!(part, Component::Normal(_)));
        if !is_below || file.is_empty() {
            let takes = "a path below the folder in which the command runs, as paths in run files are";
            return Err(bad_value(at, &key, format!("\"{file}\""), takes));
        }
    }
    for (name, hash) in &read.sha256 {
        if hash.len() != 64 || !hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(bad_value(
                at,
                &format!("sha256.{name}"),
                hash,
                "64 hexadecimal digits, in lower case",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"title = "t"
source = "s"
files = ["runs/reward.py"]
[claim]
metric = "eval_after"
value = 0.567
tolerance = 0.03
why = "1,319 problems"
curve = [[0, 0.36], [10, 0.5]]
[[stage]]
run = "runs/a.toml"
[[stage]]
run = "runs/b.toml"
plan_tokens = [100, 20]
[evaluate.rollout]
temperature = 0.6
[sha256]
"hf:o/sums/test" = "0000000000000000000000000000000000000000000000000000000000000000"
"#;

    fn read(text: &str) -> Result<Reproduction> {
        reproduction_of_text(text.to_string(), Path::new("runs/reproduce/x.toml"))
    }

    #[test]
    fn a_reproduction_is_read() {
        let it = read(TEXT).expect("it is right");
        assert_eq!((it.claim.value, it.claim.percent), (0.567, true));
        assert_eq!(it.claim.curve, [(0, 0.36), (10, 0.5)]);
        assert_eq!(
            it.stage[1],
            ReproductionStage { run: "runs/b.toml".into(), plan_model: None, plan_tokens: Some((100, 20)) }
        );
        assert_eq!(it.evaluate.expect("the table")["rollout"]["temperature"], 0.6);
        assert_eq!(it.sha256.len(), 1);
    }

    #[test]
    fn what_is_wrong_with_a_reproduction_is_named_with_its_line() {
        for (from, to, slug, words) in [
            ("source = \"s\"", "sauce = \"s\"", "unknown-key", "x.toml:2:1"),
            ("source = \"s\"\n", "", "missing-key", "source"),
            ("value = 0.567", "value = \"a\"", "bad-type", "claim.value"),
            ("value = 0.567", "value = inf", "bad-value", "claim.value"),
            ("tolerance = 0.03", "tolerance = 0", "bad-value", "above 0"),
            ("why = \"1,319 problems\"", "why = \"\"", "bad-value", "claim.why"),
            ("\"runs/a.toml\"", "\"../a.toml\"", "bad-value", "stage.0.run"),
            ("\"runs/reward.py\"", "\"/etc/passwd\"", "bad-value", "/etc/passwd"),
            ("\"hf:o/sums/test\" = \"00", "\"hf:o/sums/test\" = \"0", "bad-value", "64 hexadecimal"),
            ("plan_tokens = [100, 20]", "plan_tokens = [100]", "bad-value", "plan_tokens"),
        ] {
            let error = read(&TEXT.replace(from, to)).expect_err(to);
            assert_eq!(error.slug, slug, "{to}: {error}");
            assert!(error.to_string().contains(words), "{to}: {error}");
        }
    }
}
