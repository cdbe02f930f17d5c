//! Out of memory on a card: whose memory, and for what. PyTorch's message holds up to six numbers; the frames before it
//! show what asked for the memory.

use crate::log::event::{Moment, Verdict};
use crate::log::signatures::Mark;
use crate::log::state::FileState;
use crate::log::text::regex;
use plimsoll_base::Bytes;
use regex::Regex;
use std::sync::LazyLock;

/// A context alone takes 250 to 520 MiB; a process that holds at most this does nothing else on the card.
const CONTEXT_MAX: u64 = 700 << 20;
/// This many bare contexts are workers that should have none.
const CONTEXTS_MIN: usize = 6;
/// Larger requests are overflows.
const REQUEST_MAX: f64 = 64.0 * (1u64 << 40) as f64;
/// What a process may hold on top of its tensors (context, NCCL, graphs) before others are suspected.
const BESIDE_TENSORS: u64 = 3 << 30;

/// From this share of a card on, reserved but unallocated memory is the first reason. A full card always has some tens of
/// MiB of it, and small requests.
const FRAGMENTS_MIN: f64 = 0.05;

/// Lines of a traceback that count as innermost: a frame is two to three.
const INNERMOST: usize = 18;

static NUMBERS: LazyLock<[Regex; 8]> = LazyLock::new(|| {
    const SIZE: &str = r"([\d.]+)\s?([KMGTP]?i?B|bytes)";
    [
        format!(r"(?i)tried to allocate (?:more than )?{SIZE}"),
        format!(r"total capacity of {SIZE}|{SIZE} total capacity"),
        format!(r"of which {SIZE} is free|{SIZE} free\b"),
        format!(r"this process has {SIZE} memory in use"),
        format!(r"{SIZE} is allocated by PyTorch|{SIZE} already allocated"),
        format!(r"{SIZE} is reserved by PyTorch but unallocated"),
        format!(r"{SIZE} reserved in total"),
        format!(r"{SIZE} allocated in private pools"),
    ]
    .map(|pattern| regex(&pattern))
});
static PROCESSES: LazyLock<Regex> =
    LazyLock::new(|| regex(r"Process (\d+) has ([\d.]+)\s?([KMGTP]?i?B|bytes) memory in use"));

/// Names in frames that show what asked for the memory.
static FRAMES: LazyLock<Frames> = LazyLock::new(|| Frames {
    capture: regex(
        r"cuda/graphs\.py|capture_model|capture_end|capture_one_batch_size|cuda_graph_runner|cudagraph_capture|apture cuda graph|graph_capture\(|capture_cudagraphs",
    ),
    wake: regex(r"cumem\.py|in wake_up\b|create_and_map|\.wake_up\("),
    contexts: regex(r"tensordict/\w+\.py[^\n]*in _sync_all"),
    logits: regex(
        r"entropy_from_logits|logprobs_from_logits|log_softmax|logsumexp|selective_log_softmax|log_probs?_from_logits|compute_log_?probs?|get_per_token_logps|_get_per_token|gather_logprobs|compute_entropy|entropy_loss|vocab_parallel|logits\.(float|to|div|log_softmax|clone)\(|logits / |logits ?= ?logits|cross_entropy|CrossEntropy|lm_head\(",
    ),
    body: regex(
        r"in (mlp|attention|self_attn)|act_fn\(|gate_proj|down_proj|self_attn\(|flash_attn|rotary|layernorm|rms_?norm",
    ),
    optimizer: regex(
        r"_multi_tensor_\w+|_single_tensor_adam|torch\._foreach_|torch/optim/|/optim/adamw?\.py|_init_group|initialize_optimizer_states|FusedAdam|fused_adam|exp_avg|cpu_adam|_optimizer_step|bitsandbytes/optim",
    ),
    startup: regex(
        r"vllm[^\n]*(in|\.)\s?(load_model|init_device|determine_num_available_blocks|determine_available_memory|profile_run|_initialize_kv_caches|initialize_kv_cache\w*|initialize_from_config|_allocate_kv_cache\w*|initialize_cache|_dummy_sampler_run|_dummy_run|run_engine_core)\b|sglang[^\n]*in (init_memory_pool|init_cublas|load_model)\b",
    ),
    serving: regex(r"in (execute_model|step|generate|_run_engine|sample_tokens|forward_batch\w*)\b"),
    hand_over: regex(
        r"update_weights?\w*|full_tensor\(|_broadcast_to_vllm|sync_weights|weight_sync|broadcast_weights|load_weights|summon_full_params|GatheredParameters",
    ),
    save: regex(
        r"save_checkpoint|_save_checkpoint|save_model|save_pretrained|full_state_dict|FULL_STATE_DICT|get_model_state_dict|_optim_state_dict|in state_dict|checkpoint_manager",
    ),
});

