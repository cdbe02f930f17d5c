//! Reads pipes and terminals until their end, or until their pauses take too long.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Longest time that a named pipe may be without a writer.
const WRITER_TIME: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Shortest pause. In a shorter wait the writer is at work, slower on a busy machine.
const PAUSE: Duration = Duration::from_secs(1);

/// A stream that ends at its end, or when its pauses are too long.
pub struct Waiting<R> {
    stream: R,
    /// The time left for pauses.
    left: Duration,
}

impl<R: Read + AsFd> Waiting<R> {
    pub fn new(stream: R, pauses: Duration) -> Waiting<R> {
        Waiting { stream, left: pauses }
    }

    /// Waits until there is something to read, or the end.
    fn wait(&mut self) -> io::Result<()> {
        let begin = Instant::now();
        let timeout =
            Timespec { tv_sec: self.left.as_secs() as i64, tv_nsec: i64::from(self.left.subsec_nanos()) };
        let mut files = [PollFd::new(&self.stream, PollFlags::IN)];
        let found = poll(&mut files, Some(&timeout));
        let pause = begin.elapsed();
        if pause >= PAUSE {
            self.left = self.left.saturating_sub(pause);
        }
        match found {
            Ok(0) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, "nothing more came in the time (--seconds-max)"))
            }
            Ok(_) => Ok(()),
            Err(err) => Err(err.into()),
        }
    }
}

impl<R: Read + AsFd> Read for Waiting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.wait()?;
            match self.stream.read(buffer) {
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    }
}

/// Opens a named pipe, with a bound on the wait for its writer.
pub fn pipe(path: &Path, pauses: Duration) -> io::Result<Pipe> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let writer_until = Instant::now() + pauses.min(WRITER_TIME);
    Ok(Pipe { stream: Waiting::new(file, pauses), writer_until, has_begun: false })
}

pub struct Pipe {
    stream: Waiting<File>,
    writer_until: Instant,
    has_begun: bool,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // A nonblocking pipe without a writer is at its end at once.
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
