//! `bench exactness`: the rollout's log-probabilities against the trainer's, bit by bit.

use crate::{Bench, BenchOptions, bench_run, finish, random_prompts_of, threads};
use plimsoll_base::Result;
use plimsoll_config::{Auto, OnFull, Recompute, RunSpec, Speculate, TowerUse};
use plimsoll_infer::bound::Sources;
use plimsoll_infer::drawn::DrawnPrompts;
use plimsoll_infer::models::open_model;
use plimsoll_infer::responder::Responder;
use plimsoll_infer::runner::open;
use plimsoll_infer::sampler::sampling;
use plimsoll_memory::Limits;
use plimsoll_plan::{Facts, RoleName, SightShape, plan_with};
use plimsoll_rl::roles::Trainer;
use plimsoll_rollout::{Drafted, NeverStop, Request, RolloutStats, Samples};
use plimsoll_train::Sequence;
use serde_json::{Value, json};

/// One way to cut the work of `exactness`.
struct Cut {
    threads: usize,
    sequences: u32,
    on_full: OnFull,
    tight_blocks: bool,
    micro_batch: u32,
    recompute: Recompute,
    /// Whether responses are drawn once before, from which drafts are made then.
    drafts: bool,
}

/// Runs `bench exactness`: compares the rollout's log-probabilities with the trainer's, over cuts of every kind.
pub fn exactness(options: &BenchOptions, tokens: usize, perturb: bool) -> Result<Value> {
    let most = threads(options);
    let cut = |threads, sequences, on_full, tight_blocks, micro_batch, recompute| Cut {
        threads,
        sequences,
        on_full,
        tight_blocks,
        micro_batch,
        recompute,
        drafts: false,
    };
    let drafts = |cut| Cut { drafts: true, ..cut };
    let cuts = [
        cut(most, 32, OnFull::WorstCase, false, 2048, Recompute::None),
        cut(1, 32, OnFull::WorstCase, false, 512, Recompute::Cheap),
        cut(most, 7, OnFull::WorstCase, false, 1024, Recompute::Layer),
        cut(most, 16, OnFull::Preempt, true, 256, Recompute::None),
        cut(1, 3, OnFull::Preempt, true, 1024, Recompute::Cheap),
        drafts(cut(most, 32, OnFull::WorstCase, false, 2048, Recompute::None)),
        drafts(cut(most, 5, OnFull::Preempt, true, 512, Recompute::Layer)),
    ];
    let (mut compared, mut mismatches, mut largest, mut preemptions) = (0u64, 0u64, 0.0f64, 0u64);
    let (mut differing_tokens, mut drafted) = (0u64, Drafted::default());
    let mut first_ids: Option<Vec<Vec<u32>>> = None;
    let mut machine = String::new();
    let mut round = 0;
    while compared < tokens as u64 {
        for cut in &cuts {
            let found = compare(options, cut, round, perturb)?;
            compared += found.compared;
            mismatches += found.mismatches;
            largest = largest.max(found.largest);
            preemptions += found.preemptions;
            drafted.add(&found.drafted);
            machine = found.machine;
            // Every cut of a round draws the same tokens.
            let first = first_ids.get_or_insert_with(|| found.ids.clone());
            differing_tokens += first.iter().zip(&found.ids).filter(|(a, b)| a != b).count() as u64;
        }
        first_ids = None;
        round += 1;
    }
    let result = json!({
        "bench": "exactness", "model": options.model, "tokens": compared, "mismatches": mismatches,
        "max_abs_diff": largest, "preemptions": preemptions, "responses_that_differ_between_cuts": differing_tokens,
        "drafts": drafted.drafts, "drafts_accepted": drafted.accepted, "cuts": cuts.len(), "rounds": round, "perturbed": perturb, "images": options.images, "dtype": options.dtype.name(),
        "lora_rank": options.lora.as_ref().map(|lora| lora.rank),
        "lora_merge": options.lora.as_ref().map(|lora| lora.merge == Auto::Value(true)),
        "lora_quantize": options.lora.as_ref().and_then(|lora| lora.quantize),
    });
    Ok(finish(result, &machine, most))
}

struct Found {
    machine: String,
    compared: u64,
    mismatches: u64,
    largest: f64,
    preemptions: u64,
    drafted: Drafted,
    ids: Vec<Vec<u32>>,
}

