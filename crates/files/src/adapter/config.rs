//! Converts peft's `adapter_config.json` to an `AdapterConfig` and back.

use super::refusal::{damaged, unsupported};
use super::tower::{is_module, module_name};
use crate::Head;
use crate::storage::read_small;
use plimsoll_arch::{
    Compute, LoraShape, LoraTarget, LoraTargets, ModelSpec, Quantization, TowerSpec, tower_adapted,
};
use plimsoll_base::{Result, shown, shown_number};
use serde_json::{Map, Value, json};
use std::path::Path;

/// peft's `task_type` of a language model, and of a reward model.
const PREDICTS: &str = "CAUSAL_LM";
const SCORES: &str = "SEQ_CLS";
/// Heads that peft saves with the adapters of a sequence classifier; decoders have `score`.
const HEADS: [&str; 2] = ["score", "classifier"];
/// The key of `AdapterConfig::compute`.
const COMPUTE: &str = "base_compute";
/// The key of `AdapterConfig::quantize`.
const QUANTIZATION: &str = "base_quantization";
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// The key of targets that are parameters, and no modules by their names.
const PARAMETERS: &str = "target_parameters";
/// Most names in `target_modules`: seven per layer of a large model.
const MODULES_MAX: usize = 1 << 14;

/// The properties of a low-rank adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// Rows of A and columns of B.
    pub rank: u32,
    /// peft's `lora_alpha`.
    pub alpha: f64,
    /// True if the scale is alpha / sqrt(rank).
    pub rslora: bool,
    /// The linear layers that have an adapter.
    pub targets: LoraTargets,
    /// The name or path of the model it was trained on.
    pub base: Option<String>,
    /// The head on the decoder: a reward model's is trained in full and saved with the adapter.
    pub head: Head,
    /// Storage of the base model's weights, if quantized: our key `base_quantization`, which peft and vLLM ignore.
    pub quantize: Option<Quantization>,
    /// What the products below the adapter were computed with: our key `base_compute`.
    pub compute: Compute,
    /// The tower over images that has adapters too.
    pub tower: Option<TowerSpec>,
}

impl AdapterConfig {
    /// Returns the rank with the targets.
    pub const fn shape(&self) -> LoraShape {
        LoraShape { rank: self.rank, targets: self.targets }
    }

    /// Returns the factor of B (A x): alpha / rank, or alpha / sqrt(rank) with `rslora`.
    pub fn scale(&self) -> f64 {
        let rank = f64::from(self.rank);
        self.alpha / if self.rslora { rank.sqrt() } else { rank }
    }
}

/// Returns an `adapter_config.json` for peft and vLLM.
pub fn adapter_config_json(config: &AdapterConfig, model: &ModelSpec) -> Value {
    let is_scored = config.head == Head::Score;
    let (parameters, modules): (Vec<LoraTarget>, Vec<LoraTarget>) =
        config.targets.iter().partition(|target| target.parameter().is_some());
    let mut value = json!({
        "alpha_pattern": {},
        "auto_mapping": null,
        "base_model_name_or_path": config.base,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "layers_pattern": null,
        "layers_to_transform": null,
        "lora_alpha": number(config.alpha),
        "lora_dropout": 0.0,
        "modules_to_save": if is_scored { json!(["score"]) } else { Value::Null },
        "peft_type": "LORA",
        "r": config.rank,
        "rank_pattern": {},
        "revision": null,
        "target_modules": names_of(&modules, config.tower.as_ref()),
        "task_type": if is_scored { SCORES } else { PREDICTS },
        "use_dora": false,
        "use_rslora": config.rslora,
    });
    if !parameters.is_empty() {
        let path = |target: &LoraTarget| match target.parameter() {
            Some(path) if !target.is_of_all_experts() => path.to_string(),
            _ => target.path_in(model, None),
        };
        value[PARAMETERS] = parameters.iter().map(path).collect::<Vec<_>>().into();
    }
    if let Some(how) = config.quantize {
        value[QUANTIZATION] = how.name().into();
    }
    if config.compute != Compute::default() {
        value[COMPUTE] = config.compute.name().into();
    }
    value
}

