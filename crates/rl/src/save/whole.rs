//! What a checkpoint of a run over images has besides its text: the tower, and what makes of both the folder of a whole
//! model.

use super::tensors_of::TensorsOf;
use crate::roles::{Trainer, tower_file};
use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_files::{
    OpenModel, PREPROCESSOR, PROCESSOR_FILES, TensorDecl, WHOLE_INDEX, whole_config_json, whole_index,
};
use plimsoll_model::{FlatTensors, tensor_decls};
use plimsoll_run::checkpoint::TOWER_OPTIMIZER;
use serde_json::Value;

/// Longest file about a model's images.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Returns the files of a tower: its weights, where it is trained or the checkpoint is a whole model, and, with
/// `everything`, its states.
pub(super) fn tensors_of_tower<'a>(trainer: &Trainer<'a>, everything: bool) -> Vec<TensorsOf<'a>> {
    let shape = trainer.sampler.shape;
    let Some((images, sight)) = trainer.sampler.images.as_ref().zip(shape.sight.as_ref()) else {
        return Vec::new();
    };
    let table = || sight.table(shape.target, shape.weights);
    match &trainer.tower {
        Some(tower) => {
            let of = |file, sets| TensorsOf { file, table: table(), sets };
            let states = everything.then(|| of(TOWER_OPTIMIZER, tower.optimizer.states()));
            std::iter::once(of(tower.file, vec![tower.saved()])).chain(states).collect()
        }
        None if shape.saves_whole() => {
            let sets = vec![FlatTensors::weights(images.weights())];
            vec![TensorsOf { file: tower_file(shape), table: table(), sets }]
        }
        None => Vec::new(),
    }
}

/// Returns the small files of a whole model, by their names; none if the checkpoint is none.
///
/// Errors: those of reading the files of its base.
pub(super) fn small_files(trainer: &Trainer<'_>, model: &OpenModel) -> Result<Vec<(&'static str, Value)>> {
    let shape = trainer.sampler.shape;
    let (Some(images), true) = (&trainer.sampler.images, shape.saves_whole()) else { return Ok(Vec::new()) };
    let sight = &images.album.sight;
    let config = whole_config_json(model, &shape.spec, sight, shape.weights, &model.token_ids())
        .expect("a family that is written whole");
    let of_base = |name: &str| -> Result<Option<Value>> {
        let Some(path) = model.path.as_ref().map(|path| path.join(name)).filter(|path| path.is_file()) else {
            return Ok(None);
        };
        let text = read_small_text(&path, FILE_BYTES_MAX);
        let text = text.map_err(|err| Error::io("model-file-unreadable", &path, &err))?;
        Ok(serde_json::from_str(&text).ok())
    };
    let mut files = vec![
        ("config.json", config),
        (WHOLE_INDEX, index(trainer)),
        (PREPROCESSOR, images.album.processor.to_json(of_base(PREPROCESSOR)?.as_ref())),
    ];
    for name in PROCESSOR_FILES {
        files.extend(of_base(name)?.map(|file| (name, file)));
    }
    Ok(files)
}

/// Returns which tensor is in which shard.
fn index(trainer: &Trainer<'_>) -> Value {
    let (role, weights) = (trainer.first(), trainer.sampler.shape.weights);
    let text: Vec<TensorDecl> = tensor_decls("", role.saved().dtype(), &role.saved_table()).collect();
    let tower = tensors_of_tower(trainer, false);
    let of_tower: Vec<TensorDecl> =
        tower.iter().flat_map(|of| tensor_decls("", weights, &of.table)).collect();
    let bytes = text.iter().chain(&of_tower).map(TensorDecl::bytes).sum();
    let (text_file, _) = role.files();
    let of_text = text.iter().map(|tensor| (tensor.name.as_str(), text_file));
    let of_tower = of_tower.iter().map(|tensor| (tensor.name.as_str(), tower_file(trainer.sampler.shape)));
    whole_index(of_text.chain(of_tower), bytes)
}
