//! Converts a stack's rank, alpha and targets to `[lora]`. Any other kind of adapter is another job.

use super::draft::{Draft, Taken, quoted};
use crate::setting::{Setting, flag, list};
use crate::unbuilt::{self, Unbuilt};
use plimsoll_arch::{LoraTarget, Quantization};

/// A stack's description of an adapter, by the first names of its settings.
pub(crate) struct Lora {
    /// Settings that enable an adapter, and the defaults that then apply.
    pub asked_by: &'static [(&'static str, Silent)],
    pub rank: &'static str,
    pub alpha: &'static str,
    pub dropout: &'static str,
    pub targets: &'static str,
    /// Parameters with all experts of a layer: peft's `target_parameters`.
    pub parameters: Option<&'static str>,
    pub rslora: Option<&'static str>,
    pub bias: Option<&'static str>,
    /// The folder of an adapter to start from.
    pub adapter: Option<&'static str>,
    /// The setting that stores the frozen weights in 4 bits.
    pub four_bits: Option<&'static str>,
    /// True if PPO's critic gets an adapter whenever the actor does.
    pub adapts_critic: bool,
}

pub(crate) struct Silent {
    /// The owner of the defaults.
    pub of: &'static str,
    pub rank: i64,
    pub alpha: f64,
    pub dropout: f64,
    pub targets: &'static str,
}

/// The modules that peft adapts in most families if a file names neither modules nor parameters.
pub(crate) const PEFT_TARGETS: &str = "q_proj, v_proj";

const NO_DROPOUT: &str =
    "0 here: with dropout the policy that is trained is another one than the policy that sampled";

/// Writes `[lora]` if the file enables an adapter; else lists its settings.
pub(crate) fn lora(draft: &mut Draft, lora: &Lora) {
    let is_on = |draft: &mut Draft, name: &'static str| {
        let Some(taken) = draft.take(name) else { return false };
        unbuilt::asks(&Setting::new(name, taken.value.clone(), 0))
    };
    let adapter = lora.adapter.and_then(|name| draft.take_text(name));
    let found = lora.asked_by.iter().find(|(name, _)| is_on(draft, name));
    // A folder to start from enables an adapter by itself.
    let found = found.or(adapter.as_ref().map(|_| &lora.asked_by[0]));
    let Some((asked, silent)) = found else {
        let is_other = draft.not_built().iter().any(|(what, _)| what.is_adapter());
        if let Some(taken) = lora.four_bits.and_then(|name| draft.take(name))
            && flag(&taken.value).unwrap_or(false)
        {
            draft.is_not_built(&taken, Unbuilt::Quantisation);
        }
        let why = if is_other { "the adapter there is not built here" } else { "there is no adapter there" };
        return lora.names().for_each(|name| draft.leave_out(name, why));
    };
    match &adapter {
        Some(adapter) => start(draft, lora, adapter),
        None => size(draft, lora, silent),
    }
    let is_ppo = draft.get("method").is_some_and(|method| method.trim_matches('"') == "ppo");
    let adapts_critic = lora.adapts_critic && is_ppo;
    let is_given = draft.has(lora.targets) || lora.parameters.is_some_and(|name| draft.has(name));
    if adapter.is_none() || is_given {
        targets(draft, lora, silent);
    }
    let of_critic = adapts_critic.then_some("critic.model");
    if ["model"].into_iter().chain(of_critic).any(|key| has_experts(draft, key)) {
        leave_routers(draft, lora.targets, asked);
    }
    dropout(draft, lora.dropout, silent);
    if lora.rslora.is_some_and(|name| draft.is_on(name)) {
        draft.set_toml("lora.rslora", "true", lora.rslora.unwrap_or_default());
    }
    if lora.four_bits.is_some_and(|name| draft.is_on(name)) {
        draft.set_toml("lora.quantize", quoted(Quantization::Nf4.name()), lora.four_bits.unwrap_or_default());
    }
    if adapts_critic {
        draft.set_toml("lora.critic", quoted("adapter"), lora.rank);
    }
    if let Some(taken) = lora.bias.and_then(|name| draft.take_text(name))
        && taken.value != "none"
    {
        draft.is_not_built(&taken, Unbuilt::Adapters);
    }
}

