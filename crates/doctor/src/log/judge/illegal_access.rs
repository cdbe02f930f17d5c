//! Judges a fault on the card. Kernels are asynchronous, so its line shows where it surfaced, not where it began. A log
//! can show only whether memory was released under running work.

use crate::log::event::{Moment, Verdict};
use crate::log::signatures::Mark;
use crate::log::state::FileState;
use crate::log::text::regex;
use regex::Regex;
use std::sync::LazyLock;

/// A fault within this many lines after a change of phase is attributed to it.
const LINES_AFTER_CHANGE: u64 = 400;

static TRAINING: LazyLock<Regex> = LazyLock::new(|| {
    regex(r"\.backward\(|autograd/__init__\.py|optimizer\.step|torch/optim/|loss\.backward")
});
static ROLLOUT: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)vllm|sglang|actor_rollout|rollout_?(?:manager|worker|engine)|sampler\.py|\bin (?:sample|generate)\b|generate_sequences|EngineCore|execute_model|_init_sampling_tensors|multiproc_executor|ray_executor|model_runner\.py|llm_engine|async_llm|(?:core|engine)\.py:\d+\]|\bWorker_(?:TP|PP|DP|EP)\d",
    )
});
static SLEEP_CALL: LazyLock<Regex> =
    LazyLock::new(|| regex(r"\.sleep\(|in sleep\b|release_memory_occupation"));

pub fn judge(moment: &Moment, state: &FileState) -> Option<Verdict> {
    // A frame of this traceback is where the fault surfaced, not an earlier change of phase.
    let traceback = moment.traceback_from();
    let is_recent = |line: &u64| *line < traceback && moment.line - line <= LINES_AFTER_CHANGE;
    let recent = |mark: Mark| state.mark(mark).filter(is_recent);
    let (slept, woke) = (recent(Mark::Sleep), recent(Mark::Wake));
    let is_asleep = slept.is_some() && woke.is_none_or(|woke| Some(woke) < slept);
    if moment.text.contains("Dumping input data") {
        // The engine prints this whenever a step fails; it shows the cause only after a sleep.
        return is_asleep.then(|| sleeping(slept));
    }
    // The message may come before its frames.
    let around = format!("{}\n{}\n{}", moment.before().join("\n"), moment.text, moment.after());
    if is_asleep || SLEEP_CALL.is_match(&moment.innermost(6)) {
        return Some(sleeping(slept));
    }
    let in_rollout = ROLLOUT.is_match(&around) || state.mark(Mark::Rollout).is_some();
    if !in_rollout {
        return Some(elsewhere(TRAINING.is_match(&around)));
    }
    let verdict = Verdict::of("cuda-illegal-access-rollout");
    let changes = [
        (woke, "a wake-up"),
        (recent(Mark::CacheRelease), "a release of cached memory"),
        (recent(Mark::Capture), "a capture of graphs"),
    ];
    let last = changes.into_iter().filter_map(|(line, name)| Some((line?, name))).max();
    let verdict = match last {
        Some((line, name)) => verdict
            .because(format!("{name} in line {line} went before: memory may have gone away under running work"))
            .first("put a barrier and a device synchronisation after every wake-up, and sleep only when no request is left"),
        None => verdict
            .because("no sleep, wake-up, release or capture is near: the place of the traceback is where the fault surfaced, not where it began")
            .first("run once with CUDA_LAUNCH_BLOCKING=1 in the engine's own process (Ray actors take it from runtime_env), or under compute-sanitizer"),
    };
    Some(verdict.not_shown("which kernel faulted: only a synchronous run or compute-sanitizer says"))
}

fn elsewhere(in_training: bool) -> Verdict {
    let reason = if in_training {
        "the frames are those of a training step, and the log names no rollout engine"
    } else {
        "the log names no rollout engine"
    };
    Verdict::of("cuda-kernel-fault")
        .because(reason)
        .because("kernels run asynchronously: the frames show where the fault surfaced, not where it began")
        .first("run once with CUDA_LAUNCH_BLOCKING=1: the traceback then names the operation")
        .not_shown("which kernel faulted: only a synchronous run or compute-sanitizer says")
}

fn sleeping(slept: Option<u64>) -> Verdict {
    let place = slept.map_or(String::new(), |line| format!(" in line {line}"));
    Verdict::of("vllm-sleep-while-running")
        .because(format!("the engine was put to sleep{place} and not woken before work ran on its memory"))
}
