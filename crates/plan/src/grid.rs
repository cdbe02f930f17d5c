//! `plan --table`: the peak for a grid of model, context and method, each cell planned as a separate run.

use super::limits_of;
use super::planner::Purpose;
use super::planning::{bare, with_planner};
use crate::facts::HostFacts;
use crate::facts::{self, Facts};
use crate::hosts::Hosts;
use crate::role_name::{PerRole, RoleName};
use plimsoll_arch::{Compute, LoraTargets, ModelSpec, PRESETS, Quantization};
use plimsoll_base::{Bytes, Error, Result};
use plimsoll_config::{Auto, Lora, Method, RunFile, RunSpec, Train};
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
    /// The pool of the model: `device` if there is one, else `host`.
    pub pool: &'static str,
    /// All weights are trained.
    #[serde(flatten)]
    pub full: Planned,
    /// All weights are trained, and products computed with numbers of eight bits; none if the device or the model has
    /// no such products.
    pub fp8: Option<Planned>,
    /// Adapters are trained; none if the method or a layer of the model does not allow them.
    pub lora: Option<Adapted>,
    /// Adapters are trained over 4-bit weights; none if rows are not whole blocks.
    pub qlora: Option<Adapted>,
}

/// The plan of training adapters of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Adapted {
    pub rank: u32,
    #[serde(flatten)]
    pub planned: Planned,
}

/// The plan of one way to train a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Planned {
    pub fits: bool,
    /// Peak of the cell's pool under the fastest setting that fits; under the smallest setting if none does.
    pub peak_bytes: Bytes,
    /// Peak of that pool under the smallest setting.
    pub min_bytes: Bytes,
    pub predicted_step_s: f64,
    pub micro_batch_tokens: usize,
    pub recompute: plimsoll_model::Recompute,
    pub optimizer_dtype: plimsoll_train::OptimizerDType,
}

/// Plans every cell, in full and with adapters: those of `base`, else of the default rank. All cells keep everything
/// else in `base` but model, method and lengths.
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
    let of = parse_method(method)?;
    let mut run = base.cloned().unwrap_or_else(|| empty_run(of, model));
    (run.method, run.model) = (of, format!("random:{model}"));
    let (prompt, response) = (context.div_ceil(2).max(1), (context / 2).max(1));
    run.rollout.max_new_tokens = response;
    // Lengths in the run file apply to its own sequences.
    run.train.micro_batch_tokens = Auto::Auto;
    let adapters = run.lora.take().unwrap_or_default();
    // Presets are not files.
    if let Some(distill) = &mut run.distill {
        distill.quantize = distill.quantize.filter(|how| *how != Quantization::Gguf);
    }
    run.model_options.quantize = Auto::Auto;
    run.model_options.compute = Auto::Value(Compute::Full);
    let (pool, full) = planned(&run, spec, prompt, limits)?;
    run.model_options.compute = Auto::Value(Compute::Fp8);
    let fp8 = match planned(&run, spec, prompt, limits) {
        Ok((_, planned)) => Some(planned),
        Err(error) if error.slug == "fp8-unsupported" => None,
        Err(error) => return Err(error),
    };
    run.model_options.compute = Auto::Value(Compute::Full);
    let (mut lora, mut qlora) = (None, None);
    if let Some(adapters) = taken(spec, adapters) {
        // Adapters decide both dtypes.
        (run.train.optimizer_dtype, run.train.grad_dtype) = (Auto::Auto, Auto::Auto);
        let mut adapted = |adapters: Lora| {
            let rank = adapters.rank;
            run.lora = Some(adapters);
            planned(&run, spec, prompt, limits).map(|(_, planned)| Some(Adapted { rank, planned }))
        };
        lora = adapted(Lora { quantize: None, ..adapters.clone() })?;
        if Quantization::Nf4.takes(&spec) {
            qlora =
                adapted(Lora { quantize: Some(Quantization::Nf4), merge: Auto::Value(false), ..adapters })?;
        }
    }
    let (model, method) = (model.to_string(), method.to_string());
    Ok(Cell { model, context, method, pool: pool.name(), full, fp8, lora, qlora })
}

/// Returns the adapters of the layers that can have them, if this rank fits in each.
fn taken(spec: ModelSpec, lora: Lora) -> Option<Lora> {
    let built = LoraTargets::built_for(&spec);
    let targets = LoraTargets::new(lora.targets.iter().filter(|&target| built.contains(target)))?;
    let mut widths = targets.iter().map(|target| target.narrowest(&spec));
    widths.all(|(a, b)| a.min(b) >= lora.rank).then_some(Lora { targets, ..lora })
}

