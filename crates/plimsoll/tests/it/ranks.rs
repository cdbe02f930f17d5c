//! Several ranks as real processes: by `--ranks`, by hand with a launcher's variables, by installed launchers.

use crate::common::{command, every_nth, in_turn, one_in_turn, text, turn};
use crate::run::{Run, SMALL, has_python, kill, refs};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A rank as torchrun would start it.
pub struct Rank {
    child: Child,
}

impl Rank {
    fn new(args: &[String], rank: u32, ranks: u32, port: u16, more: &[(&str, &str)]) -> Rank {
        Rank::within(Path::new("."), args, rank, ranks, port, more)
    }

    /// Starts a rank in `folder`, as a launcher does.
    pub fn within(
        folder: &Path,
        args: &[String],
        rank: u32,
        ranks: u32,
        port: u16,
        more: &[(&str, &str)],
    ) -> Rank {
        let number = |n: u32| n.to_string();
        let mut command = command(&refs(args));
        command
            .current_dir(folder)
            .env("RANK", number(rank))
            .env("WORLD_SIZE", number(ranks))
            .env("LOCAL_RANK", number(rank))
            .env("LOCAL_WORLD_SIZE", number(ranks))
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("TORCHELASTIC_RUN_ID", "none")
            .envs(more.iter().copied());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        Rank { child }
    }

    pub fn end(self) -> (Option<i32>, String) {
        ended(self.child.wait_with_output().expect("it ends"))
    }
}

pub fn ended(output: Output) -> (Option<i32>, String) {
    (output.status.code(), text(&output.stderr))
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a free port").port()
}

/// Returns what a run left that does not depend on the clock: tensors, samples, and metrics.
pub fn left(folder: &Run, dir: &str) -> Vec<String> {
    let path = folder.path(dir);
    let mut files = vec![
        "checkpoints/latest/model.safetensors",
        "checkpoints/latest/model-00001-of-00002.safetensors",
        "checkpoints/latest/model-00002-of-00002.safetensors",
        "checkpoints/latest/tower.safetensors",
        "checkpoints/latest/adapter_model.safetensors",
        "checkpoints/latest/state/optimizer.safetensors",
    ];
    files.retain(|name| path.join(name).exists());
    assert!(!files.is_empty(), "{dir} has weights");
    let mut out: Vec<String> = files
        .iter()
        .map(|name| format!("{name} {}", plimsoll_files::digest(&read(path.join(name)))))
        .collect();
    for sample in std::fs::read_dir(path.join("samples")).into_iter().flatten().flatten() {
        out.push(format!("{:?} {}", sample.file_name(), plimsoll_files::digest(&read(sample.path()))));
    }
    out.sort();
    for mut metrics in folder.metrics(dir) {
        let metrics = metrics.as_object_mut().expect("an object");
        // Passes, preemptions and what is drawn in vain are the engine's, whose sequences are those of one rank.
        let depends = [
            "time/",
            "step_time",
            "per_second",
            "seconds",
            "rss",
            "memory",
            "host/",
            "passes",
            "preempt",
            "dropped",
        ];
        metrics.retain(|name, _| !depends.iter().any(|part| name.contains(part)));
        out.push(serde_json::to_string(metrics).expect("JSON"));
    }
    out
}

fn read(path: std::path::PathBuf) -> Vec<u8> {
    std::fs::read(&path).unwrap_or_else(|err| panic!("{}: {err}", path.display()))
}

