//! The journal: records that are appended with their length and checksum, and synced before anyone acts on them.
//!
//! A record that was cut off at the end was never answered and is cut away. One that is damaged with others after it is
//! an error: what follows would be a state that never was. When much of the file is no longer needed, it is written
//! anew next to itself and takes its own place by one rename.

use plimsoll_base::{Error, Result};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Begins a journal, with the version of its records.
const MAGIC: &[u8; 16] = b"plimsoll tinker1";
/// The length, its complement, and the checksum.
const HEAD: usize = 12;
/// Most bytes of a record.
const RECORD_MAX: u32 = 1 << 30;
/// Bytes that are written before they are synced together.
const GROUP_BYTES: usize = 8 << 20;

type Done = Box<dyn FnOnce(Result<()>) + Send>;

enum Command {
    /// With no bytes it waits for what came before it.
    Append(Vec<u8>, Done),
    /// Writes the file anew: these records, and then those of the old one whose number is in the set.
    Rewrite {
        first: Vec<Vec<u8>>,
        keep: BTreeSet<u64>,
        number: fn(&[u8]) -> Option<u64>,
        done: Box<dyn FnOnce(u64) + Send>,
    },
}

/// A journal with the thread that writes it. What waits to be written is bounded by those who append: each waits for
/// its answer, and requests that are not answered are bounded.
pub struct Journal {
    send: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl Journal {
    /// Opens a journal, makes it if it is not there, and reads its records in their order. What was cut off at the end
    /// is cut away. Returns the journal and its length.
    ///
    /// Errors: `tinker-journal-damaged`, `tinker-journal-failed`; those of `read`.
    pub fn open(path: &Path, mut read: impl FnMut(&[u8]) -> Result<()>) -> Result<(Journal, u64)> {
        let failed = |err: io::Error| Error::io("tinker-journal-failed", path, &err);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        let whole = file.metadata().map_err(failed)?.len();
        let good = if whole < MAGIC.len() as u64 {
            file.set_len(0).map_err(failed)?;
            file.write_all(MAGIC).map_err(failed)?;
            MAGIC.len() as u64
        } else {
            scan(path, &mut file, whole, &mut read)?
        };
        file.set_len(good).and_then(|()| file.seek(SeekFrom::Start(good))).map_err(failed)?;
        file.sync_all().and_then(|()| sync_folder(path)).map_err(failed)?;
        let (send, inbox) = channel();
        let keeper = Keeper { path: path.to_path_buf(), file, good };
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || keeper.run(&inbox));
        let thread =
            thread.map_err(|err| Error::new("thread-not-started", format!("the journal's thread: {err}")))?;
        Ok((Journal { send: Some(send), thread: Some(thread) }, good))
    }

    /// Appends a record. `done` hears on the journal's thread that it is on the disk, or why it is not.
    pub fn append(&self, record: Vec<u8>, done: impl FnOnce(Result<()>) + Send + 'static) {
        self.send(Command::Append(record, Box::new(done)));
    }

    /// Writes the journal anew with the records `first`, and of the old ones those for which `number` returns one of
    /// `keep`. What is appended meanwhile comes after them. `done` hears the new length.
    pub fn rewrite(
        &self,
        first: Vec<Vec<u8>>,
        keep: BTreeSet<u64>,
        number: fn(&[u8]) -> Option<u64>,
        done: impl FnOnce(u64) + Send + 'static,
    ) {
        self.send(Command::Rewrite { first, keep, number, done: Box::new(done) });
    }

    fn send(&self, command: Command) {
        let sent = self.send.as_ref().map(|send| send.send(command));
        if let Some(Err(std::sync::mpsc::SendError(Command::Append(_, done)))) = sent {
            done(Err(Error::new("tinker-journal-failed", "the journal's thread has ended")));
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.send = None;
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id())
        {
            // A panic of the thread was heard by those who waited.
            let _ = thread.join();
        }
    }
}

/// Owns the file.
struct Keeper {
    path: PathBuf,
    file: File,
    /// The length up to which it is good and synced.
    good: u64,
}

