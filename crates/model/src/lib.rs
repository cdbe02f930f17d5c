//! One decoder for training and rollout: weights, activations, forward, backward, head, load and save.
//!
//! Model code is written once, generic over `Device`. It owns which operation reads which region when; it refuses
//! nothing: batches come within their limits, and files are checked before they get here.

mod activations;
mod adapters;
mod backward;
mod delta;
mod experts;
mod forward;
mod gates;
mod kept;
mod load;
mod mixer;
pub mod mlp;
mod params;
mod passage;
mod quantized;
pub mod rope;
mod save;
mod streamed;
mod weights;

pub use activations::{Activations, Mode, PassLimits, Recompute, Target, layout as activations_layout};
pub use adapters::{Adapters, AdaptersFrom, Merged, Site, layout as adapters_layout, load_adapters};
pub use backward::{Derivatives, Gradients, RowGradients, Stage, backward, backward_part};
pub use delta::places_for;
pub use experts::{ExpertLoad, ExpertUse};
pub use forward::{
    Decoder, Pass, PassIndex, WindowIndex, advance, draw, draw_runs, head, layers, rehearsal_sizes, sample,
    upload_keys, values,
};
pub use load::{STAGING_BYTES_MIN, load};
pub use params::{CodesAt, Param, ParamKind, ParamTable, Part};
pub use passage::{Place, SpreadTensors, Together, layout as passage_layout, restore_own, save_together};
pub use quantized::Coding;
pub use save::{FlatTensors, restore, save, saved_bytes};
pub use streamed::{Scorer, Source, Streamed, layout as streamed_layout};
pub use weights::{CodeBufs, LayerParams, Params};
