//! Selects the remedies of a page that apply, by the names and numbers in the logs: a CUDA setting does not help on a
//! TPU, nor a rollout engine's where there is none.
//!
//! A step that begins with one of `CONDITIONS` is only for such runs; with `In NAME,` only for that framework.

use crate::pages;
use plimsoll_doctor::log::{Diagnosis, frameworks};

/// The opening words of a step, and the runs that it applies to.
struct Condition {
    begins: &'static str,
    /// At least one of these must be named. Empty for any run.
    any: &'static [&'static str],
    /// None of these may be named.
    none: &'static [&'static str],
    /// Alternatively, one of these is named.
    or: &'static [&'static str],
}

const OTHER_DEVICES: [&str; 5] = ["TPU", "Ascend", "Gaudi", "Neuron", "AMD"];
const XLA: [&str; 2] = ["JAX", "TPU"];
const SIMULATED: [&str; 2] = ["Environments", "Isaac"];
const ENGINES: [&str; 4] = ["vLLM", "SGLang", "verl", "OpenRLHF"];

const CONDITIONS: [Condition; 15] = [
    Condition { begins: "With NVIDIA cards,", any: &[], none: &OTHER_DEVICES, or: &[] },
    Condition { begins: "With AMD cards,", any: &["AMD"], none: &[], or: &[] },
    Condition { begins: "With Ascend's NPUs,", any: &["Ascend"], none: &[], or: &[] },
    Condition { begins: "Without Ascend,", any: &[], none: &["Ascend"], or: &[] },
    Condition { begins: "With Gaudi,", any: &["Gaudi"], none: &[], or: &[] },
    Condition { begins: "With Neuron,", any: &["Neuron"], none: &[], or: &[] },
    Condition { begins: "With JAX,", any: &XLA, none: &[], or: &[] },
    Condition { begins: "With PyTorch,", any: &[], none: &["JAX", "TPU", "Isaac"], or: &[] },
    Condition { begins: "With a simulator,", any: &["Isaac"], none: &[], or: &[] },
    Condition { begins: "With environments,", any: &SIMULATED, none: &[], or: &[] },
    Condition {
        begins: "With language models,",
        any: &[],
        none: &["Environments", "Isaac", "JAX", "TPU"],
        or: &["Language models"],
    },
    Condition { begins: "With a rollout engine,", any: &ENGINES, none: &[], or: &[] },
    Condition { begins: "With torchrun,", any: &[], none: &["Ray"], or: &["torchrun"] },
    Condition { begins: "In a pod,", any: &["Kubernetes"], none: &[], or: &[] },
    Condition { begins: "Outside pods,", any: &[], none: &["Kubernetes"], or: &[] },
];

/// Names in `Diagnosis::frameworks` of things that are not a framework with its own settings.
const STACKS: [&str; 11] = [
    "torchrun",
    "PyTorch",
    "JAX",
    "TPU",
    "Ascend",
    "Gaudi",
    "Neuron",
    "AMD",
    "Isaac",
    "Environments",
    "Language models",
];
/// Frameworks whose settings are of no use to others.
const OWN: [&str; 2] = ["Ray", "Plimsoll"];

/// Words of a reason, and the steps that it makes pointless.
const POINTLESS: [(&str, &str); 8] = [
    ("size: ", "fragmentation: "),
    ("size: ", "check the numbers"),
    ("fragmentation: ", "check the numbers"),
    ("others hold ", "check the numbers"),
    ("weights were being moved", "fewer tokens per micro-batch"),
    (" answered 429", "compute nodes often have no way out"),
    (" is refused", "the hub answered"),
    ("AMD's runtime names card", "AMD_SERIALIZE_KERNEL"),
];

/// Returns the steps of a page that help with what was found.
pub fn remedies(page: &str, diagnosis: &Diagnosis) -> Vec<String> {
    let known: Vec<&str> = frameworks().filter(|name| !STACKS.contains(name)).collect();
    let mut named: Vec<String> = diagnosis.frameworks.clone();
    if !named.iter().any(|name| known.contains(&name.as_str())) {
        // A log that names no framework may come from any framework that runs everywhere.
        named.extend(known.iter().filter(|name| !OWN.contains(name)).map(|name| name.to_string()));
    }
    let first: Vec<String> = diagnosis.first_steps.iter().flat_map(|step| codes(step)).collect();
    let is_said = |step: &String| {
        let own = codes(step);
        !own.is_empty() && own.iter().all(|code| first.contains(code))
    };
    let steps = that_help(pages::remedies_for(page, &known, &named), diagnosis);
    steps.into_iter().filter(|step| !is_said(step)).collect()
}

