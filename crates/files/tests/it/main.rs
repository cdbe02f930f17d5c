//! Model files, read as they are and as hostile bytes.

mod adapter;
mod biased;
mod common;
mod configs;
mod delta;
mod gemma4;
mod gguf;
mod gguf_write;
mod latent;
mod mistral;
mod mxfp4;
mod safetensors;
mod sight;
mod sigmoid;
mod sources;
mod wrapped;
mod written_configs;
