//! Checks of machines that are folders, and that hidden files are no fault.

use plimsoll_base::Bytes;
use plimsoll_doctor::machine::{Card, Check, GpuFacts, Machine, State, WorkerFacts};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A machine with these files and variables.
fn machine(root: &Path, files: &[(&str, &str)], variables: &[(&str, &str)]) -> Machine {
    for (path, text) in files {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    let variables = variables.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    Machine {
        root: root.into(),
        variables,
        run_dir: root.into(),
        temp_dir: root.into(),
        gpu: GpuFacts::default(),
        workers: None,
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn of<'a>(checks: &'a [Check], slug: &str) -> &'a Check {
    checks.iter().find(|check| check.slug == slug).unwrap_or_else(|| panic!("{slug}: {checks:?}"))
}

fn check(files: &[(&str, &str)], variables: &[(&str, &str)], slug: &str, state: State, words: &str) {
    let root = folder();
    let checks = machine(root.path(), files, variables).checks();
    let found = of(&checks, slug);
    assert!(
        found.state == state && found.finding.contains(words),
        "{slug}, wanted {state:?} {words:?}: {found:?}"
    );
}

const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
    Max address space         34359738368          unlimited            bytes     \n\
    Max processes             94417                94417                processes \n\
    Max open files            1024                 1048576              files     \n\
    Max locked memory         65536                65536                bytes     \n";
const V2: &str = "24 22 0:21 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";

#[test]
fn a_machine_that_hides_everything_is_unknown() {
    let root = folder();
    fs::create_dir_all(root.path().join("dev/shm")).expect("a folder");
    let checks = machine(root.path(), &[], &[]).checks();
    for slug in [
        "machine-kernel-calls",
        "machine-ptrace",
        "machine-container-memory",
        "machine-swap",
        "machine-overcommit",
        "machine-huge-pages",
        "machine-numa",
        "machine-open-files",
        "machine-processes",
        "machine-locked-memory",
        "machine-address-space",
        "machine-processors",
        "machine-io-limits",
        "machine-gpu-driver",
        "machine-gpu-cards",
        "machine-gpu-holders",
        "machine-gpu-hand-over",
        "machine-python-packages",
        "machine-workers",
    ] {
        assert_eq!(of(&checks, slug).state, State::Unknown, "{slug}: {}", of(&checks, slug).finding);
    }
    assert_eq!(checks.len(), 24);
    let none = machine(Path::new("/nonexistent"), &[], &[]).checks();
    assert_eq!(none.len(), 24);
}

#[test]
fn what_keeps_workers_in_is_said_and_what_is_missing() {
    let root = folder();
    let all = WorkerFacts { filters: true, answers: true, landlock: 7, groups: true, mounts: true };
    for (facts, state, words) in [
        (all, State::Fine, "seccomp that asks; Landlock 7; memory groups; their own /dev/shm"),
        (WorkerFacts { landlock: 3, ..all }, State::Fine, "the keeper answers for them"),
        (WorkerFacts { groups: false, ..all }, State::Fine, "memory is counted"),
        (WorkerFacts { mounts: false, ..all }, State::Fine, "a shared /dev/shm"),
        (WorkerFacts { landlock: 0, ..all }, State::Note, "may write where you may"),
        (WorkerFacts { answers: false, ..all }, State::Note, "may signal processes of yours"),
        (WorkerFacts { filters: false, answers: false, ..all }, State::Note, "do not start"),
    ] {
        let made = Machine { workers: Some(facts), ..machine(root.path(), &[], &[]) };
        let checks = made.checks();
        let found = of(&checks, "machine-workers");
        assert!(found.state == state && found.finding.contains(words), "{facts:?}: {found:?}");
    }
}

#[test]
fn the_kernel_and_who_may_look_into_whom() {
    let release = |text| [("proc/sys/kernel/osrelease", text)];
    check(&release("6.8.0\n"), &[], "machine-kernel-calls", State::Fine, "has pidfd_open");
    check(&release("5.4.0-204-generic\n"), &[], "machine-kernel-calls", State::Note, "lacks pidfd_getfd");
    let expandable = [("PYTORCH_ALLOC_CONF", "expandable_segments:True")];
    check(
        &release("3.10.0\n"),
        &expandable,
        "machine-kernel-calls",
        State::Problem,
        "lacks pidfd_open, pidfd_getfd, memfd_create",
    );
    let yama = [
        ("proc/sys/kernel/yama/ptrace_scope", "1\n"),
        ("proc/self/status", "CapEff:\t0000000000000000\nSeccomp:\t2\n"),
    ];
    check(&yama, &[], "machine-ptrace", State::Note, "ptrace_scope 1 without CAP_SYS_PTRACE");
    check(&yama, &expandable, "machine-ptrace", State::Problem, "a seccomp filter is on");
    let root = [("proc/self/status", "CapEff:\t000001ffffffffff\nSeccomp:\t0\n")];
    check(&root, &[], "machine-ptrace", State::Fine, "CAP_SYS_PTRACE is held");
}

#[test]
fn memory_of_the_host() {
    let group = |limit: &'static str| {
        [
            (
                "proc/meminfo",
                "MemTotal: 134217728 kB\nMemAvailable: 100000000 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
            ),
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/a/memory.max", limit),
            ("sys/fs/cgroup/a/memory.events", "oom_kill 3\n"),
        ]
    };
    check(
        &group("2147483648\n"),
        &[],
        "machine-container-memory",
        State::Problem,
        "limit 2.0 GiB (cgroup v2 memory.max)",
    );
    check(
        &group("2147483648\n"),
        &[],
        "machine-container-memory",
        State::Problem,
        "killed 3 processes in it",
    );
    check(&group("max\n"), &[], "machine-container-memory", State::Note, "no limit");
    let v1 = [
        ("proc/meminfo", "MemAvailable: 100000000 kB\n"),
        ("proc/self/cgroup", "4:memory:/job\n"),
        ("proc/self/mountinfo", "30 22 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
        ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "17179869184\n"),
    ];
    check(
        &v1,
        &[],
        "machine-container-memory",
        State::Note,
        "limit 16.0 GiB (cgroup v1 memory.limit_in_bytes)",
    );
    check(&group("max\n"), &[], "machine-swap", State::Note, "no swap");
    check(
        &[("proc/meminfo", "SwapTotal: 8388608 kB\nSwapFree: 1048576 kB\n")],
        &[],
        "machine-swap",
        State::Problem,
        "7.0 GiB of 8.0 GiB",
    );
    check(
        &[("proc/sys/vm/overcommit_memory", "2\n")],
        &[],
        "machine-overcommit",
        State::Problem,
        "vm.overcommit_memory 2",
    );
    let pages = "sys/kernel/mm/transparent_hugepage/enabled";
    check(&[(pages, "always [madvise] never\n")], &[], "machine-huge-pages", State::Fine, "madvise");
    check(&[(pages, "[always] madvise never\n")], &[], "machine-huge-pages", State::Note, "always");
    let nodes = [
        ("sys/devices/system/node/node0/meminfo", "Node 0 MemFree:  1048576 kB\n"),
        ("sys/devices/system/node/node1/meminfo", "Node 1 MemFree:  2097152 kB\n"),
    ];
    check(&nodes, &[], "machine-numa", State::Note, "node0 1.0 GiB free, node1 2.0 GiB free");
}

