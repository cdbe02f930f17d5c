//! Environment variables that change how memory behaves: PyTorch's allocator, NCCL, CUDA, OpenMP, Ray, vLLM.

use super::facts::{ALLOCATOR_VARIABLES, Check, Finding, Machine, State};

/// (variable, value or `*` for any, its effect, true if it is a problem).
const EFFECTS: [(&str, &str, &str, bool); 16] = [
    (
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        "1",
        "every tensor is allocated by the driver: many times slower",
        true,
    ),
    ("CUDA_LAUNCH_BLOCKING", "1", "the host waits for every kernel: for debugging only", false),
    ("NCCL_CUMEM_ENABLE", "*", "must be the same in every rank of a group, the rollout engine's too", false),
    ("NCCL_NVLS_ENABLE", "0", "multicast is off: a little slower, less memory", false),
    ("NCCL_SHM_DISABLE", "1", "ranks of one host talk over the network", false),
    ("NCCL_P2P_DISABLE", "1", "cards do not talk directly: slower", false),
    ("NCCL_BUFFSIZE", "*", "the buffer of each channel on the card", false),
    ("NCCL_MAX_NCHANNELS", "*", "limits the memory that NCCL takes on the card", false),
    (
        "RAY_memory_monitor_refresh_ms",
        "0",
        "Ray does not watch memory: the kernel kills instead, without a message",
        true,
    ),
    ("RAY_memory_usage_threshold", "*", "Ray kills a worker at this share of the node's memory", false),
    ("VLLM_USE_V1", "0", "the old engine, with 4 GiB of pinned swap a card by default", false),
    ("CUBLAS_WORKSPACE_CONFIG", "*", "sets the workspace of each cuBLAS handle", false),
    ("MALLOC_ARENA_MAX", "*", "limits the number of heaps", false),
    ("TORCH_NCCL_AVOID_RECORD_STREAMS", "1", "references keep the buffers of collectives alive", false),
    ("TORCH_CUDNN_V8_API_DISABLED", "1", "changes the workspaces of cuDNN", false),
    ("LD_PRELOAD", "*", "another allocator or hook is loaded into every process", false),
];

pub fn checks(machine: &Machine) -> Vec<Check> {
    vec![
        Check::of("machine-allocator-settings", allocator(machine)),
        Check::of("machine-environment", others(machine)),
    ]
}

fn allocator(machine: &Machine) -> Finding {
    let [old, new] =
        ALLOCATOR_VARIABLES.map(|name| machine.variable(name).filter(|value| !value.trim().is_empty()));
    let shown: Vec<String> = ALLOCATOR_VARIABLES
        .iter()
        .zip([old, new])
        .filter_map(|(name, value)| Some(format!("{name}={}", value?)))
        .collect();
    let shown = shown.join(", ");
    match (old, new) {
        (None, None) => (State::Fine, "PyTorch's allocator has its own settings".into()),
        (Some(a), Some(b)) if a != b => {
            (State::Problem, format!("{shown}: the two differ, and which counts depends on the version"))
        }
        _ if machine.has_expandable_segments() => (
            State::Note,
            format!(
                "{shown}: reduces fragmentation; do not use it in a process that sleeps in a memory pool or hands tensors over by CUDA IPC"
            ),
        ),
        _ => (State::Note, shown),
    }
}

fn others(machine: &Machine) -> Finding {
    let mut words = Vec::new();
    let mut state = State::Fine;
    for (name, when, effect, is_problem) in EFFECTS {
        let Some(value) =
            machine.variable(name).filter(|value| when == "*" && !value.is_empty() || *value == when)
        else {
            continue;
        };
        words.push(format!("{name}={value}: {effect}"));
        state = state.max(if is_problem { State::Problem } else { State::Note });
    }
    let words = if words.is_empty() {
        "no variable that changes memory is set".to_string()
    } else {
        words.join("; ")
    };
    (state, words)
}
