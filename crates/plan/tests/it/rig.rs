//! A run file, the facts of its model, and its plan under limits: as `plimsoll plan` asks for them, without a process.

use plimsoll_arch::ModelSpec;
use plimsoll_base::{Bytes, Result};
use plimsoll_config::{RunFile, RunSpec, load_text};
use plimsoll_memory::{Limits, Pool};
use plimsoll_plan::{
    Facts, HostFacts, Hosts, PerRole, PlanReport, RoleName, disk_facts, parse_limits, plan_with, rows_kept,
    smallest_limits,
};
use plimsoll_train::Share;
use std::path::Path;

const FIRST: &str = include_str!("../../../../runs/first.toml");

/// Limits within which everything in these tests fits.
pub const ROOMY: &str = "host=64TiB,disk=1024TiB";

/// A run and what is known of its model and data.
#[derive(Clone)]
pub struct Case {
    pub file: RunFile,
    pub run: RunSpec,
    pub facts: Facts,
}

/// The first run of the docs with these settings. A model is a preset: `model=random:qwen2.5-7b`.
pub fn case(sets: &[&str]) -> Case {
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    let loaded = load_text(FIRST.into(), Path::new("first.toml"), &sets, std::iter::empty());
    let file = loaded.unwrap_or_else(|error| panic!("{sets:?}: {error}")).run;
    let run = RunSpec::new(&file);
    let facts = facts(&run);
    Case { file, run, facts }
}

/// The first run with another method, whose file has no more than it takes.
pub fn method_case(method: &str, model: &str, sets: &[&str]) -> Case {
    let mut text = format!(
        "method = \"{method}\"\nmodel = \"random:{model}\"\n[data]\nprompts = \"x.jsonl\"\neval = \"none\"\n"
    );
    if method == "distill" {
        text += "[distill]\nteacher = \"random:nano\"\n";
    }
    text += "[rollout]\nprompts_per_step = 4\n";
    if !matches!(method, "sft" | "dpo" | "reward_model") {
        text += "group_size = 4\nmax_new_tokens = 32\n[[reward]]\nkind = \"exact\"\n";
    }
    text += "[train]\nsteps = 2\nlearning_rate = 1e-6\n[run]\nthreads = 2\n";
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    let loaded = load_text(text, Path::new("run.toml"), &sets, std::iter::empty());
    let file = loaded.unwrap_or_else(|error| panic!("{method} {sets:?}: {error}")).run;
    let run = RunSpec::new(&file);
    let facts = facts(&run);
    Case { file, run, facts }
}

/// Episodes of an environment: 16 of 8 turns of 8 tokens, with 128 between two.
pub fn played_case(env: &str, sets: &[&str]) -> Case {
    let text = format!(
        "method = \"grpo\"\nmodel = \"random:nano\"\n[environment]\nenv = \"{env}\"\n[data]\nprompt_tokens_max = 8\n\
         [rollout]\nprompts_per_step = 4\ngroup_size = 4\nmax_new_tokens = 8\n\
         [train]\nsteps = 2\nlearning_rate = 1e-6\n"
    );
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    let loaded = load_text(text, Path::new("run.toml"), &sets, std::iter::empty());
    let file = loaded.unwrap_or_else(|error| panic!("{env} {sets:?}: {error}")).run;
    let run = RunSpec::new(&file);
    let facts = facts(&run);
    Case { file, run, facts }
}

fn facts(run: &RunSpec) -> Facts {
    let name = run.model.strip_prefix("random:").or(run.model.strip_prefix("builtin:")).expect("a preset");
    let spec = ModelSpec::preset(name).unwrap_or_else(|| panic!("no preset {name}"));
    let response = run.rollout.max_new_tokens as usize;
    Facts {
        spec,
        prompt_tokens: run.data.prompt_tokens_max.unwrap_or(8) as usize,
        completion_tokens: if run.objective().is_some() { 0 } else { response },
        eval_prompts: if run.eval_sets.is_empty() {
            0
        } else {
            run.eval.prompts_max.unwrap_or(1000) as usize
        },
        share: Share::WHOLE,
        hosts: Hosts::one(1),
        trainers: Hosts::one(1),
        card: None,
        sight: None,
        tenants: None,
        models: PerRole::none()
            .with(RoleName::Critic, run.critic().is_some().then_some(spec))
            .with(RoleName::TEACHER, run.distill().is_some().then_some(spec)),
        adapters: PerRole::none(),
        encodings: PerRole::none(),
        host: HostFacts {
            image: Bytes::mib(40),
            tokenizer: Bytes::mib(1),
            data: Bytes::mib(1),
            staging: Bytes::mib(64),
            clients: Bytes(0),
            schema: Bytes(0),
            script: Bytes(0),
            rows_kept: rows_kept(run),
            disk: disk_facts(run),
        },
    }
}

impl Case {
    pub fn try_plan(&self, limits: &str) -> Result<PlanReport> {
        plan_with(&self.run, &self.facts, &self::limits(limits))
    }

    pub fn plan(&self, limits: &str) -> PlanReport {
        self.try_plan(limits).unwrap_or_else(|error| panic!("{limits}: {error}"))
    }

    /// The smallest host and device memory.
    pub fn least(&self) -> (u64, u64) {
        let least = smallest_limits(&self.run, &self.facts).expect("sizes that machines have");
        (least.min_host_bytes.0, least.min_device_bytes.0)
    }

    /// Its ranks on one host, of which the first is planned.
    pub fn ranks(mut self, ranks: usize) -> Case {
        let hosts = Hosts::one(ranks);
        (self.facts.hosts, self.facts.trainers, self.facts.share) = (hosts, hosts, hosts.share());
        self
    }
}

pub fn limits(text: &str) -> Limits {
    parse_limits(text).expect("limits")
}

pub fn peak(report: &PlanReport, pool: Pool) -> u64 {
    report.plan.peak(pool).peak.0
}

/// The bytes of a row; 0 where it is not there.
pub fn row(report: &PlanReport, name: &str) -> u64 {
    report.plan.layout.sum(|region| region.name == name).0
}

pub fn step_s(report: &PlanReport) -> f64 {
    report.auto.chosen.predicted_step_s
}

/// The settings of one `--set A --set B`.
pub fn split(set: &str) -> Vec<&str> {
    set.split(" --set ").collect()
}
