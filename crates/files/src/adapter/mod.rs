//! Reads, checks and writes low-rank adapters in peft's files: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! An adapter of a reward model also holds its whole head, as peft saves one for sequence classification. Opening reads
//! headers only; values pass through the caller's buffer. The tensors decide which layers have an adapter, and the
//! configuration must agree. Changes other than y = W x + scale B (A x) are refused by name.

mod config;
mod names;
mod refusal;
mod tower;

use crate::Head;
use crate::source::{ADAPTER_CONFIG, is_repo, of_run};
use crate::storage::Storage;
use crate::tensor_file::TensorFile;
use crate::tensors::TensorInfo;
use names::{Name, Part};
use plimsoll_arch::{LoraShape, LoraTarget, LoraTargets, ModelSpec, Quantization, TowerSpec, Unfit};
use plimsoll_base::{Error, Result, shown};
pub(crate) use refusal::damaged;
use refusal::unsupported;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use config::{AdapterConfig, adapter_config_json};
pub use names::{
    ADAPTER_SCORE, ADAPTER_TENSORS_MAX, LoraPart, adapter_tensor_name, adapter_tensors, tower_adapter_name,
};

/// The weights' file name.
pub const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";

/// A peft adapter, checked against its model.
#[derive(Debug)]
pub struct Adapter {
    pub config: AdapterConfig,
    file: TensorFile,
}

/// Requires that each target is its own tensor in the layers of the base; otherwise a merge has no weight to add to.
fn check_fused(path: &Path, targets: LoraTargets, model: &ModelSpec) -> Result<()> {
    let (targets, why) = match targets.unfit(model) {
        None => return Ok(()),
        Some(Unfit::InNoLayer(targets)) => (targets, "whose layers do not have these"),
        Some(Unfit::OtherInPeft(targets)) => {
            (targets, "where peft reads these as adapters of all experts in one")
        }
        Some(Unfit::Twice(targets)) => (targets, "whose experts have others of the same weights"),
        Some(Unfit::Fused(targets)) => (targets, "where these are part of `qkv_proj` and `gate_up_proj`"),
    };
    let (path, names) = (path.display(), targets.names().join(", "));
    Err(unsupported(format!("{path}: adapters of {names} on a {} model, {why}", model.family)))
}

/// The tensors of an adapter by their place, with their names and shapes.
type Tensors = BTreeMap<(u32, Option<u32>, LoraTarget, LoraPart), (String, Vec<u64>)>;

impl Adapter {
    /// Returns its file, and the tensors in it.
    pub(crate) fn stored(&self) -> (&Storage, Vec<&TensorInfo>) {
        self.file.stored()
    }

    /// Opens the adapter in `folder`, or of the run in that directory, which must be for a model of shape `model`.
    ///
    /// Errors: `adapter-unsupported` (another kind of adapter), `adapter-damaged` (files that contradict themselves),
    /// `adapter-other-base` (shapes of another model), `model-file-missing`, and those of `TensorFile::open`.
    pub fn open(folder: &Path, model: &ModelSpec) -> Result<Adapter> {
        Adapter::open_seeing(folder, model, || Ok(None))
    }

