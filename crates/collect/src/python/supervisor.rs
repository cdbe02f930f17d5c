//! Watches workers on a thread of its own: starts them, enforces their limits, and reports how they end.
//!
//! Steps bypass it: they go between the collector's thread and the workers. It reports the end of a worker once;
//! the receiver decides whether to start it again.

use super::ends::{
    by_kernel, container_limit, oom_killed, out_of_memory, over_budget, over_group, with_words,
};
use super::run::{Link, News, Order, Route, Shape, Why};
use super::words::{Known, Word, bad};
use super::{PythonEnvs, TICK, share};
use crate::FaultKind;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_memory::host::{Host, OomWatch};
use plimsoll_worker::message::{self, MESSAGE_BYTES_MAX, Received};
use plimsoll_worker::{Bell, Confined, GroupHome, OVER_WORDS, Session, SharedMemory, procs, session};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::json;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

/// Time between two readings of memory.
const MEMORY_EVERY: Duration = Duration::from_millis(250);
/// Time between two listings of all workers' processes, each of which reads every process of the machine.
const LIST_EVERY: Duration = Duration::from_secs(2);
/// Time between two checks of workers for GPU use.
const GPU_EVERY: Duration = Duration::from_secs(10);
/// Time from asking a hanging worker for its stack to ending it.
const STACK_TIME: Duration = Duration::from_millis(200);
/// Time that a process may take to end after it closed its socket.
const CLOSED_TIME: Duration = Duration::from_secs(1);
/// Time that a keeper may outlive its interpreter.
const KEEPER_TIME: Duration = Duration::from_secs(10);
const CLOSE_TIME: Duration = Duration::from_millis(500);
/// Lines of stderr in a message.
const LAST_LINES: usize = 16;
/// Exit code of the launcher if it could not start the interpreter.
const NOT_STARTED: i32 = 126;
const SIGKILL: i32 = 9;

enum Stage {
    Gone,
    Hello,
    Spec,
    Attach(SharedMemory),
    Ready,
}

struct WorkerState {
    session: Option<Session>,
    stage: Stage,
    life: u64,
    start_at: Option<Instant>,
    /// Time by which it must be ready.
    deadline: Instant,
    dying: Option<(Instant, Why)>,
    /// Processes of the worker at the last listing.
    pids: Vec<u32>,
    look_at_gpu: bool,
    warned: bool,
}

pub(super) struct Supervisor {
    envs: Arc<PythonEnvs>,
    python: PathBuf,
    program: PathBuf,
    orders: Receiver<Order>,
    ordered: Bell,
    /// Ascending by first worker.
    routes: Vec<Route>,
    workers: Vec<WorkerState>,
    shape: Option<Arc<Shape>>,
    groups: Option<GroupHome>,
    lives: u64,
    oom: OomWatch,
    memory_at: Instant,
    list_at: Instant,
    gpu_at: Instant,
}

impl Supervisor {
    pub fn new(
        envs: Arc<PythonEnvs>,
        python: PathBuf,
        program: PathBuf,
        workers: usize,
        (orders, ordered): (Receiver<Order>, Bell),
        route: Route,
    ) -> Supervisor {
        let now = Instant::now();
        let state = || WorkerState {
            session: None,
            stage: Stage::Gone,
            life: 0,
            start_at: Some(now),
            deadline: now,
            dying: None,
            pids: Vec::new(),
            look_at_gpu: false,
            warned: false,
        };
        let groups = envs.memory_groups.then(|| GroupHome::find(&Host::this())).flatten();
        Supervisor {
            envs,
            python,
            program,
            orders,
            ordered,
            routes: vec![route],
            workers: (0..workers).map(|_| state()).collect(),
            shape: None,
            groups,
            lives: 0,
            oom: OomWatch::begin(&Host::this()),
            memory_at: now,
            list_at: now,
            gpu_at: now + GPU_EVERY,
        }
    }

    /// Runs until `Order::Close`, or until all senders of orders are dropped.
    pub fn run(mut self) {
        loop {
            self.ordered.quiet();
            loop {
                match self.orders.try_recv() {
                    Ok(Order::Close) | Err(std::sync::mpsc::TryRecvError::Disconnected) => {
                        return self.close();
                    }
                    Ok(order) => self.execute(order),
                    Err(std::sync::mpsc::TryRecvError::Empty) => break,
                }
            }
            for worker in 0..self.workers.len() {
                self.poll_worker(worker);
            }
            self.look_around();
            self.sleep();
        }
    }

