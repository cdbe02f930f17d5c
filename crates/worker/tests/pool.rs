//! A pool over small shell programs: order, deadlines, deaths, restarts.

use plimsoll_base::Bytes;
use plimsoll_worker::{
    Launch, Limits, Network, Over, Pool, ProgramFolder, Ran, Request, RunEnd, Runner, Stop,
};
use std::time::Duration;

/// A small program; also names the binary that keeps it.
fn launch(program: &str, script: &str) -> Launch {
    plimsoll_worker::keep_with(env!("CARGO_BIN_EXE_plimsoll-keeper").into());
    Launch {
        name: "test".into(),
        program: program.into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("WORD".into(), "yes".into())],
        memory: Bytes::mib(512),
        is_private: false,
        memory_groups: true,
        network: Network::Deny,
        folder: None,
        file: None,
        words: None,
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
    let error = pool.call(&[request("x\n")]).remove(0).unwrap_err();
    assert_eq!(error.slug, "reward-worker-timeout");
    let child: i32 =
        error.facts[0].trim_start_matches("stderr: ").trim().parse().expect("the script said its child's id");
    // A killed orphan is collected by init or stays a zombie; either way it no longer runs. On a busy machine the
    // signal that ends it may take a moment.
    let state = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    let ended = |state: &str| state.is_empty() || state.contains(") Z");
    while !ended(&state()) {
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
    let error = std::thread::scope(|scope| {
        let call = scope.spawn(|| pool.call(&[request("x\n")]).remove(0).unwrap_err());
        std::thread::sleep(Duration::from_millis(100));
        stop.set();
        call.join().unwrap()
    });
    assert_eq!(error.slug, "interrupted");
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

/// Python with little memory, which the kernel or the keeper holds.
fn python(script: &str, memory_groups: bool) -> Launch {
    Launch { memory: Bytes::mib(300), memory_groups, ..launch("python3", script) }
}

#[test]
fn all_processes_of_a_worker_share_one_memory() {
    let script = "import os, time\nfor _ in range(4):\n  if os.fork() == 0:\n    held = b'x' * (120 << 20)\n    \
                  time.sleep(60)\nfor line in iter(input, ''):\n  time.sleep(1)\n  print(1, flush=True)";
    for groups in [true, false] {
        let timeout = Duration::from_secs(30);
        let limits = Limits { workers: 1, timeout, start_timeout: timeout, retries: 0 };
        let Ok(mut pool) = Pool::start(python(script, groups), limits, Stop::default()) else {
            eprintln!("SKIPPED: python3 is not installed");
            return;
        };
        // The first replies may come before the memory is there.
        let error =
            (0..20).find_map(|_| pool.call(&[request("x\n")]).remove(0).err()).expect("it holds too much");
        assert_eq!(error.slug, "reward-worker-over-budget", "{groups}: {error}");
        assert!(error.message.contains("of memory"), "{groups}: {error}");
    }
}

/// Runs a program that a model might write. Returns its end, its output and what was left in its folder.
fn model(runner: &mut Runner, script: &str) -> Ran {
    let folder = ProgramFolder::make().unwrap();
    let launch = Launch { folder: Some(folder.path().into()), ..python(script, false) };
    let ran = runner
        .run(&launch, b"", Duration::from_secs(60), 1 << 16, &Stop::default())
        .expect("python3 is there");
    assert!(!folder.path().exists(), "it left its folder");
    ran
}

#[test]
fn a_models_program_has_a_bound_on_everything_together() {
    if kernel_says("print(1)", Network::Deny).is_none() {
        eprintln!("SKIPPED: python3 is not installed");
        return;
    }
    let mut runner = Runner::default();
    let files = "for i in range(10**6): open(f'{i}', 'w').close()";
    let bytes = "for i in range(1000): open(f'{i}', 'wb').write(bytes(4 << 20))";
    let removed = "import os\nheld = []\nfor i in range(200):\n  held.append(open('f', 'wb', 0))\n  held[-1].write(bytes(4 << 20))\n  os.remove('f')\nimport time\ntime.sleep(50)";
    let mapped = "import mmap, os, time\nfor i in range(40):\n  f = open('f', 'w+b')\n  f.truncate(4 << 20)\n  m = mmap.mmap(f.fileno(), 0)\n  m[:] = bytes(4 << 20)\n  f.close()\n  os.remove('f')\n  globals()[f'm{i}'] = m\ntime.sleep(50)";
    let deep = "import os\nfor i in range(10**6):\n  os.mkdir('d')\n  os.chdir('d')";
    let memory = "import os, time\nfor i in range(4):\n  if os.fork() == 0:\n    held = b'x' * (120 << 20)\n    time.sleep(50)\ntime.sleep(50)";
    for (script, is_expected) in [
        (files, (|over| matches!(over, Over::Files(4097.., 4096))) as fn(Over) -> bool),
        (bytes, |over| matches!(over, Over::Disk(held, _) if held < 1 << 30)),
        (removed, |over| matches!(over, Over::Disk(held, _) if held < 1 << 30)),
        (mapped, |over| matches!(over, Over::Disk(held, _) if held < 1 << 30)),
        (deep, |over| matches!(over, Over::Files(..))),
        (memory, |over| matches!(over, Over::Memory(314_572_800.., 314_572_800))),
    ] {
        let ran = model(&mut runner, script);
        let RunEnd::Over(over) = ran.end else { panic!("{script}: {ran:?}") };
        assert!(is_expected(over), "{script}: {over:?}");
    }
    let forks = "import os, time\nn = 0\ntry:\n  for i in range(400):\n    if os.fork() == 0: time.sleep(50)\n    n += 1\nexcept OSError as e: print(n, e.errno)";
    let ran = model(&mut runner, forks);
    assert!(ran.was_full && ran.end == RunEnd::Code(0), "{ran:?}");
    assert_eq!(String::from_utf8_lossy(&ran.output), "63 11\n");
    // One that forks and ends for ever cannot be caught by its id.
    let hops =
        "import os\nprint('hops', flush=True)\nwhile True:\n  if os.fork(): os._exit(0)\n  os.setsid()";
    let ran = model(&mut runner, hops);
    assert_eq!((ran.end, ran.output.as_slice()), (RunEnd::Code(0), b"hops\n".as_slice()));
    assert_eq!(model(&mut runner, "print('well')").output, b"well\n");
}

#[test]
fn r_a_models_program_saw_the_variables_of_the_run() {
    if kernel_says("print(1)", Network::Deny).is_none() {
        eprintln!("SKIPPED: python3 is not installed");
        return;
    }
    // Cargo sets these for its tests, as a user sets a key.
    assert!(std::env::var_os("CARGO_PKG_NAME").is_some());
    let inside =
        "import os\nprint(sorted(k for k in os.environ if k.startswith('CARGO')), 'PATH' in os.environ)";
    let ran = model(&mut Runner::default(), inside);
    assert_eq!(String::from_utf8_lossy(&ran.output), "[] True\n");
}

/// It kept the power to read every file, in its ambient set.
#[test]
fn r_a_models_program_kept_a_power_of_root() {
    let held = std::fs::read_to_string("/proc/self/status").unwrap();
    let held: Vec<&str> = held.lines().filter_map(|line| line.strip_prefix("CapPrm:")).collect();
    if u64::from_str_radix(held[0].trim(), 16).unwrap() == 0 {
        eprintln!("SKIPPED: not started by root, so there is no capability to drop");
        return;
    }
    let sets = "print(*[l.split()[1] for l in open('/proc/self/status') if l.startswith('Cap')])";
    let Some(own_code) = kernel_says(sets, Network::Deny) else {
        eprintln!("SKIPPED: python3 is not installed");
        return;
    };
    // The user's own code has what the user has.
    assert_eq!(own_code.split(' ').nth(1), Some(held[0].trim()), "{own_code}");
    let private = tempfile::tempdir().unwrap();
    let file = private.path().join("key");
    std::fs::write(&file, "x").unwrap();
    for path in [&file, private.path()] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(path, Some(1234), Some(1234)).unwrap();
    }
    let reads = format!("try: print(open({file:?}).read())\nexcept PermissionError: print('refused')");
    // Neither it nor a program that it starts has any: inheritable, permitted, effective, bounding, ambient.
    let starts = format!("import subprocess, sys\nsubprocess.run([sys.executable, '-c', {sets:?}])");
    let mut runner = Runner::default();
    for script in [sets, &starts] {
        let ran = model(&mut runner, script);
        let said = String::from_utf8_lossy(&ran.output).into_owned();
        assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["0000000000000000"; 5], "{ran:?}");
    }
    assert_eq!(String::from_utf8_lossy(&model(&mut runner, &reads).output), "refused\n");
}

