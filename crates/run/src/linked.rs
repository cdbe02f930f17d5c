//! A supervisor's link to those of other ranks: what it tells them, and, at rank 0, the file for `watch` and `doctor`.

use crate::supervise::{Death, place, read_note};
use plimsoll_base::{Error, Exit, read_small_text};
use plimsoll_memory::host::{Host, OomWatch};
use plimsoll_ranks::{Beat, Cause, Link, Order, Row, Verdict, Waits, slowest};
use plimsoll_worker::{Ended, Others, Trainer};
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::fs;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// File of a run directory with a row per rank; a run of one rank has none.
pub const RANKS_FILE: &str = "ranks.json";
/// How often the file is written during the run.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// If a part of a step lasts longer than this, a sleeping trainer is waiting for a worker.
const WORKER_AFTER: Duration = Duration::from_secs(10);
/// Processes below a trainer that are searched for that worker, and how deep.
const WORKERS_MAX: usize = 64;
const DEPTH_MAX: usize = 4;

/// The link, as a supervisor's loop uses it.
pub(crate) struct Linked<'a> {
    link: &'a Link,
    seen: RefCell<Seen>,
    user: RefCell<&'a mut User<'a>>,
    watch: RefCell<&'a mut OomWatch>,
    /// The error of the trainer's death, once it begins to die. `None` if that needs facts known only after it.
    death: RefCell<Option<Error>>,
    /// True once the user has heard why the run ends.
    has_told: Cell<bool>,
}

/// The user who started a rank.
pub struct User<'a> {
    pub say: &'a mut dyn FnMut(&str),
    /// Shows what ended the run, while a trainer is still ending.
    pub tell: &'a mut dyn FnMut(&Error),
}

/// The trainer's state when last checked.
struct Seen {
    /// Its activity, and since when.
    doing: (String, Instant),
    /// The barrier it waits at, and since when.
    waits: Option<(u64, Instant)>,
    written: Instant,
}

impl<'a> Linked<'a> {
    pub(crate) fn new(link: &'a Link, user: &'a mut User<'a>, watch: &'a mut OomWatch) -> Linked<'a> {
        let now = Instant::now();
        let seen = Seen { doing: (String::new(), now), waits: None, written: now };
        Linked {
            link,
            seen: RefCell::new(seen),
            user: RefCell::new(user),
            watch: RefCell::new(watch),
            death: RefCell::new(None),
            has_told: Cell::new(false),
        }
    }

    pub(crate) fn say(&self, words: &str) {
        (self.user.borrow_mut().say)(words);
    }

    /// Returns true if the user has heard why the run ends.
    pub(crate) fn has_told(&self) -> bool {
        self.has_told.get()
    }

    /// Tells the others the trainer's last activity.
    pub(crate) fn tell_last(&self, ended: &Ended) {
        let trainer = Trainer { pid: ended.pid, state: '-', note: ended.note.clone() };
        self.link.beat(self.beat(&trainer, &read_note(trainer.note.as_deref()), Instant::now()));
    }

    fn told(&self, order: Order) -> Option<plimsoll_worker::Order> {
        match order {
            Order::Signal(signal) => Some(plimsoll_worker::Order::Signal(signal)),
            Order::End => Some(plimsoll_worker::Order::End),
            Order::Say(words) => {
                self.say(&words);
                None
            }
        }
    }

    /// Tells the user what ended the run as soon as that is known: the trainer may take seconds more to end. The error
    /// of another rank's failure waits for the end, because this trainer may yet report the same.
    fn tell_verdict(&self) {
        let Some(verdict) = self.link.verdict().filter(|_| !self.has_told()) else { return };
        let error = match &*self.death.borrow() {
            Some(error) if verdict.member.rank == self.link.place.rank => named(error, &verdict),
            None if verdict.member.rank != self.link.place.rank && verdict.cause != Cause::Failed => {
                lost(&verdict)
            }
            _ => return,
        };
        self.has_told.set(true);
        (self.user.borrow_mut().tell)(&error);
    }

    /// Describes the trainer; `note` is its status page.
    fn beat(&self, trainer: &Trainer, note: &Value, now: Instant) -> Beat {
        let seen = &mut *self.seen.borrow_mut();
        let doing = place(note);
        if seen.doing.0 != doing {
            seen.doing = (doing, now);
        }
        let waits = Waits::read(&self.link.place).unwrap_or_default();
        seen.waits = match seen.waits {
            _ if !waits.waits_now => None,
            Some((arrivals, since)) if arrivals == waits.arrivals => Some((arrivals, since)),
            _ => Some((waits.arrivals, now)),
        };
        let since_ms = |at: Instant| now.saturating_duration_since(at).as_millis() as u64;
        let number = |name: &str| note.get(name).and_then(Value::as_u64).unwrap_or(0);
        let rss = note.get("rss").and_then(|rss| rss.get("now")).and_then(Value::as_u64).unwrap_or(0);
        // Pages of the binary are the trainer's too, which counts them.
        let own = Host::this().rss();
        let waits_for = note.get("waits_for").and_then(Value::as_str).filter(|_| waits.waits_now);
        let phase = note.get("phase").and_then(Value::as_str).unwrap_or_default();
        let is_long = now.saturating_duration_since(seen.doing.1) >= WORKER_AFTER;
        let asks = is_long && trainer.state != 'R' && ["rollout", "reward", "eval"].contains(&phase);
        let worker = asks.then(|| worker_of(trainer.pid)).flatten();
        Beat {
            trainer: trainer.pid,
            state: trainer.state,
            doing: seen.doing.0.clone(),
            since_ms: since_ms(seen.doing.1),
            phase: phase.into(),
            step: number("step") as u32,
            steps: number("steps") as u32,
            arrivals: waits.arrivals,
            waited_ms: waits.waited.as_millis() as u64 + seen.waits.map_or(0, |(_, at)| since_ms(at)),
            waiting_ms: seen.waits.map_or(0, |(_, at)| since_ms(at).max(1)),
            waits_for: waits_for.unwrap_or_default().into(),
            held_bytes: rss + number("workers_bytes") + own.anon.0 + own.shmem.0,
            planned_bytes: number("planned_bytes"),
            worker: worker.unwrap_or_default(),
        }
    }
}

