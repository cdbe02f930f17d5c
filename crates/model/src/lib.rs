//! One decoder for training and rollout: weights, activations, forward, backward, head, load and save.
//!
//! Model code is written once, generic over `Device`. It owns which operation reads which region when; it refuses
//! nothing: batches come within their limits, and files are checked before they get here.

mod activations;
mod adapters;
mod backward;
mod cache_index;
mod decoder;
mod forward;
mod fp8;
mod images;
mod layer;
mod layer_backward;
mod load;
pub mod mlp;
mod offloaded_inputs;
mod own_logits;
mod own_rows;
mod params;
mod parts;
mod pass;
mod passage;
mod quantized;
pub mod rope;
mod save;
mod streamed;
mod terms;
pub mod tower;
mod transposed;
mod weights;
mod whole;

pub use activations::taught::TeacherHead;
pub use activations::{Activations, Mode, PassLimits, Recompute, Target, layout as activations_layout};
pub use adapters::{
    Adapters, AdaptersFrom, Merged, NO_SLOT, SeededSlot, SlotBufs, SlotFile, SlotTable, SlotTensors,
    fill_slot, layout as adapters_layout, load_adapters, save_slot, slots_layout,
};
pub use backward::{Derivatives, Gradients, RowGradients, Stage, backward, backward_part};
pub use cache_index::CacheIndex;
pub use decoder::{Decoder, Layers, Way};
pub use forward::{
    advance, draw, draw_runs, head, head_listed, head_top, layers, list_rows, name_rows, score_rows,
    upload_keys, values,
};
pub use fp8::{Fp8Bufs, Fp8Table, Fp8Weights, layout as fp8_layout};
pub use images::{
    ImageIndex, ImageLimits, ImageRegions, Images, SeenImages, TextImage, TextPlaces, VectorGradients,
    images_layout, kept_rows_layout, place_rows, vectors_layout,
};
pub use load::{RandomWeights, STAGING_BYTES_MIN, load};
pub use own_logits::{DrawRun, OwnLogits};
pub use params::{CodesAt, Param, ParamTable, Part};
pub use parts::delta::places::places_for;
pub use parts::experts::load::{ExpertLoad, ExpertUse};
pub use pass::{Pass, PassIndex, rehearsal_sizes};
pub use passage::{
    Place, SpreadFile, SpreadTensors, Together, layout as passage_layout, restore_own, save_together,
};
pub use quantized::Coding;
pub use save::{FlatTensors, restore, save, saved_bytes, tensor_decls};
pub use streamed::{Source, Streamed, StreamedWeights, layout as streamed_layout};
pub use weights::{CodeBufs, LayerParams, Params};
pub use whole::{head_divergence, teacher_rows};
