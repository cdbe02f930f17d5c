//! Starts workers and divides them among threads: all are ready before the first step, and each thread gets a range.

use super::pairing::{Pairing, Taken};
use super::run::{News, Order, Ready, Route, Run, Shape, SupervisorThread};
use super::stepper::PythonStepper;
use super::supervisor::Supervisor;
use super::{PythonEnvs, TICK};
use plimsoll_base::{Error, Result, slugs};
use plimsoll_worker::{Bell, Stop, find_python};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

impl PythonStepper {
    /// Starts the workers and makes all environments, for one thread of the caller.
    ///
    /// Errors: `env-python-missing`, `env-numpy-missing`, `env-gymnasium-missing`, `unknown-environment`,
    /// `env-import-failed`, `env-not-made`, `env-space-unsupported`, `env-spaces-changed`, `env-vector-size`,
    /// `env-shared-memory-full`, `env-ulimit-too-low`, and those that keep a worker from its first step; `interrupted`
    /// once `stop` is set.
    pub fn start(envs: PythonEnvs, stop: &Stop) -> Result<PythonStepper> {
        let workers = envs.num_workers.clamp(1, envs.num_envs.max(1));
        Self::start_some(envs, workers as usize, stop)
    }

    /// Starts steppers for at most `lanes` threads of a collector: each has its own workers, in the order of their
    /// environments. A thread with a single worker may take turns with it on one processor.
    ///
    /// Errors: as `start`.
    pub fn start_lanes(envs: PythonEnvs, lanes: usize, stop: &Stop) -> Result<Vec<PythonStepper>> {
        let workers = envs.num_workers.clamp(1, envs.num_envs.max(1));
        start_on(envs, workers as usize, stop, lanes, true)
    }

    /// Starts only the first `workers`, each with its share of the environments.
    pub(super) fn start_some(envs: PythonEnvs, workers: usize, stop: &Stop) -> Result<PythonStepper> {
        Ok(start_on(envs, workers, stop, 1, false)?.remove(0))
    }
}

/// Makes the steppers of at most `lanes` threads. `pairs`: the threads belong to a collector and may be bound to
/// processors.
fn start_on(
    envs: PythonEnvs,
    workers: usize,
    stop: &Stop,
    lanes: usize,
    pairs: bool,
) -> Result<Vec<PythonStepper>> {
    let (envs, supervisor, news) = start_supervisor(envs, workers)?;
    let (shape, workers, warnings) = wait_for_all(&news, stop)?;
    let lanes = lanes.clamp(1, workers.len());
    let (count, taken) = (workers.len(), Taken::default());
    let run = Arc::new(Run { envs, shape, looping: AtomicUsize::new(0), supervisor });
    let mut workers = workers.into_iter();
    let (mut routes, mut steppers) = (Vec::new(), Vec::new());
    for lane in 0..lanes {
        let [first, last] = [lane, lane + 1].map(|lane| lane * count / lanes);
        let (send, news) = channel();
        let told = Bell::new().map_err(not_started)?;
        routes.push(Route { first_worker: first, news: send, told: told.clone() });
        let pairing = (pairs && lanes == count).then(|| Pairing::new(taken.clone()));
        let ready = workers.by_ref().take(last - first).collect();
        steppers.push(PythonStepper::new(run.clone(), ready, (news, told), pairing));
    }
    run.supervisor.order(Order::Share(routes));
    // Passes on the news that arrived before the supervisor knew the new routes; ends when it drops the old one.
    let early = warnings.into_iter().map(|warning| News::Warning { worker: 0, warning });
    for news in early.chain(news.iter()) {
        let lane = steppers.partition_point(|stepper| stepper.first_worker <= news.worker()) - 1;
        steppers[lane].hear(news)?;
    }
    Ok(steppers)
}

fn start_supervisor(
    envs: PythonEnvs,
    workers: usize,
) -> Result<(Arc<PythonEnvs>, SupervisorThread, Receiver<News>)> {
    envs.check()?;
    let python = find_python(envs.python.as_deref())?;
    let program = match &envs.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().map_err(not_started)?,
    };
    let envs = Arc::new(envs);
    let (orders, taken) = channel();
    let (send, news) = channel();
    let (ordered, told) = (Bell::new().map_err(not_started)?, Bell::new().map_err(not_started)?);
    let route = Route { first_worker: 0, news: send, told };
    let supervisor = Supervisor::new(envs.clone(), python, program, workers, (taken, ordered.clone()), route);
    let thread = std::thread::Builder::new()
        .name("env-supervisor".into())
        .spawn(move || supervisor.run())
        .map_err(not_started)?;
    Ok((envs, SupervisorThread { orders, ordered, thread: Mutex::new(Some(thread)) }, news))
}

/// Waits for all workers; the first failure is returned.
fn wait_for_all(news: &Receiver<News>, stop: &Stop) -> Result<(Arc<Shape>, Vec<Ready>, Vec<Error>)> {
    let (mut workers, mut warnings) = (Vec::<Ready>::new(), Vec::new());
    let shape = loop {
        match news.recv_timeout(TICK) {
            Ok(News::Ready { worker, life, link, shape }) => {
                workers.push((worker, life, link));
                if workers.len() == shape.shares.len() {
                    break shape;
                }
            }
            Ok(News::Lost { error, .. }) => return Err(error),
            Ok(News::Warning { warning, .. }) => warnings.push(warning),
            Err(_) if stop.is_set() => {
                return Err(Error::new(slugs::INTERRUPTED, "the run ended while environments were made"));
            }
            Err(_) => {}
        }
    };
    workers.sort_by_key(|(worker, ..)| *worker);
    Ok((shape, workers, warnings))
}

fn not_started(err: std::io::Error) -> Error {
    Error::new("env-worker-not-started", format!("watching workers: {err}"))
}
