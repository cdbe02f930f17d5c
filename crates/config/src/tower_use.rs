//! The values of `model_options.tower`.

use crate::values::Expecting;
use schemars::JsonSchema;

plimsoll_base::names! {
    /// What a run does with the tower of a model that sees.
    #[derive(Default, JsonSchema)]
    TowerUse {
        /// It stays as it is: an image's vectors are computed once a step.
        #[default]
        Frozen = "frozen",
        /// It is trained with the text.
        Train = "train",
        /// Adapters of its products are trained with those of the text, as `[lora]` has them.
        Adapters = "adapters",
    }
}

impl TowerUse {
    pub(crate) fn is_frozen(&self) -> bool {
        *self == TowerUse::Frozen
    }
}

impl Expecting for TowerUse {
    const EXPECTING: &'static str = "\"frozen\", \"train\" or \"adapters\"";
}