    /// Opens an adapter as `open` does, which may have adapters of the model's `tower` too.
    ///
    /// Errors: as `open`; those of `tower`.
    pub fn open_seeing(
        folder: &Path,
        model: &ModelSpec,
        tower: impl FnOnce() -> Result<Option<TowerSpec>>,
    ) -> Result<Adapter> {
        let folder = &of_run(folder)?;
        require_files(folder)?;
        let path = folder.join(ADAPTER_CONFIG);
        let read = config::read(&path)?;
        if let Some(how) = read.quantize.filter(|how| !how.takes(model)) {
            let message = format!(
                "{}: base_quantization is {how}, and the rows of this model have no whole blocks of {}",
                path.display(),
                Quantization::BLOCK
            );
            return Err(damaged(message));
        }
        let weights = folder.join(ADAPTER_WEIGHTS);
        // The names of both parameters of all experts in one are unique whatever the other targets are.
        let last = read.last_of_all_experts();
        let of_names = read.parameters.unwrap_or(LoraTargets::ALL);
        let own_name = |name: &str| match names::parse(name, last) {
            Name::Of(Part { layer, expert, target, part }) => {
                adapter_tensor_name(model, of_names, (layer, expert), target, part)
            }
            _ => tower::own_name(name).unwrap_or_else(|| name.to_string()),
        };
        let file = TensorFile::open(&weights)?.renamed(own_name)?;
        let found = Found { weights, model, rank: read.rank, base: read.base.as_deref(), last };
        let tensors = found.collect(&file)?;
        // Before the layers are compared: in a family without these, not all layers have them.
        check_fused(&path, found.any_targets(&tensors)?, model)?;
        let targets = found.targets(&tensors)?;
        if targets.of_model(model) != targets {
            let message = format!(
                "{}: adapters of {targets} without those of the shared expert, on a {} model",
                path.display(),
                model.family
            );
            return Err(unsupported(message));
        }
        found.check(targets, &tensors)?;
        found.check_score(&file, read.head)?;
        read.check_targets(targets, model, &path)?;
        let tower = tower::tower_of(&file, &found.weights, read.rank, tower)?;
        Ok(Adapter { config: AdapterConfig { tower, ..read.with(targets) }, file })
    }

    /// Returns whether it has the tensor `name`.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Reads `out.len()` values of the tensor `name` from value `first` on, row by row, as f32. `staging` holds stored
    /// bytes in transit; four suffice. NaN and infinity pass unchecked.
    ///
    /// Errors: `model-file-truncated` if the file was cut since it was opened.
    pub fn read(&self, name: &str, first: u64, staging: &mut [u8], out: &mut [f32]) -> Result<()> {
        self.file.read(name, first, staging, out)
    }
}

/// Returns true if a folder holds an adapter and no model.
pub(crate) fn is_adapter(folder: &Path) -> bool {
    folder.join(ADAPTER_CONFIG).is_file() && !folder.join("config.json").exists()
}

/// Returns the model that an adapter was trained on, in the syntax of `model`.
///
/// Errors: those of reading its configuration; `adapter-damaged` if it names none.
pub(crate) fn base_of(folder: &Path) -> Result<String> {
    let path = folder.join(ADAPTER_CONFIG);
    let Some(base) = config::read(&path)?.base else {
        let message = format!("{}: it names no base model", path.display());
        return Err(damaged(message).hint("set `model` to its base model, and lora.adapter to this folder"));
    };
    // peft knows folders and hub names.
    let is_of_the_hub = is_repo(&base) && !Path::new(&base).exists();
    Ok(if is_of_the_hub { format!("hf:{base}") } else { base })
}

/// Returns the base that the adapter in `folder` names; `None` if it names none, or if `folder` holds no adapter.
///
/// Errors: those of reading its configuration.
pub fn adapter_base_of(folder: &Path) -> Result<Option<String>> {
    if is_adapter(folder) { Ok(config::read(&folder.join(ADAPTER_CONFIG))?.base) } else { Ok(None) }
}

/// Returns the quantization of an adapter's base; `None` if it has none, or if `folder` holds no adapter.
///
/// Errors: those of reading its configuration.
pub fn adapter_quantization(folder: &Path) -> Result<Option<Quantization>> {
    if !is_adapter(folder) {
        return Ok(None);
    }
    Ok(config::read(&folder.join(ADAPTER_CONFIG))?.quantize)
}