/// Plans one way to train a cell. Also returns the pool that the model lives in.
fn planned(run: &RunFile, spec: ModelSpec, prompt: u32, limits: &Limits) -> Result<(Pool, Planned)> {
    let response = run.rollout.max_new_tokens;
    let run = RunSpec::new(run);
    let facts = Facts {
        spec,
        prompt_tokens: prompt as usize,
        completion_tokens: if run.samples() { 0 } else { response as usize },
        eval_prompts: 0,
        share: Share::WHOLE,
        hosts: Hosts::one(1),
        trainers: Hosts::one(1),
        card: None,
        sight: None,
        tenants: None,
        models: PerRole::none()
            .with(RoleName::Critic, run.critic().is_some().then_some(spec))
            .with(RoleName::TEACHER, run.distill().is_some().then_some(spec))
            .with_rewards(run.model_rewards.iter().map(|_| spec)),
        adapters: PerRole::none(),
        encodings: PerRole::none(),
        host: HostFacts {
            image: facts::image_bytes(),
            tokenizer: facts::tokenizer_bytes_of(&spec),
            data: Bytes(0),
            clients: Bytes(0),
            schema: Bytes(0),
            script: Bytes(0),
            staging: facts::staging_bytes_of(run.memory.staging, &spec),
            rows_kept: facts::rows_kept(&run),
            disk: facts::disk_facts(&run),
        },
    };
    let limits = limits_of(&run, limits);
    with_planner(&run, &facts, &limits, Purpose::Train, |planner| {
        let planned = bare(planner, &run)?;
        let (host, device) = planner.smallest(&run)?;
        // With an accelerator, the model's size matters to its memory.
        let pool = if device > Bytes(0) { Pool::Device } else { Pool::Host };
        let of = Planned {
            fits: planned.fits,
            peak_bytes: planned.plan.peak(pool).peak,
            min_bytes: if pool == Pool::Host { host } else { device },
            predicted_step_s: planned.auto.chosen.predicted_step_s,
            micro_batch_tokens: planned.resolved.micro_batch_tokens,
            recompute: planned.resolved.recompute,
            optimizer_dtype: planned.resolved.optimizer_dtype,
        };
        Ok((pool, of))
    })
}

