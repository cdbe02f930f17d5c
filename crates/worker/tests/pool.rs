//! A pool over small shell programs: order, deadlines, deaths, restarts.

use plimsoll_base::Bytes;
use plimsoll_worker::{Launch, Limits, Network, Pool, ProgramFolder, Ran, Request, RunEnd, Runner, Stop};
use std::time::{Duration, Instant};

/// A small program; also names the binary that keeps it.
fn launch(program: &str, script: &str) -> Launch {
    plimsoll_worker::keep_with(env!("CARGO_BIN_EXE_plimsoll-keeper").into());
    Launch {
        name: "test".into(),
        program: program.into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("WORD".into(), "yes".into())],
        memory: Bytes::mib(512),
        network: Network::Deny,
        folder: None,
        file: None,
        ready: None,
    }
}

fn pool(script: &str, workers: u32, retries: u32, timeout_ms: u64) -> Pool {
    let timeout = Duration::from_millis(timeout_ms);
    let limits = Limits { workers, timeout, start_timeout: timeout, retries };
    Pool::start(launch("sh", script), limits, Stop::default()).expect("sh is there")
}

fn request(text: &str) -> Request {
    Request { bytes: text.as_bytes().to_vec(), reply_lines: text.lines().count() }
}

#[test]
fn request_i_goes_to_worker_i() {
    let mut pool = pool("while read -r line; do echo \"$$ $line $WORD\"; done", 3, 0, 20_000);
    let ids = pool.pids();
    for _ in 0..2 {
        let replies = pool.call(&[request("a\nb\n"), request("c\n"), request("d\n")]);
        let lines: Vec<Vec<String>> = replies.into_iter().map(Result::unwrap).collect();
        let say = |worker: usize, word: &str| format!("{} {word} yes", ids[worker]);
        assert_eq!(lines, [vec![say(0, "a"), say(0, "b")], vec![say(1, "c")], vec![say(2, "d")]]);
    }
    assert_eq!(pool.restarts(), 0);
}

#[test]
fn one_failure_leaves_the_others_their_answers() {
    let mut pool = pool("while read -r line; do [ \"$line\" = die ] && exit 7; echo ok; done", 2, 1, 20_000);
    let replies = pool.call(&[request("die\n"), request("live\n")]);
    let error = replies[0].as_ref().unwrap_err();
    assert_eq!(error.slug, "reward-worker-crashed");
    assert!(error.message.contains("exit code 7"), "{error}");
    assert_eq!(replies[1].as_ref().unwrap(), &["ok"]);
    // The retry was a restart; the next call starts another worker.
    assert_eq!(pool.restarts(), 1);
    assert!(pool.call(&[request("live\n"), request("live\n")]).iter().all(Result::is_ok));
    assert_eq!(pool.restarts(), 2);
}

