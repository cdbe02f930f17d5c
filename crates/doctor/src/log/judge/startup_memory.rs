//! Judges an engine's check of the card's free memory against the share that it should use, before it takes any.

use crate::log::event::{Moment, Verdict};
use crate::log::text::regex;
use regex::Regex;
use std::sync::LazyLock;

static MESSAGE: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"Free memory on device\s+(?:\S+\s+)?\(([\d.]+)/([\d.]+) GiB\)\s+on startup\s+is\s+less(?:\s+than\s+desired\s+GPU\s+memory\s+utilization\s+\(([\d.]+),\s+([\d.]+) GiB\))?",
    )
});
/// GiB that a driver and a context take of an otherwise free card.
const OWN_GIB: f64 = 1.0;
/// Share of the card allowed for rounding.
const SHARE_SPARE: f64 = 0.005;

pub fn judge(moment: &Moment) -> Option<Verdict> {
    let verdict = Verdict::of("vllm-startup-oom");
    let Some(found) = MESSAGE.captures(moment.near()) else { return Some(verdict) };
    let number = |group: usize| found.get(group).and_then(|digits| digits.as_str().parse::<f64>().ok());
    let (free, total) = (number(1)?, number(2)?);
    let (used, share) = (total - free, free / total);
    let verdict = match number(3).zip(number(4)) {
        Some((asked, wanted)) => {
            let short = wanted - free;
            verdict.because(format!(
                "{free:.2} of {total:.2} GiB were free, a share of {share:.3}; {asked} was asked, which is {wanted:.2} GiB: {short:.2} GiB short"
            ))
        }
        None => verdict.because(format!("{free:.2} of {total:.2} GiB were free, a share of {share:.3}")),
    };
    let most = share - SHARE_SPARE;
    Some(if used > OWN_GIB {
        verdict
            .because(format!("{used:.2} GiB of the card were in use before the engine took any: by another process, or by this one"))
            .first("run `nvidia-smi` and end what should not be on that card: an earlier run that is still alive, or a trainer that was to release its memory first")
            .first(format!("if it belongs there, `gpu_memory_utilization` may be at most {most:.3} on this card"))
    } else {
        verdict
            .because(format!("{used:.2} GiB were in use, as on a card with a driver and a display alone"))
            .first(format!("set `gpu_memory_utilization` to at most {most:.3}"))
    })
}
