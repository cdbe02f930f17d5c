//! How a model wants its images: `preprocessor_config.json`, or what its family publishes.

use plimsoll_base::{Error, Result};
use serde_json::Value;

/// The numbers with which an image becomes patches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Processor {
    /// Pixels of a patch's side.
    pub patch: u32,
    /// Patches of a side that become one token.
    pub merge: u32,
    /// Frames of a patch; a still image is repeated.
    pub frames: u32,
    /// Least area after resizing, in pixels.
    pub pixels_min: u64,
    /// Largest area after resizing, in pixels.
    pub pixels_max: u64,
    /// What a byte is multiplied by.
    pub scale: f64,
    /// The mean of red, green and blue.
    pub mean: [f32; 3],
    /// Their standard deviation.
    pub std: [f32; 3],
}

/// What Qwen3-VL and Qwen3.5 publish.
const QWEN3: Processor = Processor {
    patch: 16,
    merge: 2,
    frames: 2,
    pixels_min: 65_536,
    pixels_max: 16_777_216,
    scale: 1.0 / 255.0,
    mean: [0.5; 3],
    std: [0.5; 3],
};
/// What Qwen2.5-VL publishes.
const QWEN2_5: Processor = Processor {
    patch: 14,
    pixels_min: 3_136,
    pixels_max: 12_845_056,
    mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
    std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
    ..QWEN3
};
/// Where these numbers are read.
const FILE: &str = "preprocessor_config.json";
/// The keys of a run file that name areas instead.
const KEYS: &str = "data.image_pixels_min, data.image_pixels_max";
/// Longest side of a patch, and most patches of a token's side: bounds of what a file may ask for.
const SIDE_MAX: u64 = 64;
/// Largest area that a file or a run may ask for.
const AREA_MAX: u64 = crate::PIXELS_MAX;

impl Processor {
    /// Returns what a family publishes, by the `model_type` of its `config.json`.
    pub fn of_family(model_type: &str) -> Option<Processor> {
        match model_type {
            "qwen2_5_vl" => Some(QWEN2_5),
            "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe" => Some(QWEN3),
            _ => None,
        }
    }

    /// Reads the text of a `preprocessor_config.json`. What it leaves out is as `self` has it.
    ///
    /// Errors: `image-processor-invalid`.
    pub fn with_file(self, text: &str) -> Result<Processor> {
        let file: Value = serde_json::from_str(text).map_err(|err| invalid(&err.to_string()))?;
        // Newer files have the image's part among those of text and videos.
        let file = if file["image_processor"].is_object() { &file["image_processor"] } else { &file };
        let number = |value: &Value, name: &str, default: u64, most: u64| match value {
            Value::Null => Ok(default),
            value => value
                .as_u64()
                .filter(|&number| (1..=most).contains(&number))
                .ok_or_else(|| invalid(&format!("`{name}` is {value}, no number from 1 to {most}"))),
        };
        let side = |name: &str, default: u32| {
            number(&file[name], name, u64::from(default), SIDE_MAX).map(|side| side as u32)
        };
        let colours = |name: &str, default: [f32; 3]| match &file[name] {
            Value::Null => Ok(default),
            value => three(value).ok_or_else(|| invalid(&format!("`{name}` is {value}, not three numbers"))),
        };
        let area = |old: &str, new: &str, default: u64| match &file[old] {
            Value::Null => number(&file["size"][new], new, default, u64::MAX),
            value => number(value, old, default, u64::MAX),
        };
        if !matches!(file["resample"].as_u64(), None | Some(3)) {
            return Err(invalid(&format!("`resample` is {}, not 3 (bicubic)", file["resample"])));
        }
        if let Some(name) =
            ["do_resize", "do_rescale", "do_normalize"].iter().find(|name| file[**name] == false)
        {
            return Err(invalid(&format!("`{name}` is false, which no model here wants")));
        }
        let scale = match &file["rescale_factor"] {
            Value::Null => self.scale,
            value => value.as_f64().ok_or_else(|| invalid("`rescale_factor` is no number"))?,
        };
        Processor {
            patch: side("patch_size", self.patch)?,
            merge: side("merge_size", self.merge)?,
            frames: side("temporal_patch_size", self.frames)?,
            pixels_min: area("min_pixels", "shortest_edge", self.pixels_min)?,
            pixels_max: area("max_pixels", "longest_edge", self.pixels_max)?,
            scale,
            mean: colours("image_mean", self.mean)?,
            std: colours("image_std", self.std)?,
        }
        .checked(FILE)
    }

