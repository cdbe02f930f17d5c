//! Plan against truth: plans and makes random runs; the arena must equal its plan to the byte, and the process's peak
//! resident memory must be below the plan by at most the promised slack.
//!
//! It knows the program only from outside: a run file in, one object out.

mod draw;
mod model;
mod report;

pub use report::{markdown, to_json};

use draw::{RandomRun, Rng, draw};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The plan may exceed the truth by 5 %, or by this many bytes if that is more.
const SLACK_BYTES: u64 = 16 << 20;
/// It counts most of the program, of which a run touches less the larger it is: this share of the file may be
/// untouched. Only for a development build, several times as large as a release, is that more than the bytes above.
const UNTOUCHED: u64 = 6;

/// A run, planned and made.
#[derive(Clone, Debug)]
pub struct Run {
    /// The lengths that were drawn, for people.
    pub what: String,
    pub arena_planned: u64,
    pub arena_used: u64,
    pub rss_planned: u64,
    pub rss_peak: u64,
    /// The program's file.
    pub program: u64,
}

impl Run {
    /// Returns how this run breaks the promise; empty if it holds.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.arena_planned != self.arena_used {
            faults.push(format!("arena: planned {}, used {}", self.arena_planned, self.arena_used));
        }
        let (planned, peak) = (self.rss_planned, self.rss_peak);
        if peak > planned {
            faults.push(format!("the process took {peak}, the plan says {planned}"));
        }
        if planned.saturating_sub(peak) > SLACK_BYTES.max(planned / 20).max(self.program / UNTOUCHED) {
            faults.push(format!("the plan says {planned}, the process took only {peak}"));
        }
        faults
    }

    pub fn ratio(&self) -> f64 {
        self.rss_planned as f64 / self.rss_peak as f64
    }
}

/// Draws and makes `runs` runs of `plimsoll`, each in a folder below `folder`. `tell` gets each result.
///
/// Errors, as text: a failed run, with its run file and its output.
pub fn measure(
    plimsoll: &Path,
    folder: &Path,
    runs: usize,
    seed: u64,
    mut tell: impl FnMut(usize, &Run),
) -> Result<Vec<Run>, String> {
    let mut rng = Rng::new(seed);
    let mut done = Vec::with_capacity(runs);
    for index in 0..runs {
        let drawn = draw(&mut rng);
        let place = folder.join(format!("run-{index:03}"));
        let run = make(plimsoll, &place, &drawn)?;
        // Each run's model is a few megabytes; they must not pile up.
        fs::remove_dir_all(&place).map_err(|err| format!("{}: {err}", place.display()))?;
        tell(index, &run);
        done.push(run);
    }
    Ok(done)
}

/// Writes a drawn run's files and trains it.
fn make(plimsoll: &Path, place: &Path, drawn: &RandomRun) -> Result<Run, String> {
    let write = |name: &str, bytes: &[u8]| {
        fs::write(place.join(name), bytes).map_err(|err| format!("{}: {name}: {err}", place.display()))
    };
    fs::create_dir_all(place.join("model")).map_err(|err| format!("{}: {err}", place.display()))?;
    if let Some(shape) = &drawn.shape {
        write("model/config.json", model::config_json(shape).as_bytes())?;
        write("model/model.safetensors", &model::safetensors(shape))?;
    }
    write("data.jsonl", drawn.data.as_bytes())?;
    write("run.toml", drawn.run_file.as_bytes())?;
    // This machine's calibrations would change the drawn plans.
    let output = Command::new(plimsoll)
        .args(["train", "run.toml", "--json"])
        .current_dir(place)
        .env("XDG_CACHE_HOME", place.join("cache"))
        .output()
        .map_err(|err| format!("{}: {err}", plimsoll.display()))?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("{}: {}\n{}\n{err}", drawn.what, output.status, drawn.run_file));
    }
    let summary: serde_json::Value = serde_json::from_str(&out).map_err(|err| format!("{err}: {out}"))?;
    let field = |name: &str| summary[name].as_u64().ok_or_else(|| format!("no {name} in {out}"));
    Ok(Run {
        what: drawn.what.clone(),
        arena_planned: field("arena_planned_bytes")?,
        arena_used: field("arena_used_bytes")?,
        rss_planned: field("rss_planned_bytes")?,
        rss_peak: field("rss_peak_bytes")?,
        program: fs::metadata(plimsoll).map_err(|err| format!("{}: {err}", plimsoll.display()))?.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arena: (u64, u64), rss: (u64, u64)) -> Run {
        let (arena_planned, arena_used, rss_planned, rss_peak) = (arena.0, arena.1, rss.0, rss.1);
        Run { what: String::new(), arena_planned, arena_used, rss_planned, rss_peak, program: 60 << 20 }
    }

    #[test]
    fn a_run_beyond_its_plan_or_far_below_it_is_a_fault() {
        const MIB: u64 = 1 << 20;
        assert!(run((5, 5), (100 * MIB, 84 * MIB)).faults().is_empty());
        assert!(run((5, 5), (1000 * MIB, 950 * MIB)).faults().is_empty());
        let large = Run { program: 120 * MIB, ..run((5, 5), (100 * MIB, 80 * MIB)) };
        assert!(large.faults().is_empty());
        for broken in [
            Run { rss_peak: 79 * MIB, ..large },
            run((5, 4), (100 * MIB, 100 * MIB)),
            run((5, 5), (100 * MIB, 100 * MIB + 1)),
            run((5, 5), (100 * MIB, 83 * MIB)),
            run((5, 5), (1000 * MIB, 949 * MIB)),
        ] {
            assert_eq!(broken.faults().len(), 1, "{broken:?}");
        }
    }
}
