//! Logs as they come: nothing, junk, other encodings, lines without an end, several processes and clocks at once.
//! It has its own process because it measures its memory.

use flate2::Compression;
use flate2::write::GzEncoder;
use plimsoll_doctor::log::{Diagnosis, Input, LOG_BYTES_MAX, Limits};
use plimsoll_memory::host::RssReader;
use std::fs;
use std::io::{self, Cursor, Read, Write};

const DEATH: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";

fn diagnose(inputs: Vec<Input>) -> plimsoll_base::Result<Diagnosis> {
    plimsoll_doctor::log::diagnose(inputs, Limits::default())
}

/// The slug, or `none`.
fn slug(diagnosis: &Diagnosis) -> &str {
    diagnosis.slug.as_deref().unwrap_or("none")
}

fn read(bytes: impl Into<Vec<u8>>) -> Diagnosis {
    read_all(vec![bytes.into()])
}

fn read_all(files: Vec<Vec<u8>>) -> Diagnosis {
    let name = |index: usize| ["a", "b", "c"][index].to_string();
    let input = |(index, bytes)| Input::Stream(name(index), Box::new(Cursor::new(bytes)));
    diagnose(files.into_iter().enumerate().map(input).collect()).expect("memory can be read")
}

fn gzip(text: &str) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text.as_bytes()).expect("memory takes all");
    packed.finish().expect("memory takes all")
}

#[test]
fn what_holds_nothing_is_no_finding() {
    for bytes in [&b""[..], b"\n\n\n", b"step 1 loss 0.5\n", b"\0\0\0\0", &[0xff; 5000], &[0x1b; 100]] {
        let diagnosis = read(bytes);
        assert_eq!(
            (slug(&diagnosis), diagnosis.found(), diagnosis.finished),
            ("none", false, false),
            "{bytes:?}"
        );
    }
    // Bytes of every value, without the words of a fault.
    let junk: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    assert_eq!(slug(&read(junk.clone())), "none");
    let found = read([&junk[..], b"\n", DEATH.as_bytes(), &junk].concat());
    assert_eq!(slug(&found), "cuda-oom");
}

#[test]
fn an_unknown_fault_is_shown_and_not_named() {
    let found = read(
        "step 1\nFatal error: the table of pages is damaged\nTraceback (most recent call last):\n  File \"a.py\", line 1\nValueError: x\n",
    );
    assert_eq!((slug(&found), found.found()), ("unknown", true));
    let shown = (found.evidence[0].line, found.evidence[0].text.as_str());
    assert_eq!(shown, (2, "Fatal error: the table of pages is damaged"));
}

#[test]
fn what_a_traceback_raises_is_found_whatever_its_name() {
    let found = read(
        "step 1\nTraceback (most recent call last):\n  File \"a.py\", line 1\nRuntimeError: no reward\nValueError: x\n",
    );
    assert_eq!((slug(&found), found.evidence[0].line), ("exception-raised", 4));
    let found = read(
        "(A pid=1) Traceback (most recent call last):\n(A pid=1)   File \"a.py\", line 1, in f\n(B pid=2) ready\n\
         (A pid=1)     g()\n(A pid=1) zmq.error.Again: later\n",
    );
    let shown = (found.evidence[0].line, found.evidence[0].text.as_str());
    assert_eq!((slug(&found), shown), ("exception-raised", (5, "zmq.error.Again: later")));
    assert_eq!(found.reasons, ["Again says: later"]);
}

#[test]
fn a_kind_of_failure_says_where_it_was_raised() {
    let found = read(
        "Traceback (most recent call last):\n  File \"/app/train.py\", line 12, in main\n    load(\"a\")\n  \
         File \"/opt/lib/python3.11/site-packages/x/io.py\", line 7, in load\n    return table[name]\nKeyError: 'a'\n",
    );
    assert_eq!((slug(&found), found.evidence[0].line), ("value-missing", 6));
    let place = "it was raised at io.py:7 in load: `return table[name]`; the innermost frame that is not of an installed \
                 package is train.py:12 in main: `load(\"a\")`";
    assert_eq!(found.reasons, ["there is nothing under the key 'a'", place]);
    assert_eq!(found.unproven, ["what led to it: the lines before it are of no class"]);
}

