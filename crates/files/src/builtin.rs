//! Models embedded in the binary: `builtin:nano` and its files, like those of a directory.

/// The files of an embedded model.
pub(crate) struct Builtin {
    pub(crate) name: &'static str,
    pub(crate) config: &'static [u8],
    pub(crate) generation_config: &'static [u8],
    pub(crate) weights: &'static [u8],
    pub(crate) tokenizer: &'static [u8],
    pub(crate) tokenizer_config: &'static [u8],
}

pub(crate) const BUILTINS: &[Builtin] = &[Builtin {
    name: "nano",
    config: include_bytes!("../assets/nano/config.json"),
    generation_config: include_bytes!("../assets/nano/generation_config.json"),
    weights: include_bytes!("../assets/nano/model.safetensors"),
    tokenizer: include_bytes!("../assets/nano/tokenizer.json"),
    tokenizer_config: include_bytes!("../assets/nano/tokenizer_config.json"),
}];

/// Finds an embedded model by name.
pub(crate) fn find(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|b| b.name == name)
}
