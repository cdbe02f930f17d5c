//! What a run trains, by the data of a step: each kind has the settings that only it reads.

use crate::own_advantage::estimator_spec;
use crate::{
    Async, Checkpoint, Critic, Distill, Environment, EvalMetric, Loss, LossType, Objective, OwnTeacher,
    RunFile, Track, Train,
};
use plimsoll_algo::labelled::Kto;
use plimsoll_algo::method::{LearnsFrom, Method, Reference};
use plimsoll_algo::preference::PreferenceLoss;
use plimsoll_reward::EstimatorSpec;

/// What a run trains.
#[derive(Clone, Debug)]
pub enum Trains {
    /// On responses that the policy samples.
    Samples(Box<FromSamples>),
    /// On pairs of a chosen and a rejected answer.
    Pairs(Box<FromPairs>),
    /// On single answers, each desirable or not.
    Labels(Box<FromLabels>),
    /// On completions of the data.
    Completions(Box<TrainingSpec>),
    /// Of a command that samples, and has no step.
    Nothing,
}

/// What all runs have that train.
#[derive(Clone, Debug)]
pub struct TrainingSpec {
    pub method: Method,
    pub train: Train,
    /// True if the weights that the run began with are kept next to the trained ones.
    pub reference: bool,
    /// Coefficient of the loss of balance of the actor's experts.
    pub balance_coef: f64,
    /// What decides which checkpoint is the best; none without an evaluation that measures it.
    pub metric: Option<EvalMetric>,
    pub checkpoint: Checkpoint,
    /// Trackers of experiments.
    pub track: Track,
}

/// A run that trains on what its policy samples.
#[derive(Clone, Debug)]
pub struct FromSamples {
    pub training: TrainingSpec,
    pub objective: Objective,
    /// How old samples may be when they are trained.
    pub asynchrony: Async,
    /// Limit of further rounds in dynamic sampling.
    pub retries: u32,
    /// True if responses that the length limit cut are left out of training.
    pub mask_truncated: bool,
    /// The function that estimates advantages; none for those by name.
    pub estimator: Option<EstimatorSpec>,
    /// The critic; none for methods without one.
    pub critic: Option<Critic>,
    /// The teacher and its weight; none for methods without one.
    pub distill: Option<Distill>,
    /// The environment, if there is one. Its number of workers may be `"auto"`: `Environment::host_settings` settles it
    /// for text environments, a measurement for others.
    pub environment: Option<Environment>,
}

/// A run that trains on pairs.
#[derive(Clone, Debug)]
pub struct FromPairs {
    pub training: TrainingSpec,
    /// The loss of a policy; none of a reward model, whose scores are compared.
    pub preference: Option<PreferenceLoss>,
}

/// A run that trains on answers with labels.
#[derive(Clone, Debug)]
pub struct FromLabels {
    pub training: TrainingSpec,
    pub kto: Kto,
}

impl Trains {
    /// Settles what a checked run file trains.
    pub(super) fn new(run: &RunFile) -> Trains {
        let training = TrainingSpec::new(run);
        match run.method.needs().learns_from {
            LearnsFrom::Samples => Trains::Samples(Box::new(FromSamples::new(run, training))),
            LearnsFrom::Pairs => {
                let preference = preference(run.method, &run.loss);
                Trains::Pairs(Box::new(FromPairs { training, preference }))
            }
            LearnsFrom::Labels => Trains::Labels(Box::new(FromLabels { training, kto: kto(&run.loss) })),
            LearnsFrom::Completions => Trains::Completions(Box::new(training)),
        }
    }

    /// Returns what the run has in common with all that train.
    pub fn training(&self) -> Option<&TrainingSpec> {
        match self {
            Trains::Samples(of) => Some(&of.training),
            Trains::Pairs(of) => Some(&of.training),
            Trains::Labels(of) => Some(&of.training),
            Trains::Completions(training) => Some(training),
            Trains::Nothing => None,
        }
    }

    /// Returns the same to change.
    pub fn training_mut(&mut self) -> Option<&mut TrainingSpec> {
        match self {
            Trains::Samples(of) => Some(&mut of.training),
            Trains::Pairs(of) => Some(&mut of.training),
            Trains::Labels(of) => Some(&mut of.training),
            Trains::Completions(training) => Some(training),
            Trains::Nothing => None,
        }
    }

    /// Returns the settings of a run that trains on samples.
    pub fn samples(&self) -> Option<&FromSamples> {
        match self {
            Trains::Samples(of) => Some(of),
            _ => None,
        }
    }

    /// Returns the same to change.
    pub fn samples_mut(&mut self) -> Option<&mut FromSamples> {
        match self {
            Trains::Samples(of) => Some(of),
            _ => None,
        }
    }
}

impl TrainingSpec {
    fn new(run: &RunFile) -> TrainingSpec {
        let own_teacher = run.distill.as_ref().and_then(Distill::own_teacher);
        TrainingSpec {
            method: run.method,
            train: run.train.clone(),
            reference: match run.method.needs().reference {
                _ if own_teacher == Some(OwnTeacher::Initial) => true,
                Reference::No => false,
                Reference::WithKl => run.loss.kl_coef != 0.0,
                Reference::Yes => true,
            },
            balance_coef: run.loss.balance_coef,
            metric: EvalMetric::of(run),
            checkpoint: run.checkpoint.clone(),
            track: run.track.clone(),
        }
    }
}

impl FromSamples {
    fn new(run: &RunFile, training: TrainingSpec) -> FromSamples {
        let needs = run.method.needs();
        FromSamples {
            training,
            objective: Objective::new(run).expect("a method that samples has an objective"),
            asynchrony: run.asynchrony.clone(),
            retries: run.loss.dynamic_sampling_retries.unwrap_or(0),
            mask_truncated: run.loss.mask_truncated,
            estimator: estimator_spec(run),
            critic: needs.critic.then(|| run.critic.clone().unwrap_or_default()),
            distill: run.distill.clone().filter(|_| needs.teacher),
            environment: run.environment.clone(),
        }
    }
}

fn kto(loss: &Loss) -> Kto {
    Kto { beta: loss.dpo_beta, desirable: loss.desirable_weight, undesirable: loss.undesirable_weight }
}

fn preference(method: Method, loss: &Loss) -> Option<PreferenceLoss> {
    let (beta, label_smoothing) = (loss.dpo_beta, loss.label_smoothing);
    Some(match (method, loss.loss_type) {
        (Method::RewardModel, _) => return None,
        (Method::Simpo, _) => PreferenceLoss::SimPo { beta, gamma: loss.simpo_gamma },
        (Method::Cpo, _) => PreferenceLoss::Cpo { beta, label_smoothing, nll_coef: loss.nll_coef },
        (Method::Orpo, _) => PreferenceLoss::OrPo { beta },
        (_, LossType::Sigmoid) => PreferenceLoss::Dpo { beta, label_smoothing },
        (_, LossType::Ipo) => PreferenceLoss::Ipo { beta },
    })
}