impl Keeper {
    fn run(mut self, inbox: &Receiver<Command>) {
        let mut next = inbox.recv().ok();
        while let Some(command) = next.take() {
            match command {
                Command::Rewrite { first, keep, number, done } => {
                    // The old file is whole if the new one could not be written.
                    let _ = self.rewrite(&first, &keep, number);
                    done(self.good);
                }
                Command::Append(record, done) => {
                    let mut group = vec![(record, done)];
                    let mut bytes = group[0].0.len();
                    while bytes < GROUP_BYTES {
                        match inbox.try_recv() {
                            Ok(Command::Append(record, done)) => {
                                bytes += record.len();
                                group.push((record, done));
                            }
                            Ok(other) => {
                                next = Some(other);
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    self.append(group);
                }
            }
            if next.is_none() {
                next = inbox.recv().ok();
            }
        }
    }

    /// Writes and syncs some records together. If that fails, each is tried by itself, so that a small one can still be
    /// kept where a large one has no room.
    fn append(&mut self, group: Vec<(Vec<u8>, Done)>) {
        let records: Vec<&[u8]> = group.iter().map(|(record, _)| record.as_slice()).collect();
        let wrote = self.write(&records);
        if wrote.is_ok() || group.len() == 1 {
            group.into_iter().for_each(|(_, done)| done(wrote.clone()));
            return;
        }
        for (record, done) in group {
            done(self.write(&[&record]));
        }
    }

    fn write(&mut self, records: &[&[u8]]) -> Result<()> {
        let mut bytes = Vec::with_capacity(records.iter().map(|record| record.len() + HEAD).sum());
        for record in records.iter().filter(|record| !record.is_empty()) {
            frame(record, &mut bytes)?;
        }
        if bytes.is_empty() {
            return Ok(());
        }
        let wrote = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        let Err(err) = wrote else {
            self.good += bytes.len() as u64;
            return Ok(());
        };
        // What was written in part must not lie before what comes later.
        let _ = self.file.set_len(self.good).and_then(|()| self.file.seek(SeekFrom::Start(self.good)));
        let error = Error::io("tinker-journal-failed", &self.path, &err);
        Err(if err.kind() == io::ErrorKind::StorageFull {
            error.hint("the disk is full: free some of it")
        } else {
            error
        })
    }

    fn rewrite(
        &mut self,
        first: &[Vec<u8>],
        keep: &BTreeSet<u64>,
        number: fn(&[u8]) -> Option<u64>,
    ) -> Result<()> {
        let failed = |err: io::Error| Error::io("tinker-journal-failed", &self.path, &err);
        let next = self.path.with_extension("new");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&next)
            .map_err(failed)?;
        let mut out = BufWriter::with_capacity(1 << 20, &mut file);
        out.write_all(MAGIC).map_err(failed)?;
        let mut length = MAGIC.len() as u64;
        let mut put = |record: &[u8]| {
            let mut bytes = Vec::with_capacity(record.len() + HEAD);
            frame(record, &mut bytes)?;
            length += bytes.len() as u64;
            out.write_all(&bytes).map_err(failed)
        };
        first.iter().try_for_each(|record| put(record))?;
        let mut old = File::open(&self.path).map_err(failed)?;
        scan(&self.path, &mut old, self.good, &mut |record| {
            if number(record).is_some_and(|number| keep.contains(&number)) { put(record) } else { Ok(()) }
        })?;
        out.flush().map_err(failed)?;
        drop(out);
        file.sync_all().map_err(failed)?;
        std::fs::rename(&next, &self.path).map_err(failed)?;
        sync_folder(&self.path).map_err(failed)?;
        (self.file, self.good) = (file, length);
        Ok(())
    }
}

fn frame(record: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let length = u32::try_from(record.len()).ok().filter(|length| *length <= RECORD_MAX);
    let length = length.ok_or_else(|| {
        Error::new(
            "tinker-journal-failed",
            format!("a record has {} bytes, and {RECORD_MAX} is the most", record.len()),
        )
    })?;
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend(crc32fast::hash(record).to_le_bytes());
    out.extend_from_slice(record);
    Ok(())
}

/// Reads the records of the first `whole` bytes. Returns the length of those that are good.
fn scan(path: &Path, file: &mut File, whole: u64, read: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<u64> {
    let failed = |err: io::Error| Error::io("tinker-journal-failed", path, &err);
    let damaged = |at: u64, what: &str| {
        Error::new("tinker-journal-damaged", format!("{}: at byte {at} of {whole}: {what}", path.display()))
            .hint("move the journal away to begin with none; saved weights stay where they are")
    };
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    let mut input = BufReader::with_capacity(1 << 20, file);
    let mut magic = [0; MAGIC.len()];
    input.read_exact(&mut magic).map_err(failed)?;
    if magic != *MAGIC {
        return Err(damaged(0, "this is no journal of this version"));
    }
    let (mut at, mut record) = (MAGIC.len() as u64, Vec::new());
    while whole - at >= HEAD as u64 {
        let mut head = [0; HEAD];
        input.read_exact(&mut head).map_err(failed)?;
        let word = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]);
        let (length, check, sum) = (word(0), word(4), word(8));
        if length != !check || length > RECORD_MAX {
            // After a loss of power the end of a file can be zeros that were never written.
            if head == [0; HEAD] && rest_is_zero(&mut input, whole - at - HEAD as u64).map_err(failed)? {
                return Ok(at);
            }
            return Err(damaged(at, "a record's length does not agree with its complement"));
        }
        let end = at + HEAD as u64 + u64::from(length);
        if end > whole {
            return Ok(at);
        }
        record.resize(length as usize, 0);
        input.read_exact(&mut record).map_err(failed)?;
        if crc32fast::hash(&record) != sum {
            if end == whole || rest_is_zero(&mut input, whole - end).map_err(failed)? {
                return Ok(at);
            }
            return Err(damaged(at, "a record's checksum is wrong, and others come after it"));
        }
        read(&record)?;
        at = end;
    }
    Ok(at)
}

fn rest_is_zero(input: &mut impl Read, bytes: u64) -> io::Result<bool> {
    let mut rest = input.take(bytes);
    let mut piece = [0; 4096];
    loop {
        match rest.read(&mut piece)? {
            0 => return Ok(true),
            n if piece[..n].iter().any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

/// Makes a name in the folder of `path` last.
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