    fn execute(&mut self, order: Order) {
        match order {
            Order::Start { worker, at } => self.workers[worker].start_at = Some(at),
            Order::End { worker, life, why } => {
                let state = &mut self.workers[worker];
                if let (Some(session), true, None) = (&state.session, state.life == life, &state.dying) {
                    let late = matches!(why, Why::Late { .. });
                    if late {
                        session.ask_for_stack();
                    }
                    state.dying =
                        Some((Instant::now() + if late { STACK_TIME } else { Duration::ZERO }, why));
                }
            }
            Order::Stepped { worker } => self.workers[worker].look_at_gpu = true,
            Order::Share(routes) => self.routes = routes,
            Order::Close => unreachable!("closing ends the loop that executes orders"),
        }
    }

    /// Starts one worker, reads its messages, or ends it, as needed.
    fn poll_worker(&mut self, worker: usize) {
        let now = Instant::now();
        if self.workers[worker].start_at.is_some_and(|at| now >= at) {
            self.workers[worker].start_at = None;
            if let Err(error) = self.start(worker) {
                return self.lost(worker, FaultKind::Death, error);
            }
        }
        if self.workers[worker].session.is_none() {
            return;
        }
        // In this order, so that its last messages are read before it is reported as dead.
        let end = self.workers[worker].session.as_mut().and_then(Session::ended);
        if let Some(session) = &mut self.workers[worker].session {
            session.listen();
        }
        if !matches!(self.workers[worker].stage, Stage::Ready) && self.workers[worker].dying.is_none() {
            if let Err((kind, error)) = self.handshake(worker) {
                return self.end_worker(worker, Why::Fault(kind, error));
            }
            let state = &mut self.workers[worker];
            if state.session.is_some() && !matches!(state.stage, Stage::Ready) && now >= state.deadline {
                let why = Why::Late { doing: "make", limit: self.envs.reset_timeout };
                let life = state.life;
                self.execute(Order::End { worker, life, why });
            }
        }
        let state = &mut self.workers[worker];
        if state.dying.as_ref().is_some_and(|(at, _)| now >= *at) {
            let (_, why) = state.dying.take().expect("it was just seen");
            self.end_worker(worker, why);
        } else if state.session.is_some() && end.is_some() {
            match state.dying.take() {
                Some((_, why)) => self.end_worker(worker, why),
                None => self.died(worker, end),
            }
        } else if std::mem::take(&mut state.look_at_gpu) {
            self.list();
            self.look_at_gpu(worker);
        }
    }

    fn start(&mut self, worker: usize) -> Result<()> {
        let confined = Confined {
            python: self.python.clone(),
            memory: self.envs.worker_memory,
            network: self.envs.network,
            gpu: self.envs.gpu,
        };
        // If a group cannot be made, readings limit the worker instead.
        let group = self.groups.as_ref().and_then(|home| home.make(self.envs.worker_memory).ok());
        let session = Session::start(&self.program, &confined, &[], group)?;
        self.lives += 1;
        let state = &mut self.workers[worker];
        state.pids = vec![session.keeper()];
        state.session = Some(session);
        state.stage = Stage::Hello;
        state.life = self.lives;
        state.deadline = Instant::now() + self.envs.reset_timeout;
        Ok(())
    }

    /// Reads the messages of a worker until it is ready. From then on only the stepper reads its socket, and may
    /// already have sent a step.
    fn handshake(&mut self, worker: usize) -> std::result::Result<(), (FaultKind, Error)> {
        let mut buffer = vec![0u8; MESSAGE_BYTES_MAX];
        while !matches!(self.workers[worker].stage, Stage::Ready) {
            let state = &mut self.workers[worker];
            let Some(session) = &state.session else { return Ok(()) };
            let length = match message::receive(session.socket(), &mut buffer) {
                Received::Message(length) => length,
                Received::Later => return Ok(()),
                Received::Closed => {
                    self.end_worker(worker, Why::Closed);
                    return Ok(());
                }
            };
            let Ok(word) = serde_json::from_slice::<Word>(&buffer[..length]) else {
                let said = String::from_utf8_lossy(&buffer[..length.min(200)]);
                let error = bad(&format!("worker {worker} said `{said}` before it was ready"));
                return Err((FaultKind::BadOutput, error));
            };
            if let Word::Failed(failed) = &word {
                return Err(failed.error(&self.envs.env, &self.python.display().to_string()));
            }
            self.hear(worker, word).map_err(|error| (FaultKind::BadOutput, error))?;
        }
        Ok(())
    }