#[test]
fn the_number_of_ranks_changes_no_bit() {
    let folder = Run::new(SMALL);
    let cases = [
        ("grpo", &["train.optimizer_dtype=int8", "train.grad_dtype=bf16"][..]),
        (
            "mini",
            &[
                "rollout.prompts_per_step=4",
                "train.mini_batch=8",
                "train.epochs_per_rollout=2",
                "loss.kl_coef=0.05",
            ],
        ),
        ("ppo", &["method=ppo"]),
        // One rank has it in the host's memory, several have parts of it.
        ("spread", &["loss.kl_coef=0.05", "memory.offload=[\"reference\"]", "train.steps=3"]),
        ("ppo-stage-3", &["method=ppo", "run.zero_stage=3", "loss.kl_coef=0.05"]),
        ("stage-3", &["loss.kl_coef=0.05", "run.zero_stage=3", "train.recompute=layer", "train.steps=3"]),
        ("fold", &["train.fold=3", "train.steps=3"]),
        ("wire", &["train.gradient_wire=bf16", "run.zero_stage=3", "train.steps=3"]),
        ("muon", &["train.optimizer=muon", "train.grad_dtype=bf16", "train.steps=3"]),
        ("muon-stage-3", &["train.optimizer=muon", "run.zero_stage=3", "train.fold=3", "train.steps=3"]),
        // The frozen weights are shared out; reference and critic read them there.
        ("lora-stage-3", &["lora.rank=3", "run.zero_stage=3", "loss.kl_coef=0.05", "train.recompute=layer"]),
        (
            "lora-ppo-stage-3",
            &["method=ppo", "lora.rank=3", "lora.critic=adapter", "run.zero_stage=3", "loss.kl_coef=0.05"],
        ),
        // Held-out prompts come again, and are then dealt by the lengths of their responses.
        (
            "again",
            &[
                "data.eval=builtin:addition",
                "eval.prompts_max=7",
                "eval.temperature=1.0",
                "eval.samples=2",
                "eval.every=1",
                "rollout.prompts_per_step=5",
            ],
        ),
    ];
    for (index, (name, sets)) in every_nth(3, cases) {
        let mut one = None;
        for ranks in in_turn(index, &[1, 2, 3, 4]) {
            let dir = format!("{name}-{ranks}");
            let flag = format!("--ranks={ranks}");
            let words = [&[&*flag, "train.cut_multiple=4"], sets].concat();
            let (code, said) = ended(folder.output(&dir, &words));
            assert_eq!(code, Some(0), "{name} on {ranks}: {said}");
            assert!(!said.contains("over-the-line"), "{name} on {ranks}: {said}");
            let left = left(&folder, &dir);
            assert_eq!(one.get_or_insert_with(|| left.clone()), &left, "{name} on {ranks} ranks");
        }
    }
}

#[test]
fn a_run_goes_on_with_weights_shared_out_or_not() {
    goes_on(&[]);
}

#[test]
fn a_run_of_adapters_goes_on_with_frozen_weights_shared_out_or_not() {
    goes_on(&["lora.rank=3", "loss.kl_coef=0.05"]);
}

fn goes_on(more: &[&str]) {
    let folder = Run::new(SMALL);
    let sets = |ranks: &str, stage: &str, steps: &str| {
        let own = [ranks, stage, steps, "train.cut_multiple=4"].map(String::from);
        own.into_iter().chain(more.iter().map(|set| set.to_string()))
    };
    let train = |dir: &str, sets: &mut dyn Iterator<Item = String>| {
        let sets: Vec<String> = sets.collect();
        let (code, said) = ended(folder.output(dir, &refs(&sets)));
        assert_eq!(code, Some(0), "{sets:?}: {said}");
    };
    train("whole", &mut sets("--ranks=1", "run.zero_stage=2", "train.steps=4"));
    let ways = [("3", "3", ("2", "2")), ("2", "2", ("4", "3")), ("1", "3", ("2", "3"))];
    for (ranks, stage, then) in one_in_turn(turn(), &ways) {
        let dir = format!("{ranks}-{stage}");
        let stages = [*stage, then.1].map(|stage| format!("run.zero_stage={stage}"));
        train(&dir, &mut sets(&format!("--ranks={ranks}"), &stages[0], "train.steps=2"));
        let more = sets(&format!("--ranks={}", then.0), &stages[1], "train.steps=4");
        train(&dir, &mut more.chain(["--resume".to_string()]));
        assert_eq!(
            left(&folder, "whole"),
            left(&folder, &dir),
            "{ranks} ranks at stage {stage}, then {then:?}"
        );
    }
}

#[test]
fn a_gradient_that_runs_away_is_named_on_several_ranks() {
    let folder = Run::new(SMALL);
    for stage in ["run.zero_stage=2", "run.zero_stage=3"] {
        let sets = [
            "--ranks=2",
            stage,
            "method=sft",
            "data.prompts=builtin:addition-forgetful",
            "train.learning_rate=1e30",
            "train.grad_clip=0",
            "train.weight_decay=0",
        ];
        let (code, said) = ended(folder.output(&stage[4..], &sets));
        assert_eq!(code, Some(1), "{stage}: {said}");
        assert!(said.contains("not-finite]: ") && said.contains("last good weights: "), "{stage}: {said}");
        assert_eq!(said.matches("error[").count(), 1, "{stage}: {said}");
    }
}

