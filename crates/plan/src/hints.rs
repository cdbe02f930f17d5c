//! Changes of a run file that make it fit, each verified by planning again, ordered by lost speed.

use super::{limits::OF_RUN_FILE, planner::Planner, report::Hint};
use crate::duration::duration;
use crate::facts::{DiskFacts, Facts, HostFacts, disk_facts};
use crate::planner::Purpose;
use crate::role_name::RoleName;
use plimsoll_arch::{LoraTargets, Quantization};
use plimsoll_base::{Bytes, Result};
use plimsoll_config::{
    Auto, ByteSize, Frozen, Lora, LoraSpec, ModelDtype, Offload, OptimizerDtype, Recompute as RunRecompute,
    RunSpec, TrainingSpec,
};
use plimsoll_memory::Limit;
use std::borrow::Cow;

struct Change {
    applies: bool,
    set: Cow<'static, str>,
    why: &'static str,
    changes_result: bool,
    apply: fn(&mut RunSpec),
}

fn change(
    applies: bool,
    set: &'static str,
    why: &'static str,
    changes_result: bool,
    apply: fn(&mut RunSpec),
) -> Change {
    Change { applies, set: set.into(), why, changes_result, apply }
}

const STAGING_SMALL: Bytes = Bytes::mib(1);

/// Returns verified changes: first those that keep the result, then the others, each by lost speed; limits last.
pub(crate) fn of(planner: &Planner, run: &RunSpec) -> Result<Vec<Hint>> {
    let base_s = planner.fastest_s(run)?;
    let can_wait = planner.row.has_own_memory();
    let moves = match (planner.facts.share.ranks, can_wait) {
        (1, false) => Vec::new(),
        (1, true) => offloads(run),
        _ => spreads(run),
    };
    let all =
        changes_of(run).into_iter().chain(levels(run, can_wait)).chain(moves).chain([blocks(planner, run)]);
    let changes: Vec<Change> = all.filter(|change| change.applies).collect();
    let adapters: Vec<Change> = adapters(planner, run).into_iter().filter(|change| change.applies).collect();
    let mut hints = Vec::new();
    for change in changes.iter().chain(&adapters) {
        hints.extend(verified(planner, run, base_s, &[change])?);
    }
    if hints.is_empty() {
        let mut adapted = Vec::new();
        for (i, a) in changes.iter().enumerate() {
            for b in &changes[i + 1..] {
                hints.extend(verified(planner, run, base_s, &[a, b])?);
            }
            // Second, because adapters decide the dtypes of gradients and states even if a change sets these.
            for b in &adapters {
                adapted.extend(verified(planner, run, base_s, &[a, b])?);
            }
        }
        for hints in [&mut hints, &mut adapted] {
            sort(hints);
            hints.truncate(1);
        }
        hints.append(&mut adapted);
    }
    hints.extend(fewer_carried(planner, run, base_s)?);
    sort(&mut hints);
    hints.extend(smallest_limits(planner, run)?);
    Ok(hints)
}

fn sort(hints: &mut [Hint]) {
    hints.sort_by(|a, b| {
        let speed = |hint: &Hint| hint.lost_speed.unwrap_or(f64::INFINITY);
        a.changes_result.cmp(&b.changes_result).then(speed(a).total_cmp(&speed(b)))
    });
}

/// Returns the most carried prompts with which the run fits, if that are fewer than it has.
fn fewer_carried(planner: &Planner, run: &RunSpec, base_s: f64) -> Result<Option<Hint>> {
    let now = run.partial_rollouts();
    let with = |carry: u32| {
        let set = format!("async.partial_rollouts={carry}");
        let why = format!("the most prompts under way beyond those of a step that fit, instead of {now}");
        let mut changed = run.clone();
        changed.trains.samples_mut().expect("it carries prompts").asynchrony.partial_rollouts = carry;
        hint(planner, &changed, base_s, (set, why, true), true)
    };
    // A bound on age without carried prompts is refused.
    let mut least = u32::from(run.stale_tokens_max().is_some());
    if now <= least {
        return Ok(None);
    }
    let Some(mut found) = with(least)? else { return Ok(None) };
    let mut most = now - 1;
    while least < most {
        let middle = least + (most - least).div_ceil(2);
        match with(middle)? {
            Some(more) => (least, found) = (middle, more),
            None => most = middle - 1,
        }
    }
    Ok(Some(found))
}

