//! Opens the models of a run: the trained model, its critic and its teacher, all with the actor's tokenizer.

use plimsoll_arch::{
    Compute, LoraShape, LoraTarget, LoraTargets, ModelSpec, PLAN_ONLY, Unfit, nearest_preset, preset_of,
};
use plimsoll_base::{Error, Result};
use plimsoll_config::{Distill, LoraSpec, ModelOptions, RunSpec, SamplerSpec, TowerUse};
use plimsoll_files::{
    ADAPTER_TENSORS_MAX, Adapter, AdapterConfig, Head, OpenModel, adapter_ends, adapter_tensors,
};
use plimsoll_infer::codes::{check_blocks, check_codes};
use plimsoll_infer::models::{open_any_model, open_model, other_tokens, reward_models, trained_with};
use plimsoll_plan::{PerRole, RoleName};
use std::path::Path;

/// Opens the models besides `actor`, the run's own.
pub(crate) fn other_models(run: &RunSpec, actor: &OpenModel) -> Result<PerRole<OpenModel>> {
    let others = opened(run, actor)?;
    check_blocks(run, actor, &others)?;
    Ok(others)
}

fn opened(run: &RunSpec, actor: &OpenModel) -> Result<PerRole<OpenModel>> {
    check_lists(run, actor)?;
    let rewards = reward_models(run, actor)?;
    let teachers =
        teacher_names(run).map(|name| teacher_model(run, name, actor)).collect::<Result<Vec<_>>>()?;
    let critic = critic_model(run, actor)?;
    check_codes_of_teachers(run, &teachers)?;
    let others = PerRole::none().with(RoleName::Critic, critic).with_rewards(rewards.into_iter());
    Ok(others.with_teachers(teachers.into_iter()))
}

/// Returns the names of the teacher's models that are opened.
fn teacher_names(run: &RunSpec) -> impl Iterator<Item = &str> {
    run.distill().into_iter().flat_map(Distill::teacher_models)
}

fn check_codes_of_teachers(run: &RunSpec, teachers: &[OpenModel]) -> Result<()> {
    let how = run.distill().and_then(|distill| distill.quantize);
    teachers.iter().try_for_each(|teacher| check_codes("bad-value", "distill.quantize", how, teacher))
}

/// Opens the models other than `actor` for a plan, as `model_of_plan` opens the run's own. A teacher that does not
/// exist yet, such as a future run's checkpoint, gets the actor's shape. Also returns what was assumed.
///
/// Errors: as `other_models`.
pub(crate) fn other_models_of_plan(
    run: &RunSpec,
    actor: &OpenModel,
) -> Result<(PerRole<OpenModel>, Vec<String>)> {
    let shapes =
        teacher_names(run).map(|name| teacher_of_plan(run, name, actor)).collect::<Result<Vec<_>>>()?;
    if shapes.iter().all(Option::is_none) {
        return Ok((other_models(run, actor)?, Vec::new()));
    }
    check_lists(run, actor)?;
    let (mut teachers, mut assumed) = (Vec::new(), Vec::new());
    for (name, shape) in teacher_names(run).zip(shapes) {
        match shape {
            Some((model, words)) => {
                teachers.push(model);
                assumed.push(words);
            }
            None => teachers.push(teacher_model(run, name, actor)?),
        }
    }
    check_codes_of_teachers(run, &teachers)?;
    let mut rest = run.clone();
    rest.trains.samples_mut().expect("a teacher's student samples").distill = None;
    let others = opened(&rest, actor)?.with_teachers(teachers.into_iter());
    check_blocks(run, actor, &others)?;
    Ok((others, assumed))
}

/// Returns the shape of a teacher whose model is elsewhere, or does not exist yet, with what is assumed of it.
fn teacher_of_plan(run: &RunSpec, name: &str, actor: &OpenModel) -> Result<Option<(OpenModel, String)>> {
    let options = ModelOptions { revision: None, ..run.model_options.clone() };
    if let Some(found) = shape_of_plan(name, &options)? {
        return Ok(Some(found));
    }
    if !is_path(name) || Path::new(name).exists() {
        return Ok(None);
    }
    let mut model = OpenModel::open("random:nano", None, false)?;
    (model.source, model.spec) = (name.to_string(), actor.spec);
    Ok(Some((model, format!("{name} is not there; the teacher has the shape of {}", run.model))))
}

