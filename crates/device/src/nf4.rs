//! The codes of NF4, as `plimsoll_base::nf4` defines them; a matrix of them is `Blocks`.

pub use plimsoll_base::nf4::{CODES_OF_WORD, NF4, NF4_BLOCK, decode, encode, encode_rows};