#[test]
fn ranks_that_learn_nothing_save_their_weights_together() {
    if !has_python() {
        return;
    }
    let folder = Run::new(SMALL);
    folder.write(
        "same.py",
        "def same(prompts, completions, **columns):\n    return [0.5] * len(completions)\n",
    );
    let reward = format!("reward.0.kind=python:{}:same", folder.text_path("same.py"));
    for stage in ["run.zero_stage=2", "run.zero_stage=3"] {
        let sets =
            ["--ranks=2", stage, &reward, "train.steps=9", "train.dead_steps_max=3", "checkpoint.every=9"];
        let (code, said) = ended(folder.output(&stage[4..], &sets));
        assert_eq!(code, Some(1), "{stage}: {said}");
        assert_eq!(said.matches("error[no-advantage]: ").count(), 1, "{stage}: {said}");
        assert!(said.contains("last good weights: "), "{stage}: {said}");
        // All of it is there: another number of ranks goes on.
        let on = ["--resume", &reward, "train.steps=9", "train.dead_steps_max=0", "checkpoint.every=9"];
        folder.train(&stage[4..], &on);
    }
    assert_eq!(folder.weights("zero_stage=2"), folder.weights("zero_stage=3"));
}

#[test]
fn what_a_python_reward_logs_has_the_bits_of_one_rank() {
    if !has_python() {
        return;
    }
    let folder = Run::new(SMALL);
    let reward = "def score(prompts, completions, log_metric, **rest):\n    for it in completions:\n        log_metric('tenth', 0.1 * len(it) + 0.01)\n    return [len(it) for it in completions]\n";
    let file = folder.write("reward.py", reward);
    folder.write("x.toml", &SMALL.replace("\"hash\"", &format!("\"python:{file}:score\"")));
    let logged = |ranks: u32| {
        let dir = format!("out-{ranks}");
        let sets = [
            &*format!("--ranks={ranks}"),
            "rollout.prompts_per_step=8",
            "train.cut_multiple=4",
            "train.steps=2",
        ];
        folder.train(&dir, &sets);
        let metrics = folder.metrics(&dir);
        metrics.iter().map(|step| step["rewards/score/tenth"].as_f64().expect("a number")).collect::<Vec<_>>()
    };
    let one = logged(1);
    for &ranks in one_in_turn(turn(), &[2, 3, 4]) {
        assert_eq!(logged(ranks), one, "on {ranks} ranks");
    }
}

#[test]
fn a_run_that_lost_a_rank_goes_on_with_another_number_of_them() {
    let folder = Run::new(SMALL);
    let sets = ["train.cut_multiple=4", "train.steps=16", "checkpoint.every=1", "checkpoint.keep=2"];
    folder.train("whole", &sets);
    let mut child = command(&refs(&folder.train_args("out", &[&["--ranks=3"], &sets[..]].concat())))
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !folder.path("out/checkpoints/latest").exists() {
        assert!(Instant::now() < deadline && child.try_wait().expect("a child").is_none(), "no checkpoint");
        std::thread::sleep(Duration::from_millis(2));
    }
    // The trainer of some rank: a process whose environment says so.
    let pids = std::fs::read_dir("/proc")
        .expect("proc")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let of_rank = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let is = |word: &str| environment.split(|byte| *byte == 0).any(|it| it == word.as_bytes());
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is("PLIMSOLL_RANK=1/3") && String::from_utf8_lossy(&command).contains(&folder.text_path("out"))
    };
    if let Some(trainer) = pids.into_iter().find(of_rank) {
        kill("-KILL", trainer);
        let (code, words) = ended(child.wait_with_output().expect("it ends"));
        if code != Some(0) {
            assert!(
                words.contains("error[rank-lost]: rank 1 (host ") && words.contains(" was killed: SIGKILL"),
                "{words}"
            );
        }
    } else {
        // It was done before it could be found.
        let _ = child.wait();
    }
    for ranks in ["--ranks=2", "--ranks=4"] {
        let (code, words) = ended(folder.output("out", &[&[ranks, "--resume"], &sets[..]].concat()));
        assert_eq!(code, Some(0), "{words}");
        assert!(words.contains("resumes after step ") || words.contains("is finished"), "{words}");
    }
    assert_eq!(left(&folder, "out"), left(&folder, "whole"));
    assert!(!folder.path("out/.ranks").exists(), "what the ranks saw is gone");
}