/// Requires that a teacher lists no more tokens than there are.
fn check_lists(run: &RunSpec, actor: &OpenModel) -> Result<()> {
    let (k, vocab) = (run.distill().map_or(0, Distill::listed), actor.spec.vocab);
    if k <= vocab {
        return Ok(());
    }
    let message = format!("distill.top_k = {k}, and the vocabulary has {vocab} tokens");
    Err(Error::usage("bad-value", message).hint(format!("set distill.top_k = {vocab}, the whole vocabulary")))
}

/// True if a model's name is a path: it does not begin with a kind of source.
fn is_path(name: &str) -> bool {
    ["hf:", "pypi:", "builtin:", "random:"].iter().all(|kind| !name.starts_with(kind))
}

/// Opens the trained model. It must predict tokens, unless the run trains a reward model, which may start from another.
pub(crate) fn trained_model(run: &RunSpec, name: &str, options: &ModelOptions) -> Result<OpenModel> {
    let model = if run.trains_scores() { open_any_model(name, options)? } else { open_model(name, options)? };
    check_inputs(&model.spec, name, run.lora.is_some())?;
    check_compute(run, name, &model)?;
    with_adapter(run, model)
}

/// Requires that a run file names what the products of a model are computed with, if it was trained with eight bits.
///
/// Errors: `compute-differs`.
fn check_compute(run: &RunSpec, name: &str, model: &OpenModel) -> Result<()> {
    let of_model = trained_with(model);
    if !run.model_options.compute.is_auto() || of_model == Compute::default() {
        return Ok(());
    }
    let of_model = of_model.name();
    let message = format!(
        "{name} was trained with model_options.compute = \"{of_model}\", which the run file does not name"
    );
    Err(Error::usage("compute-differs", message)
        .hint(format!("to train the same policy on: set model_options.compute = \"{of_model}\""))
        .hint("to train another one from its weights: set model_options.compute = \"full\""))
}

/// Requires adapters where layers have inputs of their own.
///
/// Errors: `model-unsupported`.
pub fn check_inputs(spec: &ModelSpec, name: &str, has_adapters: bool) -> Result<()> {
    if spec.inputs.is_none() || has_adapters {
        return Ok(());
    }
    let message =
        format!("{name} has inputs of each token for its layers, and is trained with adapters alone");
    Err(Error::usage("model-unsupported", message)
        .fact("its table of these inputs is half of its parameters, and its states would be as large")
        .hint("add [lora]: the table stays as it is"))
}

/// Opens the adapter that a run starts from, and requires that `[lora]` describes it.
///
/// Errors: those of opening; `adapter-differs`, `lora-unsupported`, `model-not-gguf`.
fn with_adapter(run: &RunSpec, mut model: OpenModel) -> Result<OpenModel> {
    check_rank(run, &model.spec)?;
    check_balance(run, &model.spec)?;
    check_codes_of_run(run, &model)?;
    let from = run.lora.as_ref().and_then(|lora| lora.adapter.as_deref());
    if let Some(folder) = from {
        if model.adapter.is_some() {
            let message = format!("model = \"{}\" is an adapter, and lora.adapter names another", run.model);
            return Err(Error::usage("adapter-differs", message).hint("remove lora.adapter"));
        }
        let tower = || Ok(model.sight()?.map(|sight| sight.tower));
        let mut adapter = Adapter::open_seeing(folder, &model.spec, tower)?;
        if adapter.config.head == Head::Score && !run.trains_scores() {
            let message =
                format!("{} is the adapter of a reward model, which predicts no tokens", folder.display());
            return Err(Error::usage("adapter-differs", message)
                .hint("remove lora.adapter, or name it in [[reward]] with kind = \"model\""));
        }
        // From now on it is this model's, whatever it was trained on before.
        adapter.config.base = Some(run.model.clone());
        model.adapter = Some(adapter);
        model.eos_token_ids = adapter_ends(folder, &model.eos_token_ids)?;
    }
    let adapts = run.model_options.tower == TowerUse::Adapters;
    let Some(AdapterConfig { rank, alpha, rslora, targets, tower, .. }) =
        model.adapter.as_ref().map(|a| &a.config)
    else {
        return Ok(model);
    };
    let name = from.map_or_else(|| run.model.clone(), |folder| folder.display().to_string());
    let settings = format!(
        "lora.rank = {rank}, lora.alpha = {alpha}, lora.rslora = {rslora}, lora.targets = {}",
        targets.in_toml()
    );
    let Some(lora) = &run.lora else {
        let message =
            format!("{name} is an adapter, and the run file has no [lora]: all weights would be trained");
        return Err(Error::usage("adapter-differs", message)
            .hint(format!("to train it on: set {settings}"))
            .hint(
                "to train all weights: `plimsoll checkpoint export --merge`, and set `model` to the result",
            ));
    };
    if tower.is_some() && !adapts {
        let message = format!("{name} has adapters of the tower, which the run would lose");
        return Err(Error::usage("adapter-differs", message).hint("set model_options.tower = \"adapters\""));
    }
    let own = lora.targets.of_model(&model.spec);
    let same = (lora.rank, lora.alpha, lora.rslora, own) == (*rank, *alpha, *rslora, *targets);
    if same {
        Ok(model)
    } else {
        Err(Error::usage("adapter-differs", format!("{name} is another adapter than [lora] describes"))
            .fact(format!("it has {settings}"))
            .hint("set these keys"))
    }
}

