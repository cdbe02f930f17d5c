//! Inputs without an end: each is refused by name, or read up to a limit that the answer names.

use flate2::Compression;
use flate2::write::GzEncoder;
use plimsoll_doctor::log::{Diagnosis, Input, Limits, diagnose};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DEATH: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";
/// Far above what each of these takes on a busy machine: some never ended before there were limits.
const SOON: Duration = Duration::from_secs(120);

fn read(inputs: Vec<Input>, bytes: u64, seconds: u64) -> Diagnosis {
    let (limits, begin) = (Limits { bytes, pauses: Duration::from_secs(seconds) }, Instant::now());
    let found = diagnose(inputs, limits).expect("it can be opened");
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    found
}

fn pipe(folder: &Path) -> PathBuf {
    let path = folder.join("pipe.log");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    path
}

#[test]
fn devices_and_files_of_the_kernel_are_refused_at_once() {
    for path in ["/dev/zero", "/dev/urandom", "/dev/kmsg", "/proc", "/proc/kmsg", "/proc/self/status", "/sys"]
    {
        if !Path::new(path).exists() {
            continue;
        }
        let begin = Instant::now();
        let refused = diagnose(vec![Input::Path(path.into())], Limits::default()).expect_err(path);
        assert_eq!(refused.slug, "log-unreadable", "{path}");
        assert!(refused.message.starts_with(path), "{}", refused.message);
        assert!(begin.elapsed() < SOON, "{path}");
    }
}

#[test]
fn a_pipe_without_a_writer_is_given_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let found = read(vec![Input::Path(pipe(folder.path()))], 1 << 30, 60);
    assert!(found.not_read.iter().any(|why| why.contains("a named pipe to which nothing")), "{found:?}");
    assert!(found.slug.is_none() && !found.finished);
}

#[test]
fn a_pipe_that_stays_open_is_read_until_the_time_is_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = pipe(folder.path());
    let to = path.clone();
    let writer = std::thread::spawn(move || {
        let mut pipe = OpenOptions::new().write(true).open(to).expect("a reader");
        pipe.write_all(DEATH.as_bytes()).expect("it reads");
        std::thread::sleep(Duration::from_secs(4));
    });
    let found = read(vec![Input::Path(path)], 1 << 30, 2);
    assert_eq!(found.slug.as_deref(), Some("cuda-oom"));
    assert!(found.not_read[0].contains("--seconds-max"), "{:?}", found.not_read);
    assert!(found.unproven.iter().any(|doubt| doubt.contains("not read")), "{:?}", found.unproven);
    writer.join().expect("it ends");
}

/// The same byte without an end.
struct Endless;

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        buffer.fill(b'y');
        Ok(buffer.len())
    }
}

#[test]
fn a_stream_without_an_end_is_cut_by_bytes_alone() {
    let found = read(vec![Input::Stream("-".into(), Box::new(Endless))], 64 << 20, 60);
    assert_eq!(found.bytes_read, 64 << 20);
    assert!(found.not_read[0].contains("--bytes-max") && !found.finished, "{:?}", found.not_read);
    // No log has such a line.
    let found = read(vec![Input::Stream("-".into(), Box::new(Endless))], u64::MAX, 60);
    assert!(found.not_read[0].contains("no line ended within 1.0 GiB"), "{:?}", found.not_read);
    assert!(found.bytes_read < 2 << 30, "{}", found.bytes_read);
    // What comes after the limit is counted, not listed.
    let streams = (0..3).map(|_| Input::Stream("-".into(), Box::new(Endless) as Box<dyn Read>)).collect();
    let found = read(streams, 1 << 20, 60);
    assert!(found.not_read[1].starts_with("2 files were not begun"), "{:?}", found.not_read);
}

/// Bytes of any value, with ends of lines among them.
struct Noise(u32);

impl Read for Noise {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        for byte in buffer.iter_mut() {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (self.0 >> 24) as u8;
        }
        Ok(buffer.len())
    }
}

#[test]
fn a_stream_of_noise_is_named_and_left() {
    let found = read(vec![Input::Stream("-".into(), Box::new(Noise(7)))], u64::MAX, 60);
    assert!(found.bytes_read < 1 << 30 && found.slug.is_none() && !found.finished, "{found:?}");
    assert!(found.not_read.iter().any(|why| why.contains("it is no log")), "{:?}", found.not_read);
    assert!(found.not_read.iter().any(|why| why.contains("binary, not text")), "{:?}", found.not_read);
}

/// The answer for a file that is larger than the limit is that of its beginning and its end, whatever the machine does.
#[test]
fn of_a_large_file_the_beginning_and_the_end_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.log");
    let middle = "step 1 x\n".repeat(1 << 19);
    fs::write(&path, format!("{middle}{DEATH}")).expect("a file");
    let found = read(vec![Input::Path(path)], 1 << 20, 60);
    assert_eq!(found.slug.as_deref(), Some("cuda-oom"));
    assert!(found.evidence[0].file.ends_with("a.log, its last 128.0 KiB"), "{:?}", found.evidence);
    assert!(found.not_read[0].contains("in the middle were not read"), "{:?}", found.not_read);
    assert!(!found.finished);
}

#[test]
fn an_archive_that_unpacks_to_more_than_a_log_does_is_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bomb.log.gz");
    let mut member = GzEncoder::new(Vec::new(), Compression::best());
    member.write_all(&b"y\n".repeat(32 << 20)).expect("memory takes all");
    let member = member.finish().expect("memory takes all");
    let mut file = File::create(&path).expect("a file");
    (0..64).for_each(|_| file.write_all(&member).expect("the disk takes it"));
    let found = read(vec![Input::Path(path)], u64::MAX, 60);
    assert!(found.bytes_read < 2 << 30, "{}", found.bytes_read);
    assert!(found.not_read[0].contains("400 times its size"), "{:?}", found.not_read);
}

#[test]
fn a_file_that_grows_is_read_as_far_as_it_went() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.log");
    fs::write(&path, DEATH).expect("a file");
    let inputs = vec![Input::Path(path.clone())];
    let writer = std::thread::spawn(move || {
        let mut file = OpenOptions::new().append(true).open(path).expect("the file");
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            file.write_all(&[b'x'; 1 << 16]).expect("the disk takes it");
            // Without a pause it is gigabytes.
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let found = read(inputs, u64::MAX, 60);
    assert_eq!(found.slug.as_deref(), Some("cuda-oom"));
    writer.join().expect("it ends");
}
