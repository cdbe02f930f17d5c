//! Load on the machine during a round: threads of this command that compute, or write a file at full speed.

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Size at which the writer begins again at the start of its file.
const FILE_BYTES: u64 = 1 << 30;
/// Bytes between two calls of fdatasync.
const SYNC_BYTES: u64 = 64 << 20;
const BLOCK_BYTES: usize = 1 << 20;
/// Room that the writer leaves to the tests: their models, checkpoints and corpora take less than that.
const SPARE_BYTES: u64 = 2 << 30;

/// Threads that run until it is dropped.
pub struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn none() -> Load {
        Load { stop: Arc::new(AtomicBool::new(false)), threads: Vec::new() }
    }

    /// Starts threads that compute at normal priority.
    pub fn busy(count: usize) -> Load {
        let mut load = Load::none();
        for _ in 0..count {
            let stop = load.stop.clone();
            load.threads.push(thread::spawn(move || spin(&stop)));
        }
        load
    }

    /// Starts a thread that writes a file in `folder`, which has no name there: it is gone however this ends.
    pub fn writer(folder: &Path) -> io::Result<Load> {
        let path = folder.join(format!("plimsoll-shake-{}", std::process::id()));
        let file = File::create(&path)?;
        fs::remove_file(&path)?;
        let mut load = Load::none();
        let stop = load.stop.clone();
        load.threads.push(thread::spawn(move || {
            if let Err(err) = write(file, &stop) {
                eprintln!("shake: the writer has stopped: {err}");
            }
        }));
        Ok(load)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Returns why the temporary folder has no room for the writer, if so.
pub fn no_room() -> Option<String> {
    let folder = std::env::temp_dir();
    let free = match rustix::fs::statvfs(&folder) {
        Ok(disk) => disk.f_bavail * disk.f_frsize,
        Err(err) => return Some(format!("{}: {err}", folder.display())),
    };
    let needed = FILE_BYTES + SPARE_BYTES;
    (free < needed)
        .then(|| format!("{}: {} MiB are free, and {} needed", folder.display(), free >> 20, needed >> 20))
}

fn spin(stop: &AtomicBool) {
    let mut number = 1u64;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..4096 {
            number = black_box(number.wrapping_mul(6364136223846793005).wrapping_add(1));
        }
    }
}

fn write(mut file: File, stop: &AtomicBool) -> io::Result<()> {
    // Bytes that no disk shortens to a hole.
    let block: Vec<u8> =
        (0..BLOCK_BYTES as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect();
    let mut written = 0;
    while !stop.load(Ordering::Relaxed) {
        file.write_all(&block)?;
        written += BLOCK_BYTES as u64;
        if written % SYNC_BYTES == 0 {
            file.sync_data()?;
        }
        if written % FILE_BYTES == 0 {
            file.rewind()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_ends_when_it_is_dropped_and_leaves_no_file() {
        let folder = std::env::temp_dir().join(format!("plimsoll-load-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let load = Load::writer(&folder).expect("the folder is writable");
        thread::sleep(std::time::Duration::from_millis(5));
        drop(load);
        assert_eq!(fs::read_dir(&folder).expect("it is there").count(), 0);
        fs::remove_dir_all(&folder).expect("it is there");
        drop(Load::busy(2));
    }
}
