//! A pool of equal workers: one request each, all in flight at once, one poll loop over all pipes.
//!
//! Request `i` always goes to worker `i`, so results do not depend on timing.

use crate::launch::{Launch, Limits};
use crate::process::{PipeState, Process};
use plimsoll_base::{Error, Result, slugs};
use plimsoll_memory::host::{Host, OomWatch};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// How soon a waiting pool notices a stop.
const STOP_POLL: Duration = Duration::from_millis(50);

/// Aborts pool calls in other threads; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    is_set: Arc<AtomicBool>,
    signal: Option<Arc<AtomicI32>>,
}

impl Stop {
    /// Returns a stop that is also set once `signal`, the number of an arrived signal, is not 0.
    pub fn on(signal: &Arc<AtomicI32>) -> Stop {
        Stop { is_set: Arc::default(), signal: Some(signal.clone()) }
    }

    /// Aborts every call, current and future, with an error, and kills its workers.
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        let came = self.signal.as_ref().is_some_and(|signal| signal.load(Ordering::Relaxed) != 0);
        came || self.is_set.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Debug)]
pub struct Request {
    /// Whole lines, each ended by a line feed.
    pub bytes: Vec<u8>,
    /// Lines of the reply; at least 1.
    pub reply_lines: usize,
}

/// Workers that answer requests.
pub struct Pool {
    launch: Launch,
    limits: Limits,
    workers: Vec<Option<Process>>,
    restarts: u64,
    /// Watches kills for lack of memory since the last death.
    oom: OomWatch,
    stop: Stop,
    /// Bytes that a reply may have besides those of its request and a MiB.
    reply_bytes_more: usize,
}

struct Call {
    /// Index of the worker and of the request.
    index: usize,
    sent: usize,
    deadline: Instant,
    /// True until the worker has sent its first line.
    starting: bool,
    attempts_left: u32,
}

impl Pool {
    /// Starts all workers and waits for the first line of each, if the launch has one.
    pub fn start(launch: Launch, limits: Limits, stop: Stop) -> Result<Pool> {
        let oom = OomWatch::begin(&Host::this());
        let mut pool =
            Pool { launch, limits, workers: Vec::new(), restarts: 0, oom, stop, reply_bytes_more: 0 };
        for _ in 0..limits.workers.max(1) {
            pool.workers.push(Some(Process::start(&pool.launch)?));
        }
        if pool.launch.ready.is_some() {
            // No bytes and no reply: a worker is done once it is ready. A failed start is not retried.
            let none: Vec<Request> = Vec::new();
            let outcomes = pool.drive(&none, true);
            outcomes.into_iter().collect::<Result<Vec<_>>>()?;
        }
        Ok(pool)
    }

