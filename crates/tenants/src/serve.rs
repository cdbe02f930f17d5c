//! The command `serve --train`: a model planned with the slots of its adapters, and handed to its clients.

use crate::engine::{SamplingWork, TrainingWork, run};
use crate::pass::TrainingPasses;
use crate::sampling::Requests;
use crate::slots::TrainedSlots;
use crate::snapshots::Snapshots;
use crate::store::{Stores, check_folder};
use plimsoll_arch::LoraTargets;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{Auto, LoraSpec, RunSpec, VerbFile};
use plimsoll_device::ADAPTER_SLOTS_MAX;
use plimsoll_files::OpenModel;
use plimsoll_infer::bound::Sources;
use plimsoll_infer::facts::{keep_within_positions, verb_facts};
use plimsoll_infer::runner::{Runner, open, open_verb};
use plimsoll_infer::sampler::sampling;
use plimsoll_infer::side_adapters::check_slots;
use plimsoll_memory::Limits;
use plimsoll_plan::{PlanReport, RunShape, TenantPasses, devices, plan_sampling};
use plimsoll_rollout::ENDS_MAX;
use plimsoll_serve::{Texts, connections};
use plimsoll_tinker::{ServedModel, Tinker, TinkerLimits, TinkerSettings, TokenTenants, router};
use plimsoll_train::Packer;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

/// Tokens of a sequence, of a model that has more positions.
const CONTEXT_USUAL: u32 = 4096;
/// Rows of prompts that a pass has for each sequence.
const PROMPT_ROWS: u32 = 64;
/// Rows of a micro-batch, unless a sequence is longer, on a device that shares its memory with the host and on a card.
const ROWS: [usize; 2] = [2048, 8192];
/// Sequences of a micro-batch.
const SEQUENCES: usize = 256;
/// The folder of stores in that of the server.
const STORES: &str = "stores";
/// The folder of models without a slot.
const PARKED: &str = "parked";
const JOURNAL: &str = "journal";
/// Connections at one time.
const CONNECTIONS: usize = 1024;

/// Holds what the command line decides.
pub struct TenantServing<'s> {
    /// The name of the model for clients.
    pub name: String,
    /// What a client's tokenizer is loaded from, if that is not the name.
    pub tokenizer: Option<String>,
    /// Tokens of prompt and response together; none follows from the model.
    pub context: Option<u32>,
    /// Adapters that are trained at one time, and saved ones that are sampled.
    pub slots: [u32; 2],
    pub rank_max: u32,
    pub tenants: TokenTenants,
    pub limits: TinkerLimits,
    /// Where the journal and all that is saved are.
    pub folder: PathBuf,
    /// Opens the port, once the plan fits.
    pub listen: &'s mut dyn FnMut() -> Result<TcpListener>,
    /// Hears of the plan and the port when the model is ready.
    pub ready: &'s mut dyn FnMut(&PlanReport, &TcpListener) -> Result<()>,
    pub stop: &'s AtomicI32,
}

/// Serves a model and its adapters to clients of Tinker's API until it is asked to stop.
///
/// Errors: those of opening and planning, of the journal, of `listen`, and of the device.
pub fn serve_tenants(verb: &VerbFile, serving: TenantServing<'_>) -> Result<()> {
    check_folder(&serving.folder, JOURNAL, &[STORES, PARKED])?;
    let (model, text) = open_verb(verb)?;
    check_slots(&model)?;
    let run_spec = run_of(verb, &model, &serving)?;
    let prompt_tokens = run_spec.data.prompt_tokens_max.expect("it was filled in") as usize;
    let mut facts = verb_facts(&run_spec, &model, prompt_tokens, 0);
    let context = prompt_tokens + run_spec.rollout.max_new_tokens as usize;
    let row = devices::row_of(&run_spec, &Limits::default());
    let rows = ROWS[usize::from(row.has_own_memory())].max(context.next_power_of_two());
    facts.tenants = Some(TenantPasses { tokens: rows, sequences: SEQUENCES });
    facts.host.clients = Bytes(serving.limits.host_bytes(serving.tenants.count()) as u64);
    facts.host.rows_kept = 0;
    let report = plan_sampling(&run_spec, &facts)?;
    report.refuse()?;
    let listener = (serving.listen)()?;
    let (dev, mut arena) = open(&report.shape, devices::options(&run_spec))?;
    let mut runner = Runner::new(&*dev, &mut arena, &report.shape, Sources::one(&model), verb.seed)?;
    runner.rehearse_live(&[sampling(&verb.rollout, verb.seed)])?;
    let texts = Texts {
        tokenizer: text.tokenizer,
        template: text.template,
        system_prompt: None,
        begins: text.rules.begins,
        eos: model.eos_token_ids.iter().copied().take(ENDS_MAX).collect(),
        vocab: model.spec.vocab,
        images: None,
    };
    std::fs::create_dir_all(&serving.folder)
        .map_err(|err| Error::io("write-failed", &serving.folder, &err))?;
    let served = ServedModel {
        name: serving.name.clone(),
        context,
        vocab: model.spec.vocab,
        tokenizer: serving.tokenizer.clone(),
        rank_max: serving.rank_max,
    };
    let tinker = Tinker::start(TinkerSettings {
        models: vec![served],
        tenants: serving.tenants.clone(),
        limits: serving.limits,
        journal: serving.folder.join(JOURNAL),
        folders: Some(Stores::folders(serving.folder.join(STORES))),
    })?;
    let stores = Stores::open(serving.folder.join(STORES), &tinker.stores())?;
    answer(&tinker, listener.try_clone().map_err(|err| Error::new("io-error", err.to_string()))?)?;
    (serving.ready)(&report, &listener)?;
    let work = Work { model: &model, shape: &report.shape, texts, stores: &stores, tinker: &tinker };
    work.run(&mut runner, serving.folder.join(PARKED), serving.stop)
}

