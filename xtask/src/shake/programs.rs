//! The test programs: built by cargo, or in a folder with a manifest, and how each is started.

use super::conditions::Setting;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// File of a packed folder that lists what is in it.
pub const MANIFEST: &str = "programs.json";

/// Variables of this process that cargo set for xtask; the programs have those of their own packages.
const OF_PACKAGE: [&str; 3] = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"];

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Program {
    /// Package, and what of it: `plimsoll-base/lib`, `plimsoll-base/test/nf4`.
    pub name: String,
    /// Absolute, or in a manifest relative to its folder.
    pub path: PathBuf,
    /// Folder of the package, relative to the repository: cargo runs tests there.
    pub cwd: PathBuf,
    /// True for a program of libtest; another is one test.
    #[serde(default = "has_harness")]
    pub harness: bool,
}

/// A program of the product that tests start at the path that they were built with.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Binary {
    pub path: PathBuf,
    /// Absolute path where it must be.
    pub place: PathBuf,
}

/// All programs, and the repository that they were built in: its files are read by absolute paths.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Suite {
    pub root: PathBuf,
    pub programs: Vec<Program>,
    #[serde(default)]
    pub binaries: Vec<Binary>,
}

const fn has_harness() -> bool {
    true
}

impl Program {
    /// Returns the command that starts it, as cargo would, in a condition.
    pub fn command(&self, root: &Path, setting: &Setting) -> Command {
        let (folder, mut command) = (root.join(&self.cwd), Command::new(&self.path));
        let is_of_package = |name: &str| OF_PACKAGE.iter().any(|start| name.starts_with(start));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_of_package)) {
            command.env_remove(name);
        }
        command.current_dir(&folder).env("CARGO_MANIFEST_DIR", &folder);
        command.env("CARGO_MANIFEST_PATH", folder.join("Cargo.toml"));
        command.env("CARGO_PKG_NAME", self.name.split('/').next().unwrap_or_default());
        command.envs(setting.variables.iter().copied());
        if self.harness {
            command.args(&setting.arguments);
        }
        command
    }
}

/// Returns true if a name contains the words, or one of several parted by `|`.
pub fn is_chosen(name: &str, words: &str) -> bool {
    words.split('|').any(|words| name.contains(words))
}

/// Reads the programs of a packed folder.
pub fn read(folder: &Path) -> Result<Suite, String> {
    let path = folder.join(MANIFEST);
    let text = fs::read_to_string(&path).map_err(|err| format!("{}: {err}", path.display()))?;
    let folder = folder.canonicalize().map_err(|err| format!("{}: {err}", folder.display()))?;
    parse(&text, &folder).map_err(|err| format!("{}: {err}", path.display()))
}

fn parse(text: &str, folder: &Path) -> Result<Suite, String> {
    let mut suite: Suite = serde_json::from_str(text).map_err(|err| err.to_string())?;
    suite.programs.iter_mut().for_each(|program| program.path = folder.join(&program.path));
    suite.binaries.iter_mut().for_each(|binary| binary.path = folder.join(&binary.path));
    if suite.programs.is_empty() { Err("it lists no program".into()) } else { Ok(suite) }
}

/// Builds the programs whose names have the words.
pub fn build(root: &Path, only: &str) -> Result<Suite, String> {
    let root = root.canonicalize().map_err(|err| format!("{}: {err}", root.display()))?;
    let metadata = cargo(&root, &["metadata", "--format-version", "1", "--no-deps", "--locked"], |_| ())?;
    let packages = packages(metadata.first().ok_or("cargo metadata printed nothing")?, only);
    if packages.is_empty() {
        return Err(format!("no test program has `{only}` in its name"));
    }
    let mut words = vec!["test", "--locked", "--no-run", "--message-format=json-render-diagnostics"];
    if only.is_empty() {
        words.push("--workspace")
    } else {
        packages.iter().for_each(|name| words.extend(["--package", name]))
    }
    let mut suite = Suite { root: root.clone(), ..Suite::default() };
    for message in cargo(&root, &words, keep_artifact)? {
        add(&message, &root, &mut suite)?;
    }
    suite.programs.retain(|program| is_chosen(&program.name, only));
    suite.programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(suite)
}

/// Leaves nothing of a message but what `add` reads: the others list every file of a dependency.
fn keep_artifact(message: &mut Value) {
    if message["reason"] != "compiler-artifact" || message["executable"].is_null() {
        *message = Value::Null;
    }
}

