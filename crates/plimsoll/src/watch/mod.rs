//! A view of runs: `events.jsonl`, the plan and the samples of run directories as a page, served by a separate process
//! or written as one file. It only reads: it changes no run and takes no lock.
//!
//! `folder.rs` finds runs below a folder, `tail.rs` follows a log, `series.rs` keeps its curves in bounded memory,
//! `run.rs` holds the state of one run; `live.rs` reads all runs on one thread, and `server.rs` serves them.

mod assets;
mod files;
mod folder;
mod line;
pub mod live;
mod prometheus;
mod run;
mod samples;
mod series;
pub mod server;
mod tail;
pub mod tensorboard;

use crate::pages;
use live::Runs;
use samples::Query;
use serde_json::{Map, Value, json};

/// Most pages of a run's samples in one file, the latest ones.
const STATIC_SAMPLE_PAGES: usize = 10;
/// Most of them of all runs together, though each has one.
const STATIC_SAMPLE_PAGES_OF_ALL: usize = 160;

/// Returns the page of these runs as one file: what the server would send, with the latest samples.
pub fn whole_page(runs: &Runs) -> String {
    let mut pages_of = Map::new();
    let mut each = Vec::new();
    let sample_pages = (STATIC_SAMPLE_PAGES_OF_ALL / runs.len().max(1)).clamp(1, STATIC_SAMPLE_PAGES);
    for run in runs.each() {
        for slug in run.slugs() {
            pages_of.extend(pages::page(&slug).map(|page| (slug, json!(page))));
        }
        let series: Value = serde_json::from_str(&run.series.json(0)).expect("it is written as JSON");
        each.push(
            json!({ "detail": run.detail(), "series": series, "samples": latest(&run.dir, sample_pages) }),
        );
    }
    let data = json!({ "brief": runs.brief(), "runs": each, "pages": pages_of });
    assets::whole(&data.to_string())
}

fn latest(dir: &std::path::Path, pages_max: usize) -> Vec<Value> {
    let (mut rows, mut query) = (Vec::new(), Query::default());
    for _ in 0..pages_max {
        let mut found = samples::find(dir, &query);
        rows.extend(found["rows"].as_array_mut().map(std::mem::take).unwrap_or_default());
        let next = (found["next"]["file"].as_str(), found["next"]["offset"].as_u64());
        let (Some(file), Some(offset)) = next else { break };
        query.from = Some((file.to_string(), offset));
    }
    rows
}