    fn hear(&mut self, worker: usize, word: Word) -> Result<()> {
        let stage = std::mem::replace(&mut self.workers[worker].stage, Stage::Gone);
        let next = match (stage, word) {
            (Stage::Hello, Word::Hello(hello)) => {
                hello.check()?;
                self.workers[worker].session.as_mut().expect("who speaks is there").introduce(hello.pid);
                let ask = json!({ "spec": { "env": self.envs.env, "kwargs": self.envs.kwargs } });
                self.say(worker, ask.to_string().as_bytes(), None)?;
                Stage::Spec
            }
            (Stage::Spec, Word::Spec(said)) => {
                let shape = self.shape_of(Known::new(*said)?)?;
                let Some(share) = shape.shares.get(worker) else {
                    // Vector environments are not split: there may be fewer of them than workers.
                    self.workers[worker].session = None;
                    return Ok(());
                };
                let map = share.map(&shape.known);
                let (memory, fd) = SharedMemory::new(Bytes(map.bytes as u64))?;
                let Known { observation, action, .. } = &shape.known;
                let attach = map.attach(observation, action, &share.local_groups(), &self.envs);
                self.say(worker, attach.to_string().as_bytes(), Some(fd))?;
                Stage::Attach(memory)
            }
            (Stage::Attach(memory), Word::Attached(envs)) => {
                self.ready(worker, memory, envs as usize)?;
                Stage::Ready
            }
            (_, word) => return Err(bad(&format!("worker {worker} said {word:?} out of turn"))),
        };
        self.workers[worker].stage = next;
        Ok(())
    }

    fn say(&self, worker: usize, word: &[u8], fd: Option<OwnedFd>) -> Result<()> {
        let session = self.workers[worker].session.as_ref().expect("who speaks is there");
        let sent = match fd {
            Some(fd) => message::send_with(session.socket(), word, fd.as_fd()),
            None => message::send(session.socket(), word),
        };
        sent.map_err(|err| {
            let message = format!("worker {worker} (pid {}) does not listen: {err}", session.pid());
            Error::new("env-worker-crashed", message)
        })
    }

    /// Returns the shape, which the first worker sets and all others must share.
    fn shape_of(&mut self, known: Known) -> Result<Arc<Shape>> {
        if let Some(shape) = &self.shape {
            if known.said != shape.known.said {
                let (old, new) = (&shape.known.said, &known.said);
                let message = format!("workers make different environments: {old:?}, and {new:?}");
                return Err(Error::new("env-spaces-changed", message)
                    .hint("let what is made follow from `env` and `env_options` alone"));
            }
            return Ok(shape.clone());
        }
        known.check_limit(self.envs.episode_steps_max)?;
        let PythonEnvs { num_envs, num_workers, overlap, .. } = *self.envs;
        let mut shares = share(num_envs, num_workers, known.said.vector, overlap)?;
        let largest = shares.iter().map(|share| share.map(&known).bytes as u64).sum();
        super::check_room(Bytes(largest), self.envs.num_envs)?;
        // To measure, only one worker is started.
        shares.truncate(self.workers.len());
        // Vector environments are not split: where there are fewer of them than workers, the other workers are dropped.
        for state in &mut self.workers[shares.len()..] {
            (state.session, state.start_at, state.stage, state.dying) = (None, None, Stage::Gone, None);
        }
        let memory_held_by = match &self.groups {
            Some(home) => home.describe(),
            None => format!("readings every {} ms", MEMORY_EVERY.as_millis()),
        };
        let shape = Arc::new(Shape { known, shares, memory_held_by });
        self.shape = Some(shape.clone());
        Ok(shape)
    }

    fn ready(&mut self, worker: usize, memory: SharedMemory, envs: usize) -> Result<()> {
        let shape = self.shape.clone().expect("it was said before");
        let share = shape.shares[worker].envs.len();
        if envs != share {
            return Err(bad(&format!("worker {worker} made {envs} of its {share} environments")));
        }
        let state = &mut self.workers[worker];
        let session = state.session.as_ref().expect("who is ready is there");
        let socket = session.socket_clone().map_err(|err| {
            let message = format!("a second descriptor of worker {worker}'s socket: {err}");
            Error::new("env-worker-not-started", message).hint("raise the limit on open files: `ulimit -n`")
        })?;
        message::limit_waits(socket.as_fd(), TICK)
            .map_err(|err| bad(&format!("the socket of worker {worker} takes no limit on waits: {err}")))?;
        let link = Link { socket, memory, pid: session.pid(), keeper: session.keeper() };
        state.look_at_gpu = true;
        let life = state.life;
        self.tell(News::Ready { worker, life, link, shape });
        Ok(())
    }

