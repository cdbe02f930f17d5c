//! The model card of a checkpoint, as Markdown: its base model, data, training and results.

use crate::sparkline::sparkline;
use plimsoll_base::{Bytes, read_small, shown_places, without_secrets};
use plimsoll_run::checkpoint::Published;
use plimsoll_run::report::{Curves, Points};
use serde_json::Value;
use std::path::Path;

/// Characters of the one-line curve, and rows of its table.
const CURVE_CHARS: usize = 40;
const ROWS_MAX: usize = 10;
/// Longest JSON file of a run read for a card.
const JSON_BYTES_MAX: u64 = 16 << 20;

/// Returns the card of a repository called `name`; `with_curves`: it has a picture of the curves.
pub fn card(published: &Published, name: &str, with_curves: bool) -> String {
    let settings = &published.settings;
    let mut text = front_matter(published);
    text += &format!("\n# {}\n\n", plain(name));
    text += &what_it_is(published);
    text += "\n| | |\n|---|---|\n";
    let mut rows: Vec<(&str, String)> = Vec::new();
    rows.extend(settings["method"].as_str().map(|method| ("method", code(method))));
    rows.extend(published.source.as_deref().map(|source| ("began with", code(source))));
    rows.extend(
        list(&[
            names(&settings["data"]["prompts"]),
            names(&settings["environment"]["env"]),
            names(&settings["environment"]["rows"]),
        ])
        .map(|data| ("data", data)),
    );
    rows.extend(list(&[rewards(settings)]).map(|rewards| ("reward", rewards)));
    rows.extend(settings["lora"]["rank"].as_u64().map(|rank| ("adapter", format!("LoRA of rank {rank}"))));
    let run = published.run.as_deref();
    rows.extend(run.and_then(memory).map(|memory| ("memory", memory)));
    let curves = run.and_then(|run| Curves::read(&run.join("events.jsonl")).ok()).unwrap_or_default();
    let last = published.step.unwrap_or(u32::MAX);
    for (set, points) in &curves.evals {
        let words = evaluation(points, last);
        rows.extend(words.map(|words| ("held out", format!("{}: {words}", code(set)))));
    }
    rows.push(("made by", format!("Plimsoll {}", env!("CARGO_PKG_VERSION"))));
    rows.iter().for_each(|(key, value)| text += &format!("| {key} | {value} |\n"));
    let rewards: Vec<(u32, f64)> = curves.rewards.into_iter().filter(|(step, _)| *step <= last).collect();
    text += &reward_curve(&rewards, with_curves);
    if published.run_file.is_some() {
        text += "\n## The run\n\n`run.toml` is the run file with every setting as it was resolved, without keys, passwords and trackers: \
                 `plimsoll train run.toml` trains it again.\n";
    }
    text
}

fn front_matter(published: &Published) -> String {
    let mut text = "---\n".to_string();
    let on_hub = published.source.as_deref().and_then(repository);
    if let Some(base) = on_hub {
        let relation = if published.is_adapter { "adapter" } else { "finetune" };
        text += &format!("base_model: {base}\nbase_model_relation: {relation}\n");
    }
    let library = if published.is_adapter { "peft" } else { "transformers" };
    text += &format!("library_name: {library}\npipeline_tag: text-generation\n");
    let settings = &published.settings;
    let learnt = [&settings["data"]["prompts"], &settings["environment"]["rows"]];
    let mut sets: Vec<String> =
        learnt.into_iter().flat_map(paths).filter_map(|set| repository(&set)).collect();
    sets.dedup();
    if !sets.is_empty() {
        text += "datasets:\n";
        sets.iter().for_each(|set| text += &format!("- {set}\n"));
    }
    text += "tags:\n- plimsoll\n";
    let is_tag = |method: &&str| method.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let method = settings["method"].as_str().filter(is_tag);
    method.iter().for_each(|method| text += &format!("- {method}\n"));
    text + "---\n"
}

fn what_it_is(published: &Published) -> String {
    let kind = if published.is_adapter { "An adapter" } else { "A language model" };
    match (published.step, published.settings["train"]["steps"].as_u64()) {
        (Some(step), Some(steps)) => format!("{kind} after step {step} of {steps}.\n"),
        (Some(step), None) => format!("{kind} after step {step}.\n"),
        (None, _) => format!("{kind}.\n"),
    }
}

/// Returns the rewards in one line, a table of a few steps, and a picture if there is one.
fn reward_curve(points: &[(u32, f64)], with_curves: bool) -> String {
    let mut text = String::new();
    if let [(_, first), .., (_, last)] = points {
        let values: Vec<f64> = points.iter().map(|(_, reward)| *reward).collect();
        let curve = sparkline(&values, CURVE_CHARS);
        text += &format!(
            "\n## Reward\n\n`{curve}` {} first, {} last\n\n| step | reward |\n|---|---|\n",
            shown_places(*first, 3),
            shown_places(*last, 3)
        );
        let stride = (points.len() - 1).div_ceil(ROWS_MAX - 1).max(1);
        let end = points.len() - 1;
        let shown = points.iter().enumerate().filter(|(at, _)| at % stride == 0 || *at == end);
        shown.for_each(|(_, (step, reward))| text += &format!("| {step} | {} |\n", shown_places(*reward, 3)));
    }
    if with_curves {
        text += "\n![The curves of the run](curves.svg)\n";
    }
    text
}

