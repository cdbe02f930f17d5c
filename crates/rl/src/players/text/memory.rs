//! Host memory of episodes, and the lengths that a plan needs before one is played.

use super::glue::Glue;
use crate::data::dataset::forgetting;
use plimsoll_base::Result;
use plimsoll_config::RunSpec;
use plimsoll_infer::text::TextModel;
use plimsoll_textenv::{Hosts, Kind, Start};

/// Number of episodes that show how long an environment's prompts are.
const LOOKED_AT: u64 = 64;
/// Returns the most tokens of an environment's prompts: from the run file, or from its first episodes, all of one form.
pub(crate) fn first_prompt_tokens(run: &RunSpec, text: &TextModel) -> Result<usize> {
    let Some(section) = run.environment() else { return Ok(0) };
    if let Some(limit) = run.data.prompt_tokens_max {
        return Ok(limit as usize);
    }
    let seed = run.episode_seed();
    let starts: Vec<Start> = (0..LOOKED_AT).flat_map(|i| [Start::train(seed, i), Start::eval(i)]).collect();
    let settings = section.host_settings(&run.data);
    let firsts = Hosts::first_messages(&Kind::parse(&section.env)?, &settings, &starts)?;
    // Environments with tools are Python, whose prompts are not read here.
    let glue = Glue { text, tools: &[] };
    let lengths: Result<Vec<usize>> =
        forgetting(|| firsts.iter().map(|first| Ok(glue.prompt(first)?.1.len())).collect());
    Ok(lengths?.into_iter().max().unwrap_or(1).max(1))
}
