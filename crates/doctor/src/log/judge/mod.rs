//! Judgements that words alone cannot make: they need numbers in the line, frames before it or earlier marks.

mod cuda_oom;
mod illegal_access;
mod kernel_kill;
mod no_space;
mod startup_memory;

use super::event::{Moment, Verdict};
use super::signatures::{Judge, Mark};
use super::state::FileState;
use super::text::regex;
use regex::Regex;
use std::sync::LazyLock;

/// Judges a line. Returns `None` if it is no event.
pub fn judge(judge: Judge, moment: &Moment, state: &mut FileState) -> Option<Verdict> {
    match judge {
        Judge::CudaOom => cuda_oom::judge(moment, state),
        Judge::IllegalAccess => illegal_access::judge(moment, state),
        Judge::NoSpace => no_space::judge(moment, state),
        Judge::StartupMemory => startup_memory::judge(moment),
        Judge::KernelKill => kernel_kill::judge(moment, state),
        Judge::Aborted => Some(aborted(moment, state)),
        Judge::SharedCard => state.readings.card_row(&moment.text),
        Judge::SleepResidue => sleep_residue(&moment.text),
        Judge::OomCounter => state.readings.oom_counter(&moment.text),
        Judge::Reading => {
            state.readings.read(&moment.text, moment.line);
            None
        }
        Judge::NanStep => {
            state.progress.numbers(moment.metrics(), moment.line);
            None
        }
        Judge::Collective => {
            state.collectives.read(&moment.text);
            if !moment.text.contains("milliseconds") && moment.text.contains("WorkNCCL(") {
                state.collectives.read_on(moment.unwrapped());
            }
            None
        }
    }
}

/// Judges an abort in native code. Its cause is known only with expandable segments in a rollout engine.
fn aborted(moment: &Moment, state: &FileState) -> Verdict {
    let cancelled = moment.before().iter().any(|line| line.contains("RuntimeError: cancelled"));
    let expandable = state.mark(Mark::Expandable).is_some();
    if expandable && state.mark(Mark::Rollout).is_some() || cancelled {
        Verdict::of("expandable-vs-vllm")
            .because(if expandable {
                "the log sets expandable_segments:True, and a rollout engine's process aborted in native code"
            } else {
                "the engine's work was cancelled and its process aborted in native code"
            })
            .not_shown("that the setting is the cause: a run with expandable_segments:False shows it")
    } else {
        Verdict::of("worker-abort").because("the abort came from native code, seen by Python's fault handler")
    }
}

/// Most memory that a sleeping engine may keep: context, NCCL, graphs and workspaces are about 0.8 to 1.2 GiB on one
/// card; above 2 GiB something outside its pool remains.
const RESIDUE_GIB: f64 = 2.0;
/// Usual share of the card that a trainer on it takes, at most.
const RESIDUE_SHARE: f64 = 0.1;

static RESIDUE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"[Ss]leep mode freed ([\d.]+) GiB memory, ([\d.]+) GiB memory is still in use"));

fn sleep_residue(line: &str) -> Option<Verdict> {
    let found = RESIDUE.captures(line)?;
    let (freed, left): (f64, f64) = (found[1].parse().ok()?, found[2].parse().ok()?);
    if left < RESIDUE_GIB.max(RESIDUE_SHARE * (freed + left)) {
        return None;
    }
    let verdict = Verdict::of("sleep-residue")
        .because(format!("sleep freed {freed} GiB and left {left} GiB; up to {RESIDUE_GIB} GiB is usual"))
        .not_shown(
            "whose memory it is: the number counts the whole card, a trainer on the same card with it",
        );
    Some(if freed < 0.05 * left {
        verdict
            .because("next to nothing was freed, as with expandable segments under a memory pool")
            .first("unset expandable_segments in the rollout process")
    } else {
        verdict
    })
}
