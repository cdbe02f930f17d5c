//! Judges a kill by the kernel because the whole machine was out of memory.

use crate::log::event::{Moment, Verdict};
use crate::log::signatures::Mark;
use crate::log::state::FileState;
use crate::log::text::regex;
use plimsoll_base::Bytes;
use regex::Regex;
use std::sync::LazyLock;

/// Process names of training runs.
static OURS: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)^(python|pt_|ray|vllm|sglang|torchrun|deepspeed|accelerate|train|plimsoll|mpirun|EngineCore|WorkerDict|main_ppo|uv|conda|bash|sh$)|trainer|worker",
    )
});
static VICTIM: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"Kill(?:ed)? process (\d+),? \(([^)]*)\)(?:[^\n]*?anon-rss:(\d+)kB)?(?:[^\n]*?file-rss:(\d+)kB)?(?:[^\n]*?shmem-rss:(\d+)kB)?",
    )
});
static TASK: LazyLock<Regex> = LazyLock::new(|| regex(r"task=([^,]+),pid=(\d+)"));
static AT_SAVE: LazyLock<Regex> = LazyLock::new(|| regex(r"(?i)sav(e|ing)|checkpoint|ckpt|state_dict"));

/// Classifies such a kill. Returns `None` if the victim is not part of a run.
pub fn judge(moment: &Moment, state: &FileState) -> Option<Verdict> {
    let text = &moment.text;
    let (name, memory) = match (VICTIM.captures(text), TASK.captures(text)) {
        (Some(found), _) => {
            let kib = |group: usize| found.get(group).and_then(|kib| kib.as_str().parse::<u64>().ok());
            let part = |group, kind: &str| {
                kib(group).map(|kib| format!("{kind} {}", Bytes(kib.saturating_mul(1024))))
            };
            let parts = [part(3, "heap and pinned"), part(4, "files"), part(5, "shared memory")];
            (found[2].to_string(), parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
        }
        (None, Some(found)) => (found[1].to_string(), String::new()),
        (None, None) => return None,
    };
    if !OURS.is_match(&name) {
        return None;
    }
    let held = if memory.is_empty() { String::new() } else { format!(", which held {memory}") };
    let reason =
        format!("the kernel had no memory left on the machine, not in a container, and killed {name}{held}");
    let last = state.mark(Mark::Save).max(state.mark(Mark::Load));
    let loading = last.is_some() && last == state.mark(Mark::Load);
    let has_run = state.mark(Mark::Rollout).is_some() || last.is_some();
    let saving = !loading && (last.is_some() || moment.before().iter().any(|line| AT_SAVE.is_match(line)));
    Some(match (saving, has_run) {
        (true, _) => Verdict::of("host-oom-at-checkpoint")
            .because(reason)
            .because("the last that the log says before is a save"),
        (false, false) => Verdict::of("host-oom-kill").because(reason).not_shown(
            "what the run was doing: these lines are the kernel's alone; give the run's own log too",
        ),
        (false, true) => Verdict::of("host-oom-kill")
            .because(reason)
            .because("the run was not saving: see what grew on the machine"),
    })
}
