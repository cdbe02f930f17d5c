//! Exports a model that a run file could name, trained or not, as a folder or a GGUF file.

use plimsoll_base::Result;
use plimsoll_config::ModelOptions;
use plimsoll_devices::host;
use plimsoll_infer::models::open_any_model;
use plimsoll_model::RandomWeights;
use plimsoll_run::checkpoint::export::{Ask, Exported, export_model};

/// Exports the model `name`, fetching it if needed. A `random:` model has the initial weights of a run with `seed`.
///
/// Errors: those of opening; those of `plimsoll_run::checkpoint::export::export_model`.
pub fn export_named(name: &str, seed: u64, ask: Ask<'_>) -> Result<Exported> {
    let model = open_any_model(name, &ModelOptions::default())?;
    let random = model.random.then(|| RandomWeights::new(&model.spec, seed, host().kind));
    match &random {
        Some(random) => {
            let made = |tensor: &str, first: u64, out: &mut [f32]| random.rows(tensor, first, out);
            export_model(&model, Some(&made), ask)
        }
        None => export_model(&model, None, ask),
    }
}