/// Returns the changes as one hint, if the run then fits.
fn verified(planner: &Planner, run: &RunSpec, base_s: f64, changes: &[&Change]) -> Result<Option<Hint>> {
    let mut changed = run.clone();
    for change in changes {
        (change.apply)(&mut changed);
    }
    if let (None, Some(lora)) = (&run.lora, &mut changed.lora) {
        lora.targets = LoraTargets::built_for(&planner.facts.spec);
    }
    let sets: Vec<&str> = changes.iter().map(|change| &*change.set).collect();
    let why = changes.iter().map(|change| change.why).collect::<Vec<_>>().join("; ");
    let changes_result = changes.iter().any(|change| change.changes_result);
    let adapts = changed.lora.is_some() && run.lora.is_none();
    hint(planner, &changed, base_s, (sets.join(" --set "), why, changes_result), adapts)
}

/// Returns the hint of a changed run, if it fits: what sets it, why, and whether it changes the result. `shows_memory`:
/// whether it says how much it takes.
fn hint(
    planner: &Planner,
    changed: &RunSpec,
    base_s: f64,
    (set, mut why, changes_result): (String, String, bool),
    shows_memory: bool,
) -> Result<Option<Hint>> {
    let facts = facts_after(planner.facts, changed);
    // A change of dtypes or adapters decides which products use a library.
    let held = (facts.held(planner.row, changed).0, planner.held.1);
    let solution = Planner { facts: &facts, held, ..*planner }.solve(changed)?;
    if !solution.fits {
        return Ok(None);
    }
    let step_s = solution.chosen.cost.total_s();
    if shows_memory {
        let pool = planner.row.pool;
        why += &format!(": {} of {} memory", solution.plan.peak(pool).peak, pool.name());
    }
    Ok(Some(Hint {
        set: Some(set),
        why: format!("{why}; predicted step {}", duration(step_s)),
        predicted_step_s: Some(step_s),
        lost_speed: Some(step_s / base_s.max(f64::MIN_POSITIVE) - 1.0),
        changes_result,
    }))
}

/// Returns the facts after a change, which decides the staging buffers and the checkpoints that are kept.
fn facts_after(facts: &Facts, changed: &RunSpec) -> Facts {
    let staging = changed.memory.staging.value().map_or(facts.host.staging, |ByteSize(bytes)| bytes);
    // Commands that save nothing have no such row.
    let disk = DiskFacts { keep: facts.host.disk.keep.and(disk_facts(changed).keep), ..facts.host.disk };
    Facts { host: HostFacts { staging: facts.host.staging.min(staging), disk, ..facts.host }, ..*facts }
}

/// Returns the least limits under which the run fits unchanged.
fn smallest_limits(planner: &Planner, run: &RunSpec) -> Result<Vec<Hint>> {
    let (host, device) = planner.smallest(run)?;
    let limits = planner.limits;
    let exceeds = |bytes: Bytes, limit: &Option<Limit>| limit.as_ref().is_some_and(|l| l.bytes < bytes);
    // The limits are those of one rank; the hint names what all ranks of the host need.
    let ranks = planner.facts.hosts.near as u64;
    let pools = [("host", host, &limits.host, ranks), ("device", device, &limits.device, 1)];
    let short = pools.into_iter().filter(|(_, bytes, limit, _)| exceeds(*bytes, limit));
    let hint = |(pool, bytes, limit, sharing): (_, Bytes, &Option<Limit>, u64)| {
        Some(smallest_limit(pool, Bytes(bytes.0 * sharing), limit.as_ref()?))
    };
    Ok(short.filter_map(hint).collect())
}

/// Returns the hint for a limit. One from the run file can be raised there; a container's or a machine's cannot.
fn smallest_limit(pool: &str, bytes: Bytes, limit: &Limit) -> Hint {
    let mib = bytes.0.div_ceil(Bytes::MIB);
    // In the unit of the verdict, rounded up to a value for the run file.
    let least = Bytes::mib(mib);
    let why = format!("the smallest {pool} memory in which this run fits is {least}");
    let (set, why) = if limit.source.ends_with(OF_RUN_FILE) {
        (Some(format!("memory.{pool}={mib}MiB")), why)
    } else {
        (None, format!("{why}; the limit is outside the run file: {}", limit.source))
    };
    Hint { set, why, predicted_step_s: None, lost_speed: None, changes_result: false }
}

