//! The thread that makes the trackers' worker read the log, once a second and at the end.

use super::{REPLY_TREE_BYTES_MAX, own_words, spec, start};
use plimsoll_base::{Error, Result, json_within};
use plimsoll_config::Track;
use plimsoll_worker::{Ids, Pool, Request, Stop};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often trackers get news.
const LOOK: Duration = Duration::from_secs(1);
/// Restarts of the worker in one run.
const RESTARTS_MAX: u32 = 3;
/// First wait before a restart; it doubles.
const WAIT: Duration = Duration::from_secs(2);
/// Time for trackers to finish after a failure or a signal, when someone waits for the end.
const FAILED_MAX: Duration = Duration::from_secs(10);

/// The trackers of a live run.
pub struct Tracking {
    ends: Sender<Value>,
    warnings: Receiver<Error>,
    stop: Stop,
    /// Time for trackers to finish.
    patience: Duration,
    thread: Option<JoinHandle<()>>,
}

impl Tracking {
    /// Follows the log of the run in `dir`; `None` if no tracker is named.
    pub fn start(track: &Track, dir: &Path, run_file: &str) -> Option<Tracking> {
        if track.to.is_empty() {
            return None;
        }
        let (ends, end) = channel();
        let (warn, warnings) = channel();
        let (stop, patience) = (Stop::default(), Duration::from_millis(track.timeout_ms));
        let (track, spec, own_stop) = (track.clone(), spec(track, dir, run_file), stop.clone());
        let follow = move || {
            Follower {
                track,
                spec,
                warn,
                stop: own_stop,
                ids: Ids::default(),
                known: BTreeSet::new(),
                is_over: false,
            }
            .run(&end)
        };
        let thread = std::thread::Builder::new().name("track".into()).spawn(follow).ok();
        Some(Tracking { ends, warnings, stop, patience, thread })
    }

    /// Returns warnings since the last call.
    pub fn news(&self) -> Vec<Error> {
        self.warnings.try_iter().collect()
    }

    /// Lets trackers read the rest of the log and finish. Returns warnings.
    pub fn finish(mut self, ended_well: bool, summary: &Value) -> Vec<Error> {
        let end = if ended_well { "finished" } else { "failed" };
        let numbers: serde_json::Map<String, Value> = summary
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, value)| value.is_number())
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let _ = self.ends.send(json!({ "end": end, "summary": numbers }));
        let patience = if ended_well { self.patience } else { self.patience.min(FAILED_MAX) };
        let until = Instant::now() + patience;
        let mut news = Vec::new();
        loop {
            match self.warnings.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(warning) => news.push(warning),
                // The thread is done.
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    news.push(unfinished(patience));
                    break;
                }
            }
        }
        self.stop.set();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        news
    }
}

impl Drop for Tracking {
    /// Ends the worker of a run that fails midway.
    fn drop(&mut self) {
        self.stop.set();
    }
}

fn unfinished(patience: Duration) -> Error {
    let words =
        format!("trackers did not finish within {} ms after the run, and were ended", patience.as_millis());
    Error::new("tracker-stopped", words).hint("events.jsonl has everything")
}

struct Follower {
    track: Track,
    spec: Value,
    warn: Sender<Error>,
    stop: Stop,
    ids: Ids,
    /// Trackers given up, each reported once.
    known: BTreeSet<String>,
    /// True once the run has ended: nothing restarts after that.
    is_over: bool,
}

impl Follower {
    fn run(mut self, end: &Receiver<Value>) {
        let mut last: Option<Error> = None;
        for restart in 0..=RESTARTS_MAX {
            if restart > 0
                && let Ok(_) | Err(RecvTimeoutError::Disconnected) =
                    end.recv_timeout(WAIT * (1 << (restart - 1)))
            {
                // The run is over; what is left to pass on is in its log.
                break;
            }
            match start(&self.track, self.stop.clone()).and_then(|pool| self.follow(pool, end)) {
                Ok(()) => return,
                Err(_) if self.stop.is_set() => return,
                Err(error) => last = Some(error),
            }
            if self.is_over {
                break;
            }
        }
        let Some(error) = last else { return };
        let words = format!("trackers get nothing more of this run: {}", own_words(&error));
        let warning = Error::new("tracker-stopped", words);
        let _ = self
            .warn
            .send(error.facts.into_iter().fold(warning, Error::fact).hint("events.jsonl has everything"));
    }

    /// Asks until the run ends.
    fn follow(&mut self, mut pool: Pool, end: &Receiver<Value>) -> Result<()> {
        loop {
            self.ask(&mut pool, json!({}))?;
            let ending = match end.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Ok(ending) => ending,
            };
            self.is_over = true;
            return self.ask(&mut pool, ending);
        }
    }

    fn ask(&mut self, pool: &mut Pool, mut request: Value) -> Result<()> {
        let id = self.ids.next_id();
        request["id"] = json!(id);
        request["spec"] = self.spec.clone();
        let bytes = format!("{request}\n").into_bytes();
        let lines = pool.call(&[Request { bytes, reply_lines: 1 }]).remove(0)?;
        let reply: Value = json_within(&lines[0], REPLY_TREE_BYTES_MAX).unwrap_or_default();
        if reply["id"] != json!(id) {
            pool.discard(0);
            return Err(Error::new("tracker-stopped", "the process of the trackers wrote what is no reply"));
        }
        for (name, why) in reply["given_up"].as_object().into_iter().flatten() {
            if self.known.insert(name.clone()) {
                let words = format!(
                    "{name} failed, and gets nothing more of this run: {}",
                    why.as_str().unwrap_or_default()
                );
                let _ =
                    self.warn.send(Error::new("tracker-failed", words).hint("events.jsonl has everything"));
            }
        }
        Ok(())
    }
}
