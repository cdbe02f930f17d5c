//! Reads unsloth's loader and its adapters.

use crate::import::draft::Draft;
use crate::import::lora::Silent;
use crate::launch::python::{self, Argument, Call, Outline};
use crate::setting::{Setting, flag};

/// Says what a trainer's name begins with if unsloth has written its defaults into the trainer's configuration.
pub(in crate::trl) const START: &str = "unsloth ";

/// The arguments of `FastLanguageModel.get_peft_model` that a file does not give.
pub(in crate::trl) const ADAPTER: Silent = Silent {
    of: "unsloth",
    rank: 16,
    alpha: 16.0,
    dropout: 0.0,
    targets: "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
};

const ATTENTION: &str = "\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\"";
const MLP: &str = "\"gate_proj\", \"up_proj\", \"down_proj\"";

/// Returns true for a file that imports unsloth.
pub(in crate::trl) fn is_used(outline: &Outline<'_>) -> bool {
    outline.names_of_package("unsloth").next().is_some()
}

/// Returns true for a call of one of its classes: `FastLanguageModel.from_pretrained`, `FastModel.get_peft_model`.
pub(in crate::trl) fn is_of_class(call: &Call) -> bool {
    call.name.starts_with("Fast") && call.name.contains("Model.")
}

/// Reads `FastLanguageModel.from_pretrained(NAME, ...)`, whose weights have 4 bits unless it says otherwise.
pub(in crate::trl) fn loaded(outline: &Outline<'_>, call: &Call, line: usize) -> Vec<Setting> {
    let mut given = Vec::new();
    let on = |name: &str| {
        let argument = call.argument(name)?;
        flag(&outline.literal(&argument.value, call.at)?)
    };
    let others = ["load_in_8bit", "load_in_16bit", "load_in_fp8", "full_finetuning"];
    let is_other = others.iter().any(|name| call.argument(name).is_some() && on(name) != Some(false));
    if call.argument("load_in_4bit").is_none() && call.argument("quantization_config").is_none() && !is_other
    {
        given.push(Setting::new("load_in_4bit", "True", line));
    }
    for argument in &call.arguments {
        let Some(name) = argument.name.as_deref() else { continue };
        match name {
            "model_name" | "quantization_config" | "load_in_16bit" | "full_finetuning" => {}
            "use_gradient_checkpointing" => given.extend(checkpointing(outline, argument, call.at)),
            "revision" => given.extend(python::settings(outline, "model_revision", argument, call.at)),
            "token" => given.extend(python::settings(outline, "hub_token", argument, call.at)),
            name => given.extend(python::settings(outline, name, argument, call.at)),
        }
    }
    given
}

/// Reads `FastLanguageModel.get_peft_model(model, r = 16, ...)`.
pub(in crate::trl) fn adapter(outline: &Outline<'_>, call: &Call, line: usize) -> Vec<Setting> {
    let mut given = vec![Setting::new("peft_config.unsloth", "True", line)];
    for argument in &call.arguments {
        let Some(name) = argument.name.as_deref() else { continue };
        match name {
            "use_gradient_checkpointing" => given.extend(checkpointing(outline, argument, call.at)),
            "finetune_attention_modules" | "finetune_mlp_modules" => {}
            name => {
                given.extend(python::settings(outline, &format!("peft_config.{name}"), argument, call.at));
            }
        }
    }
    // Its default, in a model that sees.
    if call.name.starts_with("FastVisionModel") && call.argument("finetune_vision_layers").is_none() {
        given.push(Setting::new("peft_config.finetune_vision_layers", "True", line));
    }
    let is_off = |name: &str| {
        let argument = call.argument(name)?;
        outline.literal(&argument.value, call.at).and_then(|text| flag(&text)).map(|on| !on)
    };
    if call.argument("target_modules").is_none() {
        let parts = [("finetune_attention_modules", ATTENTION), ("finetune_mlp_modules", MLP)];
        let kept: Vec<&str> =
            parts.iter().filter(|(name, _)| is_off(name) != Some(true)).map(|(_, names)| *names).collect();
        if kept.len() < parts.len() {
            given.push(Setting::new("peft_config.target_modules", format!("[{}]", kept.join(", ")), line));
        }
    }
    given
}

/// Reads `use_gradient_checkpointing`, whose value `"unsloth"` is a way to do it.
fn checkpointing(outline: &Outline<'_>, argument: &Argument, at: usize) -> Vec<Setting> {
    let mut given = python::settings(outline, "gradient_checkpointing", argument, at);
    for one in given.iter_mut().filter(|one| one.value == "unsloth") {
        one.value = "True".into();
    }
    given
}

/// Replaces the name of weights in 4 bits by that of the same ones in 16, which an adapter here quantises itself; false
/// if there is nothing to replace.
pub(in crate::trl) fn sixteen_bits(draft: &mut Draft) -> bool {
    let has_adapter =
        ["peft_config.peft_type", "peft_config.unsloth"].iter().any(|name| draft.is_written(name));
    let Some(taken) = draft.take_text("model_name_or_path").filter(|_| has_adapter) else { return false };
    let base = ["-unsloth-bnb-4bit", "-bnb-4bit"].iter().find_map(|end| taken.value.strip_suffix(end));
    let Some(base) = base.filter(|base| base.starts_with("unsloth/")) else { return false };
    draft.set_text("model", &format!("hf:{base}"), &taken.from);
    draft.change(
        &taken,
        "the same weights in 16 bits, by their name at unsloth, which is not looked up: lora.quantize is applied to them here",
    );
    true
}
