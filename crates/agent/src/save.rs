//! Checkpoints of an environment policy: a safetensors file under PyTorch's names, what the policy must be read with, and
//! everything that the next step depends on. They are as whole, and as nameless until they are, as all checkpoints.

use super::learner::Learner;
use super::network::POLICY_JSON;
use super::plan::STAGING;
use super::settings::AgentSettings;
use super::state::{AGENT_STATE, AgentState};
use plimsoll_base::Result;
use plimsoll_device::{Activation, MatrixLayout};
use plimsoll_files::{FileRecord, fsync_dir, write_new};
use plimsoll_memory::Buf;
use plimsoll_model::{FlatTensors, restore, save};
use plimsoll_run::checkpoint::{
    FORMAT, MANIFEST, Manifest, OPTIMIZER, RUN_FILE, Retention, RunState, STATE, STATE_JSON, Store, WEIGHTS,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The element order of matrices.
const LAYOUT: MatrixLayout = MatrixLayout::Single;

/// What is saved.
pub struct Saved<'s> {
    /// Steps done.
    pub step: u32,
    /// The model that the run began with.
    pub source: &'s str,
    /// Moments and episodes.
    pub agent: &'s AgentState,
    /// Counters and run file; none for weights alone, from which a run cannot go on.
    pub everything: Option<(&'s RunState, &'s str)>,
}

/// Writes a checkpoint.
///
/// Errors: `disk-full`, `write-failed`, `run-dir-unwritable`; nothing half-written is left.
pub fn write(
    learner: &Learner<'_>,
    settings: &AgentSettings,
    saved: &Saved<'_>,
    store: &Store,
    retention: &Retention,
) -> Result<PathBuf> {
    let step = saved.step;
    let part = store.begin(step)?;
    let written = files(learner, settings, &part, saved).and_then(|files| {
        let manifest = Manifest {
            format: FORMAT,
            step,
            resumable: saved.everything.is_some(),
            source: saved.source.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            files,
        };
        write_new(&part.join(MANIFEST), manifest.to_text().as_bytes())?;
        store.finish(step, retention)
    });
    written.inspect_err(|_| store.abandon(step))
}

fn files(
    learner: &Learner<'_>,
    settings: &AgentSettings,
    part: &Path,
    saved: &Saved<'_>,
) -> Result<BTreeMap<String, FileRecord>> {
    let mut files = BTreeMap::new();
    let policy =
        serde_json::to_string_pretty(&policy_json(settings, saved.agent)).expect("a JSON value has a text");
    files.insert(POLICY_JSON.into(), write_new(&part.join(POLICY_JSON), policy.as_bytes())?);
    let weights = [FlatTensors::weights(learner.params.all)];
    let record = save(learner.dev, &learner.table, LAYOUT, &weights, &part.join(WEIGHTS), STAGING)?;
    files.insert(WEIGHTS.into(), record);
    let Some((state, run_file)) = saved.everything else { return Ok(files) };
    let folder = part.join(STATE);
    std::fs::create_dir(&folder).map_err(|err| plimsoll_run::run_dir::unwritable(&folder, &err))?;
    for (name, text) in [
        (STATE_JSON, state.to_text()),
        (AGENT_STATE, saved.agent.to_text()),
        (RUN_FILE, run_file.to_string()),
    ] {
        files.insert(name.into(), write_new(&part.join(name), text.as_bytes())?);
    }
    let path = part.join(OPTIMIZER);
    files.insert(
        OPTIMIZER.into(),
        save(learner.dev, &learner.table, LAYOUT, &learner.states(), &path, STAGING)?,
    );
    fsync_dir(&folder)?;
    Ok(files)
}

/// What somebody who takes the weights elsewhere must know.
fn policy_json(settings: &AgentSettings, agent: &AgentState) -> Value {
    let activation = match settings.network.spec.activation {
        Activation::Tanh => "tanh",
        Activation::Relu => "relu",
    };
    json!({
        "env": settings.env.id,
        "hidden": settings.network.spec.hidden,
        "activation": activation,
        "observation": settings.env.observation,
        "action": settings.env.action,
        "observation_moments": agent.observations,
    })
}

/// Takes weights, states and counters from a verified checkpoint.
///
/// Errors: `checkpoint-damaged`; those of reading.
pub fn read(learner: &mut Learner<'_>, checkpoint: &Path, updates: u64) -> Result<()> {
    let through: Option<Buf<'_>> = None;
    let weights = [FlatTensors::weights(learner.params.all)];
    restore(learner.dev, &learner.table, LAYOUT, &weights, through, &checkpoint.join(WEIGHTS), STAGING)?;
    let path = checkpoint.join(OPTIMIZER);
    restore(learner.dev, &learner.table, LAYOUT, &learner.states(), through, &path, STAGING)?;
    learner.updates = updates;
    Ok(())
}
