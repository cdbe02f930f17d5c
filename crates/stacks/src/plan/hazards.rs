//! Hazards that end runs whose bytes fit: calls that a kernel lacks, allocators that exclude each other, growing pools;
//! and those that only a run can show, with what to switch on.

use super::limits::{Known, Limits};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Ends or spoils this run.
    Problem,
    Open,
    /// Matters under the named conditions.
    Note,
}

impl Verdict {
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Problem => "problem",
            Verdict::Open => "cannot be judged before the run",
            Verdict::Note => "note",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Hazard {
    /// Slug of its page.
    pub slug: &'static str,
    pub verdict: Verdict,
    pub finding: String,
    pub because: String,
    /// Remedies, the cheapest first.
    pub remedies: Vec<String>,
    /// File and version, or the author of the report.
    pub source: &'static str,
}

impl Hazard {
    pub fn is_problem(&self) -> bool {
        self.verdict == Verdict::Problem
    }
}

/// Names of the variable for PyTorch's allocator.
const ALLOCATOR_VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// Returns the setting that enables expandable segments, and its source.
fn expandable(limits: &Limits) -> Option<String> {
    ALLOCATOR_VARIABLES.iter().find_map(|name| {
        let known = limits.variable(name)?;
        let asks = known.value.to_ascii_lowercase().replace(' ', "").contains("expandable_segments:true");
        asks.then(|| format!("{name}={} ({})", known.value, known.source))
    })
}

/// Returns the hazard of weights passed by CUDA IPC while the allocator uses expandable segments.
pub fn cuda_ipc(limits: &Limits, hand_over: &str, source: &'static str) -> Option<Hazard> {
    let asked = expandable(limits)?;
    let remedies = vec![
        "set expandable_segments:False for the trainer, or only around the hand-over".to_string(),
        "hand weights over by NCCL in place of CUDA IPC, where the framework can".into(),
        "run on Linux 5.6 or newer".into(),
    ];
    let because = "memory of expandable segments is handed over as a file descriptor, which the receiver takes with pidfd_open (Linux 5.3) and pidfd_getfd (Linux 5.6)".to_string();
    let (lacks, has) = ("cuda-ipc-pidfd-enosys", "cuda-ipc-pidfd-eperm");
    let (slug, verdict, finding) = match limits.kernel.as_ref().map(|kernel| kernel.value) {
        None => (lacks, Verdict::Open, "the kernel is not known: give --kernel"),
        Some(version) if version < (5, 3) => {
            (lacks, Verdict::Problem, " lacks pidfd_open and pidfd_getfd: the first weight sync ends the run")
        }
        Some(version) if version < (5, 6) => {
            (lacks, Verdict::Problem, " lacks pidfd_getfd: the first weight sync ends the run")
        }
        Some(_) => (
            has,
            Verdict::Note,
            " has the calls: they also need the right to trace the sender (yama, seccomp)",
        ),
    };
    let linux = |kernel: &Known<(u32, u32)>| {
        format!("Linux {}.{} ({})", kernel.value.0, kernel.value.1, kernel.source)
    };
    let linux = limits.kernel.as_ref().map(linux).unwrap_or_default();
    let finding = format!("{asked}; {hand_over}; {linux}{finding}");
    Some(Hazard { slug, verdict, finding, because, remedies, source })
}

/// Returns the hazard of sleep mode: its separate memory pool excluded expandable segments until April 2026.
pub fn sleep_mode(limits: &Limits) -> Option<Hazard> {
    let asked = expandable(limits)?;
    Some(Hazard {
        slug: "expandable-vs-vllm",
        verdict: Verdict::Problem,
        finding: format!("{asked}; the engine's sleep mode is on"),
        because: "vLLM refuses sleep mode under expandable segments; versions from April 2026 on toggle them themselves".into(),
        remedies: vec![
            "unset it for the engine's processes".into(),
            "take a vLLM that toggles it (from pull request 40812 on)".into(),
        ],
        source: "vLLM issue 14189, pull request 40812",
    })
}

/// Returns the hazard of an illegal memory access in a rollout: possible in every run with an engine.
pub fn illegal_access(engine: &str, sleeps: bool) -> Hazard {
    let mut remedies = vec![
        "switch on CUDA_LAUNCH_BLOCKING=1 in the engine's own process for a few steps (Ray actors take it from runtime_env): the traceback then names the kernel".to_string(),
        "run the engine under compute-sanitizer for a few requests, without the trainer".into(),
        "keep enforce_eager on and prefix caching off until it runs: fewer kernels, no captured graphs".into(),
    ];
    if sleeps {
        remedies.insert(0, "check that a barrier and a device synchronisation stand around sleep and wake-up (OpenRLHF commit 1d02c896)".into());
    }
    Hazard {
        slug: "cuda-illegal-access-rollout",
        verdict: Verdict::Open,
        finding: format!("{engine}: an illegal memory access depends on kernels and their timing, not on sizes"),
        because: "the fault is noticed after the kernel that made it, often in the sampler; plain vLLM 0.7.2 has shown the same trace without a trainer (vLLM issue 13939)".into(),
        remedies,
        source: "OpenRLHF issues 815 and 817; vLLM issues 13939 and 28714",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::limits::Known;

    fn limits(conf: &str, kernel: Option<(u32, u32)>) -> Limits {
        let known = |value| Known { value, source: "--kernel".into(), by_hand: true };
        let variable = Known { value: conf.to_string(), source: "line 2 of the file".into(), by_hand: false };
        Limits {
            kernel: kernel.map(known),
            variables: vec![("PYTORCH_CUDA_ALLOC_CONF".into(), variable)],
            ..Limits::default()
        }
    }

    #[test]
    fn ipc_with_expandable_segments_by_kernel() {
        let on = "max_split_size_mb:128, expandable_segments: True";
        for (conf, kernel, expect) in [
            (on, Some((3, 10)), Some((Verdict::Problem, "lacks pidfd_open and pidfd_getfd"))),
            (on, Some((5, 4)), Some((Verdict::Problem, "lacks pidfd_getfd"))),
            (on, Some((5, 6)), Some((Verdict::Note, "right to trace"))),
            (on, Some((6, 8)), Some((Verdict::Note, "right to trace"))),
            (on, None, Some((Verdict::Open, "--kernel"))),
            ("expandable_segments:False", Some((3, 10)), None),
        ] {
            let found = cuda_ipc(&limits(conf, kernel), "weights go by CUDA IPC", "");
            match (found, expect) {
                (Some(found), Some((verdict, words))) => {
                    assert_eq!(found.verdict, verdict, "{kernel:?}");
                    assert!(found.finding.contains(words), "{}", found.finding);
                }
                (found, expect) => assert_eq!(found.is_some(), expect.is_some(), "{conf} {kernel:?}"),
            }
        }
        assert!(cuda_ipc(&Limits::default(), "", "").is_none());
        assert!(sleep_mode(&limits(on, None)).is_some_and(|hazard| hazard.is_problem()));
    }
}
