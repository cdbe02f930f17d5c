//! What a model is, layer by layer: its shape, the supported architectures, and the table of a layer's tensors with
//! their names in every file format.
//!
//! Parameter counts, FLOPs, names, checks and adapter fits are folds over that table. Nothing reads files or computes.

#![warn(missing_docs)]

mod adaptable;
mod architecture;
mod architectures;
mod cache;
mod compute;
mod counts;
mod encodings;
mod family_pages;
mod file_shape;
mod layer;
mod layer_list;
mod layers;
mod lora;
mod model_spec;
mod param;
mod preset_shapes;
mod presets;
mod published;
mod rope_factors;
mod site;
mod table;
mod tensor_row;
mod token_run;
mod tower;

pub use adaptable::Unfit;
pub use architecture::{
    Architecture, Family, GATE_ALPHA, GATE_LIMIT, Gate, Norms, QkNorms, ScoreScale, Windows,
};
pub use architectures::ARCHITECTURES;
pub use cache::{CACHES, Cache, CacheSpec, Caches, Extent, KV_BLOCK};
pub use compute::Compute;
pub use encodings::LayerEncodings;
pub use family_pages::{FamilyPage, families_in_markdown};
pub use file_shape::FileShape;
pub use layer::*;
pub use layer_list::{LAYER_KINDS_MAX, LayerList};
pub use layers::{Attention, GlobalHeads, LAYERS_MAX, LayerSet, LayersWith, Multipliers, SharedKeys, Window};
pub use lora::{LoraShape, LoraTarget, LoraTargets, Quantization};
pub use model_spec::{LISTED_MAX, ModelSpec, RopeScaling};
pub use param::ParamKind;
pub use presets::{PLAN_ONLY, PRESETS};
pub use published::{nearest_preset, preset_of};
pub use rope_factors::RopeFactors;
pub use site::{Site, SiteMap};
pub use table::{
    INPUT_CONTEXT, INPUT_NORM, INPUT_TABLE, Product, expected_tensors, gguf_rows, layer_rows, layer_tensors,
    products,
};
pub use tensor_row::{KeyGroups, TensorRow, is_kept_in_f32};
pub use token_run::TokenRun;
pub use tower::*;
