//! Which per-token arrays a step has on the host, and their bytes.

/// Per-token arrays that only some steps have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepArrays {
    pub critic: bool,
    pub correction: bool,
    pub teacher: bool,
    pub covariance: bool,
    /// Log-probs at half the temperature.
    pub sharp: bool,
    /// Responses as a teacher with other tokens reads them, which `aligned_bytes` counts.
    pub aligned: bool,
    /// Tokens that a teacher lists of each position.
    pub lists: Lists,
    /// Rows that a teacher's head reads of each position.
    pub kept: KeptRows,
}

/// The sizes of the lists of a teacher; 0 if it lists nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// K: tokens of a list.
    pub tokens: usize,
    /// M: most head rows of a micro-batch.
    pub rows: usize,
}

impl Lists {
    /// Returns the heap bytes of its arrays for `positions` response tokens of a step: ids and log-probs [N, K], the
    /// divergences and their derivatives [N], and of a micro-batch log-probs and slopes [M, K] and the rest's [M].
    fn bytes(self, positions: u64) -> u64 {
        if self.tokens == 0 {
            return 0;
        }
        let (k, rows) = (self.tokens as u64, self.rows as u64);
        4 * (positions * (2 * k + 2) + rows * (2 * k + 1))
    }

    /// Returns the heap bytes of ids and log-probs of all ranks while they are exchanged: each as numbers and as bytes,
    /// of this rank, then of all.
    fn exchanged_bytes(self, positions: u64) -> u64 {
        4 * 8 * positions * self.tokens as u64
    }
}

impl StepArrays {
    /// Returns the heap bytes of what a teacher says of `positions` tokens while ranks exchange it, `copies` times.
    pub(crate) fn exchanged_bytes(&self, positions: u64, copies: u64, ranks: u64) -> u64 {
        copies * self.lists.exchanged_bytes(positions) + self.kept.exchanged_bytes(positions, copies * ranks)
    }
}

/// The rows of a teacher whose whole vocabulary is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptRows {
    /// Bytes of a row; 0 if none are kept.
    pub bytes: usize,
}

/// Bytes of kept rows that pass to the host, or from rank to rank, at a time.
pub const KEPT_PIECE_BYTES: usize = 1 << 20;

impl KeptRows {
    /// Returns the heap bytes of its arrays for `positions` tokens: rows, divergences and their derivatives.
    fn bytes_of(self, positions: u64) -> u64 {
        if self.bytes == 0 { 0 } else { positions * (self.bytes as u64 + 2 * 4) }
    }

    /// Returns the heap bytes of a piece on its way from a pass, widened to f32; 0 if no rows are kept.
    pub(crate) fn piece_bytes(self) -> u64 {
        if self.bytes == 0 { 0 } else { KEPT_PIECE_BYTES as u64 }
    }

    /// Returns the heap bytes while they are exchanged: this rank's rows, those of all, and each rank's piece twice.
    fn exchanged_bytes(self, positions: u64, ranks: u64) -> u64 {
        2 * positions * self.bytes as u64 + 2 * ranks * self.piece_bytes()
    }
}

const TOKEN_ARRAYS: u64 = 9;
const CRITIC_ARRAYS: u64 = 4;
const CORRECTION_ARRAYS: u64 = 2;
const TEACHER_ARRAYS: u64 = 1;
/// A penalty, and a token with its covariance, which is four numbers long.
const COVARIANCE_ARRAYS: u64 = 1 + 4;
const SHARP_ARRAYS: u64 = 1;

/// Returns the heap bytes of a step's per-token arrays for `sequences` responses of up to `response_tokens` tokens.
pub fn step_bytes(sequences: usize, response_tokens: usize, has: StepArrays) -> u64 {
    let tokens = sequences as u64 * response_tokens as u64;
    let arrays = TOKEN_ARRAYS
        + if has.critic { CRITIC_ARRAYS } else { 0 }
        + if has.correction { CORRECTION_ARRAYS } else { 0 }
        + if has.teacher { TEACHER_ARRAYS } else { 0 }
        + if has.covariance { COVARIANCE_ARRAYS } else { 0 }
        + if has.sharp { SHARP_ARRAYS } else { 0 };
    arrays * 4 * tokens + has.lists.bytes(tokens) + has.kept.bytes_of(tokens) + 16 * (sequences as u64 + 1)
}

/// Most bytes of text per token of the longest response that are aligned with a teacher's tokens: natural text has 4 to
/// 5. A response of more bytes is aligned up to there.
const ALIGNED_BYTES_PER_TOKEN: usize = 8;
/// Host bytes per byte of a text that the tokenizer's library takes while it encodes.
const ENCODING_BYTES_PER_BYTE: u64 = 256;
/// Words that the library keeps for a thread, up to 10,000 of some 400 bytes, and the thread's stack.
const ENCODING_THREAD_BYTES: u64 = (4 << 20) + (256 << 10);

/// Returns the most bytes of a response that are aligned. `response_tokens`: of the longest response.
pub const fn aligned_text_bytes(response_tokens: usize) -> usize {
    ALIGNED_BYTES_PER_TOKEN * response_tokens
}

/// Returns the heap bytes of responses as a teacher with other tokens reads them. A teacher has at most as many tokens
/// for a response as the longest one of the student: ids, and spans of at least one token on both sides.
pub fn aligned_bytes(sequences: usize, response_tokens: usize) -> u64 {
    let (sequences, tokens) = (sequences as u64, response_tokens as u64);
    let text = aligned_text_bytes(response_tokens) as u64;
    // A response's own, then all of a step: an id of 4 bytes and a span of 16, and of a sequence its end, its index and
    // what the passes take of it.
    20 * tokens * (1 + sequences)
        + 128 * (sequences + 1)
        + (1 + ENCODING_BYTES_PER_BYTE) * text
        + ENCODING_THREAD_BYTES
}