/// Requires that `lora.rank` is at most the smaller dimension of every target: no update of it has a larger rank.
///
/// Errors: `lora-unsupported`.
fn check_rank(run: &RunSpec, spec: &ModelSpec) -> Result<()> {
    let Some(LoraSpec { rank, targets, .. }) = run.lora.as_ref() else { return Ok(()) };
    let targets = &targets.of_model(spec);
    check_targets(*targets, spec)?;
    check_tensors(LoraShape { rank: *rank, targets: *targets }, spec)?;
    let most = |target: &LoraTarget| {
        let (inputs, outputs) = target.narrowest(spec);
        match target {
            // A few numbers of each row: adapters of the others' rank may be wider.
            LoraTarget::DeltaA | LoraTarget::DeltaB | LoraTarget::DeltaBa => inputs,
            _ => inputs.min(outputs),
        }
    };
    let (wide, narrow): (Vec<LoraTarget>, Vec<LoraTarget>) =
        targets.iter().partition(|target| most(target) >= *rank);
    let Some(least) = narrow.iter().map(most).min() else { return Ok(()) };
    let of = |target: &LoraTarget| {
        let (inputs, outputs) = target.narrowest(spec);
        format!("{target} [{outputs}, {inputs}]")
    };
    let narrow: Vec<String> = narrow.iter().map(of).collect();
    let message = format!("lora.rank = {rank} is larger than a dimension of {}", narrow.join(", "));
    let error = Error::usage("lora-unsupported", message).hint(format!("set lora.rank to at most {least}"));
    Err(match LoraTargets::new(wide) {
        None => error,
        Some(wide) => {
            error.hint(format!("or leave the narrow layers out: lora.targets = {}", wide.in_toml()))
        }
    })
}

/// Requires that each target is a tensor of its own in some layer. peft names adapters by the tensors in files, and
/// leaves out in silence a name that no layer has.
///
/// Errors: `lora-unsupported`.
fn check_targets(targets: LoraTargets, spec: &ModelSpec) -> Result<()> {
    let Some(unfit) = targets.unfit(spec) else { return Ok(()) };
    let (Unfit::Fused(which) | Unfit::InNoLayer(which) | Unfit::OtherInPeft(which) | Unfit::Twice(which)) =
        unfit;
    let (names, built) = (which.names().join(", "), LoraTargets::built_for(spec).in_toml());
    let of = format!("{names} of a {} model", spec.family);
    let error = |why: &str| Error::usage("lora-unsupported", format!("{of} are {why}"));
    Err(match unfit {
        Unfit::Fused(_) => error("part of `qkv_proj` and `gate_up_proj`, whose adapters are not built")
            .hint(format!("set lora.targets = {built}, or remove [lora]")),
        Unfit::InNoLayer(_) => error("in none of its layers").hint(format!("set lora.targets = {built}")),
        Unfit::OtherInPeft(_) => error("what peft turns into adapters of all routed experts in one")
            .hint(format!("set lora.targets = {built}")),
        Unfit::Twice(_) => error("also those of all experts in one, which are targets too")
            .hint(format!("remove {names} from lora.targets")),
    })
}