#[test]
fn a_models_program_changes_modes_and_times_in_its_folder_and_nowhere_else() {
    if kernel_says("print(1)", Network::Deny).is_none() {
        eprintln!("SKIPPED: python3 is not installed");
        return;
    }
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    std::fs::write(&victim, "x").unwrap();
    let state = || {
        let metadata = std::fs::metadata(&victim).unwrap();
        use std::os::unix::fs::MetadataExt;
        (metadata.mode(), metadata.uid(), metadata.mtime(), metadata.mtime_nsec(), metadata.ctime_nsec())
    };
    let before = state();
    let inside = "import os, shutil, stat, tempfile\nopen('a', 'w').write('x')\nos.mkdir('d')\n\
                  os.chmod('a', 0o751)\nshutil.copy2('a', 'b')\nos.utime('a', (10, 20))\nos.utime('d')\n\
                  os.chmod(os.path.abspath('d'), 0)\nopen('d/in', 'w').close()\n\
                  with open('b') as f: os.fchmod(f.fileno(), 0o4640)\n\
                  with tempfile.NamedTemporaryFile() as f: assert f.name.startswith(os.getcwd())\n\
                  s = os.stat\nprint(oct(s('a').st_mode), oct(s('b').st_mode), oct(s('d').st_mode), s('a').st_mtime)";
    let mut runner = Runner::default();
    let ran = model(&mut runner, inside);
    assert_eq!(
        String::from_utf8_lossy(&ran.output),
        "0o100751 0o100640 0o40700 20.0\n",
        "{:?}",
        ran.last_words
    );
    let script = format!(
        "import os, ctypes\nV = {victim:?}\nos.symlink(V, 'l')\nf = os.open(V, os.O_RDONLY)\nd = os.open(os.path.dirname(V), os.O_RDONLY)\n\
         libc = ctypes.CDLL(None, use_errno=True)\n\
         for name, call in {{\n\
         'chmod': lambda: os.chmod(V, 0o777), 'link': lambda: os.chmod('l', 0o777), 'fchmod': lambda: os.fchmod(f, 0o777),\n\
         'at': lambda: os.chmod('victim', 0o777, dir_fd=d), 'chown': lambda: os.chown(V, 1, 1), 'lchown': lambda: os.lchown(V, 1, 1),\n\
         'fchown': lambda: os.fchown(f, 1, 1), 'utime': lambda: os.utime(V), 'futimes': lambda: os.utime(f),\n\
         'times at': lambda: os.utime('victim', (1, 1), dir_fd=d), 'xattr': lambda: os.setxattr(V, 'user.a', b'x'),\n\
         'fxattr': lambda: os.setxattr(f, 'user.a', b'x'), 'flags': lambda: __import__('fcntl').ioctl(f, 0x40086602, b'\\0' * 8),\n\
         'utimes': lambda: libc.syscall(235, V.encode(), 0) and 1 / 0, 'truncate': lambda: os.truncate(V, 0),\n\
         'hard link': lambda: os.link(V, 'h'), 'memory': lambda: os.memfd_create('x'), 'unshare': lambda: libc.unshare(0x10000000) and 1 / 0,\n\
         'socket': lambda: __import__('socket').socket(1), 'sysv': lambda: libc.shmget(0, 4096, 0o1600) < 0 and 1 / 0,\n\
         'sem': lambda: libc.semget(0, 1, 0o1600) < 0 and 1 / 0, 'queue': lambda: libc.msgget(0, 0o1600) < 0 and 1 / 0,\n\
         'posix queue': lambda: libc.syscall(240, b'/x', 0o102, 0o600, 0) < 0 and 1 / 0,\n\
         'key': lambda: libc.syscall(248, b'user', b'x', b'y', 1, -4) < 0 and 1 / 0,\n\
         'shm': lambda: open('/dev/shm/plimsoll-attack', 'w'), 'tmp': lambda: open('/tmp/plimsoll-attack', 'w'),\n\
         }}.items():\n\
         \x20 try: call(); print(name)\n\
         \x20 except (OSError, ZeroDivisionError): pass\nprint('done')"
    );
    let ran = model(&mut runner, &script);
    assert_eq!(String::from_utf8_lossy(&ran.output), "done\n", "{:?}", ran.last_words);
    assert_eq!(state(), before);
}