/// Runs cargo; returns the JSON lines of its output.
fn cargo(root: &Path, words: &[&str], keep: impl Fn(&mut Value)) -> Result<Vec<Value>, String> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(words).current_dir(root).stdout(Stdio::piped());
    // Build scripts of other packages would see changes of these, and run again.
    let is_of_package = |name: &str| OF_PACKAGE.iter().any(|start| name.starts_with(start));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_of_package)) {
        command.env_remove(name);
    }
    let mut child = command.spawn().map_err(|err| format!("cargo: {err}"))?;
    let (output, mut messages) = (child.stdout.take().expect("it is piped"), Vec::new());
    for line in BufReader::new(output).lines() {
        let line = line.map_err(|err| format!("cargo {}: {err}", words[0]))?;
        // Anything else is a build script's word.
        let Ok(mut message) = serde_json::from_str::<Value>(&line) else { continue };
        keep(&mut message);
        if !message.is_null() {
            messages.push(message);
        }
    }
    let status = child.wait().map_err(|err| format!("cargo {}: {err}", words[0]))?;
    if status.success() { Ok(messages) } else { Err(format!("cargo {} ended with {status}", words[0])) }
}

/// Returns the packages that have a test program with the words in its name.
fn packages(metadata: &Value, only: &str) -> Vec<String> {
    let has = |package: &Value| {
        let targets = package["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut tests = targets.iter().filter(|target| target["test"] == true);
        tests.any(|target| is_chosen(&name(text(&package["name"]), target), only))
    };
    let all = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter(|package| has(package)).map(|package| text(&package["name"]).to_string()).collect()
}

/// Adds the executable of a message to the programs, or to the binaries.
fn add(message: &Value, root: &Path, suite: &mut Suite) -> Result<(), String> {
    let (target, path) = (&message["target"], PathBuf::from(text(&message["executable"])));
    let manifest = Path::new(text(&message["manifest_path"]));
    if message["profile"]["test"] != true {
        if target["kind"][0] == "bin" {
            suite.binaries.push(Binary { path: path.clone(), place: path });
        }
        return Ok(());
    }
    let read = fs::read_to_string(manifest).map_err(|err| format!("{}: {err}", manifest.display()))?;
    let package: Package = toml::from_str(&read).map_err(|err| format!("{}: {err}", manifest.display()))?;
    let folder = manifest.parent().and_then(|folder| folder.strip_prefix(root).ok());
    let cwd = folder.ok_or_else(|| format!("{} is outside of the repository", manifest.display()))?.into();
    let harness = package.has_harness(text(&target["kind"][0]), text(&target["name"]));
    suite.programs.push(Program { name: name(&package.package.name, target), path, cwd, harness });
    Ok(())
}

/// Returns a program's name: its package, and what of it.
fn name(package: &str, target: &Value) -> String {
    match text(&target["kind"][0]) {
        kind @ ("bin" | "test" | "example" | "bench") => {
            format!("{package}/{kind}/{}", text(&target["name"]))
        }
        _ => format!("{package}/lib"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Facts of a package's manifest that cargo's messages leave out: which of its tests have no harness.
#[derive(Deserialize)]
struct Package {
    package: Named,
    #[serde(default)]
    lib: Option<Target>,
    #[serde(flatten)]
    others: BTreeMap<String, toml::Value>,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Target {
    #[serde(default)]
    name: String,
    #[serde(default = "has_harness")]
    harness: bool,
}

impl Package {
    fn has_harness(&self, kind: &str, name: &str) -> bool {
        let rows = self.others.get(kind).cloned().and_then(|rows| rows.try_into::<Vec<Target>>().ok());
        match rows.unwrap_or_default().into_iter().find(|target| target.name == name) {
            Some(target) => target.harness,
            None => {
                !["lib", "rlib", "cdylib"].contains(&kind) || self.lib.as_ref().is_none_or(|lib| lib.harness)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_manifest_is_read_and_written() {
        let text = r#"{ "root": "/r", "programs": [ { "name": "a/lib", "path": "programs/a", "cwd": "crates/a" } ] }"#;
        let suite = parse(text, Path::new("/f")).expect("a manifest");
        let cwd = PathBuf::from("crates/a");
        let program = Program { name: "a/lib".into(), path: "/f/programs/a".into(), cwd, harness: true };
        assert_eq!(suite.programs, [program]);
        assert_eq!((suite.root.as_path(), suite.binaries.len()), (Path::new("/r"), 0));
        let mut written = suite.clone();
        written.binaries.push(Binary { path: "binaries/0".into(), place: "/t/debug/b".into() });
        let text = serde_json::to_string(&written).expect("it is plain data");
        let found = parse(&text, Path::new("/g")).expect("a manifest");
        assert_eq!(found.programs[0].path, Path::new("/f/programs/a"));
        let binary = Binary { path: "/g/binaries/0".into(), place: "/t/debug/b".into() };
        assert_eq!(found.binaries, [binary]);
    }

    #[test]
    fn a_wrong_manifest_is_refused() {
        for (text, expect) in [
            ("{}", "missing field `root`"),
            (r#"{ "root": "/r", "programs": [] }"#, "it lists no program"),
            (r#"{ "root": "/r", "programs": [{ "name": "a" }] }"#, "missing field `path`"),
            ("[", "EOF"),
        ] {
            let refusal = parse(text, Path::new("/f")).expect_err("it is wrong");
            assert!(refusal.contains(expect), "{text}: {refusal}");
        }
    }

    #[test]
    fn messages_become_programs_and_binaries() {
        let root = crate::repository_root();
        let message = |package: &str, kind: &str, name: &str, test: bool| {
            let manifest = root.join("crates").join(package).join("Cargo.toml");
            let target = json!({ "kind": [kind], "name": name });
            json!({ "target": target, "profile": { "test": test }, "executable": "/t/x", "manifest_path": manifest })
        };
        let mut suite = Suite::default();
        for message in [
            message("rollout", "test", "no_alloc", true),
            message("rollout", "test", "it", true),
            message("rollout", "lib", "plimsoll_rollout", true),
            message("worker", "bin", "plimsoll-keeper", true),
            message("worker", "bin", "plimsoll-keeper", false),
            message("cpu", "example", "cpu_speed", false),
        ] {
            add(&message, root, &mut suite).expect("its manifest is readable");
        }
        let found: Vec<(&str, bool)> =
            suite.programs.iter().map(|program| (program.name.as_str(), program.harness)).collect();
        let expect = [
            ("plimsoll-rollout/test/no_alloc", false),
            ("plimsoll-rollout/test/it", true),
            ("plimsoll-rollout/lib", true),
            ("plimsoll-worker/bin/plimsoll-keeper", true),
        ];
        assert_eq!(found, expect);
        assert_eq!((suite.programs[0].cwd.as_path(), suite.binaries.len()), (Path::new("crates/rollout"), 1));
    }

    #[test]
    fn packages_are_chosen_by_the_names_of_their_programs() {
        let target =
            |kind: &str, name: &str, test: bool| json!({ "kind": [kind], "name": name, "test": test });
        let metadata = json!({ "packages": [
            { "name": "a", "targets": [target("lib", "a", true), target("test", "nf4", true)] },
            { "name": "b", "targets": [target("cdylib", "b", true), target("example", "nf4", false)] },
        ] });
        let chosen = |only: &str| packages(&metadata, only).join(" ");
        for (only, expect) in [("", "a b"), ("nf4", "a"), ("a/lib|b/", "a b"), ("b/lib", "b"), ("c", "")] {
            assert_eq!(chosen(only), expect, "{only}");
        }
    }

    #[test]
    fn a_program_starts_as_cargo_starts_it() {
        let (path, cwd) = ("/t/x".into(), "crates/rollout".into());
        let mut program = Program { name: "p/test/x".into(), path, cwd, harness: true };
        let setting = Setting { variables: vec![("A", "b")], arguments: vec!["--shuffle".into()] };
        let command = program.command(Path::new("/r"), &setting);
        assert_eq!(command.get_current_dir(), Some(Path::new("/r/crates/rollout")));
        let variable = |name: &str| {
            let found = command.get_envs().find(|(found, _)| *found == name);
            found.and_then(|(_, value)| value?.to_str())
        };
        assert_eq!(variable("CARGO_MANIFEST_DIR"), Some("/r/crates/rollout"));
        assert_eq!((variable("CARGO_PKG_NAME"), variable("A")), (Some("p"), Some("b")));
        assert_eq!(command.get_args().count(), 1);
        program.harness = false;
        assert_eq!(program.command(Path::new("/r"), &setting).get_args().count(), 0);
    }
}