/// Returns the names of modules that have adapters, as peft compares them with the ends of paths.
fn names_of(modules: &[LoraTarget], tower: Option<&TowerSpec>) -> Vec<String> {
    let mut names: Vec<String> = modules.iter().map(|target| target.name().to_string()).collect();
    for layer in tower.into_iter().flat_map(tower_adapted).flatten() {
        let name = module_name(&layer.name);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Writes a whole number without a fraction: peft declares alpha as an integer.
fn number(value: f64) -> Value {
    let whole = value as i64;
    if whole as f64 == value { whole.into() } else { value.into() }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Modules {
    Names(LoraTargets),
    /// None: all targets are parameters.
    None,
    /// A regular expression or `all-linear`: the tensors show its targets.
    Pattern,
}

/// A configuration whose targets are still unknown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Read {
    pub rank: u32,
    alpha: f64,
    rslora: bool,
    pub modules: Modules,
    /// Targets that are parameters.
    pub parameters: Option<LoraTargets>,
    pub base: Option<String>,
    pub head: Head,
    pub quantize: Option<Quantization>,
    compute: Compute,
}

impl Read {
    /// Returns the parameter of all experts that peft wrapped last: it has the outer name.
    pub fn last_of_all_experts(&self) -> LoraTarget {
        let has_down = self.parameters.is_some_and(|of| of.contains(LoraTarget::ExpertsDown));
        if has_down { LoraTarget::ExpertsDown } else { LoraTarget::ExpertsGateUp }
    }

    /// Requires that the targets are those of the weights.
    ///
    /// Errors: `adapter-damaged`.
    pub fn check_targets(&self, found: LoraTargets, model: &ModelSpec, path: &Path) -> Result<()> {
        let (whole, modules): (Vec<LoraTarget>, Vec<LoraTarget>) =
            found.iter().partition(|target| target.parameter().is_some());
        let differ = |key: &str, said: String, found: Option<LoraTargets>| {
            let found = found.map_or("none".to_string(), |found| found.to_string());
            Err(damaged(format!("{}: {key} are {said}, and the weights have {found}", path.display())))
        };
        let (whole, modules) = (LoraTargets::new(whole), LoraTargets::new(modules));
        match self.modules {
            Modules::Names(said) if said.present_in(model) != modules => {
                return differ("target_modules", said.to_string(), modules);
            }
            Modules::None if modules.is_some() => return differ("target_modules", "none".into(), modules),
            _ => {}
        }
        if self.parameters != whole {
            let said = self.parameters.map_or("none".to_string(), |said| said.to_string());
            return differ(PARAMETERS, said, whole);
        }
        Ok(())
    }

    pub fn with(self, targets: LoraTargets) -> AdapterConfig {
        let Read { rank, alpha, rslora, base, head, quantize, compute, .. } = self;
        AdapterConfig { rank, alpha, rslora, targets, base, head, quantize, compute, tower: None }
    }
}

/// Keys that change the model other than by A and B, unless they are null, false or empty.
const NOT_BUILT: [(&str, &str); 19] = [
    ("use_dora", "DoRA"),
    ("modules_to_save", "modules that were trained in full"),
    ("rank_pattern", "a rank of its own for some of the layers"),
    ("alpha_pattern", "an alpha of its own for some of the layers"),
    ("lora_bias", "a bias in B"),
    ("fan_in_fan_out", "transposed weights"),
    ("layers_to_transform", "an adapter in some of the layers only"),
    ("layers_pattern", "an adapter in some of the layers only"),
    ("layer_replication", "layers that are repeated"),
    ("exclude_modules", "exceptions from the targets"),
    ("trainable_token_indices", "trained tokens of the embedding"),
    ("alora_invocation_tokens", "an adapter that some tokens switch on"),
    ("use_qalora", "QALoRA"),
    ("use_bdlora", "block-diagonal adapters"),
    ("arrow_config", "a choice among several adapters"),
    ("megatron_config", "weights of Megatron"),
    ("kasa_config", "KaSA"),
    ("monteclora_config", "MonteCLoRA"),
    ("velora_config", "VeLoRA"),
];

/// The other keys that peft writes: those that are read, and those that do not affect the computation.
const KNOWN: [&str; 26] = [
    "peft_type",
    "task_type",
    "bias",
    "init_lora_weights",
    "base_model_name_or_path",
    "r",
    "lora_alpha",
    "use_rslora",
    "target_modules",
    PARAMETERS,
    QUANTIZATION,
    COMPUTE,
    "auto_mapping",
    "peft_version",
    "revision",
    "inference_mode",
    "lora_dropout",
    "megatron_core",
    "qalora_group_size",
    "ensure_weight_tying",
    "runtime_config",
    "ephemeral_gpu_offload",
    // Initial A and B; `init_lora_weights` shows whether the base changes with them.
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
];

/// `init_lora_weights` that keep the base model; after others the adapter alone is not enough.
const KEEP_THE_BASE: [&str; 4] = ["gaussian", "orthogonal", "eva", "mica"];

/// Reads the configuration at `path`.
///
/// Errors: `adapter-unsupported`, `adapter-damaged`, and those of a file that cannot be read.
pub(super) fn read(path: &Path) -> Result<Read> {
    let file = path.display().to_string();
    let bytes = read_small(path, CONFIG_BYTES_MAX)?;
    let map: Map<String, Value> =
        serde_json::from_slice(&bytes).map_err(|e| damaged(format!("{file}: {e}")))?;
    let config = Config { map, file };
    config.refuse_what_is_not_built()?;
    let base = config.present("base_model_name_or_path").and_then(Value::as_str);
    Ok(Read {
        rank: config.rank()?,
        alpha: config.alpha()?,
        rslora: config.flag("use_rslora")?,
        modules: config.modules()?,
        parameters: config.parameters()?,
        base: base.filter(|base| !base.is_empty()).map(str::to_string),
        head: config.head(),
        quantize: config.quantize()?,
        compute: config.compute()?,
    })
}

struct Config {
    map: Map<String, Value>,
    file: String,
}

impl Config {
    /// Returns the value of a key that is present and not null.
    fn present(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn refuse_what_is_not_built(&self) -> Result<()> {
        let not_built = |key: &str, value: &Value, what: &str| {
            let value = value.to_string();
            Err(unsupported(format!("{}: {key} = {}: {what}", self.file, shown(&value))))
        };
        match self.present("peft_type") {
            Some(Value::String(kind)) if kind.eq_ignore_ascii_case("lora") => {}
            Some(kind) => return not_built("peft_type", kind, "built is \"LORA\""),
            None => return Err(damaged(format!("{}: `peft_type` is absent", self.file))),
        }
        if let Some(task) = self.present("task_type").filter(|task| *task != PREDICTS && *task != SCORES) {
            return not_built("task_type", task, &format!("built are \"{PREDICTS}\" and \"{SCORES}\""));
        }
        if let Some(bias) = self.present("bias").filter(|bias| *bias != "none") {
            return not_built("bias", bias, "this is a trained bias, which is not built");
        }
        for (key, what) in NOT_BUILT {
            let is_head = |value: &Value| key == "modules_to_save" && self.saves_a_head(value);
            if let Some(value) = self.present(key).filter(|value| !is_off(value) && !is_head(value)) {
                return not_built(key, value, &format!("this is {what}, which is not built"));
            }
        }
        match self.present("init_lora_weights") {
            // peft ignores case here.
            Some(Value::String(how))
                if !KEEP_THE_BASE.iter().any(|keeps| how.eq_ignore_ascii_case(keeps)) =>
            {
                let what = "it begins from a changed base model, which the adapter does not hold";
                return not_built("init_lora_weights", &json!(how), what);
            }
            _ => {}
        }
        let is_known = |key: &str| KNOWN.contains(&key) || NOT_BUILT.iter().any(|(known, _)| *known == key);
        match self.map.iter().find(|(key, value)| !is_known(key) && !is_off(value)) {
            Some((key, value)) => not_built(&shown(key), value, "this setting of an adapter is not known"),
            None => Ok(()),
        }
    }

    fn head(&self) -> Head {
        let is_scored = self.present("task_type").is_some_and(|task| task == SCORES);
        if is_scored { Head::Score } else { Head::Vocabulary }
    }

    /// Returns true for the modules that a reward model has besides its adapters.
    fn saves_a_head(&self, modules: &Value) -> bool {
        let is_head = |name: &Value| name.as_str().is_some_and(|name| HEADS.contains(&name));
        self.head() == Head::Score && modules.as_array().is_some_and(|names| names.iter().all(is_head))
    }

    fn rank(&self) -> Result<u32> {
        let value = self.present("r").ok_or_else(|| damaged(format!("{}: `r` is absent", self.file)))?;
        match value.as_u64() {
            Some(0) | None => Err(self.wrong("r", value, "a whole number above 0")),
            Some(rank) if rank > u64::from(LoraShape::RANK_MAX) => Err(unsupported(format!(
                "{}: r = {rank}, ranks up to {} are built",
                self.file,
                LoraShape::RANK_MAX
            ))),
            Some(rank) => Ok(rank as u32), // at most RANK_MAX
        }
    }

    fn alpha(&self) -> Result<f64> {
        let absent = || damaged(format!("{}: `lora_alpha` is absent", self.file));
        let value = self.present("lora_alpha").ok_or_else(absent)?;
        let number = value.as_f64().filter(|alpha| *alpha > 0.0 && (*alpha as f32).is_finite());
        number.ok_or_else(|| self.wrong("lora_alpha", value, "a finite number above 0"))
    }

    fn quantize(&self) -> Result<Option<Quantization>> {
        let Some(value) = self.present(QUANTIZATION) else { return Ok(None) };
        let found = Quantization::ALL.into_iter().find(|how| *value == how.name());
        found.map(Some).ok_or_else(|| self.wrong(QUANTIZATION, value, "\"nf4\", \"gguf\" or \"mxfp4\""))
    }

    fn compute(&self) -> Result<Compute> {
        let Some(value) = self.present(COMPUTE) else { return Ok(Compute::default()) };
        let found = Compute::ALL.into_iter().find(|compute| *value == compute.name());
        found.ok_or_else(|| self.wrong(COMPUTE, value, "\"full\" or \"fp8\""))
    }

    fn flag(&self, key: &str) -> Result<bool> {
        match self.present(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(self.wrong(key, value, "true or false")),
        }
    }

    /// Reads `target_modules`; names in a list match the end of a path, as in peft.
    fn modules(&self) -> Result<Modules> {
        let key = "target_modules";
        let list = match self.present(key) {
            Some(Value::String(_)) => return Ok(Modules::Pattern),
            Some(Value::Array(list)) if !list.is_empty() && list.len() <= MODULES_MAX => list,
            found if self.has_parameters() && found.is_none_or(is_off) => return Ok(Modules::None),
            Some(value) => return Err(self.wrong(key, value, "a list of names")),
            None => return Err(damaged(format!("{}: `{key}` is absent", self.file))),
        };
        let mut targets = Vec::new();
        for item in list {
            let name = item.as_str().ok_or_else(|| self.wrong(key, item, "a list of names"))?;
            targets.extend(self.targets_of(key, name)?);
        }
        let of_tower = || unsupported(format!("{}: {key} has modules of a tower alone", self.file));
        LoraTargets::new(targets).map(Modules::Names).ok_or_else(of_tower)
    }

    fn has_parameters(&self) -> bool {
        self.present(PARAMETERS).is_some_and(|value| !is_off(value))
    }

    /// Reads `target_parameters`, whose names match as those of modules.
    fn parameters(&self) -> Result<Option<LoraTargets>> {
        let Some(value) = self.present(PARAMETERS).filter(|_| self.has_parameters()) else { return Ok(None) };
        let list = value.as_array().filter(|list| list.len() <= MODULES_MAX);
        let list = list.ok_or_else(|| self.wrong(PARAMETERS, value, "a list of names"))?;
        let mut targets = Vec::new();
        for item in list {
            let name = item.as_str().ok_or_else(|| self.wrong(PARAMETERS, item, "a list of names"))?;
            targets.extend(self.targets_of(PARAMETERS, name)?);
        }
        Ok(LoraTargets::new(targets))
    }

    /// Returns the layers that a name of `key` refers to; the path of one layer counts by its last part.
    fn targets_of(&self, key: &str, name: &str) -> Result<Vec<LoraTarget>> {
        let is_of_key = |target: &LoraTarget| target.parameter().is_some() == (key == PARAMETERS);
        let is_meant = |target: &LoraTarget| {
            let ends = |long: &str, end: &str| long == end || long.ends_with(&format!(".{end}"));
            let path = target.parameter().unwrap_or(target.module());
            // All experts of a layer may be outside of `mlp`.
            let own = if target.is_of_all_experts() { target.name() } else { path };
            ends(path, name) || ends(name, own)
        };
        let built = || LoraTarget::ALL.into_iter().filter(is_of_key);
        let meant: Vec<LoraTarget> = built().filter(is_meant).collect();
        // The tensors show whether those of a tower are there.
        if !meant.is_empty() || is_module(name) {
            return Ok(meant);
        }
        let names = built().map(LoraTarget::name).collect::<Vec<_>>().join(", ");
        Err(unsupported(format!(
            "{}: {key} has \"{}\"; adapters of {names} are built",
            self.file,
            shown(name)
        )))
    }

    fn wrong(&self, key: &str, value: &Value, expected: &str) -> plimsoll_base::Error {
        let value = value.as_f64().map_or_else(|| value.to_string(), shown_number);
        damaged(format!("{}: {key} = {}, expected {expected}", self.file, shown(&value)))
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}
