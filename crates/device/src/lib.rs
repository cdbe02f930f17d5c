//! The `Device` trait: the operations of the decoder family over one arena, and the devices that implement them.
//!
//! A device owns an arena's memory; callers hold `Buf` handles, which are offsets, so a host slice where a device
//! buffer belongs does not compile. Shapes are checked by every operation; a mismatch is a bug in Plimsoll and panics.
//!
//! Legend: M rows (tokens), N outputs, K inputs, h hidden, a query heads, k key-value heads, d head dim,
//! f feed-forward, V vocab, R head rows, S segments, e the storage dtype of activations (that of the weights).
//!
//! Exactness: in every forward operation an output row is a function of that row's own inputs. The order in which
//! one element is accumulated depends on K (or on the row length, or on absolute key positions) alone, never on M,
//! on neighbours, on threads or on how rows were cut into calls. Backward operations are deterministic: their bits
//! do not depend on the number of threads.

mod args;
mod backend;
mod blocks;
pub mod claims;
pub mod codes;
mod columns;
mod delta;
mod experts;
mod experts_adapter;
mod fp8;
mod head;
mod layout;
mod machine;
mod muon;
pub mod nf4;
mod noise;
mod op;
mod operands;
mod own;
mod pieces;
mod profile;
mod tower;
mod update;
mod work;

pub use args::{
    ADAPTER_BLOCKS_MAX, ADAPTER_SLOTS_MAX, ALL_KEYS, Activation, AdamW, AdamWBufs, AdaptBackward, Adapted,
    Adapter, AdapterBlock, AdapterSlots, AttentionBackward, Batch, GateHeadsBackward, HeadOut, Heads,
    KEY_WORDS, ListedBackward, ListedTokens, Logits, NO_MASS, Norm, NormGrads, QkNorm, QkNormBackward,
    RopeBackward, Rotation, SLOT_ROWS, Sample, Sampling, Scores, SinkBackward, Slots, draw_key, most_slots,
};
pub use backend::{Aside, Backend, Checked, HostBytes, Network, Pipeline, Trade, Transfer};
pub use blocks::{BLOCK_PARTS_MAX, Blocks, Codes, block_elements};
pub use claims::{Away, Claim, Claims};
pub use codes::{CODE_BLOCK, Coded};
pub use columns::{ColumnOrder, Columns, HeadPart, HeadProducts, MoveColumns};
pub use delta::{
    CONV_TAPS, DELTA_HEAD_MAX, DELTA_HEAD_STEP, DeltaHeads, DeltaInputs, DeltaInputsBackward, DeltaRule,
    DeltaRuleBackward, DeltaWeights, NO_STATE, NormGated, NormGatedBackward, Places, STATE_CHUNK, edges,
};
pub use experts::{
    Balance, CORRECTION_TERMS, ExpertBiasBackward, Experts, ExpertsBackward, GluExpertsBackward,
    GluSharedBackward, RouteBackward, Routes, Routing, RowsOf, SIGMOID_SUM_MIN, Sigmoid,
};
pub use experts_adapter::{AdaptExpertsBackward, EXPERTS_BLOCKS_MAX, ExpertsAdapter};
pub use fp8::{
    FP8_BLOCK, FP8_UNIT, FP8_WIDTH_MAX, Fp8, Fp8Room, Rounded, fp8_dtype, fp8_elements, fp8_pitch,
    fp8_row_scales, fp8_turned,
};
pub use head::{DivergenceBackward, HeadBackward, HeadDivergence, HeadSide, Measure};
pub use layout::{Kv, Layouts, Matrix, MatrixLayout, PANEL, matrix_elements};
pub use machine::{CardInfo, DriverMemory, HandOver, OpenOptions, ScratchLimits, TowerPasses, Way};
pub use muon::{Arrange, Descent, Momentum};
pub use nf4::NF4_BLOCK;
pub use noise::SamplerNoise;
pub use op::{Device, Functions, Op};
pub use own::{NO_MASK, RowBiases, RowMasks};
pub use pieces::{BUCKET_ELEMENTS_MAX, OwnedRun, PIECES, PORTION_BYTES, Run, portions};
pub use plimsoll_arch::KV_BLOCK;
pub use profile::{Timed, Work};
pub use tower::{Axes, LayerNorm, LayerNormGrads};
pub use update::Update;

/// Arena slots through which offloaded weights and states pass.
pub const OFFLOAD_SLOTS: usize = 3;
/// Arena slots through which inputs of layers pass, after the `OFFLOAD_SLOTS`.
pub const INPUT_SLOTS: usize = 3;
/// Keys in a chunk of attention; chunks start at absolute position 0 and are merged in ascending order.
pub const ATTENTION_CHUNK: usize = 512;
/// Maximum tokens that are listed of a head row.
pub const LISTED_MAX: usize = plimsoll_arch::LISTED_MAX as usize;
/// Vocabulary columns of a head tile; a constant of the build, because the merge order depends on it.
pub const HEAD_TILE: usize = 512;
/// Fields of a segment record; see `Batch`.
pub const SEGMENT_FIELDS: usize = 5;
/// "No parent" in a segment record.
pub const NO_PARENT: u32 = u32::MAX;
