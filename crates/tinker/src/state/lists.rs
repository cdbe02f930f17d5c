//! Lists as clients read them: runs, saved weights, sessions; a tenant sees its own.

use super::core::Core;
use crate::job::{AdapterChoice, SaveKind};
use crate::limits::PAGE_MAX;
use crate::names;
use crate::record::{ModelRow, SavedRow, Seconds};
use chrono::{DateTime, SecondsFormat};
use serde_json::{Value, json};

/// A part of a list.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub limit: usize,
    pub offset: usize,
}

impl Page {
    fn cut(self, rows: Vec<Value>) -> (Vec<Value>, Value) {
        let (total, limit) = (rows.len(), self.limit.min(PAGE_MAX));
        let rows = rows.into_iter().skip(self.offset).take(limit).collect();
        (rows, json!({ "offset": self.offset, "limit": limit, "total_count": total }))
    }
}

impl Core {
    pub fn list_runs(&self, tenant: &str, page: Page) -> Value {
        let mut rows: Vec<(&String, &ModelRow)> =
            self.tables.models.iter().filter(|(_, row)| row.tenant == tenant).collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.created));
        let (runs, cursor) = page.cut(rows.into_iter().map(|(id, row)| self.run_json(id, row)).collect());
        json!({ "training_runs": runs, "cursor": cursor })
    }

    /// Returns a model as a run.
    ///
    /// Errors: `tinker-not-found`.
    pub fn run(&self, tenant: &str, id: &str) -> plimsoll_base::Result<Value> {
        let row = self.tables.models.get(id).filter(|row| row.tenant == tenant);
        row.map(|row| self.run_json(id, row)).ok_or_else(|| super::core::not_found("training run", id))
    }

    fn run_json(&self, id: &str, row: &ModelRow) -> Value {
        let last = |kind: SaveKind| {
            let of = self.tables.saved.iter().filter(|(_, saved)| saved.model == id && saved.kind == kind);
            of.max_by_key(|(_, saved)| (saved.time, saved.store)).map(|(path, saved)| saved_json(path, saved))
        };
        json!({
            "training_run_id": id, "base_model": row.adapter.base_model, "model_owner": row.tenant, "is_lora": true,
            "corrupted": false, "lora_rank": row.adapter.rank, "last_request_time": time_text(row.last_request),
            "last_checkpoint": last(SaveKind::Training), "last_sampler_checkpoint": last(SaveKind::Sampler),
            "user_metadata": row.metadata,
        })
    }

    /// Lists what was saved, the newest first: of one model, or of all of a tenant.
    pub fn list_saved(&self, tenant: &str, model: Option<&str>, page: Option<Page>) -> Value {
        let of = |row: &SavedRow| row.tenant == tenant && model.is_none_or(|model| row.model == model);
        let mut rows: Vec<(&String, &SavedRow)> =
            self.tables.saved.iter().filter(|(_, row)| of(row)).collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse((row.time, row.store)));
        let rows = rows.into_iter().map(|(path, row)| saved_json(path, row)).collect();
        match page {
            None => json!({ "checkpoints": rows }),
            Some(page) => {
                let (rows, cursor) = page.cut(rows);
                json!({ "checkpoints": rows, "cursor": cursor })
            }
        }
    }

    pub fn list_sessions(&self, tenant: &str, page: Page) -> Value {
        let mut rows: Vec<_> = self.tables.sessions.iter().filter(|(_, row)| row.tenant == tenant).collect();
        rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.created));
        let (rows, _) = page.cut(rows.into_iter().map(|(id, _)| Value::from(id.as_str())).collect());
        json!({ "sessions": rows })
    }

    /// Returns a session with its models and samplers.
    ///
    /// Errors: `tinker-not-found`.
    pub fn session_json(&self, tenant: &str, id: &str) -> plimsoll_base::Result<Value> {
        let row = self.tables.sessions.get(id).filter(|row| row.tenant == tenant);
        let row = row.ok_or_else(|| super::core::not_found("session", id))?;
        let models = self.tables.models.iter().filter(|(_, row)| row.session == id).map(|(id, _)| id.clone());
        let samplers =
            self.tables.samplers.iter().filter(|(_, row)| row.session == id).map(|(id, _)| id.clone());
        Ok(json!({
            "training_run_ids": models.collect::<Vec<_>>(), "sampler_ids": samplers.collect::<Vec<_>>(),
            "user_metadata": row.metadata, "display_name": row.display_name,
        }))
    }
}

/// Returns what loading needs to know of an adapter.
pub fn adapter_json(adapter: &AdapterChoice) -> Value {
    json!({
        "base_model": adapter.base_model, "is_lora": true, "lora_rank": adapter.rank,
        "train_unembed": adapter.train_unembed, "train_mlp": adapter.train_mlp, "train_attn": adapter.train_attn,
        "optimizer_config": { "type": "adamw" },
    })
}

fn saved_json(path: &str, row: &SavedRow) -> Value {
    let name = path.rsplit('/').next().unwrap_or_default();
    json!({
        "checkpoint_id": format!("{}/{name}", names::folder(row.kind)), "checkpoint_type": names::kind_name(row.kind),
        "time": time_text(row.time), "tinker_path": path, "size_bytes": row.bytes, "public": false,
        "user_metadata": row.metadata, "expires_at": row.expires.map(time_text),
    })
}

/// Writes a time as RFC 3339.
pub fn time_text(seconds: Seconds) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    time.map_or_else(String::new, |time| time.to_rfc3339_opts(SecondsFormat::Secs, true))
}
