//! The nouns that every part of Plimsoll shares: bytes, dtypes, phases, model shapes, named errors,
//! counter-based random numbers, and elementary functions whose bits we own.
//!
//! Nothing here touches a device. Of files it reads small ones, whole.

#![warn(missing_docs)]

mod architecture;
pub mod blocks;
mod bytes;
mod delta;
mod dtype;
mod error;
mod exact_sum;
mod experts;
mod layers;
mod lora;
pub mod math;
mod model_spec;
mod names;
mod near;
pub mod nf4;
mod phase;
mod published;
pub mod rng;
mod rope_factors;
mod secret;
mod shown;
#[allow(missing_docs, reason = "each constant is named after its slug, whose page explains it")]
pub mod slugs;
mod small_file;
mod visible;

pub use architecture::{ARCHITECTURES, Architecture, Family, Gate, Norms, QkNorms, Windows};
pub use blocks::{Encoding, LayerEncodings};
pub use bytes::Bytes;
pub use delta::{CONV_TAPS, DELTA_HEAD_MAX, DELTA_HEAD_STEP, DeltaSpec};
pub use dtype::DType;
pub use error::{Error, Exit, Result};
pub use exact_sum::ExactSum;
pub use experts::{EXPERTS_CHOSEN_MAX, EXPERTS_MAX, ExpertsSpec};
pub use layers::{Attention, LAYERS_MAX, LayerSet, Multipliers, Window};
pub use lora::{LoraShape, LoraTarget, LoraTargets, Quantization};
pub use model_spec::{ModelSpec, PLAN_ONLY, PRESETS, RopeScaling};
pub use near::nearest_path;
pub use phase::{Phase, PhaseSet};
pub use published::{nearest_preset, preset_of};
pub use rope_factors::RopeFactors;
pub use secret::{CommandWords, WITHHELD, is_name_of_secret, without_secrets};
pub use shown::{shown, shown_number, shown_within};
pub use small_file::{read_small, read_small_text};
pub use visible::{is_hidden, visible, visible_json};

/// How many optimizer updates the weights have seen; recorded with every sample.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct PolicyVersion(pub u64);
