//! Memory of TorchRL's collectors: a process per worker, each with PyTorch, and a CUDA context if something needs it.

use crate::options::{Change, Options, contradiction, invalid, set};
use crate::plan::hazards::{Hazard, Verdict};
use crate::plan::ledger::{Holder, Ledger, Phase, shown};
use crate::plan::limits::{Limits, Version};
use crate::plan::model::ModelOf;
use crate::rules::torch::{CONTEXT_BYTES, Process, process};
use plimsoll_base::{Bytes, Result};

pub(super) const CHANGES: &[Change] = &[
    ("half the workers, each with two environments", |options| {
        let workers = workers(options).ok()?;
        (workers > 1).then(|| set("num_workers", workers / 2))
    }),
    ("collectors on the CPU", |options| {
        let any = DEVICES.iter().any(|name| is_card(options, name) == Ok(true));
        any.then(|| DEVICES.iter().map(|name| (*name, Some("cpu".to_string()))).collect())
    }),
];

const DEVICES: [&str; 4] = ["device", "storing_device", "env_device", "policy_device"];
/// A worker's own memory: 480 to 570 MiB of PSS were measured.
const WORKER_HOST_BYTES: u128 = 570 << 20;

fn is_card(options: &Options, name: &str) -> Result<bool> {
    Ok(options.text(name)?.is_some_and(|text| text.contains("cuda")))
}

/// Returns the number of workers: a number by name, the length of the environment list, or a parallel environment's.
fn workers(options: &Options) -> Result<u64> {
    if let Some(workers) = options.count("num_workers")? {
        return Ok(workers);
    }
    if let Some(one) = options.find("create_env_fn") {
        match length(&one.value) {
            Some(workers) => return Ok(workers),
            None if one.value.contains(['*', '[']) => {
                return Err(invalid(one, "how many environments these are cannot be read")
                    .hint("say it by hand: --set num_workers=64"));
            }
            None => {}
        }
    }
    Ok(options.count("parallel_env.num_workers")?.unwrap_or(1))
}

/// Counts the items of `[make] * 64`, of `[make for _ in range(64)]`, or of `[a, b, c]`.
fn length(text: &str) -> Option<u64> {
    let items = || text.split(',').filter(|item| !item.trim().is_empty()).count() as u64;
    let count = match (text.rsplit_once('*'), text.split_once("range(")) {
        (Some((_, count)), _) => count.trim().parse().ok(),
        (None, Some((_, rest))) => rest.split(')').next()?.trim().parse().ok(),
        (None, None) => text.trim().starts_with('[').then(items),
    };
    count.filter(|count| (1..=1 << 20).contains(count))
}

pub(super) fn rules(options: &Options, version: Version, limits: &Limits, _: &ModelOf<'_>) -> Result<Ledger> {
    let class = options.text_or("collector", "MultiSyncDataCollector")?;
    let workers = workers(options)?;
    let is_one_process = matches!(class, "SyncDataCollector" | "Collector") && !options.has("parallel_env");
    if is_one_process && options.count("num_workers")?.is_some_and(|workers| workers > 1) {
        return Err(contradiction(
            format!("{class} with num_workers: it collects in the calling process"),
            "name a multi collector",
        ));
    }
    let (mut ledger, group) = Ledger::of_one_group("learner, workers", 1, 1);
    ledger.add(process(Holder { role: "learner", group }, Process::Trainer));
    ledger.phases = vec![Phase::Rollout];
    if is_one_process {
        ledger.note(format!("{class} collects in the learner's process: there are no workers"));
        return Ok(ledger);
    }
    let on_card =
        DEVICES.iter().map(|name| is_card(options, name)).collect::<Result<Vec<bool>>>()?.contains(&true);
    let synchronises = version < (0, 6, 0);
    let holder = Holder { role: "workers", group };
    if on_card || synchronises {
        let formula = format!(
            "{workers} workers x 512 MiB (at least 250 MiB each: {})",
            Bytes(workers.saturating_mul(250 << 20))
        );
        let source = if on_card {
            "torchrl 0.14.1 collectors: the workers' device is a card"
        } else {
            "tensordict before 0.6 base.py _sync_all: torch.cuda.synchronize() in every worker (TorchRL issue 2346, tensordict pull request 942)"
        };
        let bytes = CONTEXT_BYTES * u128::from(workers);
        ledger.add([holder.card("contexts of workers", bytes, Phase::ALL, formula, source)]);
    }
    let formula = format!("{workers} workers x 570 MiB");
    let source = "measured: torchrl 0.14.1 with torch 2.15, 480 to 570 MiB of PSS a worker";
    let bytes = WORKER_HOST_BYTES * u128::from(workers);
    ledger.add([holder.host("processes of workers", bytes, Phase::ALL, formula, source).once()]);
    ledger.hazards.push(contexts(workers, on_card, synchronises, version, limits));
    ledger.note("batches, replay buffers and the learner's own networks are code: they are not in the rows");
    Ok(ledger)
}

fn contexts(workers: u64, on_card: bool, synchronises: bool, version: Version, limits: &Limits) -> Hazard {
    let all = shown(CONTEXT_BYTES * u128::from(workers));
    let room = limits.gpu_bytes.as_ref().map(|known| {
        let fit = u128::from(known.value.0).saturating_sub(CONTEXT_BYTES) / CONTEXT_BYTES;
        format!("; a card of {} has room for {fit} of them and nothing else", known.value)
    });
    let room = room.unwrap_or_default();
    let (major, minor, _) = version;
    let (verdict, finding) = match (on_card, synchronises) {
        (true, _) => {
            (Verdict::Note, format!("{workers} workers work on the card: a context each takes {all}{room}"))
        }
        (false, true) => (
            Verdict::Problem,
            format!(
                "{workers} workers need no card, and with torchrl {major}.{minor} each makes a context all the same: {all}{room}"
            ),
        ),
        (false, false) => (
            Verdict::Note,
            format!(
                "{workers} workers make no context by themselves; one call of torch.cuda in an environment or a policy does: {all} if each does{room}"
            ),
        ),
    };
    Hazard {
        slug: "cuda-context-per-worker",
        verdict,
        finding,
        because: "a context takes 250 to 520 MiB of a card before any tensor, and stays as long as its process".into(),
        remedies: vec![
            "set CUDA_VISIBLE_DEVICES= (empty) in the workers before torch is imported: frees every one of them".into(),
            "take tensordict 0.6 or newer: it does not synchronise every device".into(),
            "several environments a worker (SerialEnv) in place of more workers".into(),
        ],
        source: "TorchRL issue 2346; tensordict pull request 942",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_environments_have_a_length() {
        for (text, expect) in [
            ("[make] * 64", Some(64)),
            ("[make for _ in range(128)]", Some(128)),
            ("[a, b, c]", Some(3)),
            ("[make] * n", None),
            ("make", None),
            ("[make] * 0", None),
        ] {
            assert_eq!(length(text), expect, "{text}");
        }
    }
}