#[test]
fn limits_that_look_like_memory() {
    let limits = [("proc/self/limits", LIMITS)];
    check(&limits, &[], "machine-open-files", State::Problem, "ulimit -n 1024, may be raised to 1048576");
    check(&limits, &[], "machine-processes", State::Fine, "ulimit -u 94417");
    check(&limits, &[], "machine-locked-memory", State::Note, "ulimit -l 64.0 KiB");
    check(&limits, &[], "machine-address-space", State::Problem, "ulimit -v 32.0 GiB");
    let verbs = [("proc/self/limits", LIMITS), ("sys/class/infiniband/mlx5_0/x", "")];
    check(&verbs, &[], "machine-locked-memory", State::Problem, "InfiniBand here");
    let group = [
        ("proc/self/limits", LIMITS),
        ("proc/self/cgroup", "0::/a\n"),
        ("proc/self/mountinfo", V2),
        ("sys/fs/cgroup/a/pids.max", "500\n"),
        ("sys/fs/cgroup/a/cpu.max", "200000 100000\n"),
        ("sys/fs/cgroup/a/io.max", "259:0 rbps=max wbps=104857600 riops=max wiops=max\n"),
        ("proc/cpuinfo", "processor : 0\nprocessor : 1\nprocessor : 2\nprocessor : 3\n"),
    ];
    check(&group, &[], "machine-processes", State::Problem, "pids.max 500");
    check(&group, &[], "machine-io-limits", State::Problem, "100.0 MiB a second");
    check(&group, &[], "machine-processors", State::Problem, "2 of 4 processors; OMP_NUM_THREADS is not set");
    check(&group, &[("OMP_NUM_THREADS", "2")], "machine-processors", State::Note, "OMP_NUM_THREADS 2");
}

