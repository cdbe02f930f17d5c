//! What responses are held to: the fields that ask for it, the grammars in use, and the threads that compute masks.

mod asked;
mod called;
mod held;

pub use asked::{biases, form, form_of};
pub use called::{ToolChoice, tool_choice};
pub use held::{ServedGrammars, grammar_bytes};