/// Returns a model's name as peft understands it: without the hub's scheme, and folders as absolute paths.
pub fn adapter_base(source: &str) -> String {
    if let Some(repo) = source.strip_prefix("hf:") {
        return repo.to_string();
    }
    let path = Path::new(source);
    let whole = of_run(path).unwrap_or_else(|_| path.into()).canonicalize();
    whole.map_or_else(|_| source.to_string(), |path| path.display().to_string())
}

/// Requires the two files. The error says what else the folder may be.
fn require_files(folder: &Path) -> Result<()> {
    let has_file = |name: &str| folder.join(name).symlink_metadata().is_ok();
    let Some(missing) = [ADAPTER_CONFIG, ADAPTER_WEIGHTS].into_iter().find(|name| !has_file(name)) else {
        return Ok(());
    };
    let error = Error::new("model-file-missing", format!("{}: no {missing}", folder.display()));
    Err(if has_file("config.json") && !has_file(ADAPTER_CONFIG) {
        error.hint("this is a whole model: name it with `model`, and remove `lora.adapter`")
    } else if has_file("adapter_model.bin") {
        error.hint("only safetensors are read: save the adapter again with peft's save_pretrained")
    } else {
        error.near(folder).hint("an adapter is a folder as peft's save_pretrained makes it")
    })
}

/// The input of the checks on an adapter's tensors.
struct Found<'a> {
    weights: PathBuf,
    model: &'a ModelSpec,
    rank: u32,
    base: Option<&'a str>,
    /// The parameter of all experts that has the outer name.
    last: LoraTarget,
}