#[test]
fn the_memory_that_a_hint_names_is_enough_for_all_ranks() {
    let folder = Run::new(SMALL);
    let (code, words) = ended(folder.output("out", &["--ranks=3", "memory.host=60MiB"]));
    assert_eq!(code, Some(3), "{words}");
    let named = words.split("--set memory.host=").nth(1).and_then(|rest| rest.split(':').next());
    let enough = format!("memory.host={}", named.unwrap_or_else(|| panic!("{words}")));
    let (code, words) = ended(folder.output("out", &["--ranks=3", "train.steps=1", &enough]));
    assert_eq!(code, Some(0), "{enough}: {words}");
}

#[test]
fn what_one_rank_alone_can_do_is_named() {
    let (small, agent) = (Run::new(SMALL), Run::new(include_str!("../../../../runs/cartpole-ppo.toml")));
    for (folder, sets, what) in [
        (
            &small,
            &["--ranks=2", "memory.offload=[\"optimizer\"]"][..],
            "memory.offload = [\"optimizer\"] with 2 ranks",
        ),
        // One rank that rounds each gradient sums like several.
        (
            &small,
            &["train.gradient_wire=bf16", "memory.offload=[\"optimizer\"]"],
            "memory.offload = [\"optimizer\"] with train.gradient_wire = \"bf16\"",
        ),
        (
            &small,
            &["train.fold=4", "memory.offload=[\"optimizer\"]"],
            "memory.offload = [\"optimizer\"] with train.fold = 4",
        ),
        (&agent, &["--ranks=2"], "a policy in an environment with 2 ranks"),
    ] {
        let (code, words) = ended(folder.output("out", sets));
        assert_eq!(code, Some(2), "{words}");
        assert!(words.contains("error[ranks-method]: ") && words.contains(what), "{words}");
        assert_eq!(words.matches("error[").count(), 1, "{words}");
        assert!(!folder.path("out").exists(), "the run directory");
    }
}

#[test]
fn one_rank_is_the_run_as_it_is_without_the_flag() {
    let folder = Run::new(SMALL);
    let with = folder.train("with", &["--ranks=1", "train.steps=1"]);
    assert!(with.contains("step 1/1"), "{with}");
    // A launcher that started one process changes nothing either.
    let args = folder.train_args("alone", &["train.steps=1"]);
    let (code, words) = Rank::new(&args, 0, 1, 1, &[]).end();
    assert_eq!(code, Some(0), "{words}");
    assert_eq!(folder.weights("with"), folder.weights("alone"));
}

#[test]
fn flags_and_run_files_are_refused_once() {
    let folder = Run::new(SMALL);
    let out = |words: &[&str]| ended(folder.output("out", words));
    for (words, contains) in [
        (&["--ranks=0"][..], "error[bad-usage]: invalid value '0' for '--ranks <N>'"),
        (&["--ranks=65"], "error[bad-usage]: invalid value '65' for '--ranks <N>'"),
        (&["--ranks=2", "--no-supervisor"], "error[bad-usage]: "),
        (&["--ranks=3", "train.stepz=1"], "error[unknown-key]: "),
    ] {
        let (code, said) = out(words);
        assert_eq!((code, said.matches("error[").count()), (Some(2), 1), "{words:?}: {said}");
        assert!(said.contains(contains), "{words:?}: {said}");
    }
}

#[test]
fn ranks_that_a_launcher_started_find_one_another() {
    let folder = Run::new(SMALL);
    let (args, port) = (folder.train_args("out", &[]), free_port());
    // As torchrun's agent, which may hold the port itself.
    let _agent = TcpListener::bind(("127.0.0.1", port)).expect("it was free");
    let ranks: Vec<Rank> = (0..2).rev().map(|rank| Rank::new(&args, rank, 2, port, &[])).collect();
    for rank in ranks {
        let (code, words) = rank.end();
        assert_eq!(code, Some(0), "{words}");
    }
    folder.train("alone", &[]);
    assert_eq!(folder.weights("out"), folder.weights("alone"));
}

#[test]
fn a_missing_rank_is_named() {
    let folder = Run::new(SMALL);
    let (args, port) = (folder.train_args("out", &["--join-seconds=3"]), free_port());
    let ranks: Vec<Rank> = (0..2).map(|rank| Rank::new(&args, rank, 4, port, &[])).collect();
    let pid = ranks[1].child.id();
    for rank in ranks {
        let (code, words) = rank.end();
        assert_eq!(code, Some(1), "{words}");
        assert!(words.contains("error[rank-missing]: ranks 2, 3 of 4 did not come within 3 s"), "{words}");
        assert!(words.contains("there: rank 0 (host ") && words.contains(&format!("pid {pid})")), "{words}");
    }
}

