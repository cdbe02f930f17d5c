//! What is not compared: keys whose values depend on a clock, the machine's memory or the binary itself.

/// Keys left out everywhere, by prefix (of one part of a dotted path), with the reason.
const READINGS: &[(&str, &str)] = &[
    ("seconds", "clock; `seconds_left`, `seconds_since_start`, `seconds_before` too"),
    (
        "rollout_passes",
        "how many requests were ready at once, of an environment that answers in its own time",
    ),
    ("time/", "clock: metrics of the parts of a step"),
    ("step_time", "clock"),
    ("step_s", "clock: the account in state.json"),
    ("rollout_s", "clock: the account in state.json"),
    ("update_s", "clock: the account in state.json"),
    ("tokens_per_second", "rate"),
    ("frames_per_second", "rate"),
    ("cpu_us_per_frame", "clock"),
    ("env_us_per_frame", "clock"),
    ("policy_us_per_frame", "clock"),
    ("collect/env_us", "clock"),
    ("collect/policy_us", "clock"),
    ("stalled_share", "clock: threads that waited"),
    ("worker_cpu_seconds", "clock"),
    ("ranks_waited", "clock: how long ranks waited"),
    ("saved_seconds", "clock: ticks that were saved, times what a tick took"),
    ("rollout/saved_seconds", "the same, as a metric"),
    ("saved_s", "the same, in state.json"),
    ("dropped_tokens", "what an engine drew beyond a step, which follows from batches and threads"),
    ("share_of_peak", "rate over the machine's peak"),
    ("monitoring_share", "clock: what reading /proc cost"),
    ("rss_", "memory reading; `rss_planned_bytes` holds the binary's size"),
    ("anon_bytes", "memory reading"),
    ("file_bytes", "memory reading"),
    ("shmem_bytes", "memory reading"),
    ("host/", "memory reading: metrics `host/anon`, ..."),
    ("memory/", "memory reading, and the plan with the binary's size"),
    ("supervisor_", "memory reading"),
    ("workers_bytes", "memory reading"),
    ("trend", "test over memory readings"),
    ("planned_bytes", "holds the binary's size; the plan's rows are compared one by one"),
    ("planned_parts", "hold the binary's size"),
    ("peak_parts", "hold the binary's size"),
    ("held_bytes", "memory reading"),
    ("limit_bytes", "free memory or disk of the machine"),
    ("limit_source", "which limit of the machine is the lowest"),
    ("limits", "list of the machine's limits"),
    ("host_peak_bytes", "holds the binary's size and its page tables"),
    ("min_bytes", "holds the binary's size"),
    ("build", "digest of the binary, in state.json"),
    ("events_bytes", "length of events.jsonl, whose clocks have other digits"),
    ("notes", "of a resumed run: says that the build differs"),
];

/// Keys left out of one file, by suffix of the file's name, with the reason.
const READINGS_OF: &[(&str, &str, &str)] = &[
    ("manifest.json", "sha256", "of the manifest itself, which holds state.json's"),
    ("manifest.json", "files.state/state.json", "length and digest of a file with clocks"),
    ("table.json", "rows", "peaks hold the binary's size"),
];

/// Events left out entirely.
const EVENTS: &[(&str, &str)] = &[("trend", "test over memory readings")];

/// Rows of a plan that depend on the binary; the host pool's totals are compared without them.
pub const PLAN_ROWS: &[(&str, &str)] =
    &[("process.image", "size of the binary"), ("kernel.memory", "page tables of all that is mapped")];

/// Returns true if a leaf of the file is left out.
pub fn is_reading(file: &str, key: &str) -> bool {
    READINGS_OF.iter().any(|(suffix, start, _)| file.ends_with(suffix) && key.starts_with(start))
        || key.split('.').any(|part| READINGS.iter().any(|(start, _)| part.starts_with(start)))
}

/// Returns true if events of that name are left out.
pub fn is_reading_event(name: &str) -> bool {
    EVENTS.iter().any(|(event, _)| *event == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_and_memory_are_readings_and_what_is_learned_is_not() {
        for key in [
            "seconds_since_start",
            "metrics.time/rollout",
            "metrics.host/anon",
            "parts[3].rss_bytes",
            "progress.step_s",
        ] {
            assert!(is_reading("events.jsonl", key), "{key}");
        }
        for key in [
            "step",
            "metrics.reward",
            "metrics.grad_norm",
            "parts[3].arena_bytes",
            "summary.eval_after",
            "steps",
            "loss",
        ] {
            assert!(!is_reading("events.jsonl", key), "{key}");
        }
        assert!(is_reading("checkpoints/step-000002/manifest.json", "files.state/state.json.sha256"));
        assert!(!is_reading("checkpoints/step-000002/manifest.json", "files.model.safetensors.sha256"));
    }
}