impl Others for Linked<'_> {
    fn bell(&self) -> BorrowedFd<'_> {
        self.link.bell()
    }

    fn asked(&self, signal: i32) {
        self.link.asked(signal);
    }

    fn look(&self, trainer: Trainer) -> Vec<plimsoll_worker::Order> {
        let (note, now) = (read_note(trainer.note.as_deref()), Instant::now());
        self.link.beat(self.beat(&trainer, &note, now));
        let is_due = now.saturating_duration_since(self.seen.borrow().written) >= WRITE_EVERY;
        if is_due && let Some(dir) = run_dir(self.link, &note) {
            self.seen.borrow_mut().written = now;
            write(&dir, &self.link.rows(), None);
        }
        self.tell_verdict();
        let orders = self.link.orders().into_iter();
        orders.filter_map(|order| self.told(order)).collect()
    }

    fn dies(&self, ended: &Ended) {
        self.tell_last(ended);
        let mut evidence = self.watch.borrow_mut().evidence();
        // What others hold is unknown while part of it is this trainer's.
        evidence.groups.iter_mut().for_each(|group| group.held = None);
        if let Some((death, error)) = Death::of(ended, &evidence, &Host::this()) {
            self.link.ended(death.ending(&error));
            self.death.replace((!death.is_for_lack_of_memory()).then_some(error));
        }
    }
}

/// Returns the error of a rank that ended because of another.
pub(crate) fn lost(verdict: &Verdict) -> Error {
    let mut error = Error::new("rank-lost", verdict.words());
    if [Cause::KilledProven, Cause::Crashed, Cause::Killed, Cause::Failed].contains(&verdict.cause) {
        error = error.hint(format!("rank {} says more in its own output", verdict.member.rank));
    }
    let error = error.hint("start the same command with --resume to continue from the last checkpoint");
    Error { exit: Exit::OtherRank, ..error }
}

/// Returns the error of a rank's own death, with the rank and the others that ended because of it.
pub(crate) fn named(error: &Error, verdict: &Verdict) -> Error {
    Error { message: verdict.words(), ..error.clone() }
}

/// Writes how all ranks ended. `last`: the trainer's last status note.
pub(crate) fn write_last(link: &Link, last: &Value, verdict: Option<&Verdict>) {
    if let Some(dir) = run_dir(link, last) {
        write(&dir, &link.rows(), verdict);
    }
}

