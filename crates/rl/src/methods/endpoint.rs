//! `distill.teacher = "endpoint"`: a server scores the responses of a step. Rank 0 asks and gives all ranks what came,
//! so a server that fails, or is not deterministic, cannot part them.

use crate::methods::batch::Batch;
use crate::methods::buffers::StepBuffers;
use crate::rollout::exchange::exchange;
use crate::rollout::message::Kind;
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_ranks::Group;
use plimsoll_reward::{Tally, TeacherAnswers, TeacherQuestion, TeacherServer};
use plimsoll_text::Tokenizer;

/// Tokens of the request that compares the tokenizers.
const PROBE_TOKENS: usize = 32;

/// The server with the teacher.
pub struct EndpointTeacher {
    /// None on ranks other than 0.
    server: Option<TeacherServer>,
}

/// What a teacher's server did in a step.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Share of samples that were left out, because a reward, the environment or the teacher failed.
    pub fault_share: f64,
    /// Failures by cause; of rank 0 alone, as is `fault`.
    pub tally: Tally,
    /// The first failure, in one line.
    pub fault: Option<String>,
}

impl EndpointTeacher {
    /// Asks the run's server a first time on rank 0; `None` for another teacher. `vocab`: rows of the embedding.
    ///
    /// Errors: `teacher-endpoint-failed`, `teacher-tokenizer-mismatch`.
    pub(crate) fn start(
        run: &RunSpec,
        rank: usize,
        tokenizer: &Tokenizer,
        vocab: usize,
    ) -> Result<Option<EndpointTeacher>> {
        let Some(spec) = run.teacher_server() else { return Ok(None) };
        let server = match rank {
            0 => Some(TeacherServer::start(&spec, &probe(tokenizer, vocab))?),
            _ => None,
        };
        Ok(Some(EndpointTeacher { server }))
    }

    /// Writes the teacher's log-probabilities of a step's tokens; a sample without them is left out.
    ///
    /// Errors: `rank-lost`.
    pub(crate) fn score(&self, batch: &Batch<'_>, group: &Group, buffers: &mut StepBuffers) -> Result<Asked> {
        let sequences = batch.taught();
        let questions: Vec<TeacherQuestion<'_>> = sequences
            .iter()
            .map(|sequence| TeacherQuestion { prompt: sequence.prompt, response: sequence.response })
            .collect();
        let own = self.server.as_ref().map_or_else(TeacherAnswers::default, |server| server.ask(&questions));
        let TeacherAnswers { logprobs, tally, failure } = own;
        let logprobs = exchange(group, Kind::Teacher, Ok(logprobs))?.swap_remove(0);
        let scored = batch.groups.iter().flat_map(|group| &group.scored);
        let mut failed: Vec<bool> = scored.map(|scored| scored.failed).collect();
        for (s, answer) in logprobs.iter().enumerate() {
            let tokens = buffers.tokens(&(s..s + 1));
            match answer {
                Some(logprobs) => buffers.teacher_logprobs[tokens].copy_from_slice(logprobs),
                None => failed[batch.owners[s]] = true,
            }
        }
        let without: Vec<usize> = (0..logprobs.len()).filter(|&s| logprobs[s].is_none()).collect();
        let gone = |s: usize| without.iter().any(|&other| batch.owners[other] == batch.owners[s]);
        (0..logprobs.len()).filter(|&s| gone(s)).for_each(|s| buffers.leave_out(s));
        let fault_share = failed.iter().filter(|failed| **failed).count() as f64 / failed.len().max(1) as f64;
        let fault = failure.map(|error| format!("{}: {}", error.slug, error.message));
        Ok(Asked { fault_share, tally, fault })
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