    /// Returns the number of requests that one call takes.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Sets the time for one request, from the next one on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.limits.timeout = timeout;
    }

    /// Lets replies have `bytes` more than those of their requests and a MiB.
    pub(crate) fn lengthen_replies(&mut self, bytes: usize) {
        self.reply_bytes_more = bytes;
    }

    /// Returns how often a worker was restarted.
    pub fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Returns the process ids of the running workers.
    pub fn pids(&self) -> Vec<u32> {
        self.workers.iter().flatten().map(Process::pid).collect()
    }

    /// Sends request `i` to worker `i` and waits for all replies; at most one request per worker.
    ///
    /// Each request has its own result. A failed worker is gone; the next call starts another.
    pub fn call(&mut self, requests: &[Request]) -> Vec<Result<Vec<String>>> {
        assert!(
            requests.len() <= self.workers.len(),
            "{} requests, {} workers",
            requests.len(),
            self.workers.len()
        );
        self.drive(requests, false)
    }

    /// Discards a worker that ran out of memory, because its heap is unusable. Returns the error.
    pub fn over_budget(&mut self, worker: usize) -> Error {
        let mut process = self.workers[worker].take().expect("a worker that just answered runs");
        process.out_of_memory("raised MemoryError")
    }

    /// Drops a worker whose reply was invalid: its later output may belong to no request.
    pub fn discard(&mut self, worker: usize) {
        self.workers[worker] = None;
    }

    fn drive(&mut self, requests: &[Request], only_start: bool) -> Vec<Result<Vec<String>>> {
        let count = if only_start { self.workers.len() } else { requests.len() };
        let mut outcomes: Vec<Option<Result<Vec<String>>>> = (0..count).map(|_| None).collect();
        let mut calls: Vec<Call> = Vec::with_capacity(count);
        for (index, outcome) in outcomes.iter_mut().enumerate() {
            let attempts_left = if only_start { 0 } else { self.limits.retries };
            match self.open(index, attempts_left, only_start) {
                Ok(call) => calls.push(call),
                Err(error) => *outcome = Some(Err(error)),
            }
        }
        while !calls.is_empty() {
            self.wait(&calls, requests);
            let mut under_way = Vec::with_capacity(calls.len());
            for mut call in calls {
                let index = call.index;
                match self.advance(&mut call, requests.get(index)) {
                    Ok(None) => under_way.push(call),
                    Ok(Some(lines)) => outcomes[index] = Some(Ok(lines)),
                    Err(error) => {
                        self.workers[index] = None;
                        match self.again(&call) {
                            Some(Ok(fresh)) => under_way.push(fresh),
                            Some(Err(start_error)) => outcomes[index] = Some(Err(start_error)),
                            None => outcomes[index] = Some(Err(error)),
                        }
                    }
                }
            }
            calls = under_way;
        }
        outcomes.into_iter().map(|outcome| outcome.expect("each call ends with an outcome")).collect()
    }

    fn open(&mut self, index: usize, attempts_left: u32, first_start: bool) -> Result<Call> {
        let mut starting = first_start;
        if self.workers[index].is_none() {
            self.workers[index] = Some(Process::start(&self.launch)?);
            self.restarts += 1;
            starting = self.launch.ready.is_some();
        }
        let limit = if starting { self.limits.start_timeout } else { self.limits.timeout };
        Ok(Call { index, sent: 0, deadline: Instant::now() + limit, starting, attempts_left })
    }

    fn again(&mut self, call: &Call) -> Option<Result<Call>> {
        let attempts_left = call.attempts_left.checked_sub(1).filter(|_| !self.stop.is_set())?;
        Some(self.open(call.index, attempts_left, false))
    }

    /// Sleeps until a pipe is ready or the next deadline is reached.
    fn wait(&self, calls: &[Call], requests: &[Request]) {
        let mut fds = Vec::with_capacity(calls.len() * 3);
        let mut next = Duration::from_secs(3600);
        for call in calls {
            let Some(process) = &self.workers[call.index] else { return };
            next = next.min(call.deadline.saturating_duration_since(Instant::now()));
            fds.push(PollFd::from_borrowed_fd(process.output(), PollFlags::IN));
            let further = [process.errors(), process.reports()];
            fds.extend(further.into_iter().flatten().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            if !call.starting
                && requests.get(call.index).is_some_and(|request| call.sent < request.bytes.len())
            {
                fds.extend(process.open_input().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)));
            }
        }
        let next = next.min(STOP_POLL);
        // One millisecond more, so that the deadline has passed when the poll times out.
        let next = next + Duration::from_millis(1);
        let timeout = Timespec { tv_sec: next.as_secs() as i64, tv_nsec: i64::from(next.subsec_nanos()) };
        // An interrupted poll is fine: the caller checks every pipe anyway.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
    }

    /// Moves bytes for one call. Returns the reply's lines once they are complete.
    fn advance(&mut self, call: &mut Call, request: Option<&Request>) -> Result<Option<Vec<String>>> {
        let timeout = self.limits.timeout;
        let start_timeout = self.limits.start_timeout;
        let process = self.workers[call.index].as_mut().expect("a call under way has its worker");
        let reply_bytes_max =
            process.expect_reply_to(request.map_or(0, |request| request.bytes.len()) + self.reply_bytes_more);
        process.listen();
        let mut flow = process.read();
        if let (0, false, 1.., Some(_)) = (call.sent, call.starting, process.unread(), request) {
            return Err(surplus(&self.launch.name, process.unread(), "before it was asked"));
        }
        if let (true, Some(ready), Some(lines)) =
            (call.starting, self.launch.ready, first_line(call.starting, process))
        {
            ready(&self.launch.name, &lines[0])?;
            call.starting = false;
            call.deadline = Instant::now() + timeout;
        }
        if !call.starting {
            let Some(request) = request else { return Ok(Some(Vec::new())) };
            if let Some(lines) = process.take_lines(request.reply_lines) {
                // Reads what came after the last line, and its stderr. If it has ended, the next request shows it.
                process.read();
                process.listen();
                return match (process.unread(), process.killed_in_part()) {
                    (0, None) => Ok(Some(lines)),
                    (_, Some(error)) => Err(error),
                    (more, None) => Err(surplus(&self.launch.name, more, "after its reply")),
                };
            }
            if call.sent < request.bytes.len() && flow == PipeState::Later {
                let (sent, written) = process.write(&request.bytes[call.sent..]);
                call.sent += sent;
                flow = written;
            }
        }
        match flow {
            PipeState::Closed => {
                let error = process.death(&mut self.oom);
                self.oom = OomWatch::begin(&Host::this());
                Err(error)
            }
            PipeState::TooLong => Err(Error::new(
                slugs::REWARD_BAD_REPLY,
                format!("reward `{}`: a reply above {reply_bytes_max} bytes", self.launch.name),
            )),
            // The caller no longer waits for the answer and ignores this error.
            PipeState::Later if self.stop.is_set() => Err(Error::new(
                slugs::INTERRUPTED,
                format!("reward `{}`: the run has ended", self.launch.name),
            )),
            PipeState::Later if Instant::now() >= call.deadline => Err(if call.starting {
                process.timeout(start_timeout, "took to start")
            } else {
                process.timeout(timeout, "took for one batch")
            }),
            PipeState::Later => Ok(None),
        }
    }
}

/// Returns the error of a worker that writes more than asked: extra lines would pass for later replies.
fn surplus(name: &str, bytes: usize, when: &str) -> Error {
    Error::new(slugs::REWARD_BAD_REPLY, format!("reward `{name}` wrote {bytes} bytes {when}"))
        .hint("write one line for each that is asked, and everything else to standard error")
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.workers.iter_mut().flatten().for_each(Process::listen_to_end);
    }
}

fn first_line(starting: bool, process: &mut Process) -> Option<Vec<String>> {
    if starting { process.take_lines(1) } else { None }
}