/// Returns what a card may offload to host memory.
fn offloads(run: &RunSpec) -> Vec<Change> {
    let has_reference = run.has_reference() && !run.keeps_blocks();
    if run.memory.offload == Auto::Auto {
        return Vec::new();
    }
    let optimizer = run.memory.offloads(Offload::Optimizer);
    let reference = run.memory.offloads(Offload::Reference) || !has_reference;
    let how = |applies, set, why, apply| change(applies, set, why, false, apply);
    vec![
        how(
            !optimizer && (!has_reference || !reference),
            "memory.offload=[\"optimizer\"]",
            "AdamW's states are in page-locked host memory and pass through the card in each update",
            |r| r.memory.offload = Auto::Value(vec![Offload::Optimizer]),
        ),
        how(
            !reference && !optimizer,
            "memory.offload=[\"reference\"]",
            "the reference model is in page-locked host memory and passes through the card layer by layer",
            |r| r.memory.offload = Auto::Value(vec![Offload::Reference]),
        ),
        how(
            has_reference && !(optimizer && reference),
            "memory.offload=[\"optimizer\",\"reference\"]",
            "AdamW's states and the reference model are in page-locked host memory and pass through the card in parts",
            |r| r.memory.offload = Auto::Value(vec![Offload::Optimizer, Offload::Reference]),
        ),
    ]
}

/// Returns what ranks may shard.
fn spreads(run: &RunSpec) -> Vec<Change> {
    let stage_3 = change(
        run.lora.as_ref().is_none_or(|of| of.quantize.is_none() && of.merge != Auto::Value(true))
            && run.run.zero_stage == Auto::Value(2),
        "run.zero_stage=3",
        "each rank keeps its part of the weights, which are gathered for rollouts alone",
        false,
        |r| r.run.zero_stage = Auto::Value(3),
    );
    let reference = change(
        run.moves_reference() && run.memory.offload == Auto::Value(Vec::new()),
        "memory.offload=[\"reference\"]",
        "each rank keeps its part of the reference model, whose layers are read from all of them",
        false,
        |r| r.memory.offload = Auto::Value(vec![Offload::Reference]),
    );
    vec![reference, stage_3]
}

/// Returns the recompute levels that keep less on the device than the run file's. `can_wait`: offloading is possible.
fn levels(run: &RunSpec, can_wait: bool) -> [Change; 3] {
    use RunRecompute::{Cheap, Layer, None, Offload};
    let level = |applies, set, why, apply| change(applies, set, why, false, apply);
    let now = run.trains.training().map_or(Auto::Auto, |training| training.train.recompute);
    [
        level(
            now == Auto::Value(None),
            "train.recompute=cheap",
            "norms and the SwiGLU product are computed again in the backward pass",
            |r| r.train_mut().recompute = Auto::Value(Cheap),
        ),
        level(
            matches!(now, Auto::Value(None | Cheap)),
            "train.recompute=layer",
            "only each layer's input is kept for the backward pass",
            |r| r.train_mut().recompute = Auto::Value(Layer),
        ),
        level(
            matches!(now, Auto::Value(None | Cheap | Layer)) && can_wait,
            "train.recompute=offload",
            "each layer's input waits in host memory for the backward pass",
            |r| r.train_mut().recompute = Auto::Value(Offload),
        ),
    ]
}