struct Frames {
    capture: Regex,
    wake: Regex,
    contexts: Regex,
    logits: Regex,
    body: Regex,
    optimizer: Regex,
    startup: Regex,
    serving: Regex,
    hand_over: Regex,
    save: Regex,
}

#[derive(Debug, Default, PartialEq)]
struct Numbers {
    wanted: Option<f64>,
    capacity: Option<u64>,
    free: Option<u64>,
    this: Option<u64>,
    allocated: Option<u64>,
    unallocated: Option<u64>,
    pools: Option<u64>,
    processes: Vec<u64>,
}

/// Classifies an out-of-memory error of a card.
pub fn judge(moment: &Moment, state: &FileState) -> Option<Verdict> {
    // Other allocators and NCCL have their own classes.
    if ["torch_memory_saver", "cumem_allocator", "NCCL WARN"].iter().any(|name| moment.text.contains(name)) {
        return None;
    }
    let numbers = Numbers::parse(&moment.near().replace('\n', " "));
    let verdict = by_numbers(&numbers).or_else(|| by_frames(moment, state, &numbers));
    let verdict = verdict.unwrap_or_else(|| Verdict::of("cuda-oom"));
    Some(match numbers.words() {
        Some(words) => Verdict { reasons: [vec![words], verdict.reasons].concat(), ..verdict },
        None => verdict.not_shown("the numbers: the message holds none"),
    })
}

/// Decides by the numbers alone.
fn by_numbers(numbers: &Numbers) -> Option<Verdict> {
    if numbers.wanted.is_some_and(|wanted| wanted >= REQUEST_MAX) {
        return Some(
            Verdict::of("bad-size-request")
                .because("no card and no model is of that size: the number overflowed"),
        );
    }
    let small = numbers.processes.iter().filter(|&&held| held > 0 && held <= CONTEXT_MAX).count();
    if small >= CONTEXTS_MIN {
        let reason = format!("{small} processes on the card hold no more than a context each");
        return Some(Verdict::of("cuda-context-per-worker").because(reason));
    }
    None
}

/// Decides by the innermost frames, then by the numbers.
fn by_frames(moment: &Moment, state: &FileState, numbers: &Numbers) -> Option<Verdict> {
    let all = format!("{}\n{}", moment.before().join("\n"), moment.near());
    let inner = moment.innermost(INNERMOST);
    let frames = &*FRAMES;
    if frames.contexts.is_match(&inner) {
        return Some(
            Verdict::of("cuda-context-per-worker").because("a synchronisation in a worker made a context"),
        );
    }
    if frames.wake.is_match(&inner) {
        return Some(
            Verdict::of("vllm-wakeup-oom").because("the engine was waking up: its memory is mapped anew"),
        );
    }
    if frames.capture.is_match(&all) {
        return Some(Verdict::of("cuda-graph-oom").because("a CUDA graph was being captured"));
    }
    if let Some(reason) = numbers.fragmentation(FRAGMENTS_MIN) {
        return Some(fragmented(reason));
    }
    if let Some(reason) = numbers.other_processes() {
        return Some(Verdict::of("cuda-oom-other-process").because(reason));
    }
    if frames.optimizer.is_match(&inner) {
        return Some(
            Verdict::of("cuda-oom-optimizer-step").because("the innermost frames are the optimizer's"),
        );
    }
    if frames.logits.is_match(&inner) && !frames.body.is_match(&moment.innermost(4)) {
        return Some(Verdict::of("cuda-oom-logits").because(logits_reason(numbers)));
    }
    if frames.startup.is_match(&all) && !frames.serving.is_match(&inner) {
        return Some(Verdict::of("vllm-startup-oom").because("the rollout engine was starting"));
    }
    if frames.save.is_match(&all) {
        return Some(at_save(state));
    }
    if frames.hand_over.is_match(&all) {
        return Some(
            Verdict::of("cuda-oom")
                .because("weights were being handed over to the rollout engine: a gathered copy on top of both owners' memory")
                .first("hand weights over in buckets, and let the engine sleep without its KV cache until they are there"),
        );
    }
    if let Some(reason) = numbers.fragmentation(0.0) {
        return Some(fragmented(reason));
    }
    let pools = numbers.pools.filter(|&pools| numbers.wanted.is_some_and(|wanted| pools as f64 >= wanted))?;
    let verdict = Verdict::of("cuda-graph-oom")
        .because(format!("{} are in private pools, which only graphs use", Bytes(pools)));
    Some(
        verdict.not_shown(
            "that the pools are graphs': an engine that can sleep keeps its own memory in one too",
        ),
    )
}

