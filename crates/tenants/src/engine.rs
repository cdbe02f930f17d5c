//! The engine: one thread that trains one request at a time and draws responses between its micro-batches, so that
//! neither kind of work waits for the other's end.

use crate::pass::{self, TrainingPasses};
use crate::sampling::Requests;
use crate::slots::TrainedSlots;
use crate::snapshots::Snapshots;
use plimsoll_algo::update::UpdateOptions;
use plimsoll_base::{Error, Result};
use plimsoll_files::OpenModel;
use plimsoll_rollout::Live;
use plimsoll_tinker::{AdamStep, Job, JobAnswer, Lane, SaveKind, TakenJob, Tinker};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// Longest time that an idle engine waits before it checks for a signal.
const LOOK: Duration = Duration::from_millis(50);

/// The work of sampling, which goes on between micro-batches.
pub struct SamplingWork<'w, 'e, 'a, 'p> {
    pub live: Live<'e, 'a, 'p>,
    pub requests: Requests,
    pub snapshots: Snapshots<'w, 'a>,
    pub tinker: &'w Arc<Tinker>,
}

impl SamplingWork<'_, '_, '_, '_> {
    /// Takes requests as long as all have places, and runs one pass. Returns false if there is nothing to run.
    ///
    /// Errors: those of the device.
    fn turn(&mut self) -> Result<bool> {
        while !self.requests.is_full() {
            let Some(taken) = self.tinker.take(Lane::Sampling, Duration::ZERO) else { break };
            self.requests.take(taken);
            self.requests.admit(&mut self.live, &mut self.snapshots)?;
        }
        self.requests.admit(&mut self.live, &mut self.snapshots)?;
        self.requests.pass(&mut self.live, &mut self.snapshots)
    }

    /// Runs passes for about as long as something else took, while there is something to run.
    ///
    /// Errors: those of the device.
    fn turns(&mut self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        while self.turn()? && Instant::now() < until {}
        Ok(())
    }
}

/// The work of training.
pub struct TrainingWork<'w, 'a, 'p> {
    pub slots: TrainedSlots<'w, 'a>,
    pub passes: TrainingPasses<'w, 'p>,
    pub base: &'w OpenModel,
}

/// Does jobs until the service is closed, or `stop` has a signal. What was accepted and not answered by then is done
/// after the next start.
///
/// Errors: those of the device.
pub fn run(
    training: &mut TrainingWork<'_, '_, '_>,
    sampling: &mut SamplingWork<'_, '_, '_, '_>,
    stop: &AtomicI32,
) -> Result<()> {
    let tinker = sampling.tinker.clone();
    while stop.load(Ordering::SeqCst) == 0 && !tinker.is_closed() {
        let ran = sampling.turn()?;
        match tinker.take(Lane::Training, Duration::ZERO) {
            Some(taken) => train(training, sampling, taken)?,
            None if ran => {}
            None => tinker.wait(LOOK),
        }
    }
    tinker.close();
    Ok(())
}

/// Does one job of training.
///
/// Errors: those of the device, which end every job; others are the job's own.
fn train(
    training: &mut TrainingWork<'_, '_, '_>,
    sampling: &mut SamplingWork<'_, '_, '_, '_>,
    taken: TakenJob,
) -> Result<()> {
    let mut broken = None;
    let answer = job(training, sampling, &taken.job, &mut broken);
    match broken {
        // Its request is done again after the next start.
        Some(error) => Err(error),
        None => {
            taken.answer(answer);
            Ok(())
        }
    }
}

fn job(
    training: &mut TrainingWork<'_, '_, '_>,
    sampling: &mut SamplingWork<'_, '_, '_, '_>,
    job: &Job,
    broken: &mut Option<Error>,
) -> Result<JobAnswer> {
    let TrainingWork { slots, passes, base } = training;
    match job {
        Job::Create { model, adapter } => slots.create(model, adapter)?,
        Job::Pass { model, datums, loss, gradients } => {
            let mut began = Instant::now();
            let between = &mut || {
                let ran = sampling.turns(began.elapsed());
                began = Instant::now();
                ran.inspect_err(|error| *broken = Some(error.clone()))
            };
            let request = pass::Request { datums, loss: *loss, gradients: *gradients };
            return pass::run(passes, slots.get(model)?, request, between);
        }
        Job::Step { model, adam } => {
            let norm = slots.get(model)?.step(passes.dev, options(adam))?;
            return Ok(JobAnswer::Step { metrics: vec![("grad_norm:mean".into(), norm)] });
        }
        Job::Save { model, store, kind } => {
            let bytes = sampling.snapshots.stores.save(slots, base, (model, *store, *kind))?;
            if *kind == SaveKind::Sampler {
                let (weights, scale) = slots.weights(model)?;
                sampling.snapshots.take_copy(*store, weights, scale);
            }
            return Ok(JobAnswer::Saved { bytes });
        }
        Job::Load { model, adapter, store, optimizer } => {
            let open = sampling.snapshots.stores.read(base, *store)?;
            if open.files.config.rank != adapter.rank {
                let message = format!(
                    "what was saved has rank {}, and the model {}",
                    open.files.config.rank, adapter.rank
                );
                return Err(Error::new("tinker-bad-request", message));
            }
            let states = open.states().filter(|_| *optimizer);
            slots.load(model, adapter, &open.files, states)?;
        }
        Job::DropModel { model } => _ = slots.drop_model(model),
        Job::DropStore { store } => sampling.snapshots.stores.remove(*store)?,
        Job::Sample(_) => unreachable!("samples have a lane of their own"),
    }
    Ok(JobAnswer::Done)
}

fn options(adam: &AdamStep) -> UpdateOptions {
    UpdateOptions {
        lr: adam.learning_rate as f32,
        betas: (adam.beta1 as f32, adam.beta2 as f32),
        epsilon: adam.eps as f32,
        weight_decay: adam.weight_decay as f32,
        grad_clip: adam.grad_clip_norm as f32,
        seed: 0,
        muon: None,
    }
}