/// Signals, and what else reaches a process, to `targets`: prints each that is not refused, and `done`.
fn reaches(targets: &str) -> String {
    format!(
        "import ctypes, fcntl, os, resource, signal, socket\nlibc = ctypes.CDLL(None, use_errno=True)\n\
         def call(number, *arguments):\n  if libc.syscall(number, *map(ctypes.c_long, arguments)) < 0: raise OSError(ctypes.get_errno())\n\
         def owner(p):\n  a, b = socket.socketpair()\n  fcntl.fcntl(a, fcntl.F_SETOWN, p)\n\
         info = ctypes.create_string_buffer(b'\\x00' * 8 + b'\\xff' * 4, 128)\nat = ctypes.addressof(info)\n\
         for p in [{targets}]:\n\
         \x20 for name, reach in {{\n\
         'kill': lambda: os.kill(p, 0), 'stop': lambda: os.kill(p, signal.SIGCONT), 'tkill': lambda: call(200, p, 0),\n\
         'tgkill': lambda: call(234, p, p, 0), 'queue': lambda: call(129, p, 10, at), 'tqueue': lambda: call(297, p, p, 10, at),\n\
         'group': lambda: os.killpg(os.getpgid(p), 0), 'all': lambda: os.kill(-1, 0), 'pidfd': lambda: signal.pidfd_send_signal(os.pidfd_open(p), 0),\n\
         'folder': lambda: signal.pidfd_send_signal(os.open(f'/proc/{{p}}', os.O_RDONLY), 0), 'owner': lambda: owner(p),\n\
         'limit': lambda: resource.prlimit(p, resource.RLIMIT_CPU, (1, 1)), 'priority': lambda: os.setpriority(0, p, 19),\n\
         'user': lambda: os.setpriority(2, 0, 19), 'affinity': lambda: os.sched_setaffinity(p, [0]), 'io': lambda: call(251, 1, p, 0),\n\
         'attach': lambda: call(101, 16, p, 0, 0), 'seize': lambda: call(101, 0x4206, p, 0, 0), 'write': lambda: call(311, p, at, 0, at, 0, 0),\n\
         }}.items():\n\
         \x20   try: reach(); print(name, p)\n\
         \x20   except OSError: pass\nprint('done')"
    )
}

