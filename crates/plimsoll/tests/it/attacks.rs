//! Hostile code in workers does nothing to the run that grades it: all other scores are there, nothing is left.

use crate::common::{Folder, command, text};
use crate::run::{Run, check_done, has_python, number};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Output;

/// Programs that print `ok` if they get through, and whether they may.
const PROGRAMS: &[(&str, bool)] = &[
    ("import os; os.kill(os.getppid(), 9); print('ok')", false),
    ("import os, signal; os.kill(os.getppid(), signal.SIGSTOP); print('ok')", false),
    ("import os; os.kill(-1, 9); print('ok')", false),
    ("import os; os.killpg(os.getpgid(os.getppid()), 9); print('ok')", false),
    (
        "import os\nfor p in os.listdir('/proc'):\n  if p.isdigit() and b'plimsoll' in open(f'/proc/{p}/cmdline', 'rb').read() and int(p) != os.getpid():\n    os.kill(int(p), 9)\n    print('ok')",
        false,
    ),
    ("import os, signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9); print('ok')", false),
    ("import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)); print('ok')", false),
    ("import os; open(f'/proc/{os.getppid()}/mem', 'r+b'); print('ok')", false),
    ("import os; os.chmod('VICTIM', 0o777); print('ok')", false),
    ("import os; os.chown('VICTIM', 1, 1); print('ok')", false),
    ("import os; os.utime('VICTIM'); print('ok')", false),
    ("import os; os.setxattr('VICTIM', 'user.x', b'x'); print('ok')", false),
    ("import os; os.unlink('VICTIM'); print('ok')", false),
    ("open('/dev/shm/plimsoll-attack', 'w'); print('ok')", false),
    ("import socket; socket.socket(socket.AF_UNIX); print('ok')", false),
    ("import ctypes; print('ok' if ctypes.CDLL(None).shmget(0x5057, 1 << 20, 0o1666) >= 0 else 'no')", false),
    ("import ctypes; print('ok' if ctypes.CDLL(None).unshare(0x10000000) == 0 else 'no')", false),
    ("for i in range(200): open(f'{i}', 'wb').write(b'x' * (15 << 20))\nprint('ok')", false),
    ("for i in range(50000): open(f'{i}', 'w').write('x')\nprint('ok')", false),
    ("import os\nfor i in range(50000):\n  os.mkdir('d'); os.chdir('d')\nprint('ok')", false),
    (
        "import os\nfor i in range(400):\n  if os.fork() == 0:\n    import time; time.sleep(9)\nprint('ok')",
        false,
    ),
    // What is allowed, and goes with the program.
    (
        "import os\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: os.execvp('sleep', ['sleep', 'MARK'])\n  os._exit(0)\nprint('ok')",
        true,
    ),
    (
        "import os, shutil\nopen('a', 'w').close(); os.mkdir('d'); shutil.copy('a', 'd/b'); os.chmod('d', 0)\nprint('ok')",
        true,
    ),
    (
        "import asyncio, subprocess\nasync def f(): return subprocess.run(['echo', 'ok'], capture_output=True, text=True).stdout\nprint(asyncio.run(f()))",
        true,
    ),
];

/// Counts processes of `sleep` with this argument.
fn sleepers(mark: &str) -> usize {
    let line = format!("sleep\0{mark}\0");
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    processes
        .filter(|entry| fs::read(entry.path().join("cmdline")).is_ok_and(|is| is == line.as_bytes()))
        .count()
}

/// Runs `plimsoll` with its temporary files in a folder.
fn with_temp(args: &[&str], temp: &Path) -> Output {
    command(args).env("TMPDIR", temp).output().expect("the binary runs")
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("it is there").flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_hostile_program_costs_only_its_own_score() {
    if !has_python() {
        return;
    }
    let (folder, mark) = (Folder::with("victim", "x"), format!("8{}", std::process::id()));
    let victim = folder.text_path("victim");
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).expect("it is ours");
    let state = || {
        let file = fs::metadata(&victim).expect("it is there");
        (file.mode(), file.uid(), file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec())
    };
    let before = state();
    let line = |program: &str, output: &str| {
        let program = program.replace("VICTIM", &victim).replace("MARK", &mark);
        let tests = json!([{"input": "", "output": output}]);
        json!({"response": format!("```python\n{program}\n```"), "ground_truth": tests}).to_string()
    };
    // After each hostile one a good one, whose score must be there.
    let lines: Vec<String> = PROGRAMS
        .iter()
        .flat_map(|(program, _)| [line(program, "ok"), line("print('well')", "well")])
        .collect();
    let file = folder.write("programs.jsonl", &lines.join("\n"));
    fs::create_dir(folder.path("temp")).expect("a folder");
    let output = with_temp(&["grade", "--reward", "code", &file], &folder.path("temp"));
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let scores: Vec<f64> = text(&output.stdout)
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).expect("an object a line")["score"].as_f64().expect("a score")
        })
        .collect();
    for (index, (program, may)) in PROGRAMS.iter().enumerate() {
        assert_eq!(scores[2 * index], f64::from(u8::from(*may)), "{program}");
        assert_eq!(scores[2 * index + 1], 1.0, "the one after {program}");
    }
    assert_eq!(scores.len(), 2 * PROGRAMS.len());
    assert_eq!(state(), before);
    assert_eq!(names_in(&folder.path("temp")), [""; 0], "folders are left");
    assert!(!Path::new("/dev/shm/plimsoll-attack").exists());
    assert_eq!(sleepers(&mark), 0);
}