    /// Ends a worker and reports the reason.
    fn end_worker(&mut self, worker: usize, why: Why) {
        let session = self.workers[worker].session.as_mut().expect("only a worker that was started is ended");
        session.listen();
        if let Why::Closed = why {
            // A process closes its socket shortly before it can be waited for.
            let until = Instant::now() + CLOSED_TIME;
            while session.is_alive() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Its keeper ends after it has collected the worker and its descendants.
            let time = if session.is_alive() { Duration::ZERO } else { KEEPER_TIME };
            if let Some(status) = session.wait_until(Instant::now() + time) {
                return self.died(worker, Some(status));
            }
        }
        session.kill();
        session.listen();
        let pid = session.pid();
        let (kind, error, lines) = match why {
            Why::Late { doing, limit } => {
                let message = format!(
                    "worker {worker} (pid {pid}) was in {doing} longer than {} ms and was killed",
                    limit.as_millis()
                );
                let error = Error::new("env-worker-timeout", message).hint(
                    "the stack below `stderr` shows where it was; raise `step_timeout_ms` or `reset_timeout_ms` if that is its pace",
                );
                (FaultKind::Timeout, error, LAST_LINES)
            }
            Why::Closed => {
                let error = bad(&format!("worker {worker} (pid {pid}) closed its socket and went on"));
                (FaultKind::BadOutput, error, LAST_LINES)
            }
            Why::Fault(kind, error) => (kind, error, 0),
        };
        let error = with_words(error, session, lines);
        self.lost(worker, kind, error);
    }

    /// Reports why a worker died by itself.
    fn died(&mut self, worker: usize, status: Option<ExitStatus>) {
        let session = self.workers[worker].session.as_mut().expect("who died was there");
        let in_group = session.killed_in_group();
        session.kill();
        session.listen();
        let pid = session.pid();
        let how = session::ending(status);
        let name =
            self.python.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let mut kind = FaultKind::Death;
        // The group counts kills for lack of memory: if it has none, that was not the reason.
        let may_be = in_group.is_some() || !session.is_grouped();
        let oom_line = (may_be && status.and_then(|status| status.signal()) == Some(SIGKILL))
            .then(|| self.oom.evidence())
            .and_then(|seen| oom_killed(&seen, in_group.is_some(), pid, &name));
        self.oom = OomWatch::begin(&Host::this());
        let session = self.workers[worker].session.as_ref().expect("as above");
        let starved = session.last_words(LAST_LINES).iter().any(|line| {
            let words = ["MemoryError", "Cannot allocate memory", "bad_alloc", OVER_WORDS];
            words.iter().any(|words| line.contains(words))
        });
        let error = if let Some(kill) = in_group.as_ref().filter(|kill| kill.by_own_limit) {
            kind = FaultKind::OverBudget;
            over_group(worker, pid, self.envs.worker_memory, kill)
        } else if let Some(reason) = oom_line {
            kind = FaultKind::OverBudget;
            let error = by_kernel(worker, pid, &reason);
            in_group.into_iter().fold(error, |error, kill| error.fact(kill.fact))
        } else if starved {
            kind = FaultKind::OverBudget;
            over_budget(worker, pid, self.envs.worker_memory, &how)
        } else if status.and_then(|status| status.code()) == Some(NOT_STARTED) {
            let message = format!("worker {worker} (pid {pid}) did not become {}", self.python.display());
            Error::new("env-worker-not-started", message)
                .hint("run the interpreter by hand; `python` names another")
        } else {
            Error::new("env-worker-crashed", format!("worker {worker} (pid {pid}) {how}"))
                .hint("run the environment alone with `python -X faulthandler`; a crash in native code shows its stack there")
        };
        let error = with_words(error, session, LAST_LINES);
        self.lost(worker, kind, error);
    }

    fn lost(&mut self, worker: usize, kind: FaultKind, error: Error) {
        let state = &mut self.workers[worker];
        state.session = None;
        state.stage = Stage::Gone;
        state.dying = None;
        state.pids.clear();
        self.tell(News::Lost { worker, kind, error });
    }

    fn tell(&self, news: News) {
        // Fails only if the receiver is gone: then the next look at the orders ends the loop.
        let at = self.routes.partition_point(|route| route.first_worker <= news.worker()) - 1;
        let _ = self.routes[at].news.send(news);
        self.routes[at].told.ring();
    }

