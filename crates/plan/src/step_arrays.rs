//! Which per-token arrays a step has on the host, and their bytes.

/// Per-token arrays that only some steps have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepArrays {
    pub critic: bool,
    pub correction: bool,
    pub teacher: bool,
    pub covariance: bool,
}

const TOKEN_ARRAYS: u64 = 9;
const CRITIC_ARRAYS: u64 = 4;
const CORRECTION_ARRAYS: u64 = 2;
const TEACHER_ARRAYS: u64 = 1;
/// A penalty, and a token with its covariance, which is four numbers long.
const COVARIANCE_ARRAYS: u64 = 1 + 4;

/// Returns the heap bytes of a step's per-token arrays for `sequences` responses of up to `response_tokens` tokens.
pub fn step_bytes(sequences: usize, response_tokens: usize, has: StepArrays) -> u64 {
    let tokens = sequences as u64 * response_tokens as u64;
    let arrays = TOKEN_ARRAYS
        + if has.critic { CRITIC_ARRAYS } else { 0 }
        + if has.correction { CORRECTION_ARRAYS } else { 0 }
        + if has.teacher { TEACHER_ARRAYS } else { 0 }
        + if has.covariance { COVARIANCE_ARRAYS } else { 0 };
    arrays * 4 * tokens + 16 * (sequences as u64 + 1)
}