#[test]
fn a_silent_worker_is_killed_with_its_children() {
    let mut pool = pool("sleep 300 & echo $! >&2; wait", 1, 0, 300);
    let start = Instant::now();
    let error = pool.call(&[request("x\n")]).remove(0).unwrap_err();
    assert_eq!(error.slug, "reward-worker-timeout");
    assert!(start.elapsed() < Duration::from_secs(10));
    let child: i32 =
        error.facts[0].trim_start_matches("stderr: ").trim().parse().expect("the script said its child's id");
    // A killed orphan is collected by init or stays a zombie; either way it no longer runs. On a busy machine the
    // signal that ends it may take a moment.
    let state = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    let ended = |state: &str| state.is_empty() || state.contains(") Z");
    while !ended(&state()) {
        assert!(start.elapsed() < Duration::from_secs(10), "{}", state());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_request_larger_than_the_pipe_goes_through_while_the_worker_answers() {
    let mut pool = pool("cat", 1, 0, 20_000);
    let text = "0123456789abcdef\n".repeat(100_000);
    let lines = pool.call(&[request(&text)]).remove(0).unwrap();
    assert_eq!((lines.len(), lines[99_999].as_str()), (100_000, "0123456789abcdef"));
}

#[test]
fn a_reply_without_end_is_refused() {
    let mut pool = pool("read -r line; yes | tr -d '\\n'", 1, 0, 60_000);
    assert_eq!(pool.call(&[request("x\n")]).remove(0).unwrap_err().slug, "reward-bad-reply");
}

#[test]
fn a_stop_ends_a_call_from_another_thread() {
    let stop = Stop::default();
    let timeout = Duration::from_secs(60);
    let limits = Limits { workers: 1, timeout, start_timeout: timeout, retries: 3 };
    let mut pool = Pool::start(launch("sh", "sleep 300"), limits, stop.clone()).unwrap();
    let start = Instant::now();
    let error = std::thread::scope(|scope| {
        let call = scope.spawn(|| pool.call(&[request("x\n")]).remove(0).unwrap_err());
        std::thread::sleep(Duration::from_millis(100));
        stop.set();
        call.join().unwrap()
    });
    assert_eq!(error.slug, "interrupted");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

fn run(launch: &Launch, input: &str, timeout_ms: u64) -> Ran {
    let timeout = Duration::from_millis(timeout_ms);
    Runner::default().run(launch, input.as_bytes(), timeout, 1 << 16, &Stop::default()).expect("it starts")
}

#[test]
fn a_program_runs_once_and_each_end_is_told() {
    for (script, timeout_ms, end, output) in [
        ("cat; exit 3", 20_000, RunEnd::Code(3), "in"),
        ("echo early; exec 1>&-; sleep 0.1; exit 4", 20_000, RunEnd::Code(4), "early\n"),
        ("kill -SEGV $$", 20_000, RunEnd::Signal(11), ""),
        ("sleep 300", 200, RunEnd::Late, ""),
    ] {
        let ran = run(&launch("sh", script), "in", timeout_ms);
        assert_eq!((ran.end, String::from_utf8_lossy(&ran.output).as_ref()), (end, output), "{script}");
    }
    assert_eq!(run(&launch("sh", "yes"), "", 20_000).end, RunEnd::TooLong);
    let words = run(&launch("sh", "echo why >&2; exit 1"), "", 20_000).last_words;
    assert_eq!(words, ["why"]);
    // Unread input ends with the program.
    assert_eq!(run(&launch("sh", "exit 0"), &"x".repeat(1 << 20), 20_000).end, RunEnd::Code(0));
    let folder = ProgramFolder::make().unwrap();
    let bounded = Launch {
        folder: Some(folder.path().into()),
        file: Some(Bytes(4096)),
        ..launch("sh", "sh -c 'yes > big'; wc -c < big")
    };
    let ran = run(&bounded, "", 20_000);
    assert!(String::from_utf8_lossy(&ran.output).contains("4096"), "{ran:?}");
    assert!(!folder.path().exists(), "the keeper removes the folder");
}

#[test]
fn a_program_in_a_folder_of_its_own_writes_nowhere_else() {
    let (inside, outside) = (ProgramFolder::make().unwrap(), tempfile::tempdir().unwrap());
    let kept = outside.path().join("kept");
    std::fs::write(&kept, "kept").unwrap();
    let script = format!(
        "echo a > in; cat in; rm in; echo b > {0}; rm {0}; echo c > /dev/null && echo null",
        kept.display()
    );
    let confined = Launch { folder: Some(inside.path().into()), ..launch("sh", &script) };
    let ran = run(&confined, "", 20_000);
    // From the kernel: the version of Landlock, or -1.
    let version = kernel_says("import ctypes; print(ctypes.CDLL(None).syscall(444, 0, 0, 1))", Network::Deny);
    if !version.is_some_and(|version| version.parse::<i32>().is_ok_and(|version| version > 0)) {
        eprintln!("SKIPPED: this kernel has no Landlock");
        return;
    }
    assert_eq!(String::from_utf8_lossy(&ran.output), "a\nnull\n", "{:?}", ran.last_words);
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "kept");
}

/// Returns the kernel's answer, as a Python program prints it.
fn kernel_says(program: &str, network: Network) -> Option<String> {
    let asked = Launch { network, ..launch("python3", program) };
    let ran = Runner::default().run(&asked, b"", Duration::from_secs(60), 1 << 16, &Stop::default()).ok()?;
    Some(String::from_utf8_lossy(&ran.output).trim().to_string())
}

#[test]
fn a_worker_reaches_neither_network_nor_gpu() {
    let socket = "import socket\nfor f in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):\n  \
                  try: socket.socket(f).close(); print('open')\n  except OSError as e: print(e.errno)";
    let Some(denied) = kernel_says(socket, Network::Deny) else {
        eprintln!("SKIPPED: python3 is not installed");
        return;
    };
    // 13 is EACCES: refused by the filter, not for lack of a network.
    assert_eq!(denied, "13\n13\nopen");
    let allowed = kernel_says(socket, Network::Allow).unwrap();
    assert!(allowed.starts_with("open"), "{allowed}");
    // 1 is EPERM; a call of another type gets as far as the file, which knows no such call: 25 is ENOTTY.
    let driver = "import fcntl\nfor n in (0xC00046D2, 0xC00047D2):\n  try: fcntl.ioctl(open('/dev/null'), n)\n  \
                  except OSError as e: print(e.errno)";
    for network in [Network::Deny, Network::Allow] {
        assert_eq!(kernel_says(driver, network).unwrap(), "1\n25", "{network:?}");
    }
    let inherited = "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import socket; \
                     socket.socket()'], stderr=subprocess.DEVNULL).returncode)";
    assert_eq!(kernel_says(inherited, Network::Deny).unwrap(), "1");
}
