//! `plan --table`: the peak for a grid of model, context and method, each cell planned as a separate run.

use super::limits_of;
use super::planning::{report, with_planner};
use super::search::Purpose;
use crate::facts::HostFacts;
use crate::facts::{self, Facts};
use crate::role_name::{PerRole, RoleName};
use plimsoll_base::{Bytes, Error, ModelSpec, PRESETS, Result};
use plimsoll_config::{Auto, Method, RunFile, RunSpec, Train};
use plimsoll_memory::{Limits, Pool};
use plimsoll_train::Share;
use serde::Serialize;

/// The axes of the grid; an empty list means its default.
#[derive(Clone, Debug, Default)]
pub struct Grid {
    /// Presets of `random:`.
    pub models: Vec<String>,
    /// Tokens of a sequence, half prompt, half response.
    pub contexts: Vec<u32>,
    pub methods: Vec<String>,
}

const MODELS: [&str; 5] = ["smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b"];
const CONTEXTS: [u32; 3] = [512, 2048, 8192];
const METHODS: [&str; 2] = ["grpo", "sft"];
/// A step of a grid without a run file: prompts, and samples of each.
const STEP: (u32, u32) = (8, 8);

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    pub model: String,
    pub context: u32,
    pub method: String,
    pub fits: bool,
    /// The pool that the model lives in: `device` where there is one, else `host`.
    pub pool: &'static str,
    /// Peak of that pool under the fastest setting that fits; under the smallest setting where none does.
    pub peak_bytes: Bytes,
    /// Peak of that pool under the smallest setting.
    pub min_bytes: Bytes,
    pub predicted_step_s: f64,
    pub micro_batch_tokens: usize,
    pub recompute: plimsoll_model::Recompute,
    pub optimizer_dtype: plimsoll_train::OptimizerDType,
}

/// Plans every cell. Everything in `base` except model, method and lengths applies to all of them.
///
/// Errors: `unknown-preset`, `unknown-method`, `size-overflow`.
pub fn plan_grid(base: Option<&RunFile>, grid: &Grid, limits: &Limits) -> Result<Vec<Cell>> {
    let models = or_default(&grid.models, &MODELS);
    let methods = or_default(&grid.methods, &METHODS);
    let contexts = if grid.contexts.is_empty() { CONTEXTS.to_vec() } else { grid.contexts.clone() };
    let mut cells = Vec::with_capacity(models.len() * methods.len() * contexts.len());
    for model in &models {
        let spec = ModelSpec::preset(model).ok_or_else(|| unknown_preset(model))?;
        for &context in &contexts {
            for method in &methods {
                cells.push(cell(base, spec, model, context, method, limits)?);
            }
        }
    }
    Ok(cells)
}

fn or_default(given: &[String], default: &[&str]) -> Vec<String> {
    if given.is_empty() { default.iter().map(|name| name.to_string()).collect() } else { given.to_vec() }
}

fn cell(
    base: Option<&RunFile>,
    spec: ModelSpec,
    model: &str,
    context: u32,
    method: &str,
    limits: &Limits,
) -> Result<Cell> {
    let mut run = base.cloned().unwrap_or_else(|| empty_run(model));
    run.model = format!("random:{model}");
    run.method = parse_method(method)?;
    let (prompt, response) = (context.div_ceil(2).max(1), (context / 2).max(1));
    run.rollout.max_new_tokens = response;
    // Lengths of the run file belong to its own sequences.
    run.train.micro_batch_tokens = Auto::Auto;
    let run = RunSpec::new(&run);
    let facts = Facts {
        spec,
        prompt_tokens: prompt as usize,
        completion_tokens: if run.objective.is_some() { 0 } else { response as usize },
        eval_prompts: 0,
        share: Share::WHOLE,
        models: PerRole::none()
            .with(RoleName::Critic, run.needs.critic.then_some(spec))
            .with(RoleName::Teacher, run.needs.teacher.then_some(spec))
            .with_rewards(run.model_rewards.iter().map(|_| spec)),
        host: HostFacts {
            image: facts::image_bytes(),
            tokenizer: facts::tokenizer_bytes_of(&spec),
            data: Bytes(0),
            staging: facts::staging_bytes_of(run.choices.staging, &spec),
            rows_kept: facts::rows_kept(&run),
            disk: facts::disk_facts(&run),
        },
    };
    let limits = limits_of(&run, limits);
    with_planner(&run, &facts, &limits, Purpose::Train, |planner| {
        let planned = report(planner, &run)?;
        let (host, device) = planner.smallest(&run)?;
        // With an accelerator, its memory is the one that the model's size matters to.
        let pool = if device > Bytes(0) { Pool::Device } else { Pool::Host };
        Ok(Cell {
            model: model.to_string(),
            context,
            method: method.to_string(),
            fits: planned.fits,
            pool: pool.name(),
            peak_bytes: planned.plan.peak(pool).peak,
            min_bytes: if pool == Pool::Host { host } else { device },
            predicted_step_s: planned.auto.chosen.predicted_step_s,
            micro_batch_tokens: planned.resolved.micro_batch_tokens,
            recompute: planned.resolved.recompute,
            optimizer_dtype: planned.resolved.optimizer_dtype,
        })
    })
}

