//! Players produce the responses that a run trains on: `answers` to prompts of the data, which rewards grade; episodes
//! of `text` environments; and episodes of `agents`, programs that ask the model over HTTP. Which one a run has is
//! chosen where it is opened; a supply asks its player for responses, whole or going on from where they are.
//!
//! A `Group` is a prompt with its responses as far as they have come. `episodes` is what the two kinds of episodes have
//! in common: their record, their rewards, and how people see them.

mod agents;
mod answers;
mod chunk;
mod counts;
mod dealt;
mod drawing;
pub(crate) mod episodes;
pub(crate) mod groups;
mod player;
pub(crate) mod step_rollout;
mod text;
mod turn;

pub use answers::Answers;
pub(crate) use answers::respond;
pub(crate) use chunk::{RankChunks, ResponseChunk};
pub(crate) use counts::count_ages;
pub(crate) use dealt::OwnPart;
pub(crate) use episodes::Events;
pub use episodes::{Episodes, KeptEpisode, KeptTurn, RoundReport};
pub(crate) use groups::{Group, GroupsUnderWay, Response};
pub(crate) use player::{Answered, Grades};
pub use player::{Play, PlayLimits, Player, Prompts};
pub(crate) use step_rollout::{StepRollout, take};
pub(crate) use text::first_prompt_tokens;
pub(crate) use turn::{FirstRequest, PlayedTurn};

use agents::AgentPlayer;
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_infer::text::TextModel;
use plimsoll_textenv::Kind;
use text::TextPlayer;

/// Opens the player of a run. `prompt_tokens`: the longest prompt of the plan.
///
/// Errors: `text-environment-missing`, `thread-not-started`, `address-refused`; those of reading an environment's rows
/// and their images.
pub fn open(run: &RunSpec, text: &TextModel, prompt_tokens: usize) -> Result<Box<dyn Player>> {
    let Some(section) = run.environment() else { return Ok(Box::new(Answers)) };
    let kind = Kind::parse(&section.env)?;
    if kind.is_agents() {
        return Ok(Box::new(AgentPlayer::open(run, section, prompt_tokens)?));
    }
    Ok(Box::new(TextPlayer::open(run, (section, &kind), text, prompt_tokens)?))
}