/// Requires that a loss of balance has experts to balance, whose router is trained.
///
/// Errors: `contradictory-keys`.
fn check_balance(run: &RunSpec, spec: &ModelSpec) -> Result<()> {
    let why = match (spec.has_experts(), &run.lora) {
        _ if run.balance_coef() == 0.0 => return Ok(()),
        (false, _) => format!("{} has no experts", run.model),
        (true, Some(_)) => "routers are frozen under [lora]".to_string(),
        (true, None) => return Ok(()),
    };
    let message =
        format!("loss.balance_coef = {} keeps experts equally loaded, and {why}", run.balance_coef());
    Err(Error::usage("contradictory-keys", message).hint("remove loss.balance_coef"))
}

/// Requires that a run can read the states that it saves: each expert has two tensors of each target.
///
/// Errors: `lora-unsupported`.
fn check_tensors(lora: LoraShape, spec: &ModelSpec) -> Result<()> {
    let tensors = adapter_tensors(lora, spec).len();
    if tensors <= ADAPTER_TENSORS_MAX {
        return Ok(());
    }
    let message = format!(
        "adapters of {} have {tensors} tensors in a {} model with experts, and {ADAPTER_TENSORS_MAX} are built",
        lora.targets, spec.family
    );
    Err(Error::usage("lora-unsupported", message)
        .hint("name fewer of gate_proj, up_proj and down_proj in lora.targets"))
}

/// Requires that the frozen weights of a run's model can be stored as `lora.quantize` says.
///
/// Errors: `lora-unsupported`, `model-not-gguf`.
pub fn check_codes_of_run(run: &SamplerSpec, model: &OpenModel) -> Result<()> {
    let how = run.lora.as_ref().and_then(|lora| lora.quantize);
    check_codes("lora-unsupported", "lora.quantize", how, model)
}

/// Opens the trained model for a plan, which needs only its shape: nothing is fetched if the published shape is known.
/// Also returns what was assumed.
///
/// Errors: as `open_model`.
pub(crate) fn model_of_plan(run: &RunSpec) -> Result<(OpenModel, Option<String>)> {
    let (name, options) = (&run.model, &run.model_options);
    match shape_of_plan(name, options)? {
        Some((model, assumed)) => {
            check_rank(run, &model.spec)?;
            check_codes_of_run(run, &model)?;
            Ok((model, Some(assumed)))
        }
        None => {
            let planned_only = name.strip_prefix("random:").and_then(planned_only);
            let of_shape = |error: Error| match nearest_preset(name) {
                Some(preset) => {
                    error.hint(format!("to plan with a published shape: --set model=random:{preset}"))
                }
                None => error,
            };
            Ok((trained_model(run, name, options).map_err(of_shape)?, planned_only))
        }
    }
}

/// Returns the published shape of a model that is not on this machine, with words about it; none if it is, or has none.
fn shape_of_plan(name: &str, options: &ModelOptions) -> Result<Option<(OpenModel, String)>> {
    let is_elsewhere = name.starts_with("hf:") || !Path::new(name).exists();
    let published =
        preset_of(name).map(|(preset, _)| preset).filter(|_| is_elsewhere && !name.starts_with("random:"));
    let Some(preset) = published else { return Ok(None) };
    if OpenModel::open(name, options.revision.as_deref(), false).is_ok() {
        return Ok(None);
    }
    let mut model = OpenModel::open(&format!("random:{preset}"), None, false)?;
    model.source = name.to_string();
    // Its tokenizer is as large as its vocabulary.
    model.tokenizer.bytes = false;
    if let Some(words) = planned_only(preset) {
        return Ok(Some((model, format!("the shape of {name} is the published one; {words}"))));
    }
    let hub = if name.starts_with("hf:") { String::new() } else { format!(" (on the hub it is hf:{name})") };
    Ok(Some((
        model,
        format!("{name} is not on this machine{hub}; its shape is the published one of {preset}"),
    )))
}

/// Returns why a preset is planned only, if it is.
fn not_trained(preset: &str) -> Option<&'static str> {
    PLAN_ONLY.iter().find(|(name, _)| *name == preset).map(|(_, why)| *why)
}

/// Words about a preset that exists only for planning.
fn planned_only(preset: &str) -> Option<String> {
    not_trained(preset).map(|why| format!("{preset} is planned only: {why}"))
}