/// What the engine needs besides the model in the arena.
struct Work<'w> {
    model: &'w OpenModel,
    shape: &'w RunShape,
    texts: Texts,
    stores: &'w Stores,
    tinker: &'w Arc<Tinker>,
}

impl Work<'_> {
    fn run(self, runner: &mut Runner<'_>, parked: PathBuf, stop: &AtomicI32) -> Result<()> {
        let Work { model, shape, texts, stores, tinker } = self;
        let (dev, resident, staging) =
            (runner.sampler.dev, runner.sampler.resident, runner.sampler.loading.staging);
        runner.live_and_phase(|mut live, phase, bound| {
            live.keep_prefixes();
            let slots = TrainedSlots::bind(dev, bound, resident, staging, parked)?;
            let mut packer = Packer::new(shape.pass(), SEQUENCES);
            let passes =
                TrainingPasses { dev, phase, shape: &bound.shape, table: slots.table, packer: &mut packer };
            let mut training = TrainingWork { slots, passes, base: model };
            let snapshots = Snapshots::bind((dev, bound), (model, stores), staging);
            let requests = Requests::new(live.limits().samples, texts, tinker.clone());
            let mut sampling = SamplingWork { live, requests, snapshots, tinker };
            run(&mut training, &mut sampling, stop)
        })
    }
}

/// Answers clients on a thread, until the process ends.
///
/// Errors: `thread-not-started`.
fn answer(tinker: &Arc<Tinker>, listener: TcpListener) -> Result<()> {
    let failed =
        |err: std::io::Error| Error::new("thread-not-started", format!("the server's thread: {err}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (runtime, app) = (runtime.map_err(failed)?, router(tinker.clone()));
    let work = move || {
        // A listener that fails ends the answers; the engine hears of signals alone.
        let _ = runtime.block_on(connections::answer(listener, app, CONNECTIONS));
    };
    std::thread::Builder::new().name("tinker".into()).spawn(work).map_err(failed)?;
    Ok(())
}

/// Returns the run that is planned: any part of a sequence may be a prompt, up to its last token.
fn run_of(verb: &VerbFile, model: &OpenModel, serving: &TenantServing<'_>) -> Result<RunSpec> {
    let mut run = RunSpec::sampling(verb);
    run.rollout.schema = None;
    let usual = devices::row_of(&run, &Limits::default()).slots;
    let sequences = run.rollout.sequences_max.value().map_or(usual, |slots| slots.max(1));
    (run.rollout.prompts_per_step, run.rollout.group_size) = (sequences, 1);
    run.rollout.top_p = run.rollout.top_p.min(0.5);
    let positions = model.spec.max_positions;
    let context = serving.context.unwrap_or(CONTEXT_USUAL.min(positions)).max(2);
    let prompt = PROMPT_ROWS.min(context / 2);
    (run.data.prompt_tokens_max, run.rollout.max_new_tokens) = (Some(prompt), context - prompt);
    let [trained, sampled] = serving.slots;
    if (trained + sampled) as usize > ADAPTER_SLOTS_MAX {
        let message =
            format!("{trained} trained and {sampled} sampled adapters, and {ADAPTER_SLOTS_MAX} is the most");
        return Err(Error::usage("adapter-slots-unsupported", message));
    }
    run.lora = Some(LoraSpec {
        rank: serving.rank_max,
        // Each slot has a factor of its own.
        alpha: f64::from(serving.rank_max),
        rslora: false,
        targets: LoraTargets::built_for(&model.spec),
        quantize: None,
        adapter: None,
        of_critic: false,
        merge: Auto::Value(false),
        slots: trained + sampled,
        trained_slots: trained,
    });
    keep_within_positions(&mut run, model, prompt as usize)?;
    Ok(run)
}