/// Returns random prompts, with drawn images in them where the options say so.
fn prompts_of(
    options: &BenchOptions,
    run: &RunSpec,
    round: u64,
    count: usize,
) -> Result<(Vec<Vec<u32>>, Option<DrawnPrompts>)> {
    let prompts: Vec<Vec<u32>> = random_prompts_of(options, round, count)?;
    if !options.images {
        return Ok((prompts, None));
    }
    let model = open_model(&options.model, &run.model_options)?;
    let drawn = DrawnPrompts::of(&model, round, prompts)?;
    Ok((drawn.prompts.clone(), Some(drawn)))
}

/// Returns responses of one cut, and the trainer's log-probabilities of them.
fn compare(options: &BenchOptions, cut: &Cut, round: u64, perturb: bool) -> Result<Found> {
    const GROUPS: usize = 8;
    const GROUP: usize = 4;
    const NEW: usize = 48;
    let options = BenchOptions { threads: cut.threads, ..options.clone() };
    let mut run = bench_run(&options, GROUPS, GROUP, NEW);
    run.rollout.sequences_max = Auto::Value(cut.sequences);
    run.rollout.on_full = cut.on_full;
    run.rollout.speculate = if cut.drafts { Speculate::Auto } else { Speculate::Off };
    run.train_mut().micro_batch_tokens = Auto::Value(cut.micro_batch);
    run.train_mut().recompute = Auto::Value(cut.recompute);
    let (prompts, drawn) = prompts_of(&options, &run, round, GROUPS)?;
    let album = drawn.as_ref().map(|drawn| &drawn.album);
    // Adapters are then of the tower too.
    let adapts = album.is_some() && run.lora.is_some();
    run.model_options.tower = if adapts { TowerUse::Adapters } else { TowerUse::Frozen };
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(1);
    if cut.tight_blocks {
        // Room for two of the longest sequences: the others preempt each other.
        let one = (longest + NEW).div_ceil(plimsoll_device::KV_BLOCK) + 1;
        run.rollout.kv_blocks = Auto::Value(2 * one as u32);
    }
    let bench = Bench::open_with(&options, &mut run, longest, |run, facts| {
        let sight = album.map(|album| SightShape { trains: adapts, ..album.shape(GROUPS) });
        let facts = Facts { sight, ..*facts };
        plan_with(run, &facts, &Limits::default())
    })?;
    let (dev, mut arena) = open(&bench.report.shape, options.opening())?;
    let sources = Sources { album, ..Sources::one(&bench.model) };
    let mut trainer = Trainer::new(&*dev, &mut arena, &bench.report.shape, sources, 0)?;
    trainer.randomise_adapters(1)?;
    // As in a run: what a card records now is what it replays.
    trainer.rehearse(&[sampling(&run.rollout, round)])?;
    let refs: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let request = Request {
        prompts: &refs,
        group_size: GROUP,
        max_new_tokens: NEW,
        sampling: sampling(&run.rollout, round),
        eos: &bench.model.eos_token_ids,
        first_sample_id: 0,
        numbers: &[],
    };
    if cut.drafts {
        trainer.rollout(&request, &mut NeverStop)?;
    }
    let stats = trainer.rollout(&request, &mut NeverStop)?;
    dev.perturb_norms(perturb);
    let samples = std::sync::Arc::clone(&trainer.sampler.samples);
    let sequences: Vec<Sequence<'_>> = (0..samples.len())
        .map(|s| Sequence { group: s / GROUP, prompt: &prompts[s / GROUP], response: samples.ids(s) })
        .collect();
    trainer.arrays.begin((0..samples.len()).map(|s| samples.ids(s).len()));
    trainer.gradients(RoleName::Actor, &sequences, 0..sequences.len(), 1.0, &mut |_, _| Ok(()))?;
    Ok(found_of(&trainer, &samples, dev.machine_type(), &stats))
}

/// Compares the log-probabilities of the last rollout with those of the last update.
fn found_of(trainer: &Trainer<'_>, samples: &Samples, machine: String, stats: &RolloutStats) -> Found {
    let mut found = Found {
        machine,
        compared: 0,
        mismatches: 0,
        largest: 0.0,
        preemptions: stats.preemptions,
        drafted: stats.drafted,
        ids: Vec::new(),
    };
    for s in 0..samples.len() {
        let tokens = trainer.arrays.offsets[s]..trainer.arrays.offsets[s + 1];
        for (a, b) in samples.logprobs(s).iter().zip(&trainer.arrays.logprobs[tokens]) {
            found.compared += 1;
            found.mismatches += u64::from(a.to_bits() != b.to_bits());
            found.largest = found.largest.max(f64::from((a - b).abs()));
        }
        found.ids.push(samples.ids(s).to_vec());
    }
    found
}
