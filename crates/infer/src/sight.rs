//! How a model takes images: what cuts them into patches, and its tower.

use crate::weights::Loading;
use plimsoll_arch::TowerSpec;
use plimsoll_base::{Error, Result, read_small_text};
use plimsoll_config::Data;
use plimsoll_device::Device;
use plimsoll_files::OpenModel;
use plimsoll_images::{FAMILIES, Processor};
use plimsoll_memory::{Buf, Resident};
use plimsoll_model::Mode;
use plimsoll_model::tower::{Tower, TowerParams, load_tower};
use plimsoll_plan::{RunShape, SightShape, TEACHER_SEES};
use serde_json::Value;
use std::path::Path;

/// Longest `config.json` and `preprocessor_config.json`.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// The family as which images of other models are counted.
const DEFAULT_FAMILY: &str = "qwen3_vl";

/// How a model wants its images, and where that is from.
#[derive(Clone, Copy, Debug)]
pub struct ModelProcessor {
    pub processor: Processor,
    /// The family whose published numbers are the default.
    pub family: &'static str,
    /// True if the model is of that family.
    pub is_of_family: bool,
    /// True if the model's own file says it.
    pub has_file: bool,
}

impl ModelProcessor {
    /// Reads how the model in a folder wants its images. A folder of no family, or none, has the default's numbers.
    ///
    /// Errors: `image-processor-invalid`.
    pub fn of(folder: Option<&Path>, data: &Data) -> Result<ModelProcessor> {
        let text = |name: &str| read_small_text(&folder?.join(name), CONFIG_BYTES_MAX).ok();
        let config: Value =
            text("config.json").and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let found = FAMILIES.into_iter().find(|family| config["model_type"] == *family);
        let family = found.unwrap_or(DEFAULT_FAMILY);
        let published = Processor::of_family(family).expect("each family of the table has its numbers");
        let file = text("preprocessor_config.json").or_else(|| text("processor_config.json"));
        let processor = match &file {
            Some(text) => published.with_file(text)?,
            None => published,
        };
        let processor = processor.with_pixels(data.image_pixels_min, data.image_pixels_max)?;
        let (is_of_family, has_file) = (found.is_some(), file.is_some());
        Ok(ModelProcessor { processor, family, is_of_family, has_file })
    }

    /// Returns the processor, which must cut images into the patches of a tower.
    ///
    /// Errors: `image-processor-invalid`.
    pub fn of_tower(self, tower: &TowerSpec) -> Result<Processor> {
        let own = &self.processor;
        if (own.patch, own.merge, own.frames) == (tower.patch, tower.merge, tower.frames) {
            return Ok(self.processor);
        }
        let message = format!(
            "preprocessor_config.json has patches of {0} x {0} pixels, {1} x {1} a token, and config.json of {2} x \
             {2}, {3} x {3}",
            own.patch, own.merge, tower.patch, tower.merge
        );
        Err(Error::new("image-processor-invalid", message)
            .hint("take both files that the model's authors publish"))
    }
}

/// Returns the error of a model that has no tower, or none that is built.
pub(crate) fn takes_none(model: &OpenModel) -> Error {
    Error::usage("model-takes-no-images", format!("{} takes no images", model.source))
        .fact("config.json is of a model of text, or of one whose tower is not built")
        .hint("Qwen3-VL, Qwen3.5 and Qwen2.5-VL with their towers take images")
}

/// The towers that a plan with images may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerOf {
    /// That of the model which the run samples from or trains.
    Run,
    /// That of a teacher, which sees the same images.
    Teacher,
}

impl TowerOf {
    /// Returns the name of its region.
    pub(crate) fn region(self, name: &str) -> String {
        match self {
            TowerOf::Run => name.to_string(),
            TowerOf::Teacher => format!("teacher.{name}"),
        }
    }

    /// Returns its shape. Panics if the plan has no such tower.
    pub(crate) fn sight(self, shape: &RunShape) -> SightShape {
        let sight = shape.sight.as_ref().expect("a plan with images");
        match self {
            TowerOf::Run => *sight,
            TowerOf::Teacher => sight.of_teacher().expect("a plan with a teacher that sees"),
        }
    }

    /// Returns the mode of its passes forward.
    pub(crate) fn mode(self, shape: &RunShape) -> Mode {
        match self {
            TowerOf::Run => Mode::Rollout { truncates: shape.truncates },
            TowerOf::Teacher => TEACHER_SEES,
        }
    }
}

/// Binds a tower of a plan with images to the buffer `all`, and reads its weights.
///
/// Errors: those of reading.
pub(crate) fn bind_tower<'a>(
    dev: &dyn Device,
    resident: Resident<'a>,
    (shape, of): (&RunShape, TowerOf),
    all: Buf<'a>,
    model: &OpenModel,
    how: Loading,
) -> Result<Tower<'a>> {
    let sight = of.sight(shape);
    let table = sight.table(shape.target, shape.weights);
    let params = TowerParams::bind(&sight.spec.tower, &table, shape.weights, all);
    load_tower(dev, model, &table, &params, how.seed, how.staging)?;
    let tower = Tower { spec: sight.spec.tower, params, rope: resident.buf(&of.region("tower.rope")) };
    tower.fill_rope(dev);
    Ok(tower)
}
