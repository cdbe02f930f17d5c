//! The command `serve`: a model planned, bound and handed to its clients.
//!
//! Prompts and responses share the plan's context. What is left open follows from the model: its positions, up to a
//! usual length, of which responses may take a half.

use crate::album::Album;
use crate::bound::Sources;
use crate::codes::check_blocks;
use crate::facts::{keep_within_positions, verb_facts};
use crate::models::sample_as_trained;
use crate::runner::{Runner, open, open_verb};
use crate::sampler::sampling;
use crate::served_images::served_images;
use crate::side_adapters::{NamedAdapter, SideAdapters};
use plimsoll_base::{Bytes, Result};
use plimsoll_config::{RunSpec, VerbFile};
use plimsoll_device::Sampling;
use plimsoll_files::OpenModel;
use plimsoll_memory::Limits;
use plimsoll_plan::{PerRole, PlanReport, devices, plan_sampling};
use plimsoll_rollout::Live;
use plimsoll_serve::{ImageHosts, Server, Settings, Texts, host_bytes};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicI32;

/// Tokens of a sequence and of its response, of a model that has more positions.
const CONTEXT_USUAL: u32 = 4096;
const NEW_TOKENS_USUAL: u32 = 1024;
/// Part of the vocabulary is cut off for this way of drawing, which some client may ask for.
const TRUNCATED: f64 = 0.5;

/// Holds what the command line decides.
pub struct Serving<'s> {
    /// Names of the model for clients.
    pub names: Vec<String>,
    /// Adapters of the model that requests may name.
    pub adapters: Vec<NamedAdapter>,
    /// True if the length of responses follows from the model.
    pub is_length_open: bool,
    pub queue: usize,
    /// Images that are held at one time; 0 for a server of text.
    pub images: usize,
    /// Forms that responses may be held to at one time; 0 for a server whose responses are free.
    pub grammars: usize,
    /// The hosts from which images may be fetched.
    pub image_hosts: Arc<ImageHosts>,
    pub grace: std::time::Duration,
    pub guard: plimsoll_serve::guard::Guard,
    /// Opens the port, once the plan fits.
    pub listen: &'s mut dyn FnMut() -> Result<TcpListener>,
    /// Hears of the plan and the port when the model is ready.
    pub ready: &'s mut dyn FnMut(&PlanReport, &TcpListener) -> Result<()>,
    pub stop: &'s AtomicI32,
}

/// Serves a model until it is asked to stop.
///
/// Errors: those of opening and planning, of `listen`, and of the device.
pub fn serve(verb: &VerbFile, serving: Serving<'_>) -> Result<()> {
    let (model, mut text) = open_verb(verb)?;
    let adapters = SideAdapters::open(&serving.adapters, &model)?;
    let run = run_of(verb, &model, &adapters, serving.is_length_open)?;
    let slots = run.rollout.prompts_per_step as usize;
    let prompt_tokens = run.data.prompt_tokens_max.expect("it was filled in") as usize;
    let mut facts = verb_facts(&run, &model, prompt_tokens, 0);
    let new_tokens = run.rollout.max_new_tokens as usize;
    if serving.images > 0 {
        text.album = Some(Arc::new(Album::open(&model, &run.data)?));
    }
    let of = (serving.images, &serving.image_hosts);
    let (images, sight) = text.album.as_ref().map(|album| served_images(album, of, prompt_tokens)).unzip();
    facts.sight = sight;
    let lengths = [prompt_tokens, new_tokens];
    facts.host.clients =
        host_bytes([slots, serving.queue], lengths, &model.spec, images.as_ref(), serving.grammars);
    facts.host.rows_kept = 0;
    let report = plan_sampling(&run, &facts)?;
    report.refuse()?;
    let listener = (serving.listen)()?;
    let (dev, mut arena) = open(&report.shape, devices::options(&run))?;
    let sources = Sources::one(&model).with_images(&text);
    let mut runner = Runner::new(&*dev, &mut arena, &report.shape, sources, verb.seed)?;
    let usual = sampling(&verb.rollout, verb.seed);
    runner.load_slots(&adapters)?;
    let ways = [Sampling { temperature: 0.0, ..usual }, Sampling { top_p: TRUNCATED as f32, ..usual }];
    runner.rehearse_live(&ways)?;
    let texts = Texts {
        tokenizer: text.tokenizer,
        template: text.template,
        system_prompt: text.system_prompt,
        begins: text.rules.begins,
        eos: model.eos_token_ids.clone(),
        vocab: model.spec.vocab,
        images,
    };
    let settings = Settings {
        names: serving.names,
        adapters: adapters.served.clone(),
        sampling: usual,
        stop: verb.rollout.stop.clone(),
        keep_stop: verb.rollout.keep_stop,
        queue: serving.queue,
        grace: serving.grace,
        guard: serving.guard,
        grammars: serving.grammars,
    };
    (serving.ready)(&report, &listener)?;
    let server = Server::start(&report.shape.engine, texts, settings, listener, None)?;
    match sight {
        Some(_) => runner.live_of_images(|live, tower| server.serve(live, Some(tower), serving.stop)),
        None => runner.live(|live| server.serve(live, None, serving.stop)),
    }
}

/// Returns the run that is planned: as many prompts as responses run at one time, each with the longest prompt.
fn run_of(
    verb: &VerbFile,
    model: &OpenModel,
    adapters: &SideAdapters,
    is_length_open: bool,
) -> Result<RunSpec> {
    let mut run = RunSpec::sampling(verb);
    // What a response is held to comes in its request.
    run.rollout.schema = None;
    let usual = devices::row_of(&run, &Limits::default()).slots;
    let slots = run.rollout.sequences_max.value().map_or(usual, |slots| slots.max(1));
    (run.rollout.prompts_per_step, run.rollout.group_size) = (slots, 1);
    run.rollout.top_p = run.rollout.top_p.min(TRUNCATED);
    let positions = model.spec.max_positions;
    if is_length_open {
        run.rollout.max_new_tokens = NEW_TOKENS_USUAL.min(positions / 2).max(1);
    }
    let new_tokens = run.rollout.max_new_tokens;
    let prompt_tokens = run.data.prompt_tokens_max.unwrap_or_else(|| {
        let context = CONTEXT_USUAL.max(new_tokens.saturating_mul(2)).min(positions);
        context.saturating_sub(new_tokens).max(1)
    });
    run.data.prompt_tokens_max = Some(prompt_tokens);
    check_blocks(&run, model, &PerRole::none())?;
    sample_as_trained(&mut run, model);
    run.lora = adapters.lora().or(run.lora.take());
    keep_within_positions(&mut run, model, prompt_tokens as usize)?;
    Ok(run)
}

/// Returns whether prompts that begin alike share keys, and why if they do not.
pub fn prefix_words(report: &PlanReport) -> &'static str {
    if Live::can_keep_prefixes(&report.shape.engine) {
        "prompts that begin alike share keys"
    } else {
        "no keys are shared: the model has layers with windows"
    }
}

/// Returns the bytes that the plan gives to clients, for the command's words.
pub fn clients_bytes(report: &PlanReport) -> Bytes {
    report.plan.layout.sum(|region| region.name == "serve.clients")
}
