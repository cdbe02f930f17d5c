//! Steps environments: on the caller's thread if a step costs almost nothing, on separate threads if user
//! code runs, so that a slow environment delays only the episodes of its worker.
//!
//! Slot i always belongs to thread i modulo their number, and a thread takes its jobs in order.

use super::Kind;
use super::environment::{Make, Said, Settings, Start, TextEnvironment};
use plimsoll_base::{Error, Result};
use plimsoll_text::Message;
use plimsoll_worker::{EpisodesSpec, PythonEpisodes, Stop};
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Stack of a thread that steps environments.
pub(crate) const STACK_BYTES: usize = 1 << 20;

/// A request to an episode.
#[derive(Clone, Debug)]
pub enum Job {
    Reset(Start),
    Step(String),
}

/// The answer to a job.
pub struct Reply {
    pub slot: usize,
    /// `None` if the worker that held the episode has ended.
    pub outcome: Result<Option<Said>>,
}

/// Episodes in slots.
#[allow(clippy::large_enum_variant)] // One a thread.
enum Host {
    Native { make: Make, slots: BTreeMap<usize, Box<dyn TextEnvironment>> },
    Python(PythonEpisodes),
}

/// A thread and its queue. A round sends at most one job per slot, which bounds the queue.
struct HostThread {
    jobs: Option<Sender<(usize, Job)>>,
    thread: Option<JoinHandle<()>>,
}

pub struct Hosts {
    here: Option<(Host, VecDeque<(usize, Job)>)>,
    threads: Vec<HostThread>,
    replies: Receiver<Reply>,
    /// Jobs without a reply.
    asked: usize,
    stop: Stop,
}

impl Hosts {
    /// Starts the workers of an environment and waits until they are ready.
    ///
    /// Errors: `thread-not-started`; those of starting a worker.
    pub fn start(kind: &Kind, settings: &Settings) -> Result<Hosts> {
        let (say, replies) = channel();
        let mut hosts = Hosts { here: None, threads: Vec::new(), replies, asked: 0, stop: Stop::default() };
        if !kind.has_workers() {
            hosts.here = Some((Host::start(kind, settings, &hosts.stop)?, VecDeque::new()));
            return Ok(hosts);
        }
        let mut starting = Vec::new();
        for _ in 0..settings.num_workers {
            let (thread, started) = HostThread::start(kind, settings, &hosts.stop, &say)?;
            hosts.threads.push(thread);
            starting.push(started);
        }
        for started in starting {
            started.recv().expect("a host says how it started")?;
        }
        Ok(hosts)
    }

    /// Gives a job to the episode of a slot.
    pub fn ask(&mut self, slot: usize, job: Job) {
        self.asked += 1;
        match &mut self.here {
            Some((_, queue)) => queue.push_back((slot, job)),
            None => {
                let thread = &self.threads[slot % self.threads.len()];
                let jobs = thread.jobs.as_ref().expect("the queue is there until the hosts are dropped");
                jobs.send((slot, job)).expect("a host lives until its queue is dropped");
            }
        }
    }

    /// Returns the next reply; with `wait`, one must be under way.
    pub fn take(&mut self, wait: bool) -> Option<Reply> {
        let reply = match &mut self.here {
            Some((host, queue)) => {
                let (slot, job) = queue.pop_front()?;
                Reply { slot, outcome: host.work(slot, job) }
            }
            None if wait => self.replies.recv().expect("a host answers each job"),
            None => self.replies.try_recv().ok()?,
        };
        self.asked -= 1;
        Some(reply)
    }

    /// Waits for the jobs that a failed round left under way.
    pub fn drain(&mut self) {
        while self.asked > 0 {
            self.take(true);
        }
    }

    /// Returns the first messages of some episodes of an environment without workers; `None` for others.
    pub fn first_messages(kind: &Kind, settings: &Settings, starts: &[Start]) -> Result<Vec<Vec<Message>>> {
        if kind.is_python() {
            return Ok(Vec::new());
        }
        let mut host = Host::start(kind, settings, &Stop::default())?;
        let one = |start: &Start| {
            host.work(0, Job::Reset(*start)).map(|said| said.map(|said| said.messages).unwrap_or_default())
        };
        starts.iter().map(one).collect()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        // Threads stop waiting for their workers, which die with them.
        self.stop.set();
        for host in &mut self.threads {
            host.jobs = None;
        }
        for host in &mut self.threads {
            if let Some(thread) = host.thread.take() {
                // A panic there is a bug and has been printed.
                let _ = thread.join();
            }
        }
    }
}

impl HostThread {
    fn start(
        kind: &Kind,
        settings: &Settings,
        stop: &Stop,
        say: &Sender<Reply>,
    ) -> Result<(HostThread, Receiver<Result<()>>)> {
        let (jobs, inbox) = channel::<(usize, Job)>();
        let (ready, started) = channel();
        let (kind, settings, stop, say) = (kind.clone(), settings.clone(), stop.clone(), say.clone());
        let work = move || {
            // A worker dies with the thread that started it, so it is started here.
            let mut host = match Host::start(&kind, &settings, &stop) {
                Ok(host) => host,
                Err(error) => return ready.send(Err(error)).unwrap_or(()),
            };
            let _ = ready.send(Ok(()));
            while let Ok((slot, job)) = inbox.recv() {
                if stop.is_set() {
                    return;
                }
                // Fails only if the run has ended.
                let _ = say.send(Reply { slot, outcome: host.work(slot, job) });
            }
        };
        let builder = std::thread::Builder::new().name("environment".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn(work).map_err(|err| {
            Error::new("thread-not-started", format!("an environment's thread: {err}"))
                .hint("check the limits on processes and threads: ulimit -u, and pids.max of the container")
        })?;
        Ok((HostThread { jobs: Some(jobs), thread: Some(thread) }, started))
    }
}

impl Host {
    fn start(kind: &Kind, settings: &Settings, stop: &Stop) -> Result<Host> {
        match kind {
            Kind::Native(row) => {
                Ok(Host::Native { make: (row.open)(settings, stop)?, slots: BTreeMap::new() })
            }
            Kind::Python { file, class } => {
                let spec = EpisodesSpec {
                    file: file.clone(),
                    class: class.clone(),
                    python: settings.python.clone(),
                    memory: settings.worker_memory,
                    network: settings.network,
                    step_timeout: settings.step_timeout,
                    reset_timeout: settings.reset_timeout,
                };
                Ok(Host::Python(PythonEpisodes::start(&spec, stop.clone())?))
            }
        }
    }

    fn work(&mut self, slot: usize, job: Job) -> Result<Option<Said>> {
        match self {
            Host::Native { make, slots } => {
                let episode = slots.entry(slot).or_insert_with(|| make());
                match job {
                    Job::Reset(start) => {
                        Ok(Some(Said { messages: episode.reset(&start), ..Said::default() }))
                    }
                    Job::Step(response) => episode.step(&response).map(Some),
                }
            }
            Host::Python(episodes) => {
                let messages = |said: plimsoll_worker::Messages| {
                    said.into_iter().map(|(role, content)| Message { role, content }).collect()
                };
                match job {
                    // 31 bits, as for other environments in Python.
                    Job::Reset(start) => episodes
                        .reset(slot, start.draw(0)[0] >> 1)
                        .map(|said| Some(Said { messages: messages(said), ..Said::default() })),
                    Job::Step(response) => Ok(episodes.step(slot, &response)?.map(|turn| Said {
                        messages: messages(turn.messages),
                        reward: turn.reward,
                        done: turn.done,
                    })),
                }
            }
        }
    }
}