/// Returns the plan's line on memory: peak and limit of each pool.
fn memory(run: &Path) -> Option<String> {
    let plan = read_json(&run.join("plan.json"))?;
    let pool = |name: &str| {
        let pool = &plan["pools"][name];
        let peak = pool["peak_bytes"].as_u64().filter(|peak| *peak > 0)?;
        Some(match pool["limit_bytes"].as_u64() {
            Some(limit) => format!("{name} {} of {}", Bytes(peak), Bytes(limit)),
            None => format!("{name} {}", Bytes(peak)),
        })
    };
    let pools: Vec<String> = ["device", "host"].into_iter().filter_map(pool).collect();
    (!pools.is_empty()).then(|| format!("planned peak: {}", pools.join(", ")))
}

/// Returns the scores before training and at the newest evaluation up to step `last`.
fn evaluation(points: &Points, last: u32) -> Option<String> {
    let (_, before) = points.iter().find(|(step, _)| *step == 0)?;
    match points.iter().rev().find(|(step, _)| *step > 0 && *step <= last) {
        Some((step, after)) => Some(format!("{before:.3} before, {after:.3} at step {step}")),
        None => Some(format!("{before:.3} before")),
    }
}

fn read_json(path: &Path) -> Option<Value> {
    read_small(path, JSON_BYTES_MAX).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok())
}

/// Returns `org/name` of `hf:org/name@revision/path`.
fn repository(text: &str) -> Option<String> {
    let mut parts = text.strip_prefix("hf:")?.split('/');
    let repo = format!("{}/{}", parts.next()?, parts.next()?.split('@').next()?);
    repo.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c)).then_some(repo)
}

/// Returns the paths of one set or several.
fn paths(sets: &Value) -> Vec<String> {
    let one = |set: &Value| set.as_str().or(set["path"].as_str()).map(str::to_string);
    match sets {
        Value::Array(list) => list.iter().filter_map(one).collect(),
        set => one(set).into_iter().collect(),
    }
}

fn names(sets: &Value) -> Vec<String> {
    paths(sets).iter().map(|path| code(path)).collect()
}

fn rewards(settings: &Value) -> Vec<String> {
    let tables = settings["reward"].as_array().into_iter().flatten();
    tables.filter_map(|table| table["kind"].as_str()).map(code).collect()
}

fn list(names: &[Vec<String>]) -> Option<String> {
    let names: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Formats text as code in a table, where a bar or a line break would end the cell.
fn code(text: &str) -> String {
    format!("`{}`", plain(text))
}

/// Makes text one line without secrets. All text of a card passes through here.
fn plain(text: &str) -> String {
    without_secrets(text)
        .chars()
        .map(|c| if c.is_control() || c == '`' || c == '|' { ' ' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn published(source: &str, settings: Value) -> Published {
        Published {
            folder: "x".into(),
            files: Vec::new(),
            step: Some(20),
            source: Some(source.into()),
            is_adapter: true,
            run: None,
            run_file: None,
            settings,
        }
    }

    #[test]
    fn a_card_names_what_it_was_made_of() {
        let settings = json!({
            "method": "grpo",
            "data": { "prompts": [{ "path": "hf:openai/gsm8k@e5/main/train" }, "own.jsonl"] },
            "reward": [{ "kind": "math" }, { "kind": "a|b`c\n" }],
            "lora": { "rank": 8 },
            "train": { "steps": 100 },
        });
        let card = card(&published("hf:Qwen/Qwen2.5-0.5B@main", settings), "m", true);
        for line in [
            "base_model: Qwen/Qwen2.5-0.5B",
            "base_model_relation: adapter",
            "library_name: peft",
            "datasets:",
            "- openai/gsm8k",
            "- grpo",
            "# m",
            "An adapter after step 20 of 100.",
            "| data | `hf:openai/gsm8k@e5/main/train`, `own.jsonl` |",
            "| reward | `math`, `a b c ` |",
            "| adapter | LoRA of rank 8 |",
            "![The curves of the run](curves.svg)",
        ] {
            assert!(card.lines().any(|have| have == line), "{line}: {card}");
        }
        let rows = json!({ "environment": { "env": "tools", "rows": "hf:o/n@e5/train" } });
        let card = super::card(&published("o/m", rows), "m", false);
        assert!(
            card.contains("\n- o/n\n") && card.contains("| data | `tools`, `hf:o/n@e5/train` |"),
            "{card}"
        );
        // What is no name of the hub is not called one.
        assert!(!super::card(&published("hf:a\nb: c/d", json!({})), "m", false).contains("base_model"));
    }

    #[test]
    fn a_long_curve_keeps_its_ends() {
        let points: Vec<(u32, f64)> = (1..=95).map(|step| (step, f64::from(step) / 95.0)).collect();
        let text = reward_curve(&points, false);
        assert!(text.contains("| 1 | 0.011 |") && text.contains("| 95 | 1.000 |"), "{text}");
        assert!(text.matches("\n| ").count() <= ROWS_MAX + 2, "{text}");
        assert_eq!(reward_curve(&[], false), "");
    }
}