/// Requires that a model besides the run's own has no adapter: `key` names it in the run file.
///
/// Errors: `role-is-adapter`.
fn check_whole(model: &OpenModel, key: &str) -> Result<()> {
    if model.adapter.is_none() {
        return Ok(());
    }
    let name = &model.source;
    let message = format!("{key} = \"{name}\" is an adapter, and only `model` and reward models may be one");
    Err(Error::new("role-is-adapter", message)
        .hint(format!("`plimsoll checkpoint export {name} --to FOLDER --merge`, and set {key} = \"FOLDER\"")))
}

/// Opens the critic's starting weights, where they are not the actor's own model; it must have the actor's tokenizer.
///
/// Errors: those of opening; `critic-tokenizer-mismatch`, `role-is-adapter`, `lora-unsupported`.
fn critic_model(run: &RunSpec, actor: &OpenModel) -> Result<Option<OpenModel>> {
    let Some(section) = run.critic() else { return Ok(None) };
    if run.critic_is_of_actor() {
        check_inputs(&actor.spec, "critic.model", run.adapts_critic())?;
        return Ok(None);
    }
    check_trainable(&section.model)?;
    // A tokenizer that the run file names belongs to both.
    let options = ModelOptions { revision: None, ..run.model_options.clone() };
    let critic = open_any_model(&section.model, &options)?;
    check_whole(&critic, "critic.model")?;
    check_inputs(&critic.spec, "critic.model", run.adapts_critic())?;
    if run.adapts_critic() {
        let of_critic = |error: Error| error.fact("it is critic.model, with lora.critic = \"adapter\"");
        check_rank(run, &critic.spec).map_err(of_critic)?;
        check_codes_of_run(run, &critic).map_err(of_critic)?;
    }
    match other_tokens(actor, &critic)? {
        None => Ok(Some(critic)),
        Some(what) => {
            let message = format!("critic.model = \"{}\": {what}", section.model);
            Err(Error::new("critic-tokenizer-mismatch", message)
                .fact(format!("the actor is {}", run.model))
                .hint("set critic.model = \"actor\", or to another model of the actor's family"))
        }
    }
}

/// Opens the teacher, which predicts tokens as the actor does; it must have the actor's tokenizer, unless texts are
/// aligned.
///
/// Errors: those of opening; `teacher-tokenizer-mismatch`, `role-is-adapter`.
fn teacher_model(run: &RunSpec, name: &str, actor: &OpenModel) -> Result<OpenModel> {
    check_trainable(name)?;
    let mut options = ModelOptions { revision: None, ..run.model_options.clone() };
    // A tokenizer that the run file names belongs to both where they have the same.
    options.tokenizer = options.tokenizer.filter(|_| !run.aligns_text());
    let teacher = open_model(name, &options).map_err(|error| error.fact("it is distill.teacher"))?;
    check_whole(&teacher, "distill.teacher")?;
    match other_tokens(actor, &teacher)?.filter(|_| !run.aligns_text()) {
        None => Ok(teacher),
        Some(what) => {
            let message = format!("distill.teacher = \"{name}\": {what}");
            Err(Error::new("teacher-tokenizer-mismatch", message)
                .fact(format!("the student is {}", run.model))
                .hint("choose a teacher of the student's family")
                .hint("or set distill.align = \"text\", which compares spans of the same text"))
        }
    }
}

/// Returns the shapes of the models besides the run's own; a critic without a model starts from the actor's body.
pub(crate) fn other_specs(
    run: &RunSpec,
    model: &OpenModel,
    others: &PerRole<OpenModel>,
) -> PerRole<ModelSpec> {
    let specs = others.each_ref().map(|other| other.spec);
    let critic = run.critic().is_some().then(|| specs.get(RoleName::Critic).copied().unwrap_or(model.spec));
    specs.with(RoleName::Critic, critic)
}

/// Refuses presets that exist only for planning.
///
/// Errors: `model-unsupported`.
pub(crate) fn check_trainable(model: &str) -> Result<()> {
    let preset = model.strip_prefix("random:").and_then(|preset| Some((preset, not_trained(preset)?)));
    match preset {
        None => Ok(()),
        Some((preset, why)) => {
            Err(Error::new("model-unsupported", format!("{model}: `{preset}` is a shape for plans only"))
                .fact(why)
                .hint("plan it, or train another preset"))
        }
    }
}