    /// Returns it with areas that a run file names instead.
    ///
    /// Errors: `image-processor-invalid`.
    pub fn with_pixels(self, min: Option<u64>, max: Option<u64>) -> Result<Processor> {
        let pixels_max = max.unwrap_or(self.pixels_max);
        let pixels_min = min.unwrap_or(self.pixels_min.min(pixels_max));
        let from = if min.or(max).is_some() { KEYS } else { FILE };
        Processor { pixels_min, pixels_max, ..self }.checked(from)
    }

    /// Returns the `preprocessor_config.json` that says these numbers; of a file that says more, `file`, the rest too.
    pub fn to_json(&self, file: Option<&Value>) -> Value {
        let Processor { patch, merge, frames, pixels_min, pixels_max, scale, mean, std } = self;
        let mut to = file.filter(|file| file.is_object()).cloned().unwrap_or_else(|| {
            serde_json::json!({
                "image_processor_type": "Qwen2VLImageProcessorFast",
                "do_convert_rgb": true, "do_resize": true, "do_rescale": true, "do_normalize": true, "resample": 3,
            })
        });
        let map = to.as_object_mut().expect("a file is an object, or is made one");
        // The older names of areas come first where both are.
        for name in ["min_pixels", "max_pixels", "image_processor"] {
            map.remove(name);
        }
        let own = serde_json::json!({
            "patch_size": patch, "merge_size": merge, "temporal_patch_size": frames,
            "size": { "shortest_edge": pixels_min, "longest_edge": pixels_max },
            "rescale_factor": scale, "image_mean": mean, "image_std": std,
        });
        map.extend(own.as_object().cloned().unwrap_or_default());
        to
    }

    /// Returns the number of pixels of which each side is a multiple.
    pub fn factor(&self) -> u32 {
        self.patch * self.merge
    }

    /// Requires that the numbers are possible; `from` says whose areas they are.
    fn checked(self, from: &str) -> Result<Processor> {
        let Processor { pixels_min, pixels_max, .. } = self;
        let least = u64::from(self.factor()).pow(2);
        if pixels_max < least || pixels_max > AREA_MAX || pixels_min > pixels_max {
            return Err(invalid_in(
                from,
                &format!(
                    "images of {pixels_min} to {pixels_max} pixels: the most is at least one token, {least}, and at \
                 most {AREA_MAX}, and the least is below it"
                ),
            ));
        }
        if self.std.iter().any(|std| !(std.is_finite() && *std > 0.0)) || !self.scale.is_finite() {
            return Err(invalid("a standard deviation or the factor of bytes is not a number above 0"));
        }
        Ok(self)
    }
}

fn three(value: &Value) -> Option<[f32; 3]> {
    let list: Vec<f32> =
        value.as_array()?.iter().map(|n| n.as_f64().map(|n| n as f32)).collect::<Option<_>>()?;
    list.try_into().ok()
}

fn invalid(what: &str) -> Error {
    invalid_in(FILE, what)
}

fn invalid_in(from: &str, what: &str) -> Error {
    Error::new("image-processor-invalid", format!("{from}: {what}"))
        .hint("take the file that the model's authors publish; data.image_pixels_min and data.image_pixels_max overrule its areas")
}