impl Found<'_> {
    /// Sorts the tensors by place. Refuses names that such an adapter does not have.
    fn collect(&self, file: &TensorFile) -> Result<Tensors> {
        let mut tensors = Tensors::new();
        let of_text = |tensor: &&TensorInfo| !tower::is_of_tower(&tensor.name);
        let mut listed: Vec<&TensorInfo> = file.tensors().filter(of_text).collect();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        for tensor in listed {
            let place = match names::parse(&tensor.name, self.last) {
                Name::Of(Part { layer, expert, target, part }) => (layer, expert, target, part),
                Name::Score => continue,
                Name::NotBuilt(what) => {
                    let message =
                        format!("{}: tensor `{}` is of {what}", self.weights.display(), shown(&tensor.name));
                    return Err(unsupported(message));
                }
                Name::Unknown => {
                    let message = format!(
                        "{}: tensor `{}` is not part of an adapter of {:?}",
                        self.weights.display(),
                        shown(&tensor.name),
                        self.model.family
                    );
                    return Err(damaged(message));
                }
            };
            if place.0 >= self.model.layers.len() {
                return Err(self.other_base(format!(
                    "tensor `{}` is of layer {}, and the model has {}",
                    tensor.name,
                    place.0,
                    self.model.layers.len()
                )));
            }
            let mut known = names::places(place.2, self.model, place.0);
            if !known.any(|expert| expert == place.1) {
                if place.2.row(self.model, place.0).is_none() {
                    let (name, layer) = (&tensor.name, place.0);
                    return Err(self.other_base(format!(
                        "tensor `{name}` is of a linear layer that layer {layer} of the model does not have"
                    )));
                }
                return Err(self.other_base(match self.model.layer(place.0).experts() {
                    Some(experts) => {
                        format!(
                            "tensor `{}` is of none of the layer's {} experts",
                            tensor.name, experts.count
                        )
                    }
                    None => format!("tensor `{}` is of an expert, and the layer has none", tensor.name),
                }));
            }
            tensors.insert(place, (tensor.name.clone(), tensor.shape.clone()));
        }
        Ok(tensors)
    }

    /// Returns the targets that have tensors in any layer.
    fn any_targets(&self, tensors: &Tensors) -> Result<LoraTargets> {
        LoraTargets::new(tensors.keys().map(|&(_, _, target, _)| target))
            .ok_or_else(|| damaged(format!("{}: no tensors", self.weights.display())))
    }

    /// Returns the targets that have tensors; every layer must have all of them.
    fn targets(&self, tensors: &Tensors) -> Result<LoraTargets> {
        let targets = self.any_targets(tensors)?;
        let ends = tensors.keys().next_back().map_or(0, |&(layer, ..)| layer + 1);
        // Layers without any of them need none.
        let is_bare = |layer: u32| targets.iter().all(|target| target.row(self.model, layer).is_none());
        let rest = (ends..self.model.layers.len()).take_while(|layer| is_bare(*layer)).count() as u32;
        let layers = ends + rest;
        for layer in 0..layers {
            let of_target =
                |target: LoraTarget| names::places(target, self.model, layer).map(move |e| (e, target));
            let places = targets.iter().flat_map(of_target);
            for (expert, target, part) in
                places.flat_map(|(e, target)| LoraPart::ALL.map(|part| (e, target, part)))
            {
                if !tensors.contains_key(&(layer, expert, target, part)) {
                    let name = adapter_tensor_name(self.model, targets, (layer, expert), target, part);
                    let message = format!("{}: no tensor `{name}`", self.weights.display());
                    return Err(damaged(message)
                        .fact(format!("other layers have an adapter in {targets}, and every layer must")));
                }
            }
        }
        if layers < self.model.layers.len() {
            let what =
                format!("{layers} layers have an adapter, and the model has {}", self.model.layers.len());
            return Err(self.other_base(what));
        }
        Ok(targets)
    }

    /// Requires that every A is [rank, in] and every B [out, rank].
    fn check(&self, targets: LoraTargets, tensors: &Tensors) -> Result<()> {
        let shape = LoraShape { rank: self.rank, targets };
        for (&(layer, _, target, part), (name, found)) in tensors {
            let [a, b] = names::shapes(shape, target, self.model, layer);
            let (expect, axis) = if part == LoraPart::A { (a, 0) } else { (b, 1) };
            if *found == expect {
                continue;
            }
            let what = format!("tensor `{name}` has shape {found:?}, expected {expect:?}");
            // A wrong rank contradicts the adapter's own configuration, a wrong width the model.
            return Err(if found.len() == 2 && found[axis] == expect[axis] {
                self.other_base(what)
            } else {
                damaged(format!("{}: {what}, with r = {}", self.weights.display(), self.rank))
            });
        }
        Ok(())
    }

    /// Requires the head of a reward model of an adapter for sequence classification, and of no other.
    fn check_score(&self, file: &TensorFile, head: Head) -> Result<()> {
        let found = file.tensors().find(|tensor| tensor.name == ADAPTER_SCORE);
        let weights = self.weights.display();
        let Some(tensor) = found else {
            let message = format!("{weights}: no tensor `{ADAPTER_SCORE}`, and task_type is \"SEQ_CLS\"");
            return if head == Head::Score { Err(damaged(message)) } else { Ok(()) };
        };
        if head != Head::Score {
            let message = format!("{weights}: it has `{ADAPTER_SCORE}`, and task_type is not \"SEQ_CLS\"");
            return Err(damaged(message));
        }
        match tensor.shape[..] {
            [1, hidden] if hidden == u64::from(self.model.hidden) => Ok(()),
            [1, hidden] => Err(self.other_base(format!(
                "tensor `{ADAPTER_SCORE}` has {hidden} columns, and the model is {} wide",
                self.model.hidden
            ))),
            _ => Err(unsupported(format!(
                "{weights}: `{ADAPTER_SCORE}` is {:?}, and the head of a reward model has one row",
                tensor.shape
            ))),
        }
    }

    fn other_base(&self, what: String) -> Error {
        let error = Error::new("adapter-other-base", format!("{}: {what}", self.weights.display()));
        match self.base {
            Some(base) => error.fact(format!("the adapter was trained on {}", shown(base))),
            None => error,
        }
        .hint("set `model` to the model that the adapter was trained on, or remove `lora.adapter`")
    }
}