#[test]
fn no_worker_reaches_a_process_outside_of_it() {
    let own = std::process::id();
    let parents = format!("os.getppid(), {own}, {}", std::os::unix::process::parent_id());
    let Some(said) = kernel_says(&reaches(&parents), Network::Deny) else {
        eprintln!("SKIPPED: python3 is not installed");
        return;
    };
    assert_eq!(said, "done");
    assert_eq!(kernel_says(&reaches(&parents), Network::Allow).unwrap(), "done");
    let ran = model(&mut Runner::default(), &reaches(&parents));
    assert_eq!(String::from_utf8_lossy(&ran.output), "done\n", "{:?}", ran.last_words);
    // Its own processes, whatever session they are in, are its own to signal.
    let script = "import os, resource, signal, subprocess\n\
                  p = subprocess.Popen(['sleep', '100'], start_new_session=True)\n\
                  os.kill(p.pid, 0); os.killpg(p.pid, signal.SIGTERM); print(p.wait())\n\
                  p = subprocess.Popen(['sleep', '100'])\n\
                  os.sched_setaffinity(p.pid, os.sched_getaffinity(0)); os.setpriority(0, p.pid, 5)\n\
                  resource.prlimit(p.pid, resource.RLIMIT_CPU, (7, 7)); p.kill(); print(p.wait(), flush=True)\n\
                  os.kill(os.getpid(), 0); os.kill(0, 0); signal.raise_signal(signal.SIGUSR1)";
    let ran = run(&launch("python3", script), "", 20_000);
    assert_eq!(
        (ran.end, String::from_utf8_lossy(&ran.output).as_ref()),
        (RunEnd::Signal(10), "-15\n-9\n"),
        "{ran:?}"
    );
}

#[test]
fn a_workers_daemons_and_objects_go_with_it() {
    let mark = format!("7{}", std::process::id());
    let key = 0x5057_0000 | (std::process::id() & 0xffff);
    let script = format!(
        "import ctypes, os, time\nlibc = ctypes.CDLL(None)\n\
         for f in (lambda: libc.shmget({key}, 4096, 0o1600), lambda: libc.semget({key}, 1, 0o1600), lambda: libc.msgget({key}, 0o1600)): print(f() >= 0)\n\
         print(libc.shmat(libc.shmget({key}, 0, 0), 0, 0) != -1)\n\
         import tempfile\nprint(os.path.dirname(tempfile.mkstemp()[1]))\n\
         for shell in range(3):\n  if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n      os.execvp('sleep', ['sleep', '{mark}'])\n    os._exit(0)\ntime.sleep(0.1)"
    );
    let ran = run(&launch("python3", &script), "", 20_000);
    let output = String::from_utf8_lossy(&ran.output);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(&lines[..4], ["True"; 4], "{ran:?}");
    assert!(lines[4].contains("plimsoll-worker-") && !std::path::Path::new(lines[4]).exists(), "{ran:?}");
    for list in ["shm", "sem", "msg"] {
        let list = std::fs::read_to_string(format!("/proc/sysvipc/{list}")).unwrap_or_default();
        let has_key = |line: &str| line.split_ascii_whitespace().next() == Some(&key.to_string());
        assert!(!list.lines().any(has_key), "{list}");
    }
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let left = processes.filter(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| line == format!("sleep\0{mark}\0").as_bytes())
    });
    assert_eq!(left.count(), 0);
}