/// Returns the run directory once the trainer holds it, at rank 0, which alone writes there.
fn run_dir(link: &Link, note: &Value) -> Option<PathBuf> {
    let dir = note.get("dir").and_then(Value::as_str)?;
    (link.place.rank == 0).then(|| dir.into())
}

/// Replaces the file. Best effort, and not synced: the run does not need it, and it is replaced every second.
fn write(dir: &Path, rows: &[Row], verdict: Option<&Verdict>) {
    if rows.is_empty() {
        return;
    }
    let slow = slowest(rows.iter().map(|row| Duration::from_secs_f64(row.seconds_waited)));
    let board = json!({
        "slowest": slow.map(|index| rows[index].rank),
        "ended": verdict.map(Verdict::words),
        "rows": rows,
    });
    let part = dir.join(format!(".{RANKS_FILE}.{}.part", std::process::id()));
    let written = plimsoll_files::create_part(&part, false).and_then(|mut file| writeln!(file, "{board}"));
    let written = written.and_then(|()| fs::rename(&part, dir.join(RANKS_FILE)));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
}

/// Returns the process that a trainer waits for: among its deepest descendants one that is awake, or the first.
fn worker_of(trainer: u32) -> Option<String> {
    let mut level = vec![trainer];
    let mut leaves = Vec::new();
    for _ in 0..DEPTH_MAX {
        let below = |pid: &u32| children(*pid);
        leaves = level;
        level = leaves.iter().flat_map(below).take(WORKERS_MAX).collect();
        if level.is_empty() {
            break;
        }
    }
    let read = |pid: &u32| {
        let stat = of_kernel(Path::new(&format!("/proc/{pid}/stat")))?;
        let (head, rest) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_string();
        Some((rest.trim_start().starts_with(['R', 'D']), format!("`{name}`, pid {pid}")))
    };
    let mut found: Vec<(bool, String)> =
        leaves.iter().filter(|pid| **pid != trainer).filter_map(read).collect();
    found.sort_by_key(|(is_awake, _)| !is_awake);
    found.into_iter().next().map(|(_, words)| words)
}

/// Reads a file of the kernel about processes.
fn of_kernel(path: &Path) -> Option<String> {
    read_small_text(path, 1 << 20).ok()
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| of_kernel(&task.path().join("children")));
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_worker_is_the_last_process_below_the_trainer() {
        let mut command = Command::new("sh");
        // Without `exec` the shell stays, as a keeper does.
        let command = command.args(["-c", "sleep 60; true"]).stdout(Stdio::null());
        let mut keeper = command.spawn().expect("sh is everywhere");
        let until = Instant::now() + Duration::from_secs(30);
        // It is a second `sh` for a moment.
        let names_sleep =
            |found: &Option<String>| found.as_ref().is_some_and(|words| words.contains("sleep"));
        let mut found = None;
        while !names_sleep(&found) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
            found = worker_of(keeper.id());
        }
        let sleep = children(keeper.id());
        let _ = Command::new("kill").args(sleep.iter().map(u32::to_string)).status();
        keeper.wait().expect("it is ours");
        assert_eq!(found, Some(format!("`sleep`, pid {}", sleep[0])));
        assert_eq!(worker_of(sleep[0]), None);
    }

    #[test]
    fn the_file_is_whole_and_names_the_slowest() {
        let folder = tempfile::tempdir().expect("a folder");
        let row = |rank, seconds_waited| Row {
            rank,
            host: "a".into(),
            supervisor: 1,
            trainer: 2,
            state: plimsoll_ranks::State::Computes,
            phase: "update".into(),
            step: 3,
            steps: 9,
            seconds_in_phase: 0.5,
            seconds_waited,
            held_bytes: 7,
            planned_bytes: 9,
        };
        write(folder.path(), &[row(0, 2.0), row(1, 0.5)], None);
        let text = fs::read_to_string(folder.path().join(RANKS_FILE)).expect("it is there");
        let board: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&board["slowest"], &board["rows"][1]["phase"]), (&json!(1), &json!("update")));
        assert_eq!((&board["ended"], &board["rows"][0]["state"]), (&Value::Null, &json!("computes")));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
        // A directory that is gone is no reason to end.
        write(Path::new("/no/such/run"), &[row(0, 2.0)], None);
    }
}