#[test]
fn the_same_log_in_every_dress() {
    let text = format!("step 1\nstep 2\n{DEATH}step 3\n");
    let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let coloured = text.replace("CUDA", "\x1b[31mCUDA\x1b[0m").replace("out", "o\x1b[1mut");
    let lost_escape = text.replace("torch.Out", "[36m(WorkerDict pid=7)[0m torch.Out");
    for (what, bytes) in [
        ("plain", text.clone().into_bytes()),
        ("windows", text.replace('\n', "\r\n").into_bytes()),
        ("utf-16", utf16.clone()),
        ("marked utf-16", [&[0xff, 0xfe], &utf16[..]].concat()),
        ("gzip", gzip(&text)),
        ("two gzip members", [gzip("step 1\nstep 2\n"), gzip(DEATH)].concat()),
        ("colours", coloured.into_bytes()),
        ("colours without their escape", lost_escape.into_bytes()),
        ("no last newline", format!("step 1\nstep 2\n{}", DEATH.trim_end()).into_bytes()),
    ] {
        let found = read(bytes);
        assert_eq!((slug(&found), found.evidence[0].line), ("cuda-oom", 3), "{what}: {found:?}");
        assert!(
            found.evidence[0].text.contains("torch.OutOfMemoryError: CUDA out of memory."),
            "{what}: {found:?}"
        );
    }
}

#[test]
fn a_progress_bar_is_one_line_and_its_states_are_cut_apart() {
    let bar: String = (0..2000).map(|n| format!("\rProcessed {n}/2000 [00:01<00:09]")).collect();
    let found = read(format!("{bar}\r{DEATH}"));
    assert_eq!((slug(&found), found.evidence[0].line), ("cuda-oom", 1));
    assert!(found.evidence[0].text.starts_with("torch.OutOfMemoryError"), "{:?}", found.evidence);
}

#[test]
fn what_breaks_off_is_judged_by_what_was_read() {
    let long: String = (0..40_000).map(|n| format!("step {n} {}\n", n * 7919 % 1000)).collect();
    let mut packed = gzip(&format!("{DEATH}{long}"));
    packed.truncate(packed.len() / 2);
    let found = read(packed);
    assert_eq!(slug(&found), "cuda-oom");
    assert!(found.not_read.iter().any(|why| why.starts_with("a: breaks off")), "{:?}", found.not_read);
    let found = read_all(vec![b"\x28\xb5\x2f\xfd....".to_vec(), DEATH.into()]);
    assert_eq!(slug(&found), "cuda-oom");
    assert!(found.not_read[0].contains("zstd"), "{:?}", found.not_read);
}

/// A stream of `left` bytes without a newline, then a death.
struct Endless {
    left: usize,
    tail: Cursor<Vec<u8>>,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.left);
        if count == 0 {
            return self.tail.read(buffer);
        }
        buffer[..count].fill(b'x');
        self.left -= count;
        Ok(count)
    }
}

#[test]
fn bounded_memory() {
    let before = RssReader::new().read().anon;
    let tail = Cursor::new(format!(" {DEATH}").into_bytes());
    let found = diagnose(vec![Input::Stream("-".into(), Box::new(Endless { left: 100 << 20, tail }))]);
    let found = found.expect("it can be read");
    assert_eq!((slug(&found), found.evidence[0].line), ("cuda-oom", 1));
    assert!(found.evidence[0].text.chars().count() <= 400);
    // Every line an event of another place, and a death at the end of each traceback.
    let many: String = (0..200_000).map(|n| format!("[rank{n}]: {DEATH}")).collect();
    assert_eq!(slug(&read(many)), "cuda-oom");
    let after = RssReader::new().read().peak;
    assert!(after.0.saturating_sub(before.0) < LOG_BYTES_MAX + (40 << 20), "{before} {after}");
}

