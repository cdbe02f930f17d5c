//! Runs of several hosts: PID namespaces that do not see each other or share memory, so all takes the network.

use crate::common::{command, every_nth, one_in_turn};
use crate::ranks::{ended, free_port, left};
use crate::run::{Run, SMALL};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Words before a command that make it a host of its own; none where this user may not.
pub fn as_host() -> Option<Vec<&'static str>> {
    let plain = vec!["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let mapped = [&plain[..1], &["--map-root-user"], &plain[1..]].concat();
    let works = |words: &Vec<&str>| {
        let ran = Command::new(words[0]).args(&words[1..]).arg("true").stderr(Stdio::null()).status();
        ran.is_ok_and(|status| status.success())
    };
    let found = [plain, mapped].into_iter().find(works);
    if found.is_none() {
        eprintln!("skipped: this user may not make namespaces of processes");
    }
    found
}

/// A process on a host.
pub struct Started {
    child: Child,
}

impl Started {
    fn new(host: &[&str], args: &[String], variables: &[(&str, &str)]) -> Started {
        let binary = command(&[]);
        let child = Command::new(host[0])
            .args(&host[1..])
            .arg(binary.get_program())
            .args(args)
            .env("RUST_BACKTRACE", "0")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Started { child: child.expect("unshare runs") }
    }

    /// Kills it, and all of its namespace with it.
    pub fn kill(mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it lives");
    }

    pub fn end(self) -> (Option<i32>, String) {
        ended(self.child.wait_with_output().expect("it ends"))
    }
}

const TOKEN: (&str, &str) = ("PLIMSOLL_TOKEN", "a secret of a test");

/// Starts `ranks` ranks on `hosts` hosts by flags.
pub fn by_flags(
    host: &[&str],
    folder: &Run,
    dir: &str,
    (ranks, hosts): (u32, u32),
    words: &[&str],
) -> Vec<Started> {
    let join = format!("--join=127.0.0.1:{}", free_port());
    // Host 0 last, so that the others wait for it.
    let mut all: Vec<Started> = (0..hosts)
        .rev()
        .map(|rank| {
            let [ranks, hosts, rank] = [("ranks", ranks), ("hosts", hosts), ("host-rank", rank)]
                .map(|(name, value)| format!("--{name}={value}"));
            let flags = [&*ranks, &hosts, &rank, &join];
            Started::new(host, &folder.train_args(dir, &[&flags, words].concat()), &[TOKEN])
        })
        .collect();
    all.reverse();
    all
}

pub fn end_well(all: Vec<Started>, what: &str) {
    for (code, said) in all.into_iter().map(Started::end) {
        assert_eq!(code, Some(0), "{what}: {said}");
        assert!(!said.contains("over-the-line"), "{what}: {said}");
    }
}

#[test]
fn the_number_of_hosts_changes_no_bit() {
    let Some(host) = as_host() else { return };
    let folder = Run::new(SMALL);
    for (index, (name, sets)) in every_nth(
        3,
        [
            ("grpo", &["train.optimizer_dtype=int8", "train.grad_dtype=bf16"][..]),
            ("ppo-stage-3", &["method=ppo", "run.zero_stage=3", "loss.kl_coef=0.05"]),
            // Each of two hosts folds on its own, and three hosts of a rank take every gradient.
            ("fold", &["train.fold=2", "train.gradient_wire=bf16", "train.cut_multiple=7"]),
            ("muon", &["train.optimizer=muon"]),
            ("muon-stage-3", &["train.optimizer=muon", "run.zero_stage=3", "train.gradient_wire=bf16"]),
            (
                "again",
                &[
                    "data.eval=builtin:addition",
                    "eval.prompts_max=7",
                    "eval.every=1",
                    "train.epochs_per_rollout=2",
                ],
            ),
        ],
    ) {
        let sets = [&["train.cut_multiple=4"], sets].concat();
        let (code, said) = ended(folder.output(&format!("{name}-1"), &sets));
        assert_eq!(code, Some(0), "{said}");
        let one = left(&folder, &format!("{name}-1"));
        for &(ranks, hosts) in one_in_turn(index, &[(4, 2), (3, 3)]) {
            let dir = format!("{name}-{ranks}-{hosts}");
            end_well(by_flags(&host, &folder, &dir, (ranks, hosts), &sets), &dir);
            assert_eq!(left(&folder, &dir), one, "{name}: {ranks} ranks on {hosts} hosts");
        }
    }
}

