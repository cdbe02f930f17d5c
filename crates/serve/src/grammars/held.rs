//! The grammars in use, of which there is a largest number.

use crate::protocol::refusal::{Refusal, Reply};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_grammar::{Grammar, GrammarVocabulary, MASK_LANES, ResponseForm};
use plimsoll_text::Tokenizer;
use std::sync::{Arc, Mutex, PoisonError};

/// A grammar that was compiled, and the form that it is of.
struct Kept {
    key: String,
    grammar: Arc<Grammar>,
}

/// Compiles what responses are held to, and keeps it as long as responses or room are left.
pub struct ServedGrammars {
    most: usize,
    tokens: Tokens,
    vocabulary: Mutex<Option<Result<Arc<GrammarVocabulary>>>>,
    /// The latest one last.
    kept: Mutex<Vec<Kept>>,
}

/// The model's tokens, which are read when the first request asks for a form.
struct Tokens {
    tokenizer: Arc<Tokenizer>,
    vocab: u32,
    eos: Vec<u32>,
}

/// Returns the bytes that `most` grammars take, with the vocabulary that they share.
pub fn grammar_bytes(most: usize, vocab: u32) -> Bytes {
    if most == 0 {
        return Bytes(0);
    }
    Bytes(GrammarVocabulary::host_bytes(vocab).0 + most as u64 * Grammar::host_bytes(MASK_LANES, vocab).0)
}

impl ServedGrammars {
    /// Holds at most `most` grammars; 0 for a server whose responses are free.
    pub fn new(most: usize, tokenizer: Arc<Tokenizer>, vocab: u32, eos: Vec<u32>) -> ServedGrammars {
        let tokens = Tokens { tokenizer, vocab, eos };
        ServedGrammars { most, tokens, vocabulary: Mutex::default(), kept: Mutex::default() }
    }

    /// Returns true if responses can be held to forms here.
    pub fn are_built(&self) -> bool {
        self.most > 0
    }

    /// Returns the grammar of a form; `param`: the field that asks for it.
    ///
    /// Errors: `serve-field-refused` on a server without grammars, `serve-grammars-full`; those of compiling.
    pub fn grammar(&self, form: &ResponseForm, param: &str) -> Reply<Arc<Grammar>> {
        if self.most == 0 {
            let message = format!("{param}: this server holds no response to a form");
            return Err(Refusal::unsupported(param, message).hint("start the server with --grammars N"));
        }
        self.compiled(form).map_err(|error| Box::new(Refusal { error, param: Some(param.into()) }))
    }

    fn compiled(&self, form: &ResponseForm) -> Result<Arc<Grammar>> {
        let key = form.key();
        let vocabulary = self.vocabulary()?;
        // One is compiled at a time: 20 ms at most.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = kept.iter().position(|kept| kept.key == key) {
            let found = kept.remove(at);
            let grammar = found.grammar.clone();
            kept.push(found);
            return Ok(grammar);
        }
        if kept.len() >= self.most {
            // The oldest that no response has any more.
            let Some(at) = kept.iter().position(|kept| Arc::strong_count(&kept.grammar) == 1) else {
                let message = format!("{} forms are in use at one time, and that is the most", kept.len());
                return Err(Error::new("serve-grammars-full", message)
                    .hint("try again later, or start the server with a larger --grammars"));
            };
            kept.remove(at);
        }
        let grammar = Arc::new(vocabulary.compile(form, MASK_LANES)?);
        kept.push(Kept { key, grammar: grammar.clone() });
        Ok(grammar)
    }

    fn vocabulary(&self) -> Result<Arc<GrammarVocabulary>> {
        let mut vocabulary = self.vocabulary.lock().unwrap_or_else(PoisonError::into_inner);
        let Tokens { tokenizer, vocab, eos } = &self.tokens;
        vocabulary.get_or_insert_with(|| GrammarVocabulary::new(tokenizer, *vocab, eos).map(Arc::new)).clone()
    }
}