#[test]
fn a_wrong_token_and_another_run_file_are_named() {
    let folder = Run::new(SMALL);
    let (args, port) = (folder.train_args("out", &["--join-seconds=12"]), free_port());
    let rank = |rank: u32, token: &str| Rank::new(&args, rank, 2, port, &[("PLIMSOLL_TOKEN", token)]);
    let [zero, one] = [rank(0, "a"), rank(1, "b")].map(Rank::end);
    assert_eq!((zero.0, one.0), (Some(1), Some(2)), "{}{}", zero.1, one.1);
    assert!(
        zero.1.contains("error[rank-missing]: rank 1 of 2") && zero.1.contains("job's token"),
        "{}",
        zero.1
    );
    assert!(one.1.contains("error[ranks-token]: rank 1: the rank 0 at 127.0.0.1:"), "{}", one.1);

    let (other, port) = (folder.train_args("out", &["train.steps=7"]), free_port());
    let [zero, one] = [&args, &other].map(|args| (args, if args == &other { 1 } else { 0 }));
    let ranks = [zero, one].map(|(args, rank)| Rank::new(args, rank, 2, port, &[]));
    for (code, words) in ranks.map(Rank::end) {
        assert_eq!(code, Some(2), "{words}");
        let expect = "error[ranks-differ]: run file: train.steps is 3 on rank 0 and 7 on rank 1";
        assert!(words.contains(expect), "{words}");
    }
}

#[test]
fn half_of_an_environment_and_an_elastic_number_of_hosts_are_refused() {
    let folder = Run::new(SMALL);
    let args = folder.train_args("out", &[]);
    for (variables, contains) in [
        (&[("RANK", "0")][..], "error[ranks-environment]: half of an environment of torchrun: RANK = 0"),
        (
            &[("RANK", "1"), ("WORLD_SIZE", "2")],
            "error[ranks-environment]: WORLD_SIZE = 2, RANK = 1: 2 hosts, and no",
        ),
        (&[("PET_NNODES", "1:2")], "error[ranks-hosts]: PET_NNODES = 1:2: from 1 to 2 hosts"),
    ] {
        let output = command(&refs(&args)).envs(variables.iter().copied()).output().expect("the binary runs");
        let (code, words) = ended(output);
        assert_eq!(code, Some(2), "{words}");
        assert!(words.contains(contains), "{words}");
    }
}

#[test]
fn a_request_to_end_reaches_ranks_that_wait() {
    let folder = Run::new(SMALL);
    let (args, port) = (folder.train_args("out", &[]), free_port());
    let zero = Rank::new(&args, 0, 2, port, &[]);
    // Until it listens: then it waits for rank 1.
    let deadline = Instant::now() + Duration::from_secs(60);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < deadline, "it does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    kill("-TERM", zero.child.id());
    let (code, words) = zero.end();
    assert_eq!(code, Some(143), "{words}");
    assert!(words.contains("error[interrupted]: SIGTERM while waiting for rank 1"), "{words}");
}

