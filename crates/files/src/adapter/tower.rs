//! Adapters of a tower over images, which peft keeps in the same file as those of the text: their tensors, and the
//! names of their modules.

use super::names::{LoraPart, tower_adapter_name};
use super::refusal::{damaged, unsupported};
use crate::tensor_file::TensorFile;
use plimsoll_arch::{TowerSpec, tower_adapted};
use plimsoll_base::{Result, shown};
use std::path::Path;

/// Prefixes of a tower's tensors: of transformers from 4.52 on, and before.
const PREFIXES: [&str; 2] = ["base_model.model.model.visual.", "base_model.model.visual."];
/// Modules whose names a text has too.
const OF_TEXTS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

/// True if a tensor is of a tower.
pub(super) fn is_of_tower(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns a tensor's name as newer transformers have it.
pub(super) fn own_name(name: &str) -> Option<String> {
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    Some(format!("{}{rest}", PREFIXES[0]))
}

/// Returns the name of a module of a tower in peft's `target_modules`, which is compared with the ends of paths: none
/// of a text ends so.
pub(super) fn module_name(weight: &str) -> String {
    let module = weight.strip_suffix(".weight").unwrap_or(weight);
    let last = module.rsplit('.').next().unwrap_or(module);
    let parent = module.rsplit('.').nth(1).unwrap_or_default();
    match last {
        _ if OF_TEXTS.contains(&last) => module.into(),
        "linear_fc1" | "linear_fc2" => last.into(),
        _ if parent == "mlp" => format!("merger.mlp.{last}"),
        _ => format!("{parent}.{last}"),
    }
}

/// True if a name in `target_modules` is of a tower alone.
pub(super) fn is_module(name: &str) -> bool {
    let ends = |end: &str| name == end || name.ends_with(&format!(".{end}"));
    name.split('.').any(|part| part == "visual")
        || ["qkv", "proj", "linear_fc1", "linear_fc2", "merger.mlp.0", "merger.mlp.2"].into_iter().any(ends)
}

/// Returns the tower whose adapters a file has, all of them and no others; none if it has none. `tower`: the model's.
///
/// Errors: `adapter-unsupported`, `adapter-damaged`; those of `tower`.
pub(super) fn tower_of(
    file: &TensorFile,
    path: &Path,
    rank: u32,
    tower: impl FnOnce() -> Result<Option<TowerSpec>>,
) -> Result<Option<TowerSpec>> {
    let mut own: Vec<&str> =
        file.tensors().map(|tensor| tensor.name.as_str()).filter(|name| is_of_tower(name)).collect();
    if own.is_empty() {
        return Ok(None);
    }
    let path = path.display();
    let Some(tower) = tower()? else {
        return Err(unsupported(format!(
            "{path}: adapters of a tower, and the model has none that is built"
        )));
    };
    for layer in tower_adapted(&tower).iter().flatten() {
        let shapes = [[rank, layer.cols], [layer.rows, rank]];
        for (part, shape) in LoraPart::ALL.into_iter().zip(shapes) {
            let (name, shape) = (tower_adapter_name(&layer.name, part), shape.map(u64::from));
            match file.tensor(&name) {
                None => {
                    return Err(damaged(format!("{path}: no tensor `{name}`")).fact(
                        "other layers of the tower have an adapter, and all of its linear layers must",
                    ));
                }
                Some(tensor) if tensor.shape != shape => {
                    let message = format!("{path}: tensor `{name}` has shape {:?}", tensor.shape);
                    return Err(damaged(message).fact(format!("expected is {shape:?}")));
                }
                Some(_) => own.retain(|own| *own != name),
            }
        }
    }
    match own.first() {
        None => Ok(Some(tower)),
        Some(name) => {
            let message = format!("{path}: tensor `{}` is of no linear layer of the tower", shown(name));
            Err(unsupported(message))
        }
    }
}