fn fragmented(reason: String) -> Verdict {
    Verdict::of("cuda-oom").because(reason).first(
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (not in a process that shares its tensors by CUDA IPC or sleeps in a memory pool); else max_split_size_mb, or empty_cache() between phases",
    )
}

/// Growth over several saves is a leak; at the first save the plan did not count it.
fn at_save(state: &FileState) -> Verdict {
    let reason = "a checkpoint was being saved: its state was gathered on the card";
    match state.mark_count(Mark::Save) > 2 && state.readings.grows_at_saves() {
        true => Verdict::of("gpu-leak-at-checkpoint").because(reason),
        false => Verdict::of("cuda-oom")
            .because(reason)
            .first("save sharded state (SHARDED_STATE_DICT), or gather with offload_to_cpu and rank0_only"),
    }
}

fn logits_reason(numbers: &Numbers) -> String {
    const VOCABULARY: f64 = 152_064.0;
    let base = "the innermost frames work on logits, which are [tokens, vocabulary]";
    match numbers.wanted {
        Some(wanted) => format!(
            "{base}: this request is {:.0} tokens at a vocabulary of 152,064 in f32, twice that in bf16",
            wanted / VOCABULARY / 4.0
        ),
        None => base.into(),
    }
}

impl Numbers {
    fn parse(text: &str) -> Numbers {
        let size = |at: usize| -> Option<f64> {
            let found = NUMBERS[at].captures(text)?;
            let (number, unit) = found.get(1).zip(found.get(2)).or_else(|| found.get(3).zip(found.get(4)))?;
            bytes(number.as_str(), unit.as_str())
        };
        let whole = |at: usize| size(at).map(|bytes| bytes as u64);
        let allocated = whole(4);
        let reserved =
            whole(6).zip(allocated).map(|(reserved, allocated)| reserved.saturating_sub(allocated));
        let processes = PROCESSES.captures_iter(text).filter_map(|found| bytes(&found[2], &found[3]));
        Numbers {
            wanted: size(0),
            capacity: whole(1),
            free: whole(2),
            this: whole(3),
            allocated,
            unallocated: whole(5).or(reserved),
            pools: whole(7),
            processes: processes.map(|bytes| bytes as u64).collect(),
        }
    }

    /// Returns the numbers in words, if there are any.
    fn words(&self) -> Option<String> {
        let mut words = vec![format!("wanted {}", shown(self.wanted? as u64))];
        let named = [
            (self.capacity, "capacity"),
            (self.free, "free"),
            (self.this, "this process"),
            (self.allocated, "allocated by PyTorch"),
            (self.unallocated, "reserved but unallocated"),
            (self.pools, "in private pools"),
        ];
        words.extend(named.iter().filter_map(|(bytes, name)| Some(format!("{name} {}", shown((*bytes)?)))));
        Some(words.join(", "))
    }

    /// Returns the reason if at least `least_share` of the card is reserved in pieces that are too small.
    fn fragmentation(&self, least_share: f64) -> Option<String> {
        let (wanted, unallocated) = (self.wanted?, self.unallocated?);
        let share = unallocated as f64 / self.capacity.unwrap_or(unallocated).max(1) as f64;
        (wanted > 0.0 && unallocated as f64 >= wanted && share >= least_share).then(|| {
            let (held, wanted) = (shown(unallocated), shown(wanted as u64));
            format!("fragmentation: {held} are reserved but unallocated, and {wanted} were wanted")
        })
    }

