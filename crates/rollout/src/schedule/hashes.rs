//! The hashes of blocks: what the rows of a block and all before it come to.

use super::kept::BlockHash;
use crate::ask::{AskImage, PrefixScope};
use crate::limits::EngineLimits;
use plimsoll_device::KV_BLOCK;
use sha2::{Digest, Sha256};

/// The blocks of all prompts and responses under way.
#[derive(Debug)]
pub(crate) struct Prefixes {
    /// By group.
    pub(super) prompts: Vec<PromptBlocks>,
    /// By sequence.
    pub(super) responses: Vec<ResponseBlocks>,
    /// States that the last pass has read for prompts that go on after them.
    pub(super) read: Vec<u32>,
    /// States that are held in addition to those of prompts and responses: these, and those that prompts begin with.
    pub(super) num_extra: usize,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PromptBlocks {
    /// Hashes of the prompt's full blocks; none if it neither reads nor leaves any.
    pub(super) hashes: Vec<BlockHash>,
    /// True if it reads what others left.
    pub(super) reads: bool,
    /// Tokens whose keys were there when it first began.
    pub(super) found: Option<usize>,
    /// Positions at which a pass ends with the prompt, for its state is kept there: ascending, then 0.
    pub(super) cuts: [usize; 2],
    /// A state that is kept, with which its next rows begin, and the position of these.
    pub(super) begins: Option<(u32, usize)>,
}

/// The rows of a sequence that are hashed.
#[derive(Clone, Debug, Default)]
pub(super) struct ResponseBlocks {
    /// Those of the last block, after the hash of the one before it.
    pub(super) rows: Sha256,
    /// Rows, from the prompt's first on.
    pub(super) count: usize,
}

impl Prefixes {
    pub(super) fn new(limits: &EngineLimits) -> Prefixes {
        let prompt = || PromptBlocks {
            hashes: Vec::with_capacity(limits.context() / KV_BLOCK),
            ..PromptBlocks::default()
        };
        Prefixes {
            prompts: (0..limits.samples).map(|_| prompt()).collect(),
            responses: vec![ResponseBlocks::default(); limits.samples],
            read: Vec::with_capacity(limits.samples),
            num_extra: 0,
        }
    }
}

/// Returns what comes before the first block.
pub(super) fn root(scope: &PrefixScope) -> BlockHash {
    let begin = Sha256::new().chain_update(b"plimsoll prefix");
    begin.chain_update(scope.weights).chain_update(scope.salt).finalize().into()
}

/// Begins the block after another one.
pub(super) fn after(hash: &BlockHash) -> Sha256 {
    Sha256::new().chain_update(hash)
}

/// Adds a row: a token, or a vector by its image's content and its place there.
pub(super) fn push_row(rows: &mut Sha256, id: u32, vocab: u32, images: &[AskImage]) {
    let image = id.checked_sub(vocab).and_then(|vector| {
        let after = images.partition_point(|image| image.first <= vector);
        images[..after].last().map(|image| (image, vector - image.first))
    });
    let Some((image, place)) = image else { return rows.update(id.to_le_bytes()) };
    // No token has this number.
    rows.update(u32::MAX.to_le_bytes());
    rows.update(image.content);
    [image.rows, image.columns, place].iter().for_each(|n| rows.update(n.to_le_bytes()));
}