#[test]
fn a_launcher_starts_ranks_on_hosts() {
    let Some(host) = as_host() else { return };
    let folder = Run::new(SMALL);
    let args = folder.train_args("out", &["train.cut_multiple=3"]);
    let port = free_port().to_string();
    let rank = |rank: &str| {
        let variables = [
            ("RANK", rank),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "1"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", &*port),
            ("TORCHELASTIC_RUN_ID", "none"),
            TOKEN,
        ];
        Started::new(&host, &args, &variables)
    };
    end_well(vec![rank("0"), rank("1")], "torchrun");
    let (code, said) = ended(folder.output("one", &["train.cut_multiple=3"]));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(left(&folder, "out"), left(&folder, "one"));
}

#[test]
fn a_host_that_dies_is_named_on_the_others_and_the_run_goes_on_with_fewer() {
    let Some(host) = as_host() else { return };
    let folder = Run::new(SMALL);
    let endless = ["train.cut_multiple=2", "train.steps=100000", "checkpoint.every=2"];
    let mut all = by_flags(&host, &folder, "out", (2, 2), &endless);
    let begun = Instant::now();
    while !folder.path("out/checkpoints/latest").exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no checkpoint");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut gone = all.pop().expect("two hosts");
    // Its whole namespace dies with it.
    gone.child.kill().expect("it lives");
    let (code, said) = all.pop().expect("two hosts").end();
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("error[rank-lost]: rank 1 (host "), "{said}");
    gone.child.wait().expect("it ended");
    // What is left is a whole run up to a step, as a run of that many steps leaves it.
    let saved =
        folder.read_json("out/checkpoints/latest/manifest.json")["step"].as_u64().expect("a step") + 2;
    let (code, said) = ended(folder.output("out", &["--resume", &format!("train.steps={saved}")]));
    assert_eq!(code, Some(0), "{said}");
    let steps = format!("train.steps={saved}");
    let sets = ["train.cut_multiple=2", "checkpoint.every=2", &steps];
    let (code, said) = ended(folder.output("whole", &sets));
    assert_eq!(code, Some(0), "{said}");
    let tensors = |dir: &str| {
        left(&folder, dir).into_iter().filter(|line| line.starts_with("checkpoints/")).collect::<Vec<_>>()
    };
    assert_eq!(tensors("out"), tensors("whole"));
}

#[test]
fn a_run_goes_on_where_a_host_does_not_see_its_directory() {
    let Some(host) = as_host() else { return };
    let folder = Run::new(SMALL);
    std::fs::create_dir(folder.path("disk")).expect("a folder");
    // Host 1 has a disk of its own there.
    let script = format!("mount -t tmpfs none {} && exec \"$@\"", folder.text_path("disk"));
    let apart = [&host[..], &["sh", "-c", &script, "sh"]].concat();
    let train = |steps: &str, resume: &[&str]| {
        let join = format!("--join=127.0.0.1:{}", free_port());
        let start = |host: &[&str], rank: &str| {
            let words = [
                "--ranks=4",
                "--hosts=2",
                rank,
                &join,
                "train.cut_multiple=4",
                "train.schedule=constant",
                steps,
            ];
            Started::new(host, &folder.train_args("disk/out", &[&words, resume].concat()), &[TOKEN])
        };
        [start(&apart, "--host-rank=1"), start(&host, "--host-rank=0")].map(Started::end)
    };
    for (code, said) in train("train.steps=2", &[]) {
        assert_eq!(code, Some(0), "{said}");
    }
    let [(_, other), (code, said)] = train("train.steps=4", &["--resume"]);
    assert_eq!(code, Some(0), "{said}\n{other}");
    assert!(
        said.contains("/disk/out is not what ranks 2, 3 see there: ") && said.contains("went to them"),
        "{said}"
    );
    let one = ["train.cut_multiple=4", "train.schedule=constant", "train.steps=4"];
    let (code, said) = ended(folder.output("one", &one));
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(left(&folder, "disk/out"), left(&folder, "one"));
}

