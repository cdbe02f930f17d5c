//! Bodies: protobuf of passes and of results, JSON of samples.

pub mod forward;
pub mod output;
pub mod proto;
pub mod sample;
pub mod tensor;