#[test]
fn frames_of_another_process_do_not_count() {
    let log = "(WorkerDict pid=1) Traceback (most recent call last):\n\
               (WorkerDict pid=2) Traceback (most recent call last):\n\
               (WorkerDict pid=1)   File \"/opt/torch/optim/adamw.py\", line 703, in _multi_tensor_adamw\n\
               (WorkerDict pid=2)   File \"/app/x.py\", line 3, in forward\n\
               (WorkerDict pid=2) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";
    assert_eq!(slug(&read(log)), "cuda-oom");
    assert_eq!(slug(&read(log.replace("pid=1", "pid=2"))), "cuda-oom-optimizer-step");
}

#[test]
fn clocks_order_files_and_are_doubted_where_they_are_missing() {
    let early = "2026-03-02 09:00:00 x\nOSError: [Errno 24] Too many open files\n";
    let late = "2026-03-02T11:00:00+01:00 x\ntorch.OutOfMemoryError: CUDA out of memory.\n";
    // 11:00 in a zone one hour ahead is 10:00.
    let found = read_all(vec![late.into(), early.into()]);
    assert_eq!((slug(&found), found.evidence[0].file.as_str()), ("fd-limit", "b"));
    assert_eq!(found.follows[0].slug, "cuda-oom");
    assert!(found.unproven.is_empty(), "{:?}", found.unproven);
    let found = read_all(vec![late.into(), "OSError: [Errno 24] Too many open files\n".into()]);
    assert_eq!(slug(&found), "cuda-oom");
    assert!(found.unproven.iter().any(|doubt| doubt.contains("clock")), "{:?}", found.unproven);
}

#[test]
fn a_kill_is_weighed_by_its_evidence() {
    let ray = "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file.\n";
    let bare = read(ray);
    assert_eq!(slug(&bare), "worker-sigkill-unknown");
    assert!(bare.unproven.iter().any(|doubt| doubt.contains("memory was the reason")), "{:?}", bare.unproven);
    let coded = read(format!("{ray}container exited with code 137\n"));
    assert!(coded.reasons.iter().any(|reason| reason.contains("137")), "{:?}", coded.reasons);
    let kernel = "Memory cgroup out of memory: Killed process 7 (python3) total-vm:1kB, anon-rss:1kB\n";
    assert_eq!(slug(&read_all(vec![ray.into(), kernel.into()])), "cgroup-oom-kill");
}

#[test]
fn a_ray_session_is_read_as_a_folder() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let logs = folder.path().join("session_1/logs/old");
    fs::create_dir_all(&logs).expect("a folder");
    fs::write(logs.join("worker-01-77.out"), "step 1\n").expect("a file");
    fs::write(logs.join("worker-01-77.err"), DEATH).expect("a file");
    fs::write(logs.join("raylet.out.1.gz"), gzip("nothing\n")).expect("a file");
    fs::write(logs.join("weights.safetensors"), "Segmentation fault (core dumped)").expect("a file");
    let found = diagnose(vec![Input::Path(folder.path().into())]).expect("it can be read");
    assert_eq!((slug(&found), found.files_read), ("cuda-oom", 3));
    assert!(found.evidence[0].file.ends_with("worker-01-77.err"));
    let missing = diagnose(vec![Input::Path(folder.path().join("none.log"))]).expect_err("there is none");
    assert_eq!(missing.slug, "log-missing");
}

/// A line of a JSON logger, with 32 MiB of small values next to its message: as a tree they took a gigabyte and more.
#[test]
fn a_line_of_small_values_takes_no_tree() {
    const PEAK_BYTES_MAX: u64 = 512 << 20;
    let line = |message: &str| {
        let values = "0,".repeat(16 << 20);
        format!("{{\"x\":[{values}0],\"level\":\"ERROR\",\"msg\":\"{message}\"}}\n{DEATH}")
    };
    let found = read(line("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."));
    assert_eq!(slug(&found), "cuda-oom");
    let status = fs::read_to_string("/proc/self/status").expect("the process can read its status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the line is there");
    let peak = peak.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of kB") << 10;
    assert!(peak < PEAK_BYTES_MAX, "{} MiB", peak >> 20);
}