/// Writes rank and alpha, from the file or the stack's defaults.
fn size(draft: &mut Draft, lora: &Lora, silent: &Silent) {
    let default = |name: &str| format!("default of {}: {name}", silent.of);
    let (rank, from) = match draft.take_count(lora.rank) {
        Some((rank, taken)) => (rank, taken.from),
        None => (silent.rank, default(lora.rank)),
    };
    draft.set_toml("lora.rank", rank, &from);
    let (alpha, from) = match draft.take_number(lora.alpha) {
        Some((alpha, taken)) => (alpha, taken.from),
        None => (silent.alpha, default(lora.alpha)),
    };
    draft.set_toml("lora.alpha", format!("{alpha:?}"), &from);
}

/// Writes the adapter to start from. Its own file has rank, alpha and targets, so no default of the stack applies.
fn start(draft: &mut Draft, lora: &Lora, adapter: &Taken) {
    draft.set_text("lora.adapter", &adapter.value, &adapter.from);
    match draft.take_count(lora.rank) {
        Some((rank, taken)) => draft.set_toml("lora.rank", rank, &taken.from),
        None => draft.miss("lora.rank", lora.rank, "`r` of the adapter's adapter_config.json"),
    }
    if let Some((alpha, taken)) = draft.take_number(lora.alpha) {
        draft.set_toml("lora.alpha", format!("{alpha:?}"), &taken.from);
    }
    draft.choose(
        "lora.rank, lora.alpha and lora.targets are those of the adapter's adapter_config.json, which is not read here: any other value is refused",
    );
}

fn targets(draft: &mut Draft, lora: &Lora, silent: &Silent) {
    let parameters = lora.parameters.and_then(|name| draft.take_text(name));
    let is_asked = |taken: &Taken| unbuilt::asks(&Setting::new("", taken.value.clone(), 0));
    let parameters = parameters.filter(is_asked);
    let all = match &parameters {
        None => Vec::new(),
        Some(taken) => match of_all_experts(&taken.value) {
            Some(all) => all,
            None => return draft.is_not_built(taken, Unbuilt::Adapters),
        },
    };
    let name = lora.targets;
    let taken = draft.take_text(name);
    // Without modules, peft adapts the parameters alone.
    let default = if all.is_empty() || silent.targets != PEFT_TARGETS { silent.targets } else { "" };
    let text = taken.as_ref().map_or(default, |taken| &taken.value);
    let mut from =
        taken.as_ref().map_or(format!("default of {}: {name}", silent.of), |taken| taken.from.clone());
    if let Some(parameters) = &parameters {
        let modules = if list(text).is_empty() { String::new() } else { format!("{from}, ") };
        from = modules + &parameters.from;
    }
    match (toml_targets(text, &all), taken) {
        (Some(targets), _) => draft.set_toml("lora.targets", targets, &from),
        (None, Some(taken)) => {
            let what = if are_of_others(&taken.value) { Unbuilt::Targets } else { Unbuilt::Adapters };
            draft.is_not_built(&taken, what);
        }
        (None, None) => unreachable!("a stack's own default has a counterpart"),
    }
}

/// Returns the targets that are all experts of a layer; `None` if a name is another parameter, or one of some layers.
fn of_all_experts(text: &str) -> Option<Vec<LoraTarget>> {
    let target = |name: &String| {
        let mut built = LoraTarget::ALL.into_iter().filter(|target| target.is_of_all_experts());
        built.find(|target| {
            let path = target.module();
            path == name || path.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.'))
        })
    };
    list(text).iter().map(target).collect()
}

/// Returns true if the model of a key has experts by its name.
fn has_experts(draft: &Draft, key: &str) -> bool {
    draft.get(key).is_some_and(|model| unbuilt::has_experts(model.trim_matches('"')))
}

/// Reports adapters of all linear layers: there they include routers, which stay frozen here.
fn leave_routers(draft: &mut Draft, name: &'static str, asked: &'static str) {
    if draft.get("lora.targets").is_some_and(|targets| !list(targets).contains(&"all-linear".to_string())) {
        return;
    }
    if let Some(taken) = draft.take_text(name).or_else(|| draft.take(asked)) {
        draft.is_not_built(&taken, Unbuilt::Routers);
    }
}

