//! Output of a plan for people and programs: the table of `plan` and the object of `plan --json`.

use super::{PlanReport, Setting};
use crate::duration::duration;
use crate::hosts::Hosts;
use plimsoll_base::{Bytes, Result};
use plimsoll_memory::{Plan, Pool};
use serde_json::{Value, json};

impl PlanReport {
    /// Refuses a run that does not fit, with exit code 3.
    pub fn refuse(&self) -> Result<()> {
        self.plan.refusal().map_err(|error| {
            self.hints.iter().fold(error, |error, hint| match &hint.set {
                Some(set) => error.hint(format!("--set {set}: {}", hint.why)),
                None => error.hint(hint.why.clone()),
            })
        })
    }

    /// Returns the planned peak of the process itself: the arena and all else in its resident memory.
    pub fn host_peak(&self) -> Bytes {
        self.plan.process_peak()
    }

    /// Returns the object that `plan --json` prints.
    pub fn to_json(&self) -> Value {
        json!({
            "fits": self.fits,
            "ranks": self.hosts().ranks,
            "hosts": self.hosts().count,
            "pools": pools_json(&self.plan),
            "arena_bytes": self.plan.arena_bytes(),
            "regions": self.plan.layout.regions,
            "resolved": self.resolved,
            "auto": self.auto,
            "hints": self.hints,
            "steps": self.steps,
            "predicted_run_s": (self.steps > 0).then(|| self.run_s()),
            "evaluations": self.evaluations,
            "assumed": self.assumed,
            "not_checked": self.not_checked,
            "rows": self.unread,
            "warnings": self.warnings.iter().chain(&self.misspelt).collect::<Vec<_>>(),
            "libraries_source": self.held_source(),
        })
    }

    /// Returns the hosts of the ranks, each of which has this plan.
    fn hosts(&self) -> Hosts {
        self.shape.training.as_ref().map_or(Hosts::one(1), |training| training.hosts)
    }

    /// Returns the table that `plan` prints.
    pub fn table(&self) -> String {
        let mut text = region_lines(&self.plan) + &pool_lines(&self.plan);
        let Hosts { ranks, count, near, .. } = self.hosts();
        if ranks > 1 {
            let all = Bytes(self.plan.peak(Pool::Host).peak.0 * near as u64);
            let which = if count > 1 { format!("each of {count} hosts") } else { "this host".into() };
            text += &format!("{near} ranks on {which}: {all} together; the rows are of each\n");
        }
        let mut line = |s: String| {
            text.push_str(&s);
            text.push('\n');
        };
        line(format!("arena: {} ({} bytes)", self.plan.arena_bytes(), self.plan.arena_bytes().0));
        if let Some(source) = self.held_source() {
            line(format!("what the driver and its libraries hold: {source}"));
        }
        for words in self.auto_lines() {
            line(words);
        }
        if self.steps > 0 && self.fits {
            let (total, evaluations) = (duration(self.run_s()), self.evaluations.words());
            line(format!("  {} steps{evaluations}: {total}, with every response at full length", self.steps));
        }
        self.warnings.iter().for_each(|words| line(format!("warning: {words}")));
        self.unread.iter().for_each(|words| line(format!("rows of {words}")));
        self.assumed.iter().for_each(|words| line(format!("assumed: {words}")));
        if !self.not_checked.is_empty() {
            line(format!("not checked: {}", self.not_checked.join("; ")));
        }
        line(match (self.fits, self.assumed.is_empty()) {
            (true, true) => "verdict: fits".into(),
            (true, false) => "verdict: fits, if what is assumed holds".into(),
            (false, _) => "verdict: does not fit".into(),
        });
        // Last and alone: the verdict is about rows that are probably in the other file.
        self.misspelt.iter().for_each(|words| line(format!("warning: {words}")));
        text
    }

    /// Returns the predicted seconds of all steps and evaluations, with every response at its maximum length.
    pub fn run_s(&self) -> f64 {
        f64::from(self.steps) * self.auto.chosen.predicted_step_s + self.evaluations.all_s()
    }

    fn held_source(&self) -> Option<&str> {
        (!self.held_source.is_empty()).then_some(self.held_source.as_str())
    }

    /// Formats the choice for `"auto"`, its cost, and the runner-up.
    fn auto_lines(&self) -> Vec<String> {
        let auto = &self.auto;
        let cost = auto.chosen.predicted;
        if !self.fits {
            // It is never run, so it has no time: the hints have settings that do fit, with theirs.
            let words = format!("the smallest setting: {}", knobs(&auto.chosen));
            return [words]
                .into_iter()
                .chain(auto.gave_up.iter().map(|words| format!("  to fit: {words}")))
                .collect();
        }
        let mut lines = vec![format!("chosen: {}", knobs(&auto.chosen))];
        let critic = match cost.critic_s {
            0.0 => String::new(),
            s => format!("critic {}, ", duration(s)),
        };
        lines.push(format!(
            "  predicted step {}: rollout {}, score {}, {critic}update {} ({})",
            duration(cost.total_s()),
            duration(cost.rollout_s),
            duration(cost.score_s),
            duration(cost.update_s),
            auto.rates
        ));
        if let Some(next) = &auto.runner_up {
            let lost = next.predicted_step_s / auto.chosen.predicted_step_s - 1.0;
            let words = speed(lost);
            lines.push(format!("runner-up: {}", changes(&auto.chosen, next)));
            lines.push(format!(
                "  predicted step {}: {words}, host peak {}",
                duration(next.predicted_step_s),
                next.host_peak_bytes
            ));
        }
        lines.extend(auto.gave_up.iter().map(|words| format!("  to fit: {words}")));
        lines
    }
}