/// Returns single changes of a run file that save memory.
fn changes_of(run: &RunSpec) -> Vec<Change> {
    let bf16 = run.model_options.dtype == ModelDtype::Bf16;
    let has_kl = run.objective().is_some_and(|objective| objective.kl.is_some());
    // Gradients and states of adapters are f32.
    let (is_whole, has_reference) = (run.lora.is_none(), run.lora.is_none() && has_kl);
    let how = |applies, set, why, apply| change(applies, set, why, false, apply);
    let what = |applies, set, why, apply| change(applies, set, why, true, apply);
    let trained = |is: fn(&TrainingSpec) -> bool| run.trains.training().is_some_and(is);
    vec![
        how(
            trained(|of| !of.train.micro_batch_tokens.is_auto()),
            "train.micro_batch_tokens=auto",
            "the planner takes the largest micro-batch that fits",
            |r| r.train_mut().micro_batch_tokens = Auto::Auto,
        ),
        how(
            !run.rollout.sequences_max.is_auto() || !run.rollout.kv_blocks.is_auto(),
            "rollout.sequences_max=auto --set rollout.kv_blocks=auto",
            "the planner takes the most sequences that fit",
            |r| {
                r.rollout.sequences_max = Auto::Auto;
                r.rollout.kv_blocks = Auto::Auto;
            },
        ),
        how(
            run.memory.staging.value().is_some_and(|ByteSize(bytes)| bytes > STAGING_SMALL),
            "memory.staging=1MiB",
            "weights are read and written through smaller buffers",
            |r| r.memory.staging = Auto::Value(ByteSize(STAGING_SMALL)),
        ),
        how(
            trained(|of| of.checkpoint.every.is_some() && of.checkpoint.keep > 1),
            "checkpoint.keep=1",
            "of the checkpoints by age only the newest is kept",
            |r| r.training_mut().checkpoint.keep = 1,
        ),
        what(!bf16, "model_options.dtype=bf16", "weights and activations in bf16", |r| {
            r.model_options.dtype = ModelDtype::Bf16
        }),
        what(
            is_whole && trained(|of| of.train.grad_dtype == Auto::Value(ModelDtype::F32)) && bf16,
            "train.grad_dtype=bf16",
            "gradients are summed in bf16",
            |r| r.train_mut().grad_dtype = Auto::Value(ModelDtype::Bf16),
        ),
        what(
            is_whole && trained(|of| of.train.optimizer_dtype == Auto::Value(OptimizerDtype::F32)) && bf16,
            "train.optimizer_dtype=bf16",
            "states in bf16 with stochastic rounding, no f32 master copy: 8 bytes a parameter instead of 18",
            |r| r.train_mut().optimizer_dtype = Auto::Value(OptimizerDtype::Bf16),
        ),
        what(
            is_whole
                && trained(|of| {
                    of.train.optimizer_dtype.value().is_some_and(|dtype| dtype != OptimizerDtype::Int8)
                }),
            "train.optimizer_dtype=int8",
            "states of 8 bits with stochastic rounding, no f32 master copy: 2 bytes a parameter",
            |r| r.train_mut().optimizer_dtype = Auto::Value(OptimizerDtype::Int8),
        ),
        what(has_reference, "loss.kl_coef=0", "no reference model is loaded", |r| {
            r.training_mut().reference = false
        }),
    ]
}

/// Returns the changes that adapters allow: training them, at the default rank, instead of all weights of a policy, and
/// storing frozen weights in 4 bits or as in a GGUF file.
fn adapters(planner: &Planner, run: &RunSpec) -> [Change; 7] {
    let spec = &planner.facts.spec;
    let lora = LoraSpec { targets: LoraTargets::built_for(spec), ..LoraSpec::new(&Lora::default()) };
    let is_narrow = |(inputs, outputs): (u32, u32)| inputs.min(outputs) < lora.rank;
    let has_room = !lora.targets.iter().any(|target| is_narrow(target.narrowest(spec)));
    let sets = run.trains.training().map_or_else(Vec::new, |of| sets_of_adapters(run, of, &lora));
    let is_new = planner.purpose == Purpose::Train && run.lora.is_none() && has_room;
    let has_full_critic = run.lora.is_some() && run.critic().is_some() && !run.adapts_critic();
    let whole_blocks = Quantization::Nf4.takes(spec);
    let is_file = planner.facts.encodings.get(RoleName::Actor).is_some();
    let trains = planner.purpose == Purpose::Train;
    let [in_codes, as_file] = ["lora.quantize=nf4", "lora.quantize=gguf"].map(str::to_string);
    let [coded_sets, file_sets] =
        [&in_codes, &as_file].map(|set| [&sets[..], std::slice::from_ref(set)].concat().join(" --set "));
    let (merges, is_coded) = (
        run.lora.is_some() && run.merge() == Auto::Value(true),
        run.lora.as_ref().is_some_and(|lora| lora.quantize.is_some()),
    );
    let what = |applies, set: String, why, apply| Change {
        applies,
        set: set.into(),
        why,
        changes_result: true,
        apply,
    };
    [
        what(
            is_new,
            sets.join(" --set "),
            "train adapters at ten times the learning rate, and leave the weights as they are",
            |run| adapt(run, None),
        ),
        what(
            is_new && whole_blocks,
            coded_sets,
            "train adapters at ten times the learning rate, and store the weights of linear layers in 4 bits",
            |run| adapt(run, Some(Quantization::Nf4)),
        ),
        what(
            trains && run.lora.is_some() && !merges && !is_coded && whole_blocks,
            in_codes,
            "the frozen weights of linear layers are stored in 4 bits",
            |run| run.lora.iter_mut().for_each(|lora| lora.quantize = Some(Quantization::Nf4)),
        ),
        what(
            is_new && is_file,
            file_sets,
            "train adapters at ten times the learning rate, and keep the weights of linear layers as the GGUF file has them",
            |run| adapt(run, Some(Quantization::Gguf)),
        ),
        Change {
            changes_result: false,
            ..what(
                trains && run.lora.is_some() && !merges && !is_coded && is_file,
                as_file,
                "the frozen weights of linear layers stay as the GGUF file has them",
                |run| run.lora.iter_mut().for_each(|lora| lora.quantize = Some(Quantization::Gguf)),
            )
        },
        what(
            has_full_critic,
            "lora.critic=adapter".into(),
            "the critic trains an adapter and its head, and no other weights",
            |run| run.lora.iter_mut().for_each(|lora| lora.of_critic = true),
        ),
        what(merges, "lora.merge=false".into(), "there is no second copy of the weights", |run| {
            run.lora.iter_mut().for_each(|lora| lora.merge = Auto::Value(false))
        }),
    ]
}

