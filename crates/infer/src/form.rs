//! What the responses of a run are held to: the masks of a rollout, and those of its tokens again when they are scored.
//!
//! A mask follows from the tokens before it alone, so a rollout that goes on and a run that resumes have the same ones.

use plimsoll_base::{Bytes, Error, Result, read_small_text};
use plimsoll_config::Rollout;
use plimsoll_device::Device;
use plimsoll_files::OpenModel;
use plimsoll_grammar::{
    FORM_BYTES_MAX, Grammar, GrammarMatcher, GrammarVocabulary, MASK_LANES, MaskLanes, ResponseForm,
};
use plimsoll_model::Pass;
use plimsoll_text::Tokenizer;
use plimsoll_train::{HeadRow, Sequence};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// Masks of rows that wait to be uploaded.
const WAITING_MAX: usize = 64;
/// What a run file writes before a regular expression.
const REGEX: &str = "regex:";

/// The form that responses of a run have.
#[derive(Debug)]
pub struct TextForm {
    grammar: Arc<Grammar>,
    words: usize,
}

/// Returns the host bytes of what a run's responses are held to.
pub fn form_bytes(rollout: &Rollout, model: &OpenModel) -> Bytes {
    match rollout.schema {
        None => Bytes(0),
        Some(_) => {
            GrammarVocabulary::host_bytes(model.spec.vocab)
                + Grammar::host_bytes(MASK_LANES, model.spec.vocab)
        }
    }
}

/// Opens what the responses of a run are held to. `ends`: the tokens that end one.
///
/// Errors: `schema-unreadable`, and those of compiling it.
pub fn open_form(
    rollout: &Rollout,
    (tokenizer, ends): (&Tokenizer, &[u32]),
    model: &OpenModel,
) -> Result<Option<Arc<TextForm>>> {
    let Some(setting) = &rollout.schema else { return Ok(None) };
    compile_form(setting, (tokenizer, ends), model.spec.vocab).map(Some)
}

/// Compiles a form as a run file writes it, for a model of `vocab` tokens.
///
/// Errors: as `open_form`.
pub fn compile_form(
    setting: &str,
    (tokenizer, ends): (&Tokenizer, &[u32]),
    vocab: u32,
) -> Result<Arc<TextForm>> {
    let vocabulary = GrammarVocabulary::new(tokenizer, vocab, ends)?;
    let grammar = vocabulary.compile(&form_of(setting)?, MASK_LANES)?;
    Ok(Arc::new(TextForm { grammar: grammar.into(), words: vocabulary.words() }))
}

fn form_of(setting: &str) -> Result<ResponseForm> {
    if let Some(regex) = setting.strip_prefix(REGEX) {
        return Ok(ResponseForm::Regex(regex.to_string()));
    }
    let unreadable = |what: String| Error::usage("schema-unreadable", format!("rollout.schema: {what}"));
    let text = if setting.trim_start().starts_with('{') {
        setting.to_string()
    } else {
        read_small_text(Path::new(setting), FORM_BYTES_MAX as u64)
            .map_err(|err| unreadable(format!("{}: {err}", plimsoll_base::shown_path(Path::new(setting)))))?
    };
    let schema = serde_json::from_str(&text).map_err(|err| unreadable(format!("no JSON: {err}")))?;
    Ok(ResponseForm::Json(schema))
}

impl TextForm {
    /// Uploads the masks of a pass's head rows, by the tokens before each: what the rollout drew by.
    ///
    /// Errors: `grammar-too-complex`.
    pub fn put(
        &self,
        dev: &dyn Device,
        pass: &Pass<'_>,
        rows: &[HeadRow],
        sequences: &[Sequence<'_>],
    ) -> Result<()> {
        let part = rows.len().div_ceil(MASK_LANES).max(1);
        std::thread::scope(|scope| {
            let (send, masks) = sync_channel(WAITING_MAX);
            for (lane, part) in rows.chunks(part).enumerate() {
                let send = send.clone();
                scope.spawn(move || {
                    let mut replay = Replay { form: self, lane, at: None };
                    for (row, head) in (lane * rows.len().div_ceil(MASK_LANES).max(1)..).zip(part) {
                        let mask = replay.mask(head, sequences[head.sequence as usize].response);
                        let has_failed = mask.is_err();
                        // The receiver is gone after an error.
                        if send.send(mask.map(|words| (row, words))).is_err() || has_failed {
                            return;
                        }
                    }
                });
            }
            drop(send);
            for mask in masks {
                let (row, words) = mask?;
                pass.put_mask(dev, row, &words);
            }
            pass.put_masked(dev, rows.iter().map(|_| true));
            Ok(())
        })
    }
}

/// A matcher that goes through responses again.
struct Replay<'f> {
    form: &'f TextForm,
    lane: usize,
    /// The sequence, its matcher, and the tokens that it has taken.
    at: Option<(u32, GrammarMatcher, usize)>,
}

impl Replay<'_> {
    /// Returns the mask by which a token was drawn.
    fn mask(&mut self, head: &HeadRow, response: &[u32]) -> Result<Vec<u32>> {
        let token = head.token as usize;
        let goes_on = |at: &(u32, GrammarMatcher, usize)| at.0 == head.sequence && at.2 <= token;
        let (sequence, mut matcher, taken) = match self.at.take().filter(goes_on) {
            Some(at) => at,
            None => (head.sequence, self.form.grammar.matcher(self.lane), 0),
        };
        response[taken..token].iter().try_for_each(|&id| matcher.take(id))?;
        let mut words = vec![0; self.form.words];
        matcher.mask(&mut words)?;
        self.at = Some((sequence, matcher, token));
        Ok(words)
    }
}

/// The masks of the responses of a rollout.
#[derive(Debug)]
pub(crate) struct FormMasks {
    form: Arc<TextForm>,
    lanes: MaskLanes,
    /// Tokens that the matcher of each response has taken; none before its first mask.
    taken: Vec<Option<usize>>,
}

impl FormMasks {
    /// Starts the threads for `samples` responses.
    ///
    /// Errors: `thread-not-started`.
    pub(crate) fn start(form: &Arc<TextForm>, samples: usize) -> Result<FormMasks> {
        let lanes = MaskLanes::start(MASK_LANES, samples, form.words)?;
        Ok(FormMasks { form: form.clone(), lanes, taken: vec![None; samples] })
    }

    /// Takes the token that was drawn last, so that the next mask is computed while the next pass runs.
    pub(crate) fn drew(&mut self, sample: usize, response: &[u32]) {
        if let (Some(taken), Some(&token)) = (&mut self.taken[sample], response.last())
            && *taken + 1 == response.len()
        {
            *taken += 1;
            self.lanes.take(sample, token);
        }
    }

    /// Writes the mask of a response's next token.
    ///
    /// Errors: `grammar-too-complex`.
    pub(crate) fn mask(&mut self, sample: usize, so_far: &[u32], words: &mut [u32]) -> Result<()> {
        if self.taken[sample] != Some(so_far.len()) {
            // It begins, or goes on after what another rollout drew.
            self.lanes.begin(sample, &self.form.grammar);
            so_far.iter().for_each(|&token| self.lanes.take(sample, token));
            self.taken[sample] = Some(so_far.len());
        }
        self.lanes.mask(sample, words)
    }
}
