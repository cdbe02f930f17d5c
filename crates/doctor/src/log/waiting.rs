//! Reads pipes and terminals, which may have nothing to read for as long as they like, up to an instant.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a named pipe may be without a writer.
const WRITER_TIME: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A stream that is read while its end, or `until`, is not reached.
pub struct Waiting<R> {
    stream: R,
    until: Instant,
}

impl<R: Read + AsFd> Waiting<R> {
    pub fn new(stream: R, until: Instant) -> Waiting<R> {
        Waiting { stream, until }
    }
}

impl<R: Read + AsFd> Read for Waiting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            wait(&self.stream, self.until)?;
            match self.stream.read(buffer) {
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }
}

/// Waits until there is something to read, or the end.
fn wait(stream: &impl AsFd, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    let mut files = [PollFd::new(stream, PollFlags::IN)];
    match poll(&mut files, Some(&timeout)) {
        Ok(0) => {
            Err(io::Error::new(io::ErrorKind::TimedOut, "nothing more came in the time (--seconds-max)"))
        }
        Ok(_) => Ok(()),
        Err(err) => Err(err.into()),
    }
}

/// Opens a named pipe. Opening one that has no writer would wait for one without a bound.
pub fn pipe(path: &Path, until: Instant) -> io::Result<Pipe> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let writer_until = until.min(Instant::now() + WRITER_TIME);
    Ok(Pipe { stream: Waiting::new(file, until), writer_until, has_begun: false })
}

pub struct Pipe {
    stream: Waiting<File>,
    writer_until: Instant,
    has_begun: bool,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Without a writer, a pipe that does not block is at its end at once.
        while !self.has_begun {
            match self.stream.stream.read(buffer) {
                Ok(0) if Instant::now() < self.writer_until => std::thread::sleep(LOOK_AGAIN),
                Ok(0) => {
                    let what =
                        format!("a named pipe to which nothing was written in {} s", WRITER_TIME.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, what));
                }
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => self.has_begun = true,
                done => {
                    self.has_begun = true;
                    return done;
                }
            }
        }
        self.stream.read(buffer)
    }
}
