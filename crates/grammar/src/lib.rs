//! What text a response may be: a JSON schema, a regular expression, one of some texts, or a grammar, as masks over a
//! model's vocabulary, token by token. It owns the limits on grammars that strangers write, and the threads that
//! compute masks while a pass runs. The library `llguidance` has the parser.
//!
//! Every size is bounded: the text of a grammar, its symbols, the states of its lexer, and the work of one mask. What
//! goes beyond is refused when it is compiled, or ends its own response. Models, devices and requests are not reached
//! from here.

#![warn(missing_docs)]

mod calls;
mod compiled;
mod form;
mod kept_masks;
mod lanes;
mod references;
mod refusal;
mod vocabulary;

#[cfg(test)]
mod schemas_tests;

pub use calls::{CalledTool, ForcedCall, forced_call, held_calls};
pub use compiled::{Grammar, GrammarMatcher};
pub use form::{CHOICES_MAX, FORM_BYTES_MAX, ResponseForm};
pub use lanes::{MASK_LANES, MaskLanes};
pub use vocabulary::GrammarVocabulary;
