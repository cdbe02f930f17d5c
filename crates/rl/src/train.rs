//! The command `train` for language models: opens the run file's inputs, plans, binds memory, and starts the loop.

mod evaluate;
mod rows;
mod run;
mod steps;

use crate::checks::{CheckedFor, Checks};
use crate::context::Cursor;
use crate::data::hub;
use crate::data::session::Session;
use crate::methods::parts::StepParts;
use crate::players;
use crate::ranks;
use crate::roles::Trainer;
use crate::save::checkpoint_size;
use crate::script::{self, Script};
use crate::supply;
use crate::supply::apart::{self, Apart, ApartRanks, share_of_trainers};
use crate::supply::in_flight::WeightArrivals;
use crate::teachers;
use plimsoll_arch::ExpertsSpec;
use plimsoll_base::{Bytes, Result};
use plimsoll_config::{Loaded, RunSpec};
use plimsoll_device::{Device, Sampling};
use plimsoll_infer::bound::Sources;
use plimsoll_infer::sampler::sampling;
use plimsoll_memory::host::{Host, Rss};
use plimsoll_memory::{Arena, Limits};
use plimsoll_plan::{
    Facts, HostFacts, PlanReport, Share, check_lengths, devices, least_optimizer_bytes, plan_with,
};
use plimsoll_ranks::Group;
use plimsoll_run::ending::Summary;
use plimsoll_run::events::Observer;
use plimsoll_run::lead::{Begun, PEAK_SECONDS, lead};
use plimsoll_run::limits::Roofline;
use plimsoll_run::opening::{Opening, Origins, open};
use plimsoll_run::resume::{Fingerprint, Start};
use plimsoll_run::withheld;
use run::LanguageRun;
use std::path::Path;
use std::sync::atomic::AtomicI32;

/// The file of a run directory with what rewards print.
const REWARDS_LOG: &str = "rewards.log";

/// Trains a language model, as a rank of `group`. `signal` holds the number of the signal that
/// came, or 0; on a signal the run saves and ends between two steps. `script`: who makes the steps, if not the method.
///
/// Errors: those of planning, opening and training; those of the script; after an error the last good weights are
/// saved where there are any. Those of `resume::origin` and `resume-differs` for a resumed run.
pub fn train(
    loaded: &Loaded,
    start: Start,
    group: &Group,
    (observer, signal): (&mut dyn Observer, &AtomicI32),
    mut script: Option<Script>,
) -> Result<Summary> {
    let (mut run_file, mut opening) = match open(loaded, start, observer)? {
        Origins::Finished(summary) => return Ok(summary),
        Origins::Open(run_file, opening) => (run_file, opening),
    };
    let mut run = RunSpec::new(&run_file);
    let mut checks = Checks::begin(CheckedFor::Training, &run)?;
    hub::pin(&mut run_file, &hub::localise(&mut run, true)?);
    let mut session = session(&run, &mut opening, observer)?;
    session.facts = among_ranks(&run, group, script.as_ref(), session.facts)?;
    let (apart, schedule) = (Apart::of(&run, group)?, WeightArrivals::of(&run)?);
    let columns = session.first_columns(&run)?;
    let rewards = checks.rewards(&run, &columns)?.expect("they are started before training");
    let estimator = checks.estimator(&run, group.rank(), rewards.words())?;
    let vocab = session.model.spec.vocab as usize;
    let teacher = teachers::open(&run, group.rank(), &session.text, vocab)?;
    let player = players::open(&run, &session.text, session.facts.prompt_tokens)?;
    let inputs = session.inputs(&run)?;
    ranks::check_inputs(group, &inputs, session.models())?;
    let report = fitting_plan(&run, &session, group, &opening.path)?;
    words_of(&report).for_each(|words| opening.say(observer, words));
    script.iter_mut().try_for_each(|script| script.begin(&run, &session.facts, &report))?;
    let run_file = withheld::to_toml(&report.resolved.write_into(&run_file));
    let checkpoint = if group.rank() > 0 { Bytes(0) } else { checkpoint_size(&report.shape) }; // Rank 0's.
    let opened = opening.directory(&run_file, &report.to_json(), checkpoint)?;
    let before = Host::this().rss();
    let device = ranks::open(&report.shape, devices::options(&run), group);
    let (dev, mut arena) = device.inspect_err(|_| opened.dir.discard())?;
    ranks::without_library(&*dev, &run, group).iter().for_each(|words| opening.say(observer, words.clone()));
    let arena_used = arena.map().used_bytes();
    let fingerprint = Fingerprint::new(dev.machine_type(), inputs, &report.resolved);
    let opened = opened.take_up(*opening, &run_file, &report.to_json(), &fingerprint, observer)?;
    let ready = ready(&run, (&*dev, group, apart.as_ref()), &mut arena, &report, &session, before);
    let (trainer, measured) = ready.inspect_err(|_| opened.dir.discard())?;
    opened.dir.write_plan(&measured.to_json())?;
    rewards.words().write_to(&opened.dir.path().join(REWARDS_LOG));
    let begun = Begun {
        run: &run,
        title: title(&run, &report, &*dev),
        run_file,
        plan: &measured.plan,
        fingerprint,
        arena_used,
        peak_flops: dev.peak_flops(PEAK_SECONDS),
        roofline: group.is_alone().then(|| roofline(&report, &*dev)),
        machine: dev.machine_type(),
        card: Box::new(|| dev.card_memory()),
    };
    let mut job = LanguageRun {
        run: &run,
        supply: supply::of(&run, &report.shape, schedule),
        parts: StepParts::bind(&run, &report.shape.step_arrays(), teacher),
        objective: run.objective(),
        session,
        trainer,
        rewards,
        estimator,
        player,
        cursor: Cursor::default(),
        script,
        waited: Vec::new(),
    };
    std::thread::scope(|scope| lead(opened, begun, &mut job, observer, signal, scope))
}