/// Returns `lora.targets` as TOML, with those of all experts. `None` if a name is no linear layer here, such as a
/// regular expression or the head.
fn toml_targets(text: &str, all: &[LoraTarget]) -> Option<String> {
    let names = list(text);
    if names == ["all-linear"] && all.is_empty() {
        return Some(quoted("all-linear"));
    }
    let is_known = |name: &String| {
        LoraTarget::ALL.iter().any(|target| {
            let module = target.module();
            module == name || target.name() == name
        })
    };
    let items = names.iter().map(String::as_str).chain(all.iter().map(|target| target.name()));
    let items: Vec<String> = items.map(quoted).collect();
    let is_built = names == ["all-linear"] || names.iter().all(is_known);
    (is_built && !items.is_empty()).then(|| format!("[{}]", items.join(", ")))
}

/// Returns true if some targets are names of layers that no family here has: not a regular expression, the head, the
/// embeddings, or a known layer at one place of the model.
fn are_of_others(text: &str) -> bool {
    const ENDS: [&str; 5] = ["lm_head", "embed_tokens", "score", "wte", "embeddings"];
    let names = list(text);
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_string();
    let is_known = |name: &str| LoraTarget::ALL.iter().any(|target| target.name() == last(name));
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c));
    let is_end = |name: &str| ENDS.contains(&last(name).as_str());
    names.iter().all(|name| is_name(name) && !is_end(name)) && names.iter().any(|name| !is_known(name))
}

fn dropout(draft: &mut Draft, name: &'static str, silent: &Silent) {
    match draft.take_number(name) {
        Some((value, taken)) if value != 0.0 => draft.leave(&taken, NO_DROPOUT),
        Some(_) => {}
        None if silent.dropout != 0.0 => {
            draft.choose(&format!(
                "lora.dropout = {NO_DROPOUT}; the default of {} is {}",
                silent.of, silent.dropout
            ));
        }
        None => {}
    }
}

impl Lora {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        let asked_by = self.asked_by.iter().map(|(name, _)| *name);
        let others = [self.rank, self.alpha, self.dropout, self.targets];
        asked_by
            .chain(others)
            .chain(self.parameters)
            .chain(self.rslora)
            .chain(self.bias)
            .chain(self.adapter)
            .chain(self.four_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_names_or_all_linear() {
        for (text, expect) in [
            ("all-linear", Some("\"all-linear\"")),
            ("[all-linear]", Some("\"all-linear\"")),
            ("q_proj, v_proj", Some("[\"q_proj\", \"v_proj\"]")),
            ("['self_attn.q_proj']", Some("[\"self_attn.q_proj\"]")),
            ("q_proj, lm_head", None),
            (r".*\.q_proj", None),
            ("linear_qkv", None),
            ("", None),
        ] {
            assert_eq!(toml_targets(text, &[]).as_deref(), expect, "{text}");
        }
        let down = &[LoraTarget::ExpertsDown];
        for (text, expect) in [
            ("all-linear", Some("[\"all-linear\", \"experts.down_proj\"]")),
            ("q_proj", Some("[\"q_proj\", \"experts.down_proj\"]")),
            ("[]", Some("[\"experts.down_proj\"]")),
            ("lm_head", None),
        ] {
            assert_eq!(toml_targets(text, down).as_deref(), expect, "{text}");
        }
        let both = Some(vec![LoraTarget::ExpertsGateUp, LoraTarget::ExpertsDown]);
        for (text, expect) in [
            ("mlp.experts.gate_up_proj, mlp.experts.down_proj", both.clone()),
            ("['experts.gate_up_proj', 'down_proj']", both),
            ("7.mlp.experts.gate_up_proj", None),
            ("feed_forward.experts.down_proj", None),
            ("n_proj", None),
            ("mlp.router.weight", None),
        ] {
            assert_eq!(of_all_experts(text), expect, "{text}");
        }
        for (text, expect) in [
            ("q_proj, in_proj, w1", true),
            ("[linear_qkv]", true),
            ("shared_mlp.input_linear", true),
            ("q_proj, lm_head", false),
            (r".*\.in_proj", false),
            ("model.layers.3.self_attn.q_proj", false),
            ("", false),
        ] {
            assert_eq!(are_of_others(text), expect, "{text}");
        }
    }
}
