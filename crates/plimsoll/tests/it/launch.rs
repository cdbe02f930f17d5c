//! `launch` from outside: the examples are its output, it asks for enough for the plan, the tools that it runs, and
//! what it refuses by name. `bench/launchers` tries real launchers.

use crate::common::{Folder, check_error, check_refused, command, plimsoll, python_with, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Lists what each folder of `examples/launch` is written by.
const EXAMPLES: [(&str, &str); 6] = [
    (
        "slurm",
        "slurm --time 8:00:00 --sbatch qos=high --sbatch constraint=ib --before examples/launch/before.sh --env NCCL_IB_HCA=mlx5",
    ),
    ("jobset", "k8s --image registry.example/plimsoll:0.1 --claim project --workdir /data"),
    (
        "pytorchjob",
        "k8s --kind pytorchjob --image registry.example/plimsoll:0.1 --claim project --workdir /data",
    ),
    (
        "patched",
        "kubernetes --image registry.example/plimsoll:0.1 --claim project --workdir /data --patch examples/launch/patch.yaml \
         --env NCCL_IB_HCA=mlx5",
    ),
    ("ssh", "ssh"),
    ("ray", "ray"),
];
const RUN: &str = "runs/qwen2.5-7b-grpo.toml --hosts 2 --ranks-per-host 8 --card h100 --host-memory 1TiB --set run.threads=4";
/// It holds another secret each time.
const NOT_KEPT: &str = "secret.yaml";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

fn write_example(words: &str, out: &str) {
    let (launcher, own) = words.split_once(' ').unwrap_or((words, ""));
    let mut args = vec!["launch", launcher];
    args.extend(RUN.split(' ').chain(own.split_whitespace()));
    if !own.contains("--workdir") {
        args.extend(["--workdir", "/shared/project"]);
    }
    args.extend(["--out", out]);
    let output = command(&args).current_dir(root()).output().expect("the binary runs");
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
}

/// Each kept file of a folder with its text.
fn files(folder: &Path) -> Vec<(String, String)> {
    let entries = fs::read_dir(folder).unwrap_or_else(|err| panic!("{}: {err}", folder.display()));
    let names = entries.flatten().map(|entry| entry.file_name().into_string().expect("UTF-8"));
    let mut files: Vec<_> = names
        .filter(|name| name != NOT_KEPT)
        .map(|name| (name.clone(), fs::read_to_string(folder.join(name)).expect("a file")))
        .collect();
    files.sort();
    files
}

/// True for equal lines, and for those that ask for up to 5 % more or less memory: builds of the program differ in
/// size, and each rank holds it.
fn are_alike(kept: &str, now: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit();
    let numbers = |line: &str| -> Vec<f64> {
        line.split(|c| !is_digit(c)).filter_map(|number| number.parse().ok()).collect()
    };
    let mut pairs = numbers(kept).into_iter().zip(numbers(now));
    let close = kept.contains("mem") && pairs.all(|(kept, now)| (kept - now).abs() <= 0.05 * kept);
    kept == now || close && kept.replace(is_digit, "") == now.replace(is_digit, "")
}

#[test]
fn examples_are_what_the_command_writes() {
    let folder = Folder::new();
    for (name, words) in EXAMPLES {
        write_example(words, &folder.text_path(name));
        let kept = files(&root().join("examples/launch").join(name));
        for ((name, kept), (_, now)) in kept.iter().zip(files(&folder.path(name))) {
            assert_eq!(kept.lines().count(), now.lines().count(), "{name}");
            let differs = kept.lines().zip(now.lines()).find(|(kept, now)| !are_alike(kept, now));
            assert_eq!(differs, None, "{name}: write it again, by the ignored test `examples_are_written`");
        }
        assert_eq!(kept.len(), files(&folder.path(name)).len(), "{name}");
    }
}

#[test]
#[ignore = "it writes into examples/launch"]
fn examples_are_written() {
    for (name, words) in EXAMPLES {
        let out = root().join("examples/launch").join(name);
        // The folder is new each time, so that no file of an earlier form stays.
        let _ = fs::remove_dir_all(&out);
        write_example(words, out.to_str().expect("UTF-8"));
        let _ = fs::remove_file(out.join(NOT_KEPT));
    }
}

#[test]
fn manifests_are_yaml_and_the_secret_is_its_owners() {
    let folder = Folder::new();
    let out = folder.text_path("k8s");
    let run = "runs/first.toml";
    let words =
        ["launch", "k8s", run, "--hosts", "2", "--ranks-per-host", "2", "--image", "a:1", "--out", &out];
    let output = command(&words).current_dir(root()).output().expect("the binary runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let secret = folder.path("k8s/secret.yaml");
    let mode = fs::metadata(&secret).expect("a secret").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let token = fs::read_to_string(&secret).expect("a secret");
    let token = token.rsplit("token: ").next().expect("a token").trim().trim_matches('"').to_string();
    assert_eq!(token.len(), 32, "{token}");
    assert!(!text(&output.stderr).contains(&token) && output.stdout.is_empty());
    assert!(!fs::read_to_string(folder.path("k8s/job.yaml")).expect("a job").contains(&token));
    let Some(python) = python_with("yaml") else { return };
    let script = "import sys, yaml\n\
        job = yaml.safe_load(open(sys.argv[1]))\n\
        pod = job['spec']['replicatedJobs'][0]['template']['spec']['template']['spec']\n\
        print(*pod['containers'][0]['args'], sep='\\n')";
    let read = Command::new(python).args(["-c", script, &folder.text_path("k8s/job.yaml")]).output();
    let read = read.expect("python runs");
    let expect = "plimsoll train runs/first.toml --ranks 4 --hosts 2 --host-rank $(HOST_RANK) --join \
                  first-host-0-0.first:23456 --resume";
    assert_eq!(text(&read.stdout).trim_end().replace('\n', " "), expect, "{}", text(&read.stderr));
}

#[test]
fn what_is_asked_for_is_enough_for_the_plan() {
    let folder = Folder::new();
    for ranks in ["1", "4"] {
        let out = folder.text_path(ranks);
        let run = root().join("runs/first.toml").display().to_string();
        let words = [
            "launch",
            "slurm",
            &run,
            "--hosts",
            "1",
            "--ranks-per-host",
            ranks,
            "--host-memory",
            "64GiB",
            "--out",
            &out,
        ];
        let output = plimsoll(&words);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let script = fs::read_to_string(folder.path(ranks).join("first.sbatch")).expect("a script");
        let memory = script.lines().find_map(|line| line.strip_prefix("#SBATCH --mem=")?.strip_suffix('M'));
        let limit = format!("host={}MiB", memory.expect("memory is asked for"));
        let planned = plimsoll(&["plan", &run, "--ranks", ranks, "--limit", &limit]);
        assert!(planned.status.success(), "{limit}: {}", text(&planned.stderr));
    }
}

/// Runs `launch LAUNCHER runs/first.toml ... --submit` with one program in PATH besides those of the system.
fn submitted(folder: &Folder, launcher: &str, tool: &str, script: &str, more: &[&str]) -> Output {
    let bin = folder.path("bin");
    fs::create_dir_all(&bin).expect("a folder");
    fs::write(bin.join(tool), script).expect("a tool");
    fs::set_permissions(bin.join(tool), fs::Permissions::from_mode(0o755)).expect("a mode");
    let out = folder.text_path(launcher);
    let words = [
        "launch",
        launcher,
        "runs/first.toml",
        "--hosts",
        "1",
        "--ranks-per-host",
        "2",
        "--submit",
        "--out",
        &out,
    ];
    let path = format!("{}:/usr/bin:/bin", bin.display());
    command(&[&words[..], more].concat())
        .env("PATH", path)
        .current_dir(root())
        .output()
        .expect("the binary runs")
}

#[test]
fn tools_are_run_and_what_they_refuse_is_named() {
    let folder = Folder::new();
    let output = submitted(&folder, "slurm", "sbatch", "#!/bin/sh\necho \"got $1\"\n", &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).ends_with("slurm/first.sbatch\n"), "{}", text(&output.stdout));

    let output = submitted(
        &Folder::new(),
        "slurm",
        "sbatch",
        "#!/bin/sh\necho 'no such partition' >&2; exit 1\n",
        &[],
    );
    check_error(&["sbatch"], &output, 1, &["error[launch-refused]", "exit code 1", "no such partition"]);

    let missing = "#!/bin/sh\necho \"$@\" >>\"$0.asked\"\n\
        echo 'error: resource mapping not found: no matches for kind \"JobSet\" in version \"jobset.x-k8s.io/v1alpha2\"' >&2; exit 1\n";
    let folder = Folder::new();
    let output = submitted(&folder, "k8s", "kubectl", missing, &["--image", "a:1"]);
    check_error(
        &["kubectl"],
        &output,
        1,
        &["error[launch-crd-missing]", "jobsets.jobset.x-k8s.io", "--kind pytorchjob"],
    );
    let asked = fs::read_to_string(folder.path("bin/kubectl.asked")).expect("it was asked");
    assert!(asked.lines().count() == 1 && asked.contains("--dry-run=server"), "nothing was made: {asked}");

    let words = [
        "launch",
        "slurm",
        "runs/first.toml",
        "--hosts",
        "1",
        "--ranks-per-host",
        "2",
        "--submit",
        "--out",
        "never",
    ];
    let output =
        command(&words).env("PATH", "/nowhere").current_dir(root()).output().expect("the binary runs");
    check_error(&words, &output, 1, &["error[launch-tool-missing]", "`sbatch`"]);
    assert!(!root().join("never").exists());
}

#[test]
fn jobs_that_cannot_be_are_refused_by_name() {
    let folder = Folder::new();
    let run = root().join("runs/first.toml").display().to_string();
    let there = folder.text_path("there");
    fs::create_dir(&there).expect("a folder");
    let out = folder.text_path("new");
    let ssh = |words: &[&str], code: i32, contains: &[&str]| {
        let all = [&["launch", "ssh", &run, "--ranks-per-host", "2"], words].concat();
        check_refused(&all, code, contains);
        assert!(!folder.path("new").exists(), "{words:?}");
    };
    ssh(&["--hosts", "1", "--out", &there], 2, &["error[launch-out-exists]", "there"]);
    ssh(&["--hosts", "0", "--out", &out], 2, &["error[bad-usage]", "'0'", "--hosts"]);
    ssh(&["--hosts", "40", "--out", &out], 2, &["error[launch-shape]", "80 ranks", "at most 64"]);
    ssh(
        &["--hosts", "1", "--cards-per-host", "1", "--out", &out],
        2,
        &["error[launch-shape]", "--cards-per-host is 1"],
    );
    ssh(
        &["--hosts", "2", "--host", "a", "--out", &out],
        2,
        &["error[launch-shape]", "--host names 1 of them"],
    );
    ssh(
        &["--hosts", "1", "--env", "HF_TOKEN=x", "--out", &out],
        2,
        &["error[launch-word]", "secret by its name"],
    );
    let bad = folder.write("bad.yaml", "spec:\n\tsuspend: true\n");
    let k8s = [
        "launch",
        "k8s",
        &run,
        "--ranks-per-host",
        "2",
        "--hosts",
        "1",
        "--image",
        "a:1",
        "--out",
        &out,
        "--patch",
    ];
    let refused = |file: &str, contains: &[&str]| check_refused(&[&k8s[..], &[file]].concat(), 2, contains);
    refused(&bad, &["error[launch-patch]", "bad.yaml: line ", "tab"]);
    let near = folder.text_path("bda.yaml");
    check_refused(&[&k8s[..], &[&near]].concat(), 1, &["error[io-error]", "did you mean", "bad.yaml?"]);
    ssh(&["--hosts", "1", "--name", "My run", "--out", &out], 2, &["error[launch-word]", "--name my-run"]);
    ssh(&["--hosts", "1", "--set", "train.tokenizer=1", "--out", &out], 2, &["error[unknown-key]"]);
    ssh(&["--hosts", "1", "--host-memory", "1MiB", "--out", &out], 3, &["error[host-pool-exceeded]"]);
}

/// The script itself runs, with a shell instead of a connection.
#[test]
fn hosts_are_started_and_their_lines_carry_their_names() {
    let folder =
        Folder::with("first.toml", &fs::read_to_string(root().join("runs/first.toml")).expect("a run file"));
    let shell = folder.write("ssh", "#!/bin/sh\nshift\nexec sh -c \"$1\"\n");
    fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).expect("a mode");
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let output = command(&[
        "launch",
        "ssh",
        "first.toml",
        "--hosts",
        "1",
        "--ranks-per-host",
        "2",
        "--host",
        "me@here",
    ])
    .args(["--program", program, "--set", "train.steps=2", "--set", "run.dir=out"])
    .current_dir(folder.path("."))
    .output()
    .expect("the binary runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let start = || {
        let mut script = Command::new("sh");
        script.arg("launch-first-ssh/start.sh").env("PLIMSOLL_SSH", &shell).current_dir(folder.path("."));
        script.output().expect("a shell")
    };
    let first = start();
    let said = text(&first.stdout);
    assert!(first.status.success(), "{said}{}", text(&first.stderr));
    assert!(said.contains("\nme@here: step 2/2 ") && said.contains("me@here: ranks     rank 0"), "{said}");
    // Started again, it finds the run finished.
    let again = text(&start().stdout);
    assert!(again.contains("is finished: 2 of 2 steps are done"), "{again}");
}