#[test]
fn cards_and_who_holds_them() {
    let root = folder();
    let files = [
        ("dev/nvidia0", ""),
        ("dev/nvidia1", ""),
        ("dev/nvidiactl", ""),
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n",
        ),
        ("proc/4711/comm", "python3\n"),
        ("proc/4711/fd/0", ""),
        ("proc/4712/comm", "idle\n"),
        ("proc/4712/fd/0", ""),
    ];
    let mut held = machine(root.path(), &files, &[("CUDA_VISIBLE_DEVICES", "0")]);
    symlink("/dev/nvidia0", root.path().join("proc/4711/fd/9")).expect("a link");
    let checks = held.checks();
    assert_eq!(of(&checks, "machine-gpu-driver").state, State::Problem);
    assert!(of(&checks, "machine-gpu-driver").finding.contains("535.129.03"), "{checks:?}");
    let holders = of(&checks, "machine-gpu-holders");
    assert_eq!(holders.state, State::Problem);
    assert!(holders.finding.starts_with("card 0: pid 4711 (python3) of user "), "{holders:?}");
    assert!(!holders.finding.contains("4712"), "{holders:?}");
    let card = Card { name: "X".into(), total: Bytes::mib(80 << 10), free: Some(Bytes::mib(40 << 10)) };
    held.gpu = GpuFacts { cards: vec![card], driver: Some("CUDA 13.0".into()), ..GpuFacts::default() };
    let checks = held.checks();
    assert_eq!(
        (of(&checks, "machine-gpu-cards").state, of(&checks, "machine-gpu-driver").state),
        (State::Problem, State::Fine)
    );
    assert!(
        of(&checks, "machine-gpu-cards")
            .finding
            .contains("40.0 GiB of 80.0 GiB free; 2 device files; CUDA_VISIBLE_DEVICES=0")
    );
}

#[test]
fn variables_that_change_memory() {
    let slug = "machine-allocator-settings";
    check(&[], &[], slug, State::Fine, "its own settings");
    check(
        &[],
        &[("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")],
        slug,
        State::Note,
        "reduces fragmentation",
    );
    let both = [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64"),
    ];
    check(&[], &both, slug, State::Problem, "the two differ");
    let slug = "machine-environment";
    check(&[], &[("RAY_memory_monitor_refresh_ms", "0")], slug, State::Problem, "Ray does not watch memory");
    check(
        &[],
        &[("NCCL_CUMEM_ENABLE", "0"), ("CUDA_LAUNCH_BLOCKING", "0")],
        slug,
        State::Note,
        "every rank of a group",
    );
    check(&[], &[("CUDA_LAUNCH_BLOCKING", "0")], slug, State::Fine, "no variable");
}

#[test]
fn packages_that_do_not_go_together() {
    let at = |name: &str| format!("opt/conda/lib/python3.11/site-packages/{name}.dist-info/METADATA");
    let metadata = "Name: vllm\nRequires-Dist: torch==2.5.1\nRequires-Dist: numpy<2\nRequires-Dist: xformers==0.0.28; sys_platform == 'linux'\n\nRequires-Dist: a==1\n";
    let (vllm, torch, other) = (at("vllm-0.7.2"), at("torch-2.6.0+cu124"), at("tensordict-0.6.1"));
    let slug = "machine-python-packages";
    let files = [(vllm.as_str(), metadata), (torch.as_str(), ""), (other.as_str(), "")];
    check(
        &files,
        &[],
        slug,
        State::Problem,
        "vllm 0.7.2 was built for torch 2.5.1, installed is 2.6.0+cu124",
    );
    check(&files, &[], slug, State::Problem, "segmentation fault (fixed in 0.7.3)");
    let (vllm, torch) = (at("vllm-0.9.2"), at("torch-2.5.1+cu124"));
    let files = [(vllm.as_str(), metadata), (torch.as_str(), ""), (other.as_str(), "")];
    check(&files, &[], slug, State::Fine, "3 packages in 1 folders");
    // An environment that is active is looked at alone.
    check(&files, &[("VIRTUAL_ENV", "/venv")], slug, State::Unknown, "no Python packages");
}