/// Returns the change that leaves the run's own model in the blocks of its file where nothing trains it.
fn blocks(planner: &Planner, run: &RunSpec) -> Change {
    let is_frozen = match planner.purpose {
        Purpose::Train => run.moves_reference(),
        Purpose::Sample => {
            !run.keeps_blocks() && run.lora.as_ref().is_none_or(|lora| lora.quantize.is_none())
        }
    };
    change(
        is_frozen && planner.facts.encodings.get(RoleName::Actor).is_some(),
        "model_options.quantize=gguf",
        "the weights of linear layers that nothing trains stay as the GGUF file has them",
        false,
        keep_blocks,
    )
}

/// Keeps frozen models in the blocks of their files, as commands keep the base of an adapter too.
fn keep_blocks(run: &mut RunSpec) {
    run.model_options.quantize = Auto::Value(Frozen::Gguf);
    if run.trains.training().is_none() {
        run.lora.iter_mut().for_each(|lora| lora.quantize = Some(Quantization::Gguf));
    }
}

/// Returns what `adapt` changes, as keys of the run file.
fn sets_of_adapters(
    run: &RunSpec,
    TrainingSpec { train, .. }: &TrainingSpec,
    lora: &LoraSpec,
) -> Vec<String> {
    let mut sets = vec![
        format!("lora.rank={}", lora.rank),
        format!("train.learning_rate={:e}", ten_times(train.learning_rate)),
    ];
    if lora.targets != LoraTargets::ALL {
        // One shell word, as in other hints with lists.
        sets.push(format!("lora.targets={}", lora.targets.in_toml().replace(' ', "")));
    }
    // What `[lora]` is refused with.
    if train.optimizer_dtype.value().is_some_and(|dtype| dtype != OptimizerDtype::F32) {
        sets.push("train.optimizer_dtype=f32".into());
    }
    if train.grad_dtype == Auto::Value(ModelDtype::Bf16) {
        sets.push("train.grad_dtype=f32".into());
    }
    // Codes are whole on every rank.
    if run.run.zero_stage == Auto::Value(3) {
        sets.push("run.zero_stage=auto".into());
    }
    sets
}

/// Trains adapters of the default rank; `verified` restricts them to the layers that can have them.
fn adapt(run: &mut RunSpec, quantize: Option<Quantization>) {
    run.lora = Some(LoraSpec::new(&Lora { quantize, ..Lora::default() }));
    run.train_mut().optimizer_dtype = Auto::Value(OptimizerDtype::F32);
    run.train_mut().grad_dtype = Auto::Value(ModelDtype::F32);
    run.run.zero_stage = Auto::Auto;
}

/// Returns ten times a rate, with as few digits as people write.
fn ten_times(rate: f64) -> f64 {
    format!("{:.6e}", 10.0 * rate).parse().unwrap_or(rate)
}
