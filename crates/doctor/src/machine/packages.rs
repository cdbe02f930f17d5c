//! Python packages in known bad combinations, from the names and METADATA of dist-info folders. Runs no Python.

use super::facts::{Finding, Machine, State};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Entries read from a folder of packages.
const ENTRIES_MAX: usize = 20_000;
/// Bytes read from a METADATA file: its head lists the requirements.
const METADATA_BYTES_MAX: u64 = 256 << 10;
/// Packages whose compiled parts are built against one version of another: their `==` must hold.
const COMPILED: [&str; 8] =
    ["vllm", "sglang", "xformers", "torchvision", "torchaudio", "flashinfer-python", "sgl-kernel", "torchrl"];

/// (package, from, before, effect). Versions are numbers, from reports in the projects' own threads.
const KNOWN: [(&str, &[u32], &[u32], &str); 5] = [
    (
        "vllm",
        &[0, 7, 0],
        &[0, 7, 3],
        "a wake-up that fails goes on and ends in a segmentation fault (fixed in 0.7.3)",
    ),
    (
        "vllm",
        &[0, 0, 0],
        &[0, 8, 0],
        "4 GiB of pinned swap a card by default, made anew whenever the engine is rebuilt: set swap_space=0",
    ),
    (
        "tensordict",
        &[0, 0, 0],
        &[0, 6, 0],
        "moving tensors to the CPU makes a CUDA context in every worker: hide the cards from workers",
    ),
    ("ray", &[0, 0, 0], &[2, 2, 0], "no memory monitor: the kernel kills workers, without a message"),
    (
        "openrlhf",
        &[0, 6, 0],
        &[0, 6, 2],
        "generation may run on memory that sleep has unmapped: no barrier after wake-up",
    ),
];

/// The installed packages of one folder, by name: version and dist-info folder.
type Installed = BTreeMap<String, (String, PathBuf)>;

pub fn check(machine: &Machine) -> Finding {
    let folders = folders(machine);
    let (mut words, mut seen) = (Vec::new(), 0);
    for folder in &folders {
        let installed = installed(folder);
        seen += installed.len();
        for finding in known(&installed).into_iter().chain(pins(&installed)) {
            if !words.contains(&finding) {
                words.push(finding);
            }
        }
    }
    match (words.is_empty(), seen) {
        (_, 0) => (State::Unknown, "no Python packages were found".into()),
        (true, _) => {
            (State::Fine, format!("{seen} packages in {} folders, no known bad combination", folders.len()))
        }
        (false, _) => (State::Problem, words.join("; ")),
    }
}

/// Returns the folders that may hold packages: the active environment's, else the system's and the user's.
fn folders(machine: &Machine) -> Vec<PathBuf> {
    let below = |path: &str| machine.root.join(path.trim_start_matches('/'));
    let mut roots: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| machine.variable(name)).map(below).collect();
    if roots.is_empty() {
        roots.extend(["usr", "usr/local", "opt/conda", "opt/venv"].map(below));
        roots.extend(machine.variable("HOME").map(|home| below(home).join(".local")));
    }
    let mut folders: Vec<PathBuf> = machine
        .variable("PYTHONPATH")
        .into_iter()
        .flat_map(|path| path.split(':'))
        .filter(|path| path.starts_with('/'))
        .map(below)
        .collect();
    for root in roots {
        let Ok(entries) = fs::read_dir(root.join("lib")) else { continue };
        for entry in
            entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("python"))
        {
            folders.extend(["site-packages", "dist-packages"].map(|name| entry.path().join(name)));
        }
    }
    folders.retain(|folder| folder.is_dir());
    folders.sort();
    folders.dedup();
    folders
}

fn installed(folder: &Path) -> Installed {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES_MAX);
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (name, version) = name.strip_suffix(".dist-info")?.rsplit_once('-')?;
            Some((normal(name), (version.to_string(), entry.path())))
        })
        .collect()
}

/// Normalizes names: `Flashinfer_Python` and `flashinfer-python` are one package.
fn normal(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

/// Returns the numbers of a version without its suffix: `2.5.1+cu124` is 2, 5, 1.
fn numbers(version: &str) -> Vec<u32> {
    let plain = version.split('+').next().unwrap_or(version);
    let part = |part: &str| part.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    plain.split('.').map_while(part).collect()
}

fn known(installed: &Installed) -> Vec<String> {
    let mut words = Vec::new();
    for (name, from, before, what) in KNOWN {
        let Some((version, _)) = installed.get(name) else { continue };
        let is = numbers(version);
        if is.as_slice() >= from && is.as_slice() < before {
            words.push(format!("{name} {version}: {what}"));
        }
    }
    words
}

/// Finds compiled packages built for another version of a package than the installed one.
fn pins(installed: &Installed) -> Vec<String> {
    let mut words = Vec::new();
    for name in COMPILED {
        let Some((version, folder)) = installed.get(name) else { continue };
        for (wanted, exactly) in requirements(folder) {
            let Some((is, _)) = installed.get(&wanted) else { continue };
            if numbers(is) != numbers(&exactly) {
                words.push(format!("{name} {version} was built for {wanted} {exactly}, installed is {is}"));
            }
        }
    }
    words
}

/// Reads (package, version) of each `Requires-Dist: package==version` without a condition.
fn requirements(folder: &Path) -> Vec<(String, String)> {
    let mut text = String::new();
    let Ok(file) = File::open(folder.join("METADATA")) else { return Vec::new() };
    if file.take(METADATA_BYTES_MAX).read_to_string(&mut text).is_err() {
        return Vec::new();
    }
    let requirement = |line: &str| {
        let rest = line.strip_prefix("Requires-Dist:")?.trim();
        let (name, version) = rest.split_once("==")?;
        let fine = |text: &str| !text.contains([';', '*', ',', ' ', '[', '(']);
        let (name, version) = (name.trim().trim_end_matches('('), version.trim().trim_end_matches(')'));
        (fine(name) && fine(version)).then(|| (normal(name), version.to_string()))
    };
    text.lines().take_while(|line| !line.is_empty()).filter_map(requirement).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        assert_eq!(numbers("2.5.1+cu124"), [2, 5, 1]);
        assert_eq!(numbers("0.7.2.post1"), [0, 7, 2]);
        assert_eq!(numbers("2.5.0a0"), [2, 5, 0]);
    }
}
