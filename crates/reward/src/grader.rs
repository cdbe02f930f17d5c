//! A grader: a thread that owns one scorer and grades the batches that it is sent, in order.
//!
//! A batch is sent as soon as its samples have ended, so grading and rollout overlap. A grader counts failures, retries
//! as often as its reward allows, and returns the outcome.

use crate::case::Case;
use crate::http::pause_before;
use crate::kinds::{self, STACK_BYTES};
use crate::scorer::{Scorer, beginning};
use crate::spec::RewardSpec;
use crate::tally::Tally;
use plimsoll_base::{Error, Result, shown_number, slugs};
use plimsoll_worker::{Columns, Scores, Stop, Words};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

enum Job {
    Check(Columns, Sender<Result<()>>),
    Score { batch: Place, cases: Arc<[Arc<Case>]>, steps: [u32; 2] },
}

/// Says what a batch is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The round in progress, by its index.
    Round(usize),
    /// A response graded ahead of its round, by its ticket.
    Ahead(u64),
}

/// How scorers are started.
#[derive(Clone)]
pub(crate) struct Opening {
    /// The output of functions and programs.
    pub(crate) words: Words,
    /// Longest time from start to ready.
    pub(crate) start_timeout: Duration,
}

/// The outcome of a batch.
pub(crate) struct Graded {
    /// Index of the reward.
    pub(crate) reward: usize,
    pub(crate) batch: Place,
    /// Its scores. A verifier's panic is a bug in Plimsoll and is passed on.
    pub(crate) outcome: std::result::Result<Result<Scores>, Box<dyn Any + Send>>,
    pub(crate) tally: Tally,
    /// Seconds of grading it.
    pub(crate) seconds: f64,
}

/// The handle of a grader. Dropping it ends the thread and its worker.
pub(crate) struct Grader {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// True for a server: a request in flight cannot be cancelled, and leaves nothing to clean up.
    is_remote: bool,
}

/// A grader whose scorer is starting.
pub(crate) struct Starting {
    grader: Grader,
    started: Receiver<Result<bool>>,
}

impl Grader {
    /// Starts the thread, which starts the scorer.
    pub(crate) fn begin(
        reward: usize,
        name: &str,
        spec: &RewardSpec,
        stop: &Stop,
        opening: &Opening,
        done: &Sender<Graded>,
    ) -> Result<Starting> {
        let (jobs, inbox) = channel();
        let (say, started) = channel();
        let (name, spec, done) = (name.to_string(), spec.clone(), done.clone());
        let (stop, opening) = (stop.clone(), opening.clone());
        let work = move || match Worker::start(reward, name, spec, stop, opening) {
            Ok(worker) => {
                let _ = say.send(Ok(worker.is_remote));
                worker.serve(&inbox, &done);
            }
            Err(error) => say.send(Err(error)).unwrap_or(()),
        };
        let builder = std::thread::Builder::new().name("grader".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn(work).map_err(|err| {
            Error::new("thread-not-started", format!("a grader's thread: {err}"))
                .hint("check the limits on processes and threads: ulimit -u, and pids.max of the container")
        })?;
        let grader = Grader { jobs: Some(jobs), thread: Some(thread), is_remote: false };
        Ok(Starting { grader, started })
    }

    /// Checks the data's columns against the reward.
    pub(crate) fn check(&self, columns: &Columns) -> Result<()> {
        let (say, checked) = channel();
        self.send(Job::Check(columns.clone(), say));
        checked.recv().expect("a grader answers each check")
    }

    /// Sends a batch; its outcome arrives on the channel given to `begin`.
    pub(crate) fn score(&self, batch: Place, cases: Arc<[Arc<Case>]>, steps: [u32; 2]) {
        self.send(Job::Score { batch, cases, steps });
    }

    /// Sends a job. The queue needs no bound: a step sends only its batches, whose texts are a row of the plan.
    fn send(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("the queue is there until the grader is dropped");
        jobs.send(job).expect("a grader lives until its queue is dropped");
    }
}

impl Starting {
    /// Waits until the scorer is ready.
    pub(crate) fn ready(mut self) -> Result<Grader> {
        self.grader.is_remote = self.started.recv().expect("a grader says how it started")?;
        Ok(self.grader)
    }
}

impl Drop for Grader {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take().filter(|_| !self.is_remote) {
            // Its panic has been passed on with the outcome.
            let _ = thread.join();
        }
    }
}

