//! `distill.teacher = "endpoint"`: a server scores the responses of a step. Rank 0 asks and gives all ranks what came,
//! so a server that fails, or is not deterministic, cannot part them.

use super::teacher::{ServerReport, Teacher};
use crate::methods::batch::Batch;
use crate::roles::Trainer;
use crate::rollout::exchange::exchange;
use crate::rollout::message::Kind;
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_reward::{TeacherAnswers, TeacherQuestion, TeacherServer};
use plimsoll_text::Tokenizer;

/// Tokens of the request that compares the tokenizers.
const PROBE_TOKENS: usize = 32;

/// The model of a server.
pub(super) struct ServerTeacher {
    /// None on ranks other than 0.
    server: Option<TeacherServer>,
}

impl ServerTeacher {
    /// Asks the run's server a first time on rank 0. `vocab`: rows of the embedding.
    ///
    /// Errors: `teacher-endpoint-failed`, `teacher-tokenizer-mismatch`.
    pub(super) fn start(
        run: &RunSpec,
        rank: usize,
        tokenizer: &Tokenizer,
        vocab: usize,
    ) -> Result<ServerTeacher> {
        let spec = run.teacher_server().filter(|_| rank == 0);
        let server = spec.map(|spec| TeacherServer::start(&spec, &probe(tokenizer, vocab))).transpose()?;
        Ok(ServerTeacher { server })
    }
}

impl Teacher for ServerTeacher {
    fn score(
        &mut self,
        trainer: &mut Trainer<'_>,
        batch: &Batch<'_>,
        all: &mut Vec<f32>,
    ) -> Result<Option<ServerReport>> {
        let sequences = batch.taught();
        let questions: Vec<TeacherQuestion<'_>> = sequences
            .iter()
            .map(|sequence| TeacherQuestion { prompt: sequence.prompt, response: sequence.response })
            .collect();
        let own = self.server.as_ref().map_or_else(TeacherAnswers::default, |server| server.ask(&questions));
        let TeacherAnswers { logprobs, tally, failure } = own;
        let logprobs = exchange(trainer.group, Kind::Teacher, Ok(logprobs))?.swap_remove(0);
        let scored = batch.groups.iter().flat_map(|group| &group.scored);
        let mut failed: Vec<bool> = scored.map(|scored| scored.failed).collect();
        let arrays = &mut trainer.arrays;
        for (s, answer) in logprobs.iter().enumerate() {
            let tokens = arrays.tokens(&(s..s + 1));
            match answer {
                Some(logprobs) => all[tokens].copy_from_slice(logprobs),
                None => failed[batch.owners[s]] = true,
            }
        }
        let without: Vec<usize> = (0..logprobs.len()).filter(|&s| logprobs[s].is_none()).collect();
        let gone = |s: usize| without.iter().any(|&other| batch.owners[other] == batch.owners[s]);
        (0..logprobs.len()).filter(|&s| gone(s)).for_each(|s| arrays.leave_out(s));
        let fault_share = failed.iter().filter(|failed| **failed).count() as f64 / failed.len().max(1) as f64;
        let fault = failure.map(|error| format!("{}: {}", error.slug, error.message));
        Ok(Some(ServerReport { fault_share, tally, fault }))
    }
}

/// Returns tokens from the whole vocabulary whose texts are printable ASCII, which servers write alike.
fn probe(tokenizer: &Tokenizer, vocab: usize) -> Vec<(u32, String)> {
    let end = tokenizer.vocab_size().min(vocab as u32);
    let plain = |id: &u32| {
        let bytes = tokenizer.token_bytes(*id);
        !tokenizer.is_special(*id) && !bytes.is_empty() && bytes.iter().all(u8::is_ascii_graphic)
    };
    let ids: Vec<u32> = (0..end).filter(plain).collect();
    let every = ids.len().div_ceil(PROBE_TOKENS).max(1);
    let text = |id: u32| (id, String::from_utf8_lossy(&tokenizer.token_bytes(id)).into_owned());
    ids.into_iter().step_by(every).map(text).collect()
}
