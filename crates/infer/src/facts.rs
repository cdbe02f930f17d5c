//! Collects what the plan of a command that samples must know of its model.

use crate::form::form_bytes;
use plimsoll_base::{Bytes, Result};
use plimsoll_config::{Positions, RunSpec, SamplerSpec};
use plimsoll_files::OpenModel;
use plimsoll_plan::{
    Facts, HostFacts, Hosts, PerRole, RoleName, Share, check_positions, image_bytes, rows_kept,
    staging_bytes, tokenizer_bytes,
};

/// Shortens the responses of a command to the positions of the model: the length that a user left at its default may be
/// beyond a small model.
///
/// Errors: `positions-beyond-model` where no token follows the longest prompt.
pub fn keep_within_positions(run: &mut RunSpec, model: &OpenModel, prompt_tokens: usize) -> Result<()> {
    let room = (model.spec.max_positions as usize).saturating_sub(prompt_tokens);
    if run.model_options.positions == Positions::Error && room > 0 {
        run.rollout.max_new_tokens = run.rollout.max_new_tokens.min(room as u32);
    }
    check_positions(run, &verb_facts(run, model, prompt_tokens, 1))
}

/// Returns the facts of a command whose prompts are already tokens.
pub fn verb_facts(run: &SamplerSpec, model: &OpenModel, prompt_tokens: usize, prompts: usize) -> Facts {
    Facts {
        spec: model.spec,
        prompt_tokens: prompt_tokens.max(1),
        completion_tokens: 0,
        eval_prompts: prompts,
        share: Share::WHOLE,
        hosts: Hosts::one(1),
        trainers: Hosts::one(1),
        card: None,
        sight: None,
        tenants: None,
        models: PerRole::none(),
        adapters: PerRole::none(),
        encodings: PerRole::none().with(RoleName::Actor, model.encodings),
        host: HostFacts {
            image: image_bytes(),
            tokenizer: tokenizer_bytes(model),
            data: Bytes(0),
            clients: Bytes(0),
            schema: form_bytes(&run.rollout, model),
            script: Bytes(0),
            staging: staging_bytes(run.memory.staging, model),
            rows_kept: rows_kept(run),
            disk: Default::default(),
        },
    }
}