/// Returns limit, peak and phases of each pool, for programs.
pub fn pools_json(plan: &Plan) -> Value {
    let mut pools = serde_json::Map::new();
    for pool in Pool::ALL {
        let peak = plan.peak(pool);
        let phases: serde_json::Map<_, _> =
            plan.phases().map(|p| (p.name().to_string(), json!(plan.in_phase(pool, p)))).collect();
        let entry = json!({
            "limit_bytes": plan.limits.of(pool).map(|l| l.bytes),
            "limit_source": plan.limits.of(pool).map(|l| l.source.clone()),
            "peak_bytes": peak.peak,
            "peak_phase": peak.phase.name(),
            "resident_bytes": peak.resident,
            "phase_bytes": phases,
            "peak_parts": parts_json(plan, pool),
        });
        pools.insert(pool.name().to_string(), entry);
    }
    Value::Object(pools)
}

/// Returns the parts of the host's peak; null for other pools.
fn parts_json(plan: &Plan, pool: Pool) -> Value {
    match pool {
        Pool::Host => {
            plan.host_parts().into_iter().map(|(name, bytes)| (name.to_string(), json!(bytes))).collect()
        }
        _ => Value::Null,
    }
}

pub fn region_lines(plan: &Plan) -> String {
    let mut text = format!("{:<24} {:>10}  {:<16} {:<6} {}\n", "region", "bytes", "phases", "dtype", "shape");
    for r in &plan.layout.regions {
        let shape: Vec<String> = r.shape.iter().map(u64::to_string).collect();
        let phases = r.phases.names().join(" ");
        let (bytes, dtype) = (r.bytes.to_string(), r.dtype.name());
        text += &format!("{:<24} {bytes:>10}  {phases:<16} {dtype:<6} [{}]\n", r.name, shape.join(", "));
    }
    text + "\n"
}

/// Formats peak and limit of each pool in use.
pub fn pool_lines(plan: &Plan) -> String {
    let mut text = String::new();
    for pool in Pool::ALL {
        let peak = plan.peak(pool);
        if peak.peak == Bytes(0) {
            continue;
        }
        let limit = plan.limits.of(pool);
        let limit = limit.map_or("not limited".into(), |l| format!("limit {} ({})", l.bytes, l.source));
        let (name, phase) = (pool.name(), peak.phase.name());
        text += &format!("{name}: peak {} in {phase}, resident {}; {limit}\n", peak.peak, peak.resident);
        let phases: Vec<String> =
            plan.phases().map(|p| format!("{} {}", p.name(), plan.in_phase(pool, p))).collect();
        text += &format!("  {}\n", phases.join(", "));
        let parts = if pool == Pool::Host { plan.host_parts() } else { Vec::new() };
        if parts.len() > 1 {
            text += &format!("  of the peak: {}\n", parts_words(&parts));
        }
    }
    text
}

/// Formats parts of a sum: `trainer 98.8 MiB, supervisor 10.0 MiB`.
fn parts_words(parts: &[(&'static str, Bytes)]) -> String {
    parts.iter().map(|(name, bytes)| format!("{name} {bytes}")).collect::<Vec<_>>().join(", ")
}

/// Returns the values of a setting, each with its key.
fn named(setting: &Setting) -> Vec<(&'static str, String)> {
    let r = &setting.resolved;
    let merge = r.merge.map(|merge| ("merge", merge.to_string()));
    let all = vec![
        ("micro_batch_tokens", r.micro_batch_tokens.to_string()),
        ("recompute", format!("{:?}", r.recompute).to_lowercase()),
        ("optimizer_dtype", format!("{:?}", r.optimizer_dtype).to_lowercase()),
        ("grad_dtype", r.grad_dtype.name().to_string()),
        ("sequences_max", r.sequences_max.to_string()),
        ("kv_blocks", r.kv_blocks.to_string()),
        ("staging", r.staging.to_string()),
        ("offload", r.offload.words().to_string()),
        ("threads", r.threads.to_string()),
    ];
    all.into_iter().chain(merge).collect()
}

fn knobs(setting: &Setting) -> String {
    listed(named(setting))
}

fn speed(lost: f64) -> String {
    match (lost * 100.0).round() {
        percent if percent > 1.0 => format!("{percent} % slower"),
        percent if percent < -1.0 => format!("{} % faster", -percent),
        _ => "equally fast".into(),
    }
}

/// Returns the values in which `next` differs.
fn changes(chosen: &Setting, next: &Setting) -> String {
    let differ = named(chosen).into_iter().zip(named(next)).filter(|(a, b)| a.1 != b.1);
    listed(differ.map(|(_, b)| b).collect())
}

fn listed(knobs: Vec<(&'static str, String)>) -> String {
    knobs.iter().map(|(key, value)| format!("{key} {value}")).collect::<Vec<_>>().join(", ")
}
