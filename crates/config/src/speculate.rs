//! The values of `rollout.speculate`.

use crate::values::Expecting;
use schemars::JsonSchema;

plimsoll_base::names! {
    /// Where drafts of a response's next tokens come from. They change no token and no log-probability.
    #[derive(JsonSchema)]
    Speculate {
        /// Nothing is drafted.
        Off = "off",
        /// What followed the same few tokens earlier in the response, or in its prompt.
        Ngram = "ngram",
        /// Also what followed them in other responses, to the same prompt and to others, of this step and of earlier
        /// ones.
        Suffix = "suffix",
        /// As "suffix", or "off" for models and runs that cannot draft.
        Auto = "auto",
        /// The model's own heads for tokens after the next.
        Mtp = "mtp",
        /// A head that the run trains on its responses.
        Trained = "trained",
    }
}

/// Drafts of a response in a pass, unless the run file says otherwise.
pub(crate) const SPECULATE_DEPTH: u32 = 8;
pub(crate) const SPECULATE_DEPTH_MAX: f64 = 32.0;

pub(crate) fn is_usual_depth(depth: &u32) -> bool {
    *depth == SPECULATE_DEPTH
}

impl Speculate {
    pub(crate) fn is_off(&self) -> bool {
        *self == Speculate::Off
    }

    /// True if texts are searched, whatever the run is.
    pub fn is_required(self) -> bool {
        matches!(self, Speculate::Ngram | Speculate::Suffix)
    }
}

impl Expecting for Speculate {
    const EXPECTING: &'static str = "\"off\", \"ngram\", \"suffix\" or \"auto\"";
}