const REWARDS: &str = r#"
import ctypes, mmap, os, signal, subprocess, tempfile, time
from multiprocessing import shared_memory

kept = []

def refused(call):
    try:
        call()
    except OSError:
        return 1.0
    return 0.0

def above():
    """The keeper, the trainer and its supervisor."""
    pid = os.getppid()
    # By the program alone: whoever clones the project has its name in the path of every test.
    while pid > 1 and os.path.basename(open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")[0]).startswith(b"plimsoll"):
        yield pid
        pid = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])

def signals(completions, **columns):
    pids = list(above())
    assert len(pids) == 3, pids
    calls = [lambda p=p, s=s: os.kill(p, s) for p in pids for s in (signal.SIGSTOP, signal.SIGKILL)]
    calls += [lambda p=p: os.killpg(os.getpgid(p), signal.SIGKILL) for p in pids] + [lambda: os.kill(-1, signal.SIGKILL)]
    return [min(map(refused, calls))] * len(completions)

def daemon(completions, mark, **columns):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execvp("sleep", ["sleep", mark[0]])
        os._exit(0)
    return [1.0] * len(completions)

def leaves(completions, name, trainer_state, **columns):
    libc = ctypes.CDLL(None)
    assert libc.shmget(0x50570001, 4096, 0o1600) >= 0 and libc.semget(0x50570001, 1, 0o1600) >= 0
    # Kept, so that it is not tidied up by Python.
    kept.append(shared_memory.SharedMemory(f"{name[0]}-{trainer_state.global_step}", create=True, size=4096))
    open(os.path.join(tempfile.gettempdir(), "left"), "w").close()
    return [1.0] * len(completions)

def scores(completions, **columns):
    """Whom the kernel kills first is the run's own business: what a reward raises is put back."""
    paths = [f"/proc/{pid}/oom_score_adj" for pid in list(above())[1:]]
    before = [open(path).read() for path in paths]
    for path in paths:
        with open(path, "w") as file:
            file.write("1000")
    until = time.monotonic() + 30
    while [open(path).read() for path in paths] != before and time.monotonic() < until:
        time.sleep(0.05)
    return [float([open(path).read() for path in paths] == before)] * len(completions)

def helps(completions, **columns):
    child = subprocess.Popen(["sleep", "100"], start_new_session=True)
    os.killpg(child.pid, signal.SIGTERM)
    return [float(child.wait() == -signal.SIGTERM)] * len(completions)
"#;

#[test]
fn hostile_rewards_neither_end_the_run_nor_outlive_it() {
    if !has_python() {
        return;
    }
    let names = ["signals", "daemon", "leaves", "scores", "helps"];
    let tables: String =
        names.map(|name| format!("[[reward]]\nkind = \"python:rewards.py:{name}\"\nretries = 0\n")).concat();
    let folder = Run::new(&format!(
        "method = \"grpo\"\nmodel = \"builtin:nano\"\n[data]\nprompts = \"data.jsonl\"\n[rollout]\nprompts_per_step = 2\n\
         group_size = 2\nmax_new_tokens = 2\n[train]\nsteps = 2\nlearning_rate = 1e-6\n{tables}"
    ));
    folder.write("rewards.py", REWARDS);
    let mark = format!("9{}", std::process::id());
    let row = json!({"prompt": "1+1=", "ground_truth": "2", "mark": mark, "name": format!("plimsoll-attack-{mark}")});
    folder.write("data.jsonl", &format!("{row}\n{row}\n"));
    fs::create_dir(folder.path("temp")).expect("a folder");
    let mut train = command(&["train", "x.toml", "--set", "run.dir=out"]);
    train.current_dir(folder.path(".")).env("TMPDIR", folder.path("temp"));
    let said = check_done(&train.output().expect("the binary runs"));
    assert!(said.contains("raised the out-of-memory score"), "{said}");
    for metrics in folder.metrics("out") {
        for name in names {
            assert_eq!(number(&metrics, &format!("rewards/{name}/mean")), 1.0, "{name}: {metrics}");
        }
    }
    assert_eq!(sleepers(&mark), 0);
    assert_eq!(names_in(&folder.path("temp")), [""; 0], "temporary files are left");
    for list in ["shm", "sem"] {
        let list = fs::read_to_string(format!("/proc/sysvipc/{list}")).unwrap_or_default();
        let key = 0x5057_0001.to_string();
        assert!(!list.lines().any(|line| line.split_ascii_whitespace().next() == Some(&key)), "{list}");
    }
    // Without the right to mount, a worker shares `/dev/shm` with everything else.
    let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capable =
        own.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    if capable.is_some_and(|bits| bits >> 21 & 1 == 1) {
        let left = names_in(Path::new("/dev/shm"));
        assert!(!left.iter().any(|name| name.contains(&mark)), "{left:?}");
    }
}