/// Returns a run with a few dozen sequences per step, and every knob left to the planner.
fn empty_run(method: Method, model: &str) -> RunFile {
    let mut run = RunFile::of(method, model, Train::new(1, 1e-6));
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

/// Formats the grid for people: peak and smallest memory of each way to train, and the setting of the first that fits.
pub fn table(cells: &[Cell]) -> String {
    let ranks = cells.iter().find_map(|cell| cell.lora.as_ref()).map(|lora| lora.rank);
    let lora = ranks.map_or("LoRA".to_string(), |rank| format!("LoRA r={rank}"));
    let mut text = format!(
        "{:<14} {:>8} {:<18} {:>11} {:>10} {:>11} {:>10} {lora:>11} {:>10} {:>11} {:>10}  {}\n",
        "model",
        "context",
        "method",
        "all weights",
        "smallest",
        "in FP8",
        "smallest",
        "smallest",
        "QLoRA",
        "smallest",
        "setting"
    );
    if let Some(cell) = cells.first() {
        text = format!("{} memory\n{text}", cell.pool);
    }
    for cell in cells {
        let Cell { model, context, method, full, .. } = cell;
        let [lora, qlora] = [&cell.lora, &cell.qlora].map(|way| way.as_ref().map(|way| &way.planned));
        let ways = [("", Some(full)), ("FP8: ", cell.fp8.as_ref()), ("LoRA: ", lora), ("QLoRA: ", qlora)];
        let columns = ways.map(|(_, way)| {
            let (peak, least) = bytes(way);
            format!("{peak:>11} {least:>10}")
        });
        let fits = |(_, way): &(&str, Option<&Planned>)| way.is_some_and(|way| way.fits);
        let setting = match ways.into_iter().find(fits) {
            Some((name, Some(way))) => format!("{name}{}", setting(way)),
            _ => "does not fit".to_string(),
        };
        text += &format!("{model:<14} {context:>8} {method:<18} {}  {setting}\n", columns.join(" "));
    }
    text
}

/// Formats peak and smallest memory; a dash for what does not fit or is missing.
fn bytes(planned: Option<&Planned>) -> (String, String) {
    let or_dash = |bytes: Option<Bytes>| bytes.map_or("-".into(), |bytes| bytes.to_string());
    let peak = planned.filter(|planned| planned.fits).map(|planned| planned.peak_bytes);
    (or_dash(peak), or_dash(planned.map(|planned| planned.min_bytes)))
}

fn setting(planned: &Planned) -> String {
    format!(
        "micro_batch_tokens {}, recompute {}, states {}",
        planned.micro_batch_tokens,
        format!("{:?}", planned.recompute).to_lowercase(),
        format!("{:?}", planned.optimizer_dtype).to_lowercase()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_arch::LoraTarget;
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
            let lora = &cell.lora.as_ref().expect("rank 16 is below every width").planned;
            for way in [&cell.full, lora] {
                assert_eq!(way.fits, way.min_bytes <= Bytes(8 << 30), "{cell:?}");
                assert!(!way.fits || (way.min_bytes <= way.peak_bytes && way.peak_bytes <= Bytes(8 << 30)));
            }
            let qlora = &cell.qlora.as_ref().expect("every width is whole blocks").planned;
            assert!(qlora.min_bytes < lora.min_bytes && lora.min_bytes < cell.full.min_bytes, "{cell:?}");
        }
        let of = |model: &str, context: u32| {
            cells.iter().find(|c| c.model == model && c.context == context && c.method == "grpo").unwrap()
        };
        let full = |model: &str, context: u32| &of(model, context).full;
        assert!(full("smollm2-135m", 256).fits && !full("qwen2.5-7b", 256).fits);
        assert!(full("smollm2-135m", 256).min_bytes < full("smollm2-135m", 1024).min_bytes);
        // Gradients and states of 3 billion parameters are what does not fit.
        let large = of("qwen2.5-3b", 256);
        assert!(!large.full.fits && large.lora.as_ref().is_some_and(|lora| lora.planned.fits));
        assert_eq!(table(&cells).lines().count(), cells.len() + 2);
    }

    #[test]
    fn adapters_are_those_of_the_run_file_where_they_fit_in() {
        let mut base = empty_run(Method::Grpo, "x");
        base.train.optimizer_dtype = Auto::Value(plimsoll_config::OptimizerDtype::Int8);
        base.lora = Some(Lora { rank: 192, ..Lora::default() });
        let grid = |methods: &[&str]| Grid {
            models: vec!["smollm2-135m".into(), "qwen2.5-0.5b".into()],
            contexts: vec![256],
            methods: methods.iter().map(|name| name.to_string()).collect(),
        };
        let cells = plan_grid(Some(&base), &grid(&["grpo", "reward_model"]), &limits(64)).unwrap();
        // The keys and values of the second model are 128 wide.
        let ranks: Vec<_> = cells.iter().map(|cell| cell.lora.as_ref().map(|lora| lora.rank)).collect();
        assert_eq!(ranks, [Some(192), Some(192), None, None]);
        let [full, lora] = [&cells[0].full, &cells[0].lora.as_ref().unwrap().planned];
        let dtypes = [full, lora].map(|way| way.optimizer_dtype);
        assert_eq!(dtypes, [plimsoll_train::OptimizerDType::Int8, plimsoll_train::OptimizerDType::F32]);
        let text = table(&cells);
        assert!(
            text.contains(" LoRA r=192 ")
                && text.contains("  -          -           -          -  micro_batch"),
            "{text}"
        );
    }

    #[test]
    fn adapters_of_a_model_with_experts_are_also_those_of_experts() {
        let grid =
            Grid { models: vec!["qwen3-30b-a3b".into()], contexts: vec![256], methods: vec!["grpo".into()] };
        let least = |targets| {
            let mut base = empty_run(Method::Grpo, "x");
            base.lora = Some(Lora { targets, ..Lora::default() });
            let cells = plan_grid(Some(&base), &grid, &limits(1 << 12)).unwrap();
            cells[0].lora.as_ref().map(|lora| lora.planned.min_bytes)
        };
        let attention = least(LoraTargets::ATTENTION).unwrap();
        let down = least(LoraTargets::new([LoraTarget::Down]).unwrap()).unwrap();
        assert!(attention < down && down < least(LoraTargets::ALL).unwrap());
    }

    #[test]
    fn what_is_not_in_the_grid_is_named() {
        let slug = |grid: Grid| plan_grid(None, &grid, &limits(8)).unwrap_err().slug;
        assert_eq!(slug(Grid { models: vec!["gpt-7".into()], ..Grid::default() }), "unknown-preset");
        assert_eq!(slug(Grid { methods: vec!["grop".into()], ..Grid::default() }), "unknown-method");
    }
}
