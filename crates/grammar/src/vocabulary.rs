//! A model's vocabulary as the bytes of its tokens, in a tree that masks are computed over.

use crate::compiled::{Grammar, limits};
use crate::form::ResponseForm;
use crate::refusal::{invalid, refused};
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_text::Tokenizer;
use std::sync::Arc;
use toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

/// Bytes of a vocabulary for each of its tokens: the tree, and trees of the parts that strings of JSON often have.
/// An estimate.
const BYTES_PER_TOKEN: u64 = 256;

/// Stack of the thread that compiles a grammar, of which the longest chain of references that `FORM_BYTES_MAX` has room
/// for touches a part.
const STACK_BYTES: usize = 128 << 20;

/// The tokens of a model, for any number of grammars.
pub struct GrammarVocabulary {
    factory: ParserFactory,
    vocab: usize,
}

impl std::fmt::Debug for GrammarVocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a vocabulary of {} tokens", self.vocab)
    }
}

impl GrammarVocabulary {
    /// Reads the tokens of a model with `vocab` rows. `ends`: those that end a text.
    ///
    /// Errors: `grammar-vocabulary` if tokens are no bytes, or none ends a text.
    pub fn new(tokenizer: &Tokenizer, vocab: u32, ends: &[u32]) -> Result<GrammarVocabulary> {
        let ends: Vec<u32> = ends.iter().copied().filter(|id| *id < vocab).collect();
        let Some(&end) = ends.first() else {
            return Err(unfit("the model has no token that ends a text"));
        };
        if !tokenizer.has_token_bytes() {
            return Err(unfit("the tokenizer's texts are not the bytes of its tokens, one after the other"));
        }
        let words: Vec<Vec<u8>> = (0..vocab).map(|id| word(tokenizer, id, ends.contains(&id))).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab, end), &words).with_eos_tokens(&ends);
        // Not canonical: no text is forced in tokens that the model would not choose.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|err| unfit(&err.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(GrammarVocabulary { factory, vocab: vocab as usize })
    }

    /// Returns the host bytes of a vocabulary.
    pub fn host_bytes(vocab: u32) -> Bytes {
        Bytes(u64::from(vocab) * BYTES_PER_TOKEN + (4 << 20))
    }

    /// Returns the words of a mask, of 32 tokens each.
    pub fn words(&self) -> usize {
        self.vocab.div_ceil(32)
    }

    /// Compiles what a response may be, for `lanes` threads that compute masks.
    ///
    /// Errors: `grammar-invalid` for what the library does not know, and if no text satisfies it; `grammar-too-large`.
    pub fn compile(&self, form: &ResponseForm, lanes: usize) -> Result<Grammar> {
        let compile = || {
            let grammar = form.grammar()?;
            let parser = self.factory.create_parser(grammar).map_err(|err| refused(&err.to_string()))?;
            Grammar::new(&parser, &self.factory.slicer(), (lanes, self.words()), form.is_expression())
        };
        // The library follows parts within parts, and references from one to the next, by calls within calls.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
            let thread = thread.spawn_scoped(scope, compile).map_err(|err| {
                Error::new("thread-not-started", format!("no thread to compile a grammar: {err}"))
            })?;
            thread.join().unwrap_or_else(|_| Err(invalid("the library cannot use it")))
        })
    }
}

/// Returns a token's bytes as text; special ones and ends, which no text has, have a mark before their name. Ids
/// without a token have none, and are never in a mask.
fn word(tokenizer: &Tokenizer, id: u32, is_end: bool) -> Vec<u8> {
    if id >= tokenizer.vocab_size() {
        return Vec::new();
    }
    if !tokenizer.is_special(id) && !is_end {
        return tokenizer.token_bytes(id).into_owned();
    }
    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    word.extend_from_slice(tokenizer.token_text(id).unwrap_or_default().as_bytes());
    word
}

fn unfit(what: &str) -> Error {
    Error::new("grammar-vocabulary", format!("responses cannot be held to a grammar: {what}"))
}
