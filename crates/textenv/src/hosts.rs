//! Steps environments: on the caller's thread if a step costs almost nothing; on other threads if it runs user code, so
//! a slow environment delays only its worker's episodes.
//!
//! Slot i always belongs to thread i modulo their number, and a thread takes its jobs in order.

use super::Kind;
use super::environment::{Make, Said, Settings, Start, TextEnvironment};
use super::rows::{ImageTaker, Rows};
use plimsoll_base::{Error, Result, slugs};
use plimsoll_text::Message;
use plimsoll_worker::{About, EpisodesOf, EpisodesSpec, PythonEpisodes, Stop};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

pub(crate) const STACK_BYTES: usize = 1 << 20;

/// A request to an episode.
#[derive(Clone, Debug)]
pub enum Job {
    Reset(Start),
    /// Begins an episode and takes it up after some turns. A Python environment plays them again.
    TakeUp(Start, Vec<HadTurn>),
    /// The model's turn, with its tool calls: objects with `name` and `arguments`.
    Step(String, Vec<Value>),
    /// Asks for the reward of the whole episode, if `About::scores_at_end`.
    End,
}

/// A turn that an episode had, and what its environment answered.
#[derive(Clone, Debug)]
pub struct HadTurn {
    /// The model's turn, with its tool calls.
    pub response: String,
    pub calls: Vec<Value>,
    pub said: Vec<Message>,
    pub reward: f64,
}

pub struct Reply {
    pub slot: usize,
    /// `None` if the worker of the episode has ended.
    pub outcome: Result<Option<Said>>,
}

#[allow(clippy::large_enum_variant)] // One a thread.
enum Host {
    Native { make: Make, slots: BTreeMap<usize, Box<dyn TextEnvironment>> },
    Python(PythonEpisodes, FirstRows),
}

/// The first rows of episodes.
#[derive(Clone)]
struct FirstRows {
    rows: Arc<Rows>,
    /// True if their columns are for the run's rewards and not for the environment.
    is_graded: bool,
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
    /// Number of jobs without a reply.
    asked: usize,
    stop: Stop,
    about: About,
    rows: Arc<Rows>,
    /// Starts the worker that removes the containers of others.
    sweep: Option<EpisodesSpec>,
}

impl Hosts {
    /// Reads the rows, starts an environment's workers and waits until they are ready. Agents have none here.
    ///
    /// Errors: `thread-not-started`; those of `first_episode_rows` and of starting a worker.
    pub fn start(kind: &Kind, settings: &Settings) -> Result<Hosts> {
        Hosts::start_with(kind, settings, None)
    }

    /// Starts as `start` does, where rows may have images, which `images` takes.
    ///
    /// Errors: those of `start`; those of taking images.
    pub fn start_with(kind: &Kind, settings: &Settings, images: Option<ImageTaker<'_>>) -> Result<Hosts> {
        Hosts::with_rows(kind, settings, Rows::open(kind, settings, images)?)
    }

    /// Returns the number of the row that begins an episode, of all rows in their order, those of training first;
    /// `None` without rows.
    pub fn row_of(&self, start: Start) -> Option<usize> {
        self.rows.number_of(seed_of(start), start.held_out)
    }

    /// Starts the workers without the rows, and ends them. Returns true if the environment has tools.
    ///
    /// Errors: `thread-not-started`; those of starting a worker.
    pub fn check(kind: &Kind, settings: &Settings) -> Result<bool> {
        Hosts::with_rows(kind, settings, Rows::default()).map(|hosts| !hosts.about.tools.is_empty())
    }

    fn with_rows(kind: &Kind, settings: &Settings, rows: Rows) -> Result<Hosts> {
        let rows = FirstRows { rows: rows.into(), is_graded: kind.is_graded() };
        let (say, replies) = channel();
        let (threads, about, of) = (Vec::new(), About::default(), rows.rows.clone());
        let (stop, sweep) = (Stop::default(), None);
        let mut hosts = Hosts { here: None, threads, replies, asked: 0, stop, about, rows: of, sweep };
        if kind.is_agents() {
            return Ok(hosts);
        }
        if !kind.has_workers() {
            hosts.here = Some((Host::start(kind, settings, &rows, &hosts.stop)?, VecDeque::new()));
            return Ok(hosts);
        }
        let mut starting = Vec::new();
        for _ in 0..settings.num_workers {
            let (thread, started) = HostThread::start(kind, settings, &rows, &hosts.stop, &say)?;
            hosts.threads.push(thread);
            starting.push(started);
        }
        for started in starting {
            hosts.about = started.recv().expect("a host says how it started")?;
        }
        if let Kind::Python(of @ EpisodesOf::Harbor) = kind {
            let mut sweep = EpisodesSpec { has_rows: false, ..spec_of(of, settings) };
            sweep.tasks.folders.clear();
            hosts.sweep = Some(sweep);
        }
        Ok(hosts)
    }

    /// Returns the properties that the environment reports.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Sends a job to the episode of a slot.
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

    /// Returns the next reply; with `wait`, one must be outstanding.
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

    /// Waits for the outstanding jobs of a failed round.
    pub fn drain(&mut self) {
        while self.asked > 0 {
            self.take(true);
        }
    }

    /// Returns the first messages of some episodes of an environment without workers; `None` for others.
    pub fn first_messages(kind: &Kind, settings: &Settings, starts: &[Start]) -> Result<Vec<Vec<Message>>> {
        if kind.has_no_first_messages() {
            return Ok(Vec::new());
        }
        let rows = FirstRows { rows: Arc::default(), is_graded: false };
        let mut host = Host::start(kind, settings, &rows, &Stop::default())?;
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
        self.threads.iter_mut().for_each(|host| host.jobs = None);
        for thread in self.threads.iter_mut().filter_map(|host| host.thread.take()) {
            // A panic there is a bug and has been printed.
            let _ = thread.join();
        }
        if let Some(sweep) = self.sweep.take() {
            // The workers have ended with episodes under way. If this fails, the next run removes their containers.
            let _ = PythonEpisodes::start(&sweep, Stop::default());
        }
    }
}

