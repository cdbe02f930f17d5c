//! Shared types: bytes, dtypes, phases, named errors, counter-based random numbers, elementary functions of fixed bits.
//!
//! Nothing here touches a device. Of files it reads small ones, whole.

#![warn(missing_docs)]

pub mod blocks;
mod bytes;
mod decimal;
mod dtype;
mod error;
mod exact_sum;
pub mod fp8;
mod json;
mod json_part;
mod json_tree;
pub mod math;
mod named_file;
mod names;
mod near;
pub mod nf4;
mod phase;
pub mod rng;
mod secret;
mod shown;
#[allow(missing_docs, reason = "each constant is named after its slug, whose page explains it")]
pub mod slugs;
mod small_file;
mod visible;
mod yaml;

pub use blocks::Encoding;
pub use bytes::Bytes;
pub use decimal::Decimal;
pub use dtype::DType;
pub use error::{Error, Exit, Result};
pub use exact_sum::ExactSum;
pub use json::{has_mark, json_marked, json_unmarked, json_with_digits, marked_digits};
pub use json_part::{JsonPart, json_field};
pub use json_tree::{json_tree_bytes, json_within};
pub use named_file::{NamedFile, open_folder, open_regular};
pub use near::{nearest_name, nearest_path};
pub use phase::{Phase, PhaseSet};
pub use secret::{CommandWords, WITHHELD, is_name_of_secret, unmarked, withheld, without_secrets};
pub use shown::{shown, shown_address, shown_number, shown_path, shown_places, shown_within};
pub use small_file::{read_small, read_small_text};
pub use visible::{is_hidden, visible, visible_json};
pub use yaml::{Yaml, YamlFault, YamlValue, yaml_documents};

/// Number of optimizer updates that the weights have had; recorded with every sample.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct PolicyVersion(pub u64);
