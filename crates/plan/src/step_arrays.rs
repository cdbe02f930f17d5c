//! The per-token arrays of a step on the host: which parts of a step have some, and their bytes.

/// A part of a step that has arrays over the tokens, besides those of every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepPart {
    /// A role whose head outputs values: a critic, or a reward model that is trained.
    Values,
    /// Weights of token losses by the age of their samples.
    Correction,
    /// Tokens that are chosen by their covariance.
    Covariance,
    /// A baseline of each token, with log-probs at half the temperature.
    Sharp,
    /// A teacher's log-probs of tokens.
    Teacher,
    /// Tokens that a teacher lists of each position.
    Lists(Lists),
    /// Rows that a teacher's head reads of each position.
    Rows(KeptRows),
}

impl StepPart {
    /// Returns the heap bytes of its arrays for `tokens` response tokens.
    fn bytes(self, tokens: u64) -> u64 {
        match self {
            StepPart::Values => 4 * 4 * tokens,
            StepPart::Correction => 2 * 4 * tokens,
            // A penalty, and a token with its covariance, which is four numbers long.
            StepPart::Covariance => (1 + 4) * 4 * tokens,
            StepPart::Sharp | StepPart::Teacher => 4 * tokens,
            StepPart::Lists(lists) => lists.bytes(tokens),
            StepPart::Rows(rows) => rows.bytes_of(tokens),
        }
    }

    /// Returns the heap bytes of what a teacher says of `tokens` while ranks exchange it, `copies` times.
    fn exchanged_bytes(self, tokens: u64, copies: u64, ranks: u64) -> u64 {
        match self {
            StepPart::Lists(lists) => copies * lists.exchanged_bytes(tokens),
            StepPart::Rows(rows) => rows.exchanged_bytes(tokens, copies * ranks),
            _ => 0,
        }
    }
}

/// The sizes of the lists of a teacher.
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
        let (k, rows) = (self.tokens as u64, self.rows as u64);
        4 * (positions * (2 * k + 2) + rows * (2 * k + 1))
    }

    /// Returns the heap bytes of ids and log-probs of all ranks while they are exchanged: each as numbers and as bytes,
    /// of this rank, then of all.
    fn exchanged_bytes(self, positions: u64) -> u64 {
        4 * 8 * positions * self.tokens as u64
    }
}

/// The rows of a teacher whose whole vocabulary is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptRows {
    /// Bytes of a row.
    pub bytes: usize,
}

/// Bytes of kept rows that pass to the host, or from rank to rank, at a time.
pub const KEPT_PIECE_BYTES: usize = 1 << 20;

impl KeptRows {
    /// Returns the heap bytes of its arrays for `positions` tokens: rows, divergences and their derivatives.
    fn bytes_of(self, positions: u64) -> u64 {
        positions * (self.bytes as u64 + 2 * 4)
    }

    /// Returns the heap bytes while they are exchanged: this rank's rows, those of all, and each rank's piece twice.
    fn exchanged_bytes(self, positions: u64, ranks: u64) -> u64 {
        2 * positions * self.bytes as u64 + 2 * ranks * KEPT_PIECE_BYTES as u64
    }
}

/// Arrays that every step has.
const TOKEN_ARRAYS: u64 = 9;

/// The per-token arrays of a step. Each part binds its own; a run without steps has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepArrays {
    pub sequences: usize,
    /// The most entries of a sequence: tokens of its response, or one score.
    pub response_tokens: usize,
    pub parts: Vec<StepPart>,
}

impl StepArrays {
    /// Returns the most entries of an array.
    pub fn tokens(&self) -> usize {
        self.sequences * self.response_tokens
    }

    pub fn has(&self, part: StepPart) -> bool {
        self.parts.contains(&part)
    }

    /// Returns an array for a part of the step.
    ///
    /// # Panics
    /// If the plan has no bytes for that part.
    pub fn array_of(&self, part: StepPart) -> Vec<f32> {
        assert!(self.has(part), "the plan has no arrays of {part:?}");
        Vec::with_capacity(self.tokens())
    }

    pub fn lists(&self) -> Option<Lists> {
        self.parts.iter().find_map(|part| if let StepPart::Lists(lists) = part { Some(*lists) } else { None })
    }

    pub fn rows(&self) -> Option<KeptRows> {
        self.parts.iter().find_map(|part| if let StepPart::Rows(rows) = part { Some(*rows) } else { None })
    }

    /// Returns the heap bytes of all arrays.
    pub fn bytes(&self) -> u64 {
        let tokens = self.tokens() as u64;
        let parts: u64 = self.parts.iter().map(|part| part.bytes(tokens)).sum();
        TOKEN_ARRAYS * 4 * tokens + parts + 16 * (self.sequences as u64 + 1)
    }

    /// Returns the heap bytes of a piece on its way from a pass, widened to f32; 0 if no rows are kept.
    pub(crate) fn piece_bytes(&self) -> u64 {
        if self.rows().is_some() { KEPT_PIECE_BYTES as u64 } else { 0 }
    }

    /// Returns the heap bytes of what a teacher says while ranks exchange it, `copies` times.
    pub(crate) fn exchanged_bytes(&self, copies: u64, ranks: u64) -> u64 {
        let tokens = self.tokens() as u64;
        self.parts.iter().map(|part| part.exchanged_bytes(tokens, copies, ranks)).sum()
    }
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
