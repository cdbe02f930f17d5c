//! The theme of an error page. A theme is a list of slug prefixes; the longest match wins.

use crate::{slugs, tree::Tree};

pub const PAGES: &str = "docs/errors/";

/// A title and the slug prefixes under it.
pub struct Theme {
    pub title: &'static str,
    starts: &'static [&'static str],
}

const fn theme(title: &'static str, starts: &'static [&'static str]) -> Theme {
    Theme { title, starts }
}

/// Themes of Plimsoll's errors. The last one takes the rest.
const ERRORS: [Theme; 10] = [
    theme(
        "Memory: the plan and the load line",
        &[
            "device-pool-",
            "host-pool-",
            "disk-pool-",
            "shm-pool-",
            "over-the-line",
            "host-memory-trend",
            "host-allocation-",
            "sequence-too-long",
            "size-overflow",
            "attention-workspace-",
            "calibration-",
            "thread-not-started",
            "batches-held",
        ],
    ),
    theme(
        "The run file",
        &[
            "run-file-",
            "unknown-key",
            "unknown-method",
            "unknown-metric",
            "unknown-preset",
            "unknown-reward",
            "unknown-task",
            "unknown-isa",
            "missing-key",
            "duplicate-key",
            "contradictory-keys",
            "bad-",
            "not-built",
            "group-too-small",
            "stop-string-",
            "isa-",
            "import-",
            "lora-",
        ],
    ),
    theme(
        "Models and tokenizers",
        &["model-", "tokenizer-", "chat-template-", "hub-", "push-", "wheel-", "pip-", "critic-", "adapter-"],
    ),
    theme("Data", &["data-", "pair-", "prompt-"]),
    theme("Rewards", &["reward-"]),
    theme(
        "Environments",
        &[
            "env-",
            "text-environment-",
            "harbor-",
            "container-engine-",
            "action-",
            "policy-",
            "frames-",
            "unknown-environment",
        ],
    ),
    theme(
        "Runs, run directories and checkpoints",
        &[
            "run-dir-",
            "run-file-changed",
            "checkpoint-",
            "resume-",
            "export-",
            "write-",
            "io-",
            "disk-full",
            "secret-",
            "symlink-",
            "trainer-",
            "rank-",
            "ranks-",
            "launch-",
            "card-missing",
            "card-shared",
            "container-oom-",
            "kernel-oom-",
            "interrupted",
            "internal",
            "logprob-",
            "gradient-",
            "loss-",
            "rollout-not-",
            "dynamic-sampling-",
            "bench-",
            "tracker-",
            "script-",
        ],
    ),
    theme("NVIDIA GPUs", &["cuda-"]),
    theme("Serving", &["serve-", "tinker-"]),
    theme("Everything else", &[""]),
];

/// Themes of first causes that `doctor --log` names.
const LOGS: [Theme; 7] = [
    theme(
        "In a log: GPU memory",
        &[
            "cuda-",
            "expandable-",
            "gpu-",
            "triton-",
            "nccl-device-",
            "sglang-",
            "vllm-",
            "kv-",
            "sleep-residue",
            "rollout-resume-oom",
        ],
    ),
    theme(
        "In a log: host memory",
        &[
            "cgroup-",
            "ray-",
            "host-",
            "fork-",
            "pinned-",
            "memlock-",
            "sleep-host-",
            "env-worker-",
            "rollout-resume-",
        ],
    ),
    theme(
        "In a log: shared memory, descriptors, processes",
        &["shm-", "fd-", "thread-", "nccl-shm-", "worker-"],
    ),
    theme(
        "In a log: ranks, nodes and services",
        &[
            "nccl-",
            "network-",
            "rendezvous-",
            "ray-node-",
            "ray-unschedulable",
            "ray-worker-",
            "reward-",
            "job-",
            "pod-",
            "container-not-",
            "launcher-",
            "tracker-",
            "script-",
            "api-",
        ],
    ),
    theme(
        "In a log: files and data",
        &["file-", "permission-", "storage-", "dataset-", "disk-", "torn-", "weights-"],
    ),
    theme(
        "In a log: settings, packages and programs",
        &[
            "settings-",
            "parallel-",
            "batch-size-",
            "context-",
            "tensors-",
            "dtype-",
            "backward-",
            "not-picklable",
            "process-start-",
            "package-",
            "extension-",
            "gpu-feature-",
            "cuda-not-initialized",
            "chat-template-",
        ],
    ),
    theme("In a log: everything else", &[""]),
];

const MACHINE: Theme = theme("Checks of this machine", &["machine-"]);

/// Returns every theme with the slugs of its pages, in order; none is empty.
pub fn themes(tree: &Tree) -> Vec<(&'static str, Vec<String>)> {
    let classes: Vec<String> = slugs::classes(tree).map(|(slug, _)| slug).collect();
    let titles = ERRORS.iter().chain(&LOGS).chain([&MACHINE]).map(|theme| theme.title);
    let mut themes: Vec<(&'static str, Vec<String>)> = titles.map(|title| (title, Vec::new())).collect();
    for slug in pages(tree) {
        // A page of both an error and a class, such as `disk-full`, shows the error.
        let text = tree.text(&format!("{PAGES}{slug}.md")).unwrap_or_default();
        let is_class = classes.contains(&slug) && !text.contains(&format!("\nerror[{slug}]"));
        let title = match (slug.starts_with("machine-"), is_class) {
            (true, _) => MACHINE.title,
            (false, true) => nearest(&LOGS, &slug),
            (false, false) => nearest(&ERRORS, &slug),
        };
        let theme = themes.iter_mut().find(|(name, _)| *name == title).expect("it is one of the titles");
        theme.1.push(slug);
    }
    themes.retain(|(_, slugs)| !slugs.is_empty());
    themes
}

pub fn pages(tree: &Tree) -> Vec<String> {
    let name = |path: &str| path.strip_prefix(PAGES)?.strip_suffix(".md").map(str::to_string);
    tree.texts(".md").filter_map(|(path, _)| name(path)).filter(|slug| slug != "README").collect()
}

fn nearest(themes: &[Theme], slug: &str) -> &'static str {
    let fits = |theme: &Theme| {
        theme.starts.iter().filter(|start| slug.starts_with(**start)).map(|start| start.len()).max()
    };
    let best =
        themes.iter().filter_map(|theme| Some((fits(theme)?, theme.title))).max_by_key(|(length, _)| *length);
    best.expect("the last theme takes all").1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::tree;

    #[test]
    fn a_slug_has_the_nearest_theme() {
        let page = |slug: &str| (format!("docs/errors/{slug}.md"), format!("# {slug}\n"));
        let slugs = ["run-file-changed", "run-file-missing", "machine-swap", "vllm-x", "novel", "README"];
        let mut files: Vec<(String, String)> = slugs.iter().map(|slug| page(slug)).collect();
        files.push(("crates/doctor/data/signatures/engine.toml".into(), "slug = \"vllm-x\"\n".into()));
        let files: Vec<(&str, &str)> =
            files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let found: Vec<(&str, String)> =
            themes(&tree(&files)).into_iter().map(|(title, slugs)| (title, slugs.join(" "))).collect();
        assert_eq!(
            found,
            [
                ("The run file", "run-file-missing".to_string()),
                ("Runs, run directories and checkpoints", "run-file-changed".into()),
                ("Everything else", "novel".into()),
                ("In a log: GPU memory", "vllm-x".into()),
                ("Checks of this machine", "machine-swap".into()),
            ]
        );
    }
}
