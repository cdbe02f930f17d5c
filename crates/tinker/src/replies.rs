//! Makes of the engine's answers what clients read.

use crate::codec::output::{Reply, metrics_json};
use crate::job::{Job, JobAnswer};
use crate::names;
use crate::record::{RequestEnding, RequestKey};
use crate::state::Brief;
use plimsoll_base::{Error, Result};
use serde_json::json;

/// Returns the targets of a position for each datum of a pass.
pub fn widths_of(job: &Job) -> Vec<usize> {
    match job {
        Job::Pass { datums, .. } => datums.iter().map(|datum| datum.width).collect(),
        _ => Vec::new(),
    }
}

/// Returns the reply to a step.
pub fn step_reply(answer: &JobAnswer) -> Reply {
    Reply::json(&json!({ "type": "optim_step", "metrics": metrics_json(answer) }))
}

/// Returns the ending of a request as its client reads it.
pub fn ending_of(key: Option<&RequestKey>, brief: &Brief, answer: Result<JobAnswer>) -> RequestEnding {
    let model = key.map(|key| key.target.as_str()).unwrap_or_default();
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return RequestEnding::of(&error),
    };
    let reply = match (brief, &answer) {
        (Brief::Pass { widths, .. }, JobAnswer::Pass { logprobs, metrics }) => {
            Reply::pass(logprobs, widths, metrics)
        }
        (Brief::Step, JobAnswer::Step { .. }) => step_reply(&answer),
        (Brief::Sample { .. }, JobAnswer::Sampled(sampled)) => Reply::sample(sampled),
        (Brief::Create, JobAnswer::Done) => {
            Reply::json(&json!({ "type": "create_model", "model_id": model }))
        }
        (Brief::Load { path, .. } | Brief::LoadNew { path, .. }, JobAnswer::Done) => {
            Reply::json(&json!({ "type": "load_weights", "path": path, "model_id": model }))
        }
        (Brief::Unload, JobAnswer::Done) => {
            Reply::json(&json!({ "type": "unload_model", "model_id": model }))
        }
        (Brief::Save(save), JobAnswer::Saved { bytes }) => {
            let path = save.name.as_ref().map(|name| names::path_of(model, save.kind, name));
            Reply::json(&match &save.sampler {
                Some(sampler) => json!({ "sampling_session_id": sampler }),
                None => json!({ "path": path, "size_bytes": bytes }),
            })
        }
        _ => {
            return RequestEnding::of(&Error::new("internal", "the engine's answer is not that of its job"));
        }
    };
    RequestEnding::Done(reply)
}