    /// Returns the reason if other processes fill the card.
    fn other_processes(&self) -> Option<String> {
        let hidden = self.processes.iter().filter(|&&held| held == 0).count();
        let (capacity, free, wanted) = (self.capacity?, self.free.unwrap_or(0), self.wanted? as u64);
        let tensors = self.allocated.unwrap_or(0) + self.unallocated.unwrap_or(0);
        // A single "Process N" may be this one, seen from another process namespace: the nearest above its tensors.
        let namespace = (self.this.is_none() && self.processes.len() == 1)
            .then(|| self.processes[0])
            .filter(|&held| held >= tensors && held - tensors <= BESIDE_TENSORS.max(capacity / 10));
        // Some versions print 17179869184.00 GiB for this process: a size that wrapped says nothing.
        let this = self.this.filter(|&this| this <= capacity + capacity / 10).or(namespace);
        let slack = if this.is_some() { 512 << 20 } else { BESIDE_TENSORS.max(capacity / 5) };
        let others = capacity.saturating_sub(free).saturating_sub(this.unwrap_or(tensors));
        if self.this.is_none() && tensors == 0 && self.processes.is_empty() {
            return None;
        }
        let is_large = others >= slack && others >= wanted.min(capacity / 4) && tensors <= capacity;
        (is_large || hidden >= 2).then(|| {
            let whose = if hidden >= 2 {
                format!(", by {hidden} processes whose sizes are hidden")
            } else {
                String::new()
            };
            format!(
                "others hold {} of {}{whose}: capacity less free less this process's {}",
                shown(others),
                shown(capacity),
                shown(this.unwrap_or(tensors))
            )
        })
    }
}

/// Formats to two decimals, as the messages do: 14.00 GiB.
fn shown(bytes: u64) -> String {
    match bytes {
        ..1_048_576 => format!("{bytes} bytes"),
        1_048_576..1_073_741_824 => format!("{:.2} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// Reads a size as PyTorch writes it: powers of two, whatever the unit's name.
fn bytes(number: &str, unit: &str) -> Option<f64> {
    let number: f64 = number.trim_end_matches('.').parse().ok()?;
    let power = match unit.chars().next()?.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        'P' => 50,
        _ => 0,
    };
    Some(number * (1u64 << power) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_messages_old_and_new() {
        let new = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 512.00 MiB is free. Process 7 has 10.00 GiB memory in use. Including non-PyTorch memory, this process has 68.00 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by PyTorch, with 1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 1.50 GiB is reserved by PyTorch but unallocated.";
        let numbers = Numbers::parse(new);
        let gib = |n: f64| Some((n * (1u64 << 30) as f64) as u64);
        assert_eq!(numbers.wanted, Some(2.0 * (1u64 << 30) as f64));
        assert_eq!((numbers.capacity, numbers.free), (gib(79.15), gib(0.5)));
        assert_eq!((numbers.this, numbers.allocated), (gib(68.0), gib(60.0)));
        assert_eq!((numbers.unallocated, numbers.pools), (gib(1.5), gib(1.0)));
        assert_eq!(numbers.processes, [10 << 30]);
        assert_eq!(numbers.fragmentation(0.0), None);
        assert!(
            numbers
                .other_processes()
                .is_some_and(|words| words.starts_with("others hold 10.65 GiB of 79.15 GiB"))
        );
        let old = "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.00 GiB total capacity; 9.00 GiB already allocated; 18.00 MiB free; 9.50 GiB reserved in total by PyTorch)";
        let numbers = Numbers::parse(old);
        assert_eq!((numbers.capacity, numbers.unallocated), (gib(23.0), gib(0.5)));
        assert!(numbers.fragmentation(0.0).is_some() && numbers.fragmentation(FRAGMENTS_MIN).is_none());
        assert!(numbers.other_processes().is_some());
    }

    #[test]
    fn a_process_seen_from_another_namespace_is_not_another() {
        let alone = "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 18.94 MiB is free. Process 1234 has 23.66 GiB memory in use. Of the allocated memory 22.90 GiB is allocated by PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated.";
        assert_eq!(Numbers::parse(alone).other_processes(), None);
        let two = alone
            .replace(
                "Process 1234 has 23.66",
                "Process 1234 has 12.00 GiB memory in use. Process 1235 has 11.60",
            )
            .replace("22.90 GiB is", "10.90 GiB is");
        assert!(Numbers::parse(&two).other_processes().is_some());
    }
}
