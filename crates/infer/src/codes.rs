//! Which models that nothing trains are kept in codes, and what is refused where one cannot be.

use plimsoll_arch::{LoraTarget, Quantization};
use plimsoll_base::{Error, Result};
use plimsoll_config::{Auto, Frozen, RunSpec, SamplerSpec};
use plimsoll_files::OpenModel;
use plimsoll_plan::PerRole;

/// The key that says how frozen models which are GGUF files are stored.
const KEY: &str = "model_options.quantize";

/// Returns how the base of an adapter that nothing trains is stored: as its file says, or as `run` says of files in
/// blocks, whose numbers are the same in full.
pub(crate) fn base_quantize(run: &SamplerSpec, base: &OpenModel) -> Option<Quantization> {
    let stored = base.adapter.as_ref()?.config.quantize;
    match (run.model_options.quantize, stored) {
        (Auto::Value(Frozen::Gguf), None) if base.encodings.is_some() => Some(Quantization::Gguf),
        (Auto::Value(Frozen::Full), Some(Quantization::Gguf)) => None,
        _ => stored,
    }
}

/// Requires that a run which keeps blocks has a frozen model that is a GGUF file, and that each can stay in its blocks.
///
/// Errors: `contradictory-keys`, `model-not-gguf`, `bad-value`.
pub fn check_blocks(run: &RunSpec, model: &OpenModel, others: &PerRole<OpenModel>) -> Result<()> {
    if !run.keeps_blocks() {
        return Ok(());
    }
    let frozen = frozen(run, model, others);
    let Some(first) = frozen.first() else { return Err(nothing_frozen(run, model)) };
    if frozen.iter().all(|model| model.encodings.is_none()) {
        return check_codes("bad-value", KEY, Some(Quantization::Gguf), first);
    }
    let mut files = frozen.iter().filter(|model| model.encodings.is_some());
    files.try_for_each(|model| check_codes("bad-value", KEY, Some(Quantization::Gguf), model))
}

/// Returns the models that nothing trains and whose storage no other key and no file decides.
fn frozen<'m>(run: &RunSpec, model: &'m OpenModel, others: &'m PerRole<OpenModel>) -> Vec<&'m OpenModel> {
    let is_nf4 = |model: &OpenModel| {
        model.adapter.as_ref().is_some_and(|adapter| adapter.config.quantize == Some(Quantization::Nf4))
    };
    let own = match run.trains.training() {
        Some(training) => training.reference && run.lora.is_none(),
        None => !is_nf4(model),
    };
    let has_own_key = run.distill().is_some_and(|distill| distill.quantize.is_some());
    let teachers = others.teachers().map(|(_, model)| model).filter(|_| !has_own_key);
    let rewards = others.rewards().map(|(_, model)| model).filter(|model| !is_nf4(model));
    own.then_some(model).into_iter().chain(teachers).chain(rewards).collect()
}

fn nothing_frozen(run: &RunSpec, model: &OpenModel) -> Error {
    let error = |why: String| Error::usage("contradictory-keys", format!("{KEY} = \"gguf\": {why}"));
    let parameters = model.spec.parameters();
    match (&run.lora, run.trains.training()) {
        (Some(_), Some(_)) => error(format!(
            "the only frozen weights are the {parameters} below the adapters, which lora.quantize is about"
        ))
        .hint(format!("set lora.quantize = \"gguf\" instead, or remove {KEY}")),
        (None, Some(_)) => error(format!(
            "no model of this run is frozen: all {parameters} weights of {} are trained, and products of blocks \
             have no gradients",
            model.source
        ))
        .hint(format!("train adapters, with [lora] and lora.quantize = \"gguf\", or remove {KEY}")),
        (_, None) => error(format!("the adapter {} was trained on a base in 4 bits (nf4)", run.model))
            .hint(format!("remove {KEY}")),
    }
}

/// Returns the words of a hint that offer 4 bits, where `key` takes them.
fn nf4(key: &str) -> String {
    if key == KEY { String::new() } else { format!("set {key} = \"nf4\", or ") }
}

/// Requires that rows are whole blocks of codes, or that the model is a GGUF file, if `key` asks for it.
///
/// Errors: `slug`, `model-not-gguf`.
pub fn check_codes(
    slug: &'static str,
    key: &str,
    how: Option<Quantization>,
    model: &OpenModel,
) -> Result<()> {
    if how == Some(Quantization::Gguf) && model.encodings.is_none() {
        return Err(plimsoll_files::not_gguf(&format!("{key} = \"gguf\""), model).hint(format!(
            "name a .gguf file, {}remove {key}",
            if key == KEY { "or ".into() } else { nf4(key) }
        )));
    }
    let spec = &model.spec;
    if how == Some(Quantization::Mxfp4) && !model.has_mxfp4() {
        let message = format!("{key} = \"mxfp4\": {} has no experts in MXFP4", model.source);
        return Err(Error::usage(slug, message)
            .fact("weights are not rounded to it: they stay in the blocks that the model's file has")
            .hint(format!("{}remove {key}", nf4(key))));
    }
    if how == Some(Quantization::Gguf) && spec.has_states() {
        let message =
            format!("{key} = \"gguf\": files of models with linear attention have columns in another order");
        return Err(Error::usage(slug, message).hint(format!("{}remove {key}", nf4(key))));
    }
    if let Some(encodings) = model.encodings.filter(|_| how == Some(Quantization::Gguf)) {
        let of = |layer| [LoraTarget::Gate, LoraTarget::Up].map(|target| encodings.get(layer, target).name());
        let mut of_experts = (0..spec.layers.len()).filter(|layer| spec.layer(*layer).experts().is_some());
        if let Some(layer) = of_experts.find(|&layer| of(layer)[0] != of(layer)[1]) {
            let [gates, ups] = of(layer);
            let message =
                format!("{key} = \"gguf\": in layer {layer} gates of experts are {gates} and ups {ups}");
            return Err(Error::usage(slug, message)
                .fact("gates and ups of all experts of a layer are one matrix, which is kept in one encoding")
                .hint(format!("{}remove {key}", nf4(key)))
                .hint("or take a file in which they are stored alike"));
        }
    }
    let Some(how) = how.filter(|how| !how.takes(spec)) else { return Ok(()) };
    let block = Quantization::BLOCK;
    let attention = spec.attentions().next().map(|attention| attention.q_width());
    let delta = spec.each_layer().find_map(|layer| layer.delta()).map(|delta| delta.value_width());
    let widths: Vec<String> =
        [spec.hidden].iter().chain(&attention).chain(&delta).map(u32::to_string).collect();
    let message = format!(
        "{key} = \"{how}\": rows of this model have {} and {} weights, which are not all multiples of {block}",
        widths.join(", "),
        spec.ffn_inputs()
    );
    let error = Error::usage(slug, message).fact(format!("{block} neighbours of a row share a scale"));
    let error = match model.encodings {
        Some(_) => error.hint(format!("set {key} = \"gguf\", which keeps the blocks of the file")),
        None => error,
    };
    Err(error.hint(format!("remove {key}")))
}