#[test]
fn what_keeps_hosts_apart_is_named() {
    let Some(host) = as_host() else { return };
    let folder = Run::new(SMALL);
    let of = |words: &[&str], variables: &[(&str, &str)]| {
        let args = folder.train_args("out", words);
        Started::new(&host, &args, variables).end()
    };
    let flags = ["--ranks=2", "--hosts=2", "--host-rank=1", "--join=127.0.0.1"];
    let (code, said) = of(&flags, &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("error[ranks-token]: --join without PLIMSOLL_TOKEN"), "{said}");
    let nowhere = [&flags[..3], &["--join=no.such.host.invalid", "--join-seconds=1"]].concat();
    let (code, said) = of(&nowhere, &[TOKEN]);
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("error[ranks-port]: no.such.host.invalid, where rank 0 listens, is no address"),
        "{said}"
    );
    // Two hosts that claim one number, and one with another run file.
    let join = format!("--join=127.0.0.1:{}", free_port());
    let start = |rank: &str, more: &[&str]| {
        let words = [&["--ranks=3", "--hosts=3", rank, &*join][..], more].concat();
        Started::new(&host, &folder.train_args("out", &words), &[TOKEN])
    };
    let twins = [start("--host-rank=0", &[]), start("--host-rank=1", &[]), start("--host-rank=1", &[])];
    let said: Vec<(Option<i32>, String)> = twins.into_iter().map(Started::end).collect();
    assert!(said.iter().all(|(code, _)| *code == Some(2)), "{said:?}");
    assert!(said[0].1.contains("error[ranks-environment]: two processes are rank 1"), "{said:?}");
    let others = [start("--host-rank=0", &[]), start("--host-rank=1", &["seed=8"])];
    let said: Vec<(Option<i32>, String)> = others.into_iter().map(Started::end).collect();
    assert!(
        said.iter().all(|(_, said)| said.contains("run file: seed is 0 on rank 0 and 8 on rank 1")),
        "{said:?}"
    );
}

/// Launchers, with the variables of the second of two hosts.
const STARTED: [(&str, &[(&str, &str)]); 9] = [
    (
        "torchrun",
        &[
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "1"),
            ("TORCHELASTIC_RUN_ID", "none"),
        ],
    ),
    ("PyTorchJob", &[("RANK", "1"), ("WORLD_SIZE", "2")]),
    (
        "srun",
        &[
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
        ],
    ),
    (
        "Open MPI",
        &[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ],
    ),
    ("MPICH", &[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "1")]),
    (
        "Kubeflow Trainer",
        &[("PET_NNODES", "2"), ("PET_NODE_RANK", "1"), ("PET_MASTER_ADDR", "n1"), ("PET_MASTER_PORT", "1")],
    ),
    ("LeaderWorkerSet", &[("LWS_GROUP_SIZE", "2"), ("LWS_WORKER_INDEX", "1"), ("LWS_LEADER_ADDRESS", "n1")]),
    (
        "SkyPilot",
        &[("SKYPILOT_NUM_NODES", "2"), ("SKYPILOT_NODE_RANK", "1"), ("SKYPILOT_NODE_IPS", "10.0.0.5")],
    ),
    (
        "dstack",
        &[("DSTACK_NODES_NUM", "2"), ("DSTACK_NODE_RANK", "1"), ("DSTACK_MASTER_NODE_IP", "10.0.0.5")],
    ),
];

/// A launcher's name for a job was its secret, and can be guessed.
#[test]
fn r_ranks_on_several_hosts_trained_without_a_secret() {
    let Some(host) = as_host() else { return };
    let folder = Run::new(SMALL);
    let of = |variables: &[(&str, &str)]| {
        let there = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
        Started::new(&host, &folder.train_args("out", &[]), &[variables, &there].concat()).end()
    };
    for (name, variables) in STARTED {
        let (code, said) = of(variables);
        assert_eq!(code, Some(2), "{name}: {said}");
        assert!(
            said.contains(&format!("error[ranks-token]: {name}: 2 ")) && said.contains("openssl rand"),
            "{said}"
        );
        let (code, said) = of(&[variables, &[("PLIMSOLL_TOKEN", "fifteen bytes..")]].concat());
        assert_eq!(code, Some(2), "{name}: {said}");
        assert!(said.contains("of 15 bytes, and a secret has 16 at least"), "{said}");
    }
}

#[test]
fn bench_ranks_compares_hosts() {
    if as_host().is_none() {
        return;
    }
    let folder = Run::new(SMALL);
    let file = folder.text_path("x.toml");
    let words = ["bench", "ranks", &file, "--ranks", "1,2", "--hosts", "1,2", "--steps", "2", "--json"];
    let output = command(&words).output().expect("it runs");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = found["rows"].as_array().expect("rows");
    let layouts: Vec<_> =
        rows.iter().map(|row| [&row["ranks"], &row["hosts"]].map(|it| it.as_u64())).collect();
    assert_eq!(layouts, [[Some(1), Some(1)], [Some(2), Some(1)], [Some(2), Some(2)]], "{found}");
    assert!(
        rows.iter().all(|row| row["step_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0)),
        "{found}"
    );
    assert!(String::from_utf8_lossy(&output.stderr).contains("hosts"), "{output:?}");
}