impl HostThread {
    fn start(
        kind: &Kind,
        settings: &Settings,
        rows: &FirstRows,
        stop: &Stop,
        say: &Sender<Reply>,
    ) -> Result<(HostThread, Receiver<Result<About>>)> {
        let (jobs, inbox) = channel::<(usize, Job)>();
        let (ready, started) = channel();
        let (kind, settings, rows) = (kind.clone(), settings.clone(), rows.clone());
        let (stop, say) = (stop.clone(), say.clone());
        let work = move || {
            // A worker dies with the thread that started it, so it is started here.
            let started =
                Host::start(&kind, &settings, &rows, &stop).and_then(|mut host| Ok((host.about()?, host)));
            let (about, mut host) = match started {
                Ok(started) => started,
                Err(error) => return ready.send(Err(error)).unwrap_or(()),
            };
            let _ = ready.send(Ok(about));
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
    fn start(kind: &Kind, settings: &Settings, rows: &FirstRows, stop: &Stop) -> Result<Host> {
        match kind {
            Kind::Native(row) => {
                Ok(Host::Native { make: (row.open)(settings, stop)?, slots: BTreeMap::new() })
            }
            Kind::Python(of) => {
                let spec = spec_of(of, settings);
                Ok(Host::Python(PythonEpisodes::start(&spec, stop.clone())?, rows.clone()))
            }
            Kind::Agents => unreachable!("agents are served, not hosted"),
        }
    }

    fn about(&mut self) -> Result<About> {
        match self {
            Host::Native { .. } => Ok(About::default()),
            Host::Python(episodes, _) => episodes.about(),
        }
    }

    fn work(&mut self, slot: usize, job: Job) -> Result<Option<Said>> {
        match self {
            Host::Native { make, slots } => {
                let episode = slots.entry(slot).or_insert_with(|| make());
                Ok(Some(match job {
                    Job::Reset(start) => Said { messages: episode.reset(&start), ..Said::default() },
                    Job::TakeUp(start, turns) => {
                        let messages = episode.reset(&start);
                        episode.take_up(turns.len());
                        Said { messages, ..Said::default() }
                    }
                    Job::Step(response, _) => episode.step(&response)?,
                    Job::End => Said::end(0.0),
                }))
            }
            Host::Python(episodes, first) => Ok(match job {
                Job::Reset(start) => Some(reset(episodes, first, slot, start)?),
                Job::TakeUp(start, turns) => {
                    let said = reset(episodes, first, slot, start)?;
                    for (n, had) in turns.into_iter().enumerate() {
                        let Some(again) = step(episodes, slot, &had.response, &had.calls)? else {
                            return Ok(None);
                        };
                        if again.done || (again.messages, again.reward) != (had.said, had.reward) {
                            return Err(differs(n, start));
                        }
                    }
                    Some(said)
                }
                Job::Step(response, calls) => step(episodes, slot, &response, &calls)?,
                Job::End => episodes.end(slot)?.map(Said::end),
            }),
        }
    }
}

fn spec_of(of: &EpisodesOf, settings: &Settings) -> EpisodesSpec {
    EpisodesSpec {
        of: of.clone(),
        tools: settings.tools.clone(),
        servers: settings.servers.clone(),
        has_rows: settings.rows.is_some(),
        tasks: settings.tasks.clone(),
        action: settings.action.clone(),
        observation: settings.observation.clone(),
        reply: settings.reply,
        images: settings.images.clone(),
        python: settings.python.clone(),
        memory: settings.worker_memory,
        network: settings.network,
        step_timeout: settings.step_timeout,
        reset_timeout: settings.reset_timeout,
    }
}

fn messages_of(said: plimsoll_worker::Messages) -> Vec<Message> {
    said.into_iter().map(|(role, content)| Message::new(&role, content)).collect()
}

/// Returns the seed of an episode: 31 bits, as for other environments in Python.
fn seed_of(start: Start) -> u32 {
    start.draw(0)[0] >> 1
}

fn reset(episodes: &mut PythonEpisodes, first: &FirstRows, slot: usize, start: Start) -> Result<Said> {
    let seed = seed_of(start);
    let row = first.rows.of(seed, start.held_out);
    let prompt = row.map_or(&Value::Null, |row| &row.prompt);
    let (arguments, columns) = match row {
        Some(row) if first.is_graded => (None, row.columns.clone()),
        row => (row.map(|row| (&row.columns, row.images.as_deref())), Map::new()),
    };
    let messages = messages_of(episodes.reset(slot, seed, prompt, arguments)?);
    Ok(Said { messages, columns, ..Said::default() })
}

fn step(episodes: &mut PythonEpisodes, slot: usize, response: &str, calls: &[Value]) -> Result<Option<Said>> {
    let turn = episodes.step(slot, response, calls)?;
    Ok(turn.map(|turn| Said {
        messages: messages_of(turn.messages),
        reward: turn.reward,
        done: turn.done,
        is_cut: turn.is_cut,
        images: turn.images,
        ..Said::default()
    }))
}

fn differs(turn: usize, start: Start) -> Error {
    let message = format!("turn {turn} of an episode has another answer when it is played again");
    Error::new(slugs::TEXT_ENVIRONMENT_BAD_REPLY, message)
        .fact(format!("it is episode {}", start.index))
        .hint("let step depend on nothing but the seed of reset and the turns, or set async.partial_rollouts = 0")
}