    /// Checks memory, processes and the GPU when due.
    fn look_around(&mut self) {
        let now = Instant::now();
        if now >= self.list_at {
            self.list_at = now + LIST_EVERY;
            self.list();
        }
        if now >= self.memory_at {
            self.memory_at = now + MEMORY_EVERY;
            for worker in 0..self.workers.len() {
                self.look_at_memory(worker);
            }
        }
        if now >= self.gpu_at {
            self.gpu_at = now + GPU_EVERY;
            for worker in 0..self.workers.len() {
                self.look_at_gpu(worker);
            }
        }
    }

    fn list(&mut self) {
        let sessions: Vec<u32> =
            self.workers.iter().filter_map(|state| state.session.as_ref()).map(Session::keeper).collect();
        let found = procs::below(&sessions);
        for state in &mut self.workers {
            let Some(session) = &state.session else { continue };
            let own = session.keeper();
            state.pids = found.iter().filter(|(keeper, _)| *keeper == own).map(|&(_, pid)| pid).collect();
        }
    }

    fn look_at_memory(&mut self, worker: usize) {
        let state = &mut self.workers[worker];
        let (Some(session), None) = (&state.session, &state.dying) else { return };
        if let Some(kill) = session.killed_in_group() {
            // One of its processes is gone, so the others cannot be relied on.
            let pid = session.pid();
            let error = if kill.by_own_limit {
                over_group(worker, pid, self.envs.worker_memory, &kill)
            } else {
                let reason = container_limit(&self.oom.evidence()).unwrap_or_else(out_of_memory);
                by_kernel(worker, pid, &reason).fact(kill.fact)
            };
            state.dying = Some((Instant::now(), Why::Fault(FaultKind::OverBudget, error)));
            return;
        }
        if session.is_grouped() {
            // The group counts shared pages once; the readings below count them once for each process.
            return;
        }
        let held = procs::anonymous_bytes(&state.pids);
        if held > self.envs.worker_memory {
            let how = format!("holds {held} in {} processes", state.pids.len());
            let error = over_budget(worker, session.pid(), self.envs.worker_memory, &how);
            state.dying = Some((Instant::now(), Why::Fault(FaultKind::OverBudget, error)));
        }
    }

    fn look_at_gpu(&mut self, worker: usize) {
        if self.envs.gpu == plimsoll_worker::Gpu::Allow {
            return;
        }
        let state = &mut self.workers[worker];
        let (Some(session), None) = (&state.session, &state.dying) else { return };
        let pid = session.pid();
        let mut library = None;
        for &one in &state.pids {
            let found = procs::gpu_use(one, &self.envs.gpu_devices);
            if let Some(device) = found.device {
                let message = format!("worker {worker} (pid {one}) has opened {device} and was killed");
                let error = Error::new("env-worker-touched-gpu", message)
                    .hint("environments run on the CPU, so that workers take nothing from the card: drop `.cuda()` and `device=\"cuda\"` from them")
                    .hint("an environment that renders on the card needs gpu = \"allow\"");
                state.dying = Some((Instant::now(), Why::Fault(FaultKind::Death, error)));
                return;
            }
            library = library.or(found.library);
        }
        if let (Some(library), false) = (library, state.warned) {
            state.warned = true;
            let message = format!("worker {worker} (pid {pid}) has mapped {library}; it has no device open");
            let warning = Error::new("env-worker-maps-cuda", message)
                .hint("torch does that when it is imported; it costs address space, and no byte on the card");
            self.tell(News::Warning { worker, warning });
        }
    }

    /// Sleeps until a worker or an order arrives, or a tick has passed.
    fn sleep(&self) {
        let mut fds = vec![PollFd::new(&self.ordered, PollFlags::IN)];
        for state in &self.workers {
            let Some(session) = &state.session else { continue };
            fds.extend(session.errors().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            if !matches!(state.stage, Stage::Ready) {
                fds.push(PollFd::from_borrowed_fd(session.socket(), PollFlags::IN));
            }
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        // An interrupted poll is fine: everything is checked after it anyway.
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
    }

    /// Gives environments a moment to close, then ends the rest.
    fn close(mut self) {
        let ready = |state: &&mut WorkerState| matches!(state.stage, Stage::Ready);
        let deadline = Instant::now() + CLOSE_TIME;
        for session in self.workers.iter_mut().filter(ready).filter_map(|state| state.session.as_ref()) {
            let _ = message::send(session.socket(), br#"{"close": true}"#);
        }
        for session in self.workers.iter_mut().filter(ready).filter_map(|state| state.session.as_mut()) {
            session.wait_until(deadline);
        }
    }
}