/// Returns the commands, settings and files that a step names.
fn codes(step: &str) -> Vec<String> {
    let words = step.split(|c: char| c.is_whitespace() || "`,;()".contains(c));
    let words = words.map(|word| word.trim_end_matches(['.', ':']));
    let is_code = |word: &&str| word.len() > 3 && word.contains(['_', '*', '=', '/']);
    words.filter(is_code).map(str::to_string).collect()
}

/// Returns the `steps` that apply to the run and that the logs' numbers do not make pointless.
pub fn that_help(steps: Vec<String>, diagnosis: &Diagnosis) -> Vec<String> {
    let named = |names: &[&str]| diagnosis.frameworks.iter().any(|own| names.contains(&own.as_str()));
    let is_for = |step: &str| {
        let of = CONDITIONS.iter().find(|condition| step.starts_with(condition.begins));
        of.is_none_or(|of| {
            named(of.or) || (of.any.is_empty() || named(of.any)) && (of.none.is_empty() || !named(of.none))
        })
    };
    let has_reason = |words: &str| diagnosis.reasons.iter().any(|reason| reason.contains(words));
    let is_pointless =
        |step: &str| POINTLESS.iter().any(|(reason, words)| step.contains(words) && has_reason(reason));
    steps.into_iter().filter(|step| is_for(step) && !is_pointless(step)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(slug: &str, named: &[&str], reasons: &[&str]) -> String {
        let of = |words: &[&str]| words.iter().map(|word| word.to_string()).collect();
        let diagnosis = Diagnosis { frameworks: of(named), reasons: of(reasons), ..Diagnosis::default() };
        remedies(pages::page(slug).expect("the slug has a page"), &diagnosis).join("\n")
    }

    #[test]
    fn remedies_fit_the_stack() {
        for (slug, named, has, lacks) in [
            ("cuda-oom", &["JAX", "TPU"][..], "jax.checkpoint", "PYTORCH_CUDA_ALLOC_CONF"),
            ("cuda-oom", &["JAX"], "jax.checkpoint", "put the engine to sleep"),
            (
                "cuda-oom",
                &["Isaac", "Environments", "PyTorch"],
                "fewer environments",
                "tokens per micro-batch",
            ),
            (
                "cuda-oom",
                &["PyTorch", "vLLM", "Language models"],
                "put the engine to sleep",
                "fewer environments",
            ),
            ("cuda-oom", &["PyTorch", "TRL"], "tokens per micro-batch", "put the engine to sleep"),
            ("nan-not-memory", &["Environments"], "log_std", "Pad on the left"),
            ("nan-not-memory", &["vLLM", "Language models"], "engine's weights", "log_std"),
            ("nccl-failed", &["Ascend"], "npu-smi", "NCCL_IB_DISABLE"),
            ("nccl-failed", &["PyTorch"], "NCCL_IB_DISABLE", "npu-smi"),
            ("cuda-kernel-fault", &["AMD"], "amdgpu", "compute-sanitizer"),
            ("cuda-kernel-fault", &["PyTorch"], "compute-sanitizer", "amdgpu"),
            ("disk-full", &["Kubernetes"], "ephemeral-storage", "df -h"),
            ("disk-full", &["PyTorch"], "df -h", "--temp-dir"),
            ("disk-full", &["Ray"], "--temp-dir", "checkpoint export"),
            ("disk-full", &[], "df -h", "checkpoint.keep"),
            ("process-failed", &["Ray"], "worker-*.err", "--log-dir"),
            ("process-failed", &["torchrun"], "--log-dir", "nothing of the kind"),
        ] {
            let found = steps(slug, named, &[]);
            assert!(found.contains(has) && !found.contains(lacks), "{slug} {named:?}: {found}");
        }
    }

    #[test]
    fn the_numbers_make_steps_pointless() {
        let size = steps("cuda-oom", &["PyTorch"], &["size: PyTorch's own tensors fill 98 % of the card"]);
        assert!(!size.contains("ragmentation") && size.contains("tokens per micro-batch"), "{size}");
        let moved = steps("cuda-oom", &["PyTorch"], &["size: weights were being moved to the card"]);
        assert!(!moved.contains("tokens per micro-batch"), "{moved}");
        let limited = steps("hub-unreachable", &[], &["https://hub.example/x answered 429 Too Many"]);
        assert!(limited.contains("HF_TOKEN") && !limited.contains("no way out"), "{limited}");
    }
}
