//! The values of `model_options.quantize`.

use crate::values::Expecting;
use schemars::JsonSchema;

plimsoll_base::names! {
    /// How the linear layers of models that are GGUF files and that nothing trains are stored.
    #[derive(JsonSchema)]
    Frozen {
        /// In the blocks of the file.
        Gguf = "gguf",
        /// Widened to `model_options.dtype`.
        Full = "full",
    }
}

impl Expecting for Frozen {
    const EXPECTING: &'static str = "\"gguf\" or \"full\"";
}