/// Returns what the phases of a run are compared with.
pub fn roofline(report: &PlanReport, dev: &dyn Device) -> Roofline {
    let (shape, rates) = (&report.shape, plimsoll_devices::of(dev.kind()).rates);
    let spec = &shape.spec;
    // A table of embeddings that is no head gives a row for each token. Codes have as many bits as their file says.
    let embedding = if spec.tied { 0 } else { u64::from(spec.vocab) * u64::from(spec.hidden) };
    let has_codes = shape.lora.as_ref().is_some_and(|lora| lora.quantize.is_some());
    let bytes = if has_codes { 0 } else { shape.weights.bytes() };
    let weight_bytes = ((spec.parameters() - embedding) * bytes) as f64;
    let share = |experts: ExpertsSpec| f64::from(experts.chosen) / f64::from(experts.count);
    let share = spec.each_layer().find_map(|layer| layer.experts()).map_or(0.0, share);
    let experts = ((spec.expert_parameters() * bytes) as f64, share);
    // Weights are read forward and backward. Updates of a critic, which has another shape, are in the same count.
    let has_critic = shape.training.as_ref().is_some_and(|training| training.critic.is_some());
    let update_bytes = if has_critic { 0.0 } else { 2.0 * weight_bytes + least_optimizer_bytes(shape) };
    Roofline { bandwidth: rates(dev.threads()).bandwidth, weight_bytes, experts, update_bytes }
}

fn title(run: &RunSpec, report: &PlanReport, dev: &dyn Device) -> String {
    let millions = report.shape.spec.parameters() as f64 / 1e6;
    let (method, model, weights) = (run.method().name(), &run.model, report.shape.weights.name());
    let merge = match report.resolved.merge {
        Some(true) => ", adapters merged (auto)",
        Some(false) => ", adapters alone (auto)",
        None => "",
    };
    format!("{method} on {model}, {millions:.1} M parameters, {weights}{merge}, {}", dev.machine_type())
}

/// Opens the models and the data of a run, which those of its checkpoint must equal.
fn session(run: &RunSpec, opening: &mut Opening, observer: &mut dyn Observer) -> Result<Session> {
    match opening.checkpoint().map(|good| good.folder.clone()) {
        Some(folder) => Session::open_again(run, &folder, &mut |text| opening.say(observer, text)),
        None => Session::open(run),
    }
}

/// Returns what is to be said of a plan before its run begins.
fn words_of(report: &PlanReport) -> impl Iterator<Item = String> {
    let warnings = report.warnings.iter().map(|words| format!("warning: {words}"));
    warnings.chain(report.auto.gave_up.iter().map(|words| format!("to fit: {words}")))
}

/// Adds to the facts of a run which ranks it has, on which hosts, and this one's share; and what comes from its script.
///
/// Errors: `script-unsupported`.
fn among_ranks(run: &RunSpec, group: &Group, script: Option<&Script>, facts: Facts) -> Result<Facts> {
    let (rank, ranks) = (group.rank(), group.ranks());
    let hosts = |ranks| ranks::hosts_of(group, 0..ranks);
    let share = share_of_trainers(run, &hosts(ranks), Share { rank, ranks })?;
    let facts = Facts { hosts: hosts(ranks), share, trainers: hosts(share.ranks), ..facts };
    let script = script::planned(script, run, &facts)?;
    Ok(Facts { host: HostFacts { script, ..facts.host }, ..facts })
}

/// Returns the plan of a run that fits. `path`: its directory.
fn fitting_plan(run: &RunSpec, session: &Session, group: &Group, path: &Path) -> Result<PlanReport> {
    let limits = Limits { disk: rows::disk_limit(group, path)?, ..ranks::limits(group, run, path)? };
    check_lengths(run, &session.facts)?;
    let report = plan_with(run, &session.facts, &limits)?;
    report.refuse()?;
    apart::check(run, &report.shape)?;
    Ok(report)
}

/// Returns the trainer with its weights, after every shape has run once, and the plan with the memory that this took.
/// `before`: this process's memory before the device was opened.
fn ready<'a>(
    run: &RunSpec,
    (dev, group, apart): (&'a dyn Device, &'a Group, Option<&'a Apart>),
    arena: &'a mut Arena,
    report: &'a PlanReport,
    session: &Session,
    before: Rss,
) -> Result<(Trainer<'a>, PlanReport)> {
    let others = session.others.each_ref();
    let sources = Sources { others, ..Sources::one(&session.model).with_images(&session.text) };
    let mut trainer = Trainer::new(dev, arena, &report.shape, sources, run.seed)?;
    trainer.form.clone_from(&session.text.form);
    (trainer.group, trainer.apart) = (group, apart.map(|apart| ApartRanks { all: group, apart }));
    // What ranks have parts of is there on all of them.
    group.barrier()?;
    let how = sampling(&run.rollout, run.seed);
    let at = |temperature: f32| Sampling { temperature, ..how };
    let greedy = run.samples_greedily().then(|| at(0.0));
    let ways: Vec<Sampling> = [how, at(run.eval.temperature as f32)].into_iter().chain(greedy).collect();
    trainer.rehearse(&ways)?;
    let measured = devices::with_measured(report, dev, before, !run.run.checked)?;
    Ok((trainer, measured))
}
