//! Checkpoints of an environment policy: safetensors files with PyTorch's names, policy.json, and the state that the
//! next step depends on. As with all checkpoints, the folder gets its name only when it is complete.

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
    FORMAT, MANIFEST, Manifest, OPTIMIZER, RUN_FILE, RunState, STATE, STATE_JSON, WEIGHTS,
};
use plimsoll_run::lead::Saving;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The element order of matrices.
const LAYOUT: MatrixLayout = MatrixLayout::Single;

/// Writes a checkpoint. `source`: the model that the run began with.
///
/// Errors: `disk-full`, `write-failed`, `run-dir-unwritable`; no partial file is left.
pub fn write(
    learner: &Learner<'_>,
    settings: &AgentSettings,
    agent: &AgentState,
    source: &str,
    saving: Saving<'_>,
) -> Result<PathBuf> {
    let Saving { step, store, retention, everything, .. } = saving;
    let part = store.begin(step)?;
    let written = files(learner, settings, agent, &part, everything).and_then(|files| {
        let manifest = Manifest {
            format: FORMAT,
            step,
            resumable: everything.is_some(),
            source: source.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            files,
        };
        write_new(&part.join(MANIFEST), manifest.to_text().as_bytes())?;
        store.finish(step, &retention)
    });
    written.inspect_err(|_| store.abandon(step))
}

fn files(
    learner: &Learner<'_>,
    settings: &AgentSettings,
    agent: &AgentState,
    part: &Path,
    everything: Option<(&RunState, &str)>,
) -> Result<BTreeMap<String, FileRecord>> {
    let mut files = BTreeMap::new();
    let mut write = |name: &str, bytes: &[u8]| -> Result<()> {
        files.insert(name.to_string(), write_new(&part.join(name), bytes)?);
        Ok(())
    };
    let policy =
        serde_json::to_string_pretty(&policy_json(settings, agent)).expect("a JSON value has a text");
    write(POLICY_JSON, policy.as_bytes())?;
    let folder = part.join(STATE);
    if let Some((state, run_file)) = everything {
        std::fs::create_dir(&folder).map_err(|err| plimsoll_run::run_dir::unwritable(&folder, &err))?;
        write(STATE_JSON, state.to_text().as_bytes())?;
        write(AGENT_STATE, agent.to_text().as_bytes())?;
        write(RUN_FILE, run_file.as_bytes())?;
    }
    let mut tensors = |name: &str, sets: &[FlatTensors<'_>]| -> Result<()> {
        let record = save(learner.dev, &learner.table, LAYOUT, sets, &part.join(name), STAGING)?;
        files.insert(name.into(), record);
        Ok(())
    };
    tensors(WEIGHTS, &[FlatTensors::weights(learner.params.all)])?;
    if everything.is_some() {
        tensors(OPTIMIZER, &learner.states())?;
        fsync_dir(&folder)?;
    }
    Ok(files)
}

/// Returns the data, besides weights, that other programs need to run the policy.
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

/// Reads weights, states and counters from a verified checkpoint.
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
