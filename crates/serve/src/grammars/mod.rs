//! What responses are held to: the fields that ask for it, the grammars in use, and the threads that compute masks.

mod asked;
mod called;
mod held;

pub use asked::{biases, form, form_of};
pub use called::{ToolChoice, tool_choice};
pub use held::{ServedGrammars, grammar_bytes};

/// Threads that compute masks while the engine's pass runs. A mask of 128,000 tokens takes about 50 us, so those of 64
/// responses take 0.8 ms, less than a pass of a small model.
pub const LANES: usize = 4;
