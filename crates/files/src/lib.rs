//! Reads untrusted model files into checked offsets and bytes: safetensors, GGUF, config.json, the hub cache, wheels.
//!
//! Any input may be wrong. A count is compared with the bytes left before anything is allocated for it; products are
//! checked; tensors are inside their file and disjoint. Every refusal has a name. Rows become f32 in a buffer.

mod adapter;
mod ahead;
mod builtin;
mod check;
mod config;
mod difference;
mod gguf;
#[cfg(feature = "hub")]
mod hub;
mod hub_data;
#[cfg(feature = "hub")]
mod hub_fetch;
#[cfg(feature = "hub")]
mod hub_push;
#[cfg(feature = "hub")]
mod hub_wire;
mod identity;
mod joined_experts;
mod mxfp4;
mod no_link;
mod open;
mod output;
mod pieces;
mod pypi;
mod safetensors_dir;
mod seeing;
mod shared;
mod sight;
mod source;
mod storage;
mod stream;
mod tensor_file;
mod tensors;
mod trained_tower;
mod whole;
mod wrapped;
mod writer;

pub use adapter::{
    ADAPTER_SCORE, ADAPTER_TENSORS_MAX, ADAPTER_WEIGHTS, Adapter, AdapterConfig, LoraPart, adapter_base,
    adapter_base_of, adapter_config_json, adapter_quantization, adapter_tensor_name, adapter_tensors,
    tower_adapter_name,
};
pub use ahead::ReadAhead;
pub use check::{check_against, is_of_further_tokens};
pub use config::{
    Head, TokenIds, add_compute, config_json, generation_config_json, score_config_json, spec_from_config,
    token_ids,
};
pub use difference::{DamagedRange, Difference, difference};
pub use gguf::model::GgufTokenizer;
pub use gguf::names::gguf_order;
pub use gguf::write::{GgufDecl, GgufWriter};
pub use hub_data::HubData;
#[cfg(feature = "hub")]
pub use hub_fetch::{HubFile, hub_file};
#[cfg(feature = "hub")]
pub use hub_push::{Push, PushContent, PushFile, PushTarget, Pushed, push, push_endpoint};
pub use no_link::{append_to, create_part};
pub use open::{OpenModel, TokenizerFiles, adapter_ends, not_gguf};
pub use output::{check_folder, check_output_file, check_output_folder, output_error, rename_new};
pub use pieces::{FileRecord, Pieces};
pub use shared::SharedWriter;
pub use sight::sight_from_config;
pub use source::{ADAPTER_CONFIG, Local, Source, resolve};
pub use stream::{stored, write_error};
pub use tensor_file::TensorFile;
pub use tensors::{RowOrder, SCORE, TensorInfo, ValueHeads};
pub use trained_tower::TRAINED_TOWER;
pub use whole::{
    PREPROCESSOR, PROCESSOR_FILES, WHOLE_INDEX, WHOLE_TEXT, WHOLE_TOWER, is_written_whole, whole_config_json,
    whole_index, whole_name,
};
pub use writer::{
    ArrayDecl, ArrayElement, SafetensorsWriter, TensorDecl, digest, fsync_dir, record_of, write_atomic,
    write_new, write_new_lines, write_private,
};