/// Returns a run with a few dozen sequences per step, and every knob left to the planner.
fn empty_run(model: &str) -> RunFile {
    let mut run = RunFile::of(Method::Grpo, model, Train::new(1, 1e-6));
    (run.rollout.prompts_per_step, run.rollout.group_size) = STEP;
    run
}

fn parse_method(name: &str) -> Result<Method> {
    let method: Option<Method> = serde_json::from_value(serde_json::Value::String(name.to_string())).ok();
    method.ok_or_else(|| {
        Error::usage("unknown-method", format!("--methods: `{name}` is not a method"))
            .hint("write for example --methods grpo,ppo,sft")
    })
}

fn unknown_preset(name: &str) -> Error {
    let names: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
    Error::usage("unknown-preset", format!("--models: there is no preset `{name}`"))
        .hint(format!("the presets are {}", names.join(", ")))
}

/// Formats the grid for people.
pub fn table(cells: &[Cell]) -> String {
    let mut text = format!(
        "{:<14} {:>8} {:<18} {:>10} {:>10}  {}\n",
        "model", "context", "method", "peak", "smallest", "setting"
    );
    if let Some(cell) = cells.first() {
        text = format!("{} memory\n{text}", cell.pool);
    }
    for cell in cells {
        let Cell { model, context, method, .. } = cell;
        let setting = match cell.fits {
            true => format!(
                "micro_batch_tokens {}, recompute {}, states {}",
                cell.micro_batch_tokens,
                format!("{:?}", cell.recompute).to_lowercase(),
                format!("{:?}", cell.optimizer_dtype).to_lowercase()
            ),
            false => "does not fit".to_string(),
        };
        let peak = if cell.fits { cell.peak_bytes.to_string() } else { "-".into() };
        let smallest = cell.min_bytes.to_string();
        text += &format!("{model:<14} {context:>8} {method:<18} {peak:>10} {smallest:>10}  {setting}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_memory::Limit;

    fn limits(gib: u64) -> Limits {
        Limits { host: Some(Limit { bytes: Bytes(gib << 30), source: "test".into() }), ..Limits::default() }
    }

    #[test]
    fn larger_cells_take_more_and_what_fits_is_within_the_limit() {
        let grid = Grid { contexts: vec![256, 1024], ..Grid::default() };
        let cells = plan_grid(None, &grid, &limits(8)).unwrap();
        assert_eq!(cells.len(), MODELS.len() * 2 * METHODS.len());
        for cell in &cells {
            assert_eq!(cell.fits, cell.min_bytes <= Bytes(8 << 30), "{cell:?}");
            assert!(!cell.fits || (cell.min_bytes <= cell.peak_bytes && cell.peak_bytes <= Bytes(8 << 30)));
        }
        let of = |model: &str, context: u32| {
            cells.iter().find(|c| c.model == model && c.context == context && c.method == "grpo").unwrap()
        };
        assert!(of("smollm2-135m", 256).fits && !of("qwen2.5-7b", 256).fits);
        assert!(of("smollm2-135m", 256).min_bytes < of("smollm2-135m", 1024).min_bytes);
        assert_eq!(table(&cells).lines().count(), cells.len() + 2);
    }

    #[test]
    fn what_is_not_in_the_grid_is_named() {
        let slug = |grid: Grid| plan_grid(None, &grid, &limits(8)).unwrap_err().slug;
        assert_eq!(slug(Grid { models: vec!["gpt-7".into()], ..Grid::default() }), "unknown-preset");
        assert_eq!(slug(Grid { methods: vec!["grop".into()], ..Grid::default() }), "unknown-method");
    }
}
