//! What an open model has to take images.

use crate::open::OpenModel;
use crate::sight::sight_from_config;
use plimsoll_arch::{SightSpec, TowerSpec, tower_tensors};
use plimsoll_base::{Error, Result};

impl OpenModel {
    /// Returns what it has to take images, if it is a language model inside of a model of text and images; none for
    /// families whose towers are not read.
    ///
    /// Errors: `model-config-invalid`, `model-unsupported`; `model-tensor-missing` and `model-tensor-shape` if files
    /// do not have the tower's tensors.
    pub fn sight(&self) -> Result<Option<SightSpec>> {
        let Some(config) = &self.seeing else { return Ok(self.drawn_sight) };
        let file =
            self.path.as_ref().map_or(String::new(), |path| path.join("config.json").display().to_string());
        let sight = sight_from_config(config, &self.spec, &file)?;
        if let Some(sight) = &sight {
            self.check_tower(&sight.tower)?;
        }
        Ok(sight)
    }

    fn check_tower(&self, tower: &TowerSpec) -> Result<()> {
        for wanted in tower_tensors(tower) {
            let Some(tensor) = self.tensor(&wanted.name) else {
                let message = format!("{}: no tensor `{}`", self.source, wanted.name);
                return Err(Error::new("model-tensor-missing", message)
                    .hint("fetch the model again, or check depth of vision_config in config.json"));
            };
            if tensor.shape != wanted.shape {
                let message = format!(
                    "{}: tensor `{}` has shape {:?}, the config gives {:?}",
                    self.source, wanted.name, tensor.shape, wanted.shape
                );
                return Err(Error::new("model-tensor-shape", message)
                    .hint("config.json and the weights are of different models"));
            }
        }
        Ok(())
    }
}