/// The two ranks of a host look for a rank 0 that does not come, so that neither has joined when one is killed. The
/// other ended 14 s later, of a signal of its own launcher.
#[test]
fn r_a_rank_killed_before_it_joined_was_waited_for() {
    let folder = Run::new(SMALL);
    let join = format!("--join=127.0.0.1:{}", free_port());
    let flags = ["--ranks=4", "--hosts=2", "--host-rank=1", &join, "--join-seconds=300"];
    let binary = command(&[]);
    let host = Command::new(binary.get_program())
        .args(folder.train_args("out", &flags))
        .env("PLIMSOLL_TOKEN", "a secret of a test")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (pid, deadline) = (host.id(), Instant::now() + Duration::from_secs(60));
    let is_rank_3 = |child: &&str| {
        // Empty between fork and exec, when it still is its launcher.
        let read = std::fs::read(format!("/proc/{child}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&read).split('\0').any(|one| one.starts_with("PLIMSOLL_LAUNCH=3/4:"))
    };
    let victim: u32 = loop {
        assert!(Instant::now() < deadline, "rank 3 does not start");
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("/proc");
        if let Some(child) = children.split_whitespace().find(is_rank_3) {
            break child.parse().expect("a process id");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    kill("-KILL", victim);
    let (code, words) = ended(host.wait_with_output().expect("it ends"));
    assert_eq!(code, Some(4), "{words}");
    assert!(
        words.contains(&format!("rank 3: its supervisor, pid {victim}, was killed by signal 9")),
        "{words}"
    );
    let named = format!(
        "error[rank-lost]: rank 3, its supervisor with pid {victim}, was killed by signal 9 before all ranks were there"
    );
    assert!(words.contains(&named) && !words.contains("interrupted"), "{words}");
}

/// Whether a launcher is there and can start a process.
fn is_running(words: &[&str]) -> bool {
    let output = Command::new(words[0]).args(&words[1..]).arg("true").output();
    let works = output.as_ref().is_ok_and(|output| output.status.success());
    if !works {
        let why = output.map_or_else(|err| err.to_string(), |output| text(&output.stderr));
        eprintln!("skipped: {} starts nothing here: {}", words[0], why.lines().last().unwrap_or_default());
    }
    works
}

#[test]
fn ranks_start_under_the_launchers_that_are_there() {
    for words in [
        &["torchrun", "--standalone", "--nproc_per_node", "4", "--no_python"][..],
        &["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "4"],
        &["mpirun.mpich", "-n", "4"],
        &["srun", "-n", "4"],
    ] {
        if !is_running(words) {
            continue;
        }
        let folder = Run::new(SMALL);
        let args = folder.train_args("out", &["--join-seconds=60"]);
        let output = Command::new(words[0])
            .args(&words[1..])
            .arg(env!("CARGO_BIN_EXE_plimsoll"))
            .args(&args)
            .output()
            .expect("the launcher runs");
        let (code, said) = ended(output);
        assert_eq!(code, Some(0), "{words:?}: {said}");
        folder.train("alone", &[]);
        assert_eq!(folder.weights("out"), folder.weights("alone"), "{words:?}");
    }
}

#[test]
fn several_cards_are_planned_without_what_one_rank_alone_can_do() {
    let folder = Run::new(SMALL);
    let plan = |sets: &[&str], device: &str| {
        let limit = format!("device={device},host=256GiB,disk=1TiB");
        let file = folder.text_path("x.toml");
        let mut words = vec!["plan", &file, "--ranks", "2", "--limit", &limit];
        let of_cards = ["run.device=cuda", "model=random:qwen2.5-0.5b", "train.optimizer_dtype=f32"];
        words.extend(of_cards.iter().chain(sets).flat_map(|set| ["--set", *set]));
        let output = command(&words).output().expect("the binary runs");
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, words) = plan(&[], "80GiB");
    assert_eq!(code, Some(0), "{words}");
    for row in
        ["actor.grads ", "actor.shard ", "actor.landing ", "actor.heads ", "actor.row_ids ", "device.aside "]
    {
        assert!(words.contains(row), "{row}: {words}");
    }
    let spread = ["actor.whole ", "actor.layers ", "reference.layers "];
    assert!(spread.iter().all(|row| !words.contains(row)), "{words}");
    // Stage 3 is for what would not fit otherwise, or for who asks for it.
    let (code, words) = plan(&["loss.kl_coef=0.01"], "80GiB");
    assert!(code == Some(0) && spread.iter().all(|row| !words.contains(row)), "{words}");
    let (code, words) = plan(&["loss.kl_coef=0.01", "run.zero_stage=3"], "80GiB");
    assert_eq!(code, Some(0), "{words}");
    assert!(spread.iter().all(|row| words.contains(row)), "{words}");
    let (code, words) = plan(&["model=random:qwen2.5-7b", "train.grad_dtype=f32"], "74GiB");
    assert!(code == Some(0) && words.contains("actor.whole "), "{words}");
    let (code, words) = plan(&["run.zero_stage=3", "lora.rank=8", "loss.kl_coef=0.01"], "80GiB");
    assert!(code == Some(0) && spread.iter().all(|row| words.contains(row)), "{words}");
    let (code, words) = plan(&["run.zero_stage=3", "lora.rank=8", "lora.merge=true"], "80GiB");
    assert!(code == Some(2) && words.contains("error[not-built]: "), "{words}");
    let (code, words) = plan(&[], "4GiB");
    assert_eq!(code, Some(3), "{words}");
    assert!(words.contains("hint: ") && !words.contains("memory.offload"), "{words}");
    let (code, words) = plan(&["train.grad_dtype=bf16"], "80GiB");
    assert!(code == Some(0) && words.contains("actor.passage "), "{words}");
    let (code, words) = plan(&["memory.offload=[\"optimizer\"]"], "80GiB");
    assert_eq!(code, Some(2), "{words}");
    let what = "memory.offload = [\"optimizer\"] with 2 ranks";
    assert!(words.contains("error[ranks-method]: ") && words.contains(what), "{words}");
}