struct Worker {
    reward: usize,
    name: String,
    spec: RewardSpec,
    stop: Stop,
    scorer: Box<dyn Scorer>,
    tries: u32,
    is_remote: bool,
}

impl Worker {
    fn start(reward: usize, name: String, spec: RewardSpec, stop: Stop, opening: Opening) -> Result<Worker> {
        let kind = kinds::read(&spec)?;
        let tries = kind.tries(&spec);
        let is_remote = kind.is_remote();
        let Opening { words, start_timeout } = opening;
        let scorer = kind.start_within(start_timeout, &name, &spec, &stop, Some(words))?;
        Ok(Worker { reward, name, spec, stop, scorer, tries, is_remote })
    }

    fn serve(mut self, inbox: &Receiver<Job>, done: &Sender<Graded>) {
        for job in inbox {
            match job {
                Job::Check(columns, say) => say.send(self.scorer.check(&columns)).unwrap_or(()),
                Job::Score { .. } if self.stop.is_set() => {}
                Job::Score { batch, cases, steps } => {
                    let (mut tally, started) = (Tally::default(), Instant::now());
                    let outcome =
                        catch_unwind(AssertUnwindSafe(|| self.grade(batch, &cases, steps, &mut tally)));
                    let (reward, seconds) = (self.reward, started.elapsed().as_secs_f64());
                    // The receiver is gone if the run has ended.
                    let _ = done.send(Graded { reward, batch, outcome, tally, seconds });
                }
            }
        }
    }

    fn grade(
        &mut self,
        batch: Place,
        cases: &[Arc<Case>],
        steps: [u32; 2],
        tally: &mut Tally,
    ) -> Result<Scores> {
        let mut attempt = 1;
        loop {
            let scored = self.scorer.score(cases, steps);
            tally.add(&self.scorer.counted());
            let error = match scored.and_then(|scores| self.finite(batch, cases, scores)) {
                Ok(scores) => return Ok(scores),
                Err(error) => error,
            };
            if self.stop.is_set() {
                return Err(error);
            }
            tally.count(&error);
            if attempt == self.tries {
                return Err(match self.tries {
                    1 => error,
                    tries => error.fact(format!("tried {tries} times")),
                });
            }
            if self.is_remote {
                std::thread::sleep(pause_before(attempt));
            }
            tally.retries += 1;
            attempt += 1;
        }
    }

    fn finite(&self, batch: Place, cases: &[Arc<Case>], scores: Scores) -> Result<Scores> {
        let which = |sample| match batch {
            Place::Round(batch) => format!("sample {sample} of batch {batch}"),
            Place::Ahead(_) => "a response graded ahead of its group".to_string(),
        };
        require_finite(&self.name, self.spec.weight, cases, &scores, &which).map(|()| scores)
    }
}

/// Refuses a score that is NaN, or infinite in the sum; `which` names a sample of the batch.
pub(crate) fn require_finite(
    name: &str,
    weight: f64,
    cases: &[Arc<Case>],
    scores: &Scores,
    which: &dyn Fn(usize) -> String,
) -> Result<()> {
    for (sample, (case, score)) in cases.iter().zip(&scores.scores).enumerate() {
        // A score beyond f32 would become infinite in the sum.
        let is_beyond = |s: &f64| !s.is_finite() || (s * weight).abs() > f64::from(f32::MAX);
        let of_steps = scores.steps.get(sample).into_iter().flatten().map(|step| step.reward);
        let Some(score) = score.iter().copied().chain(of_steps).find(is_beyond) else { continue };
        let message = format!("reward `{name}` gave {} for {}", shown_number(score), which(sample));
        return Err(Error::new(slugs::REWARD_NOT_FINITE, message)
            .fact(format!("the response begins {}", beginning(&case.response, 80)))
            .hint("return a finite number, or None to leave the sample out"));
    }
    Ok(())
}
