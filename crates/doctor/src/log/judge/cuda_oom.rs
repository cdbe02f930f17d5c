//! Out of memory on a card: whose, and for what. PyTorch's message has up to six numbers; frames show the caller.

use crate::log::event::{Moment, Verdict};
use crate::log::signatures::Mark;
use crate::log::state::FileState;
use crate::log::text::{is_frame, regex};
use regex::Regex;
use std::sync::LazyLock;

/// A context alone takes 250 to 520 MiB; a process with at most this does nothing else on the card.
const CONTEXT_MAX: u64 = 700 << 20;
/// This many bare contexts are workers that should have none.
const CONTEXTS_MIN: usize = 6;
/// Larger requests are overflows.
const REQUEST_MAX: f64 = 64.0 * (1u64 << 40) as f64;
/// Larger than any machine. Some versions print 17179869184.00 GiB; sums of sizes must not overflow.
const SIZE_MAX: f64 = (1u64 << 56) as f64;
/// Bounds what a process may hold on top of its tensors (context, NCCL, graphs) before others are suspected.
const BESIDE_TENSORS: u64 = 3 << 30;

/// Share of a card from which reserved, unallocated memory is the first reason; tens of MiB on a full card are usual.
const FRAGMENTS_MIN: f64 = 0.05;

/// From this share of a card on, one tensor is too large in any case.
const LARGE_TENSOR: f64 = 0.2;
/// From this share on, the process alone fills the card.
const FULL: f64 = 0.85;
/// If this process's size is hidden, others are named from this share of the card on.
const HIDDEN_SHARE: f64 = 0.5;

/// Lines of a traceback that count as innermost: a frame is two to three.
const INNERMOST: usize = 18;

static NUMBERS: LazyLock<[Regex; 8]> = LazyLock::new(|| {
    const SIZE: &str = r"([\d.]+)\s?([KMGTP]?i?B|bytes)";
    [
        format!(r"(?i)(?:tried|trying|attempting) to allocate (?:more than )?{SIZE}|Requested *: {SIZE}"),
        format!(r"total capaci?ty of {SIZE}|{SIZE} total capacity|Device limit *: {SIZE}"),
        format!(r"of which {SIZE} is free|{SIZE} free\b"),
        format!(r"this process has {SIZE} memory in use"),
        format!(r"{SIZE} is allocated by PyTorch|{SIZE} already allocated|Currently allocated *: {SIZE}"),
        format!(r"{SIZE} is reserved by PyTorch but unallocated"),
        format!(r"{SIZE} reserved in total"),
        format!(r"{SIZE} allocated in private pools"),
    ]
    .map(|pattern| regex(&pattern))
});
/// XLA's sizes: `Used 21.95G of 15.48G hbm. Exceeded hbm capacity by 6.47G.`
static HBM: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"(?i)\bUsed (?P<used>[\d.]+[KMGT]?i?B?) of (?P<all>[\d.]+[KMGT]?i?B?) hbm(?:[^\n]{0,40}?by (?P<over>[\d.]+[KMGT]?i?B?)\.)?",
    )
});
static PHYSX: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)fail(?:ed)? to allocate memory (\d+) bytes|PhysX[^\n]*out of memory"));
static PROCESSES: LazyLock<Regex> =
    LazyLock::new(|| regex(r"Process (\d+) has ([\d.]+)\s?([KMGTP]?i?B|bytes) memory in use"));

/// Names in frames that show which code needed the memory.
static FRAMES: LazyLock<Frames> = LazyLock::new(|| Frames {
    capture: regex(
        r"cuda/graphs\.py|CUDAGraph\w*\.(?:capture|replay)|torch\.cuda\.graph\(|capture_begin|in _?capture(?:_\w+)?\b|CudaGraphRunner|init_cuda_graphs|init_device_graphs|cudagraph_trees|capture_model|capture_end|capture_one_batch_size|cuda_graph_runner|cudagraph_capture|apture cuda graph|graph_capture\(|capture_cudagraphs",
    ),
    wake: regex(r"cumem\.py|in wake_up\b|create_and_map|\.wake_up\("),
    contexts: regex(r"tensordict/\w+\.py[^\n]*in _sync_all"),
    logits: regex(
        r"entropy_from_logits|logprobs_from_logits|log_softmax|logsumexp|selective_log_softmax|log_probs?_from_logits|gather_logprobs|compute_entropy|entropy_loss|vocab_parallel|logits\.(float|to|div|div_|log_softmax|clone|contiguous)\(|logits / |logits ?= ?logits|cross_entropy|CrossEntropy|lm_head\(|ForCausalLMLoss",
    ),
    logprobs: regex(r"compute_log_?probs?|get_per_token_logps|_get_per_token"),
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
    // Weights on their way to the card.
    moving: regex(
        r"in _apply\b|in convert\b|\.to\((?:self\.)?(?:device|args\.device|accelerator\.device|\W?cuda)|\.cuda\(\)|in _move_model_to_device|in place_model_on_device|set_module_tensor_to_device|_load_state_dict_into_\w+|in from_pretrained\b|in prepare_model\b",
    ),
    forward: regex(r"in (?:forward|backward|training_step|compute_loss)\b|\.backward\("),
    hand_over: regex(
        r"update_weights?\w*|full_tensor\(|_broadcast_to_vllm|sync_weights|weight_sync|broadcast_weights|load_weights|summon_full_params|GatheredParameters",
    ),
    save: regex(
        r"save_checkpoint|_save_checkpoint|save_model|save_pretrained|full_state_dict|FULL_STATE_DICT|get_model_state_dict|_optim_state_dict|in state_dict|checkpoint_manager|_state_dict_utils\.py|_gather_state_dict|_iterate_state_dict",
    ),
});

struct Frames {
    capture: Regex,
    wake: Regex,
    contexts: Regex,
    logits: Regex,
    /// Callers of both those and the whole model.
    logprobs: Regex,
    body: Regex,
    optimizer: Regex,
    startup: Regex,
    serving: Regex,
    moving: Regex,
    forward: Regex,
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
    /// Each number's text in the message.
    texts: [Option<String>; 8],
}

pub fn judge(moment: &Moment, state: &FileState) -> Option<Verdict> {
    // Other allocators and NCCL have their own classes.
    if ["torch_memory_saver", "cumem_allocator", "NCCL WARN"].iter().any(|name| moment.text.contains(name)) {
        return None;
    }
    let near = moment.near().replace('\n', " ");
    let numbers = Numbers::parse(moment.unwrapped()).or(Numbers::parse(&near));
    if let Some(verdict) = elsewhere(moment) {
        return Some(verdict);
    }
    let verdict = by_numbers(&numbers).or_else(|| by_frames(moment, state, &numbers));
    let verdict = verdict.unwrap_or_else(|| Verdict::of("cuda-oom"));
    let verdict =
        Verdict { reasons: [verdict.reasons, numbers.outside().into_iter().collect()].concat(), ..verdict };
    Some(match numbers.words() {
        Some(words) => Verdict { reasons: [vec![words], verdict.reasons].concat(), ..verdict },
        None => verdict.not_shown("the numbers: the message holds none"),
    })
}

/// Judges messages of allocators that are not PyTorch's: XLA's, the simulator PhysX's and Ascend's.
fn elsewhere(moment: &Moment) -> Option<Verdict> {
    let text = moment.unwrapped();
    let verdict = Verdict::of("cuda-oom");
    if let Some(found) = HBM.captures(text) {
        let part = |name: &str| found.name(name).map(|part| part.as_str());
        let (used, all) = (part("used")?, part("all")?);
        let over = part("over").map_or(String::new(), |over| format!(", {over} too much"));
        let reason = format!("size: the compiled program needs {used} of {all}{over}");
        return Some(verdict.because(reason));
    }
    if let Some(found) = PHYSX.captures(text) {
        let size = found.get(1).map_or("memory".into(), |bytes| {
            bytes.as_str().parse().map_or("memory".into(), |bytes: u64| shown(bytes))
        });
        let reason = format!(
            "the simulator PhysX was refused {size}: its buffers grow with the number of environments"
        );
        let step = "see with `nvidia-smi` who else is on that card; take another (`--device cuda:1`), or fewer environments (`--num_envs`)";
        return Some(verdict.because(reason).first(step));
    }
    let is_driver = text.contains("vailable memory is insufficient");
    is_driver.then(|| {
        let reason = "Ascend's driver found too little free memory on the NPU";
        let step = "see with `npu-smi info` who else is on that NPU, and end what is left of earlier runs";
        verdict.because(reason).first(step)
    })
}

fn by_numbers(numbers: &Numbers) -> Option<Verdict> {
    if numbers.wanted.is_some_and(|wanted| wanted >= REQUEST_MAX) {
        let reason = "no card and no model is of that size: the number overflowed";
        return Some(Verdict::of("bad-size-request").because(reason));
    }
    let small = numbers.processes.iter().filter(|&&held| held > 0 && held <= CONTEXT_MAX).count();
    (small >= CONTEXTS_MIN).then(|| {
        let reason = format!("{small} processes on the card hold no more than a context each");
        Verdict::of("cuda-context-per-worker").because(reason)
    })
}

/// Decides by the innermost frames, then by numbers.
fn by_frames(moment: &Moment, state: &FileState, numbers: &Numbers) -> Option<Verdict> {
    // The message may come before its frames.
    let all = format!("{}\n{}\n{}", moment.before().join("\n"), moment.near(), frames_after(moment));
    let inner = moment.innermost(INNERMOST);
    let frames = &*FRAMES;
    let named = |slug, reason: &str| Some(Verdict::of(slug).because(reason));
    if frames.contexts.is_match(&inner) {
        return named("cuda-context-per-worker", "a synchronisation in a worker made a context");
    }
    if frames.wake.is_match(&inner) {
        return named("vllm-wakeup-oom", "the engine was waking up: its memory is mapped anew");
    }
    if frames.capture.is_match(&all) {
        return named("cuda-graph-oom", "a CUDA graph was being captured");
    }
    if let Some(reason) = numbers.fragmentation() {
        return Some(fragmented(reason));
    }
    if let Some(reason) = numbers.other_processes() {
        return named("cuda-oom-other-process", &reason);
    }
    if frames.optimizer.is_match(&inner) {
        return named("cuda-oom-optimizer-step", "the innermost frames are the optimizer's");
    }
    if frames.startup.is_match(&all) && !frames.serving.is_match(&inner) {
        return named("vllm-startup-oom", "the rollout engine was starting");
    }
    // The loss function of an attention package works on logits too.
    let last = moment.innermost(4);
    let in_body = frames.body.is_match(&last) && !frames.logits.is_match(&last);
    if !in_body && (frames.logits.is_match(&all) || frames.logprobs.is_match(&inner)) {
        return named("cuda-oom-logits", &logits_reason(numbers));
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
    if frames.moving.is_match(&inner) && !frames.forward.is_match(&inner) {
        let full = numbers.size().map(|verdict| verdict.reasons).unwrap_or_default();
        let verdict = Verdict::of("cuda-oom")
            .because("size: weights were being moved to the card, before the first step")
            .first("put a smaller part of the weights on each card: shard them (ZeRO-3, FSDP, tensor parallel), load them in 4 or 8 bits, or take fewer models a card");
        return Some(Verdict { reasons: [verdict.reasons.clone(), full].concat(), ..verdict });
    }
    pools(numbers).or_else(|| numbers.size())
}

fn pools(numbers: &Numbers) -> Option<Verdict> {
    let pools = numbers.pools.filter(|&pools| numbers.wanted.is_some_and(|wanted| pools as f64 >= wanted))?;
    let unproven = "that the pools are graphs': an engine that can sleep keeps its own memory in one too";
    let reason = format!("{} are in private pools, which only graphs use", shown(pools));
    Some(Verdict::of("cuda-graph-oom").because(reason).not_shown(unproven))
}

/// Returns the lines after the message if the frames are only there.
fn frames_after<'m>(moment: &'m Moment) -> &'m str {
    let has_frames = moment.before().iter().any(|line| is_frame(line));
    if has_frames { "" } else { moment.after() }
}

fn fragmented(reason: String) -> Verdict {
    Verdict::of("cuda-oom").because(reason).first(
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (not in a process that shares its tensors by CUDA IPC or sleeps in a memory pool); else max_split_size_mb, or empty_cache() between phases",
    )
}

/// Judges by saves: growth over several is a leak; growth at the first one was not planned.
fn at_save(state: &FileState) -> Verdict {
    let reason = "a checkpoint was being saved: its state was gathered on the card";
    if state.mark_count(Mark::Save) > 2 && state.readings.grows_at_saves() {
        Verdict::of("gpu-leak-at-checkpoint").because(reason)
    } else {
        Verdict::of("cuda-oom")
            .because(reason)
            .first("save sharded state (SHARDED_STATE_DICT), or gather it on the host: `offload_to_cpu` and `rank0_only`, `cpu_offload=True` in StateDictOptions")
    }
}

fn logits_reason(numbers: &Numbers) -> String {
    const VOCABULARY: f64 = 152_064.0;
    let base = "a frame works on logits, which are [tokens, vocabulary]";
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
        let part = |at: usize| -> Option<(String, f64)> {
            let found = NUMBERS[at].captures(text)?;
            let pair = |group: usize| found.get(group).zip(found.get(group + 1));
            let (number, unit) = [1, 3, 5].into_iter().find_map(pair)?;
            let (number, unit) = (number.as_str().trim_end_matches('.'), unit.as_str());
            Some((format!("{number} {unit}"), bytes(number, unit)?))
        };
        let parts: [Option<(String, f64)>; 8] = std::array::from_fn(part);
        let size = |at: usize| parts[at].as_ref().map(|(_, size)| *size);
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
            texts: parts.map(|part| part.map(|(text, _)| text)),
        }
    }

    /// Fills missing numbers from `other`.
    fn or(self, other: Numbers) -> Numbers {
        let mut mine = self.texts.into_iter();
        let texts = other.texts.clone().map(|other| mine.next().flatten().or(other));
        Numbers {
            wanted: self.wanted.or(other.wanted),
            capacity: self.capacity.or(other.capacity),
            free: self.free.or(other.free),
            this: self.this.or(other.this),
            allocated: self.allocated.or(other.allocated),
            unallocated: self.unallocated.or(other.unallocated),
            pools: self.pools.or(other.pools),
            processes: if self.processes.is_empty() { other.processes } else { self.processes },
            texts,
        }
    }

    /// Returns all numbers of the message, as written.
    fn words(&self) -> Option<String> {
        const NAMES: [&str; 8] = [
            "wanted",
            "capacity",
            "free",
            "this process",
            "allocated by PyTorch",
            "reserved but unallocated",
            "reserved",
            "in private pools",
        ];
        self.texts[0].as_ref()?;
        // A container's number for this process is meaningless.
        let says = |name: &str| name != NAMES[3] || self.this.is_some_and(|this| self.is_own(this));
        let words = NAMES.iter().zip(&self.texts).filter(|(name, _)| says(name));
        let words: Vec<String> =
            words.filter_map(|(name, text)| Some(format!("{name} {}", text.as_ref()?))).collect();
        Some(words.join(", "))
    }

    fn tensors(&self) -> u64 {
        self.allocated.unwrap_or(0) + self.unallocated.unwrap_or(0)
    }

    /// Returns true if the size may be this process's: some versions print 17179869184.00 GiB, and containers 0 bytes.
    fn is_own(&self, this: u64) -> bool {
        let most = self.capacity.map_or(u64::MAX, |capacity| capacity + capacity / 10);
        (self.tensors()..=most).contains(&this)
    }

    /// Returns the memory outside PyTorch's allocator if the container hides its owner.
    fn outside(&self) -> Option<String> {
        let (this, capacity) = (self.this?, self.capacity?);
        let outside = capacity.saturating_sub(self.free.unwrap_or(0)).saturating_sub(self.tensors());
        (this < self.tensors() && outside >= 1 << 30).then(|| {
            format!(
                "{} of the card are outside this allocator: an engine, NCCL or graphs of this process, or another process; the container hides which",
                shown(outside)
            )
        })
    }

    /// Returns the reason if a large share of the card is reserved in too small pieces.
    fn fragmentation(&self) -> Option<String> {
        let (wanted, unallocated) = (self.wanted?, self.unallocated?);
        let share = unallocated as f64 / self.capacity.unwrap_or(unallocated).max(1) as f64;
        (wanted > 0.0 && unallocated as f64 >= wanted && share >= FRAGMENTS_MIN).then(|| {
            let (held, wanted) = (shown(unallocated), self.texts[0].as_deref().unwrap_or("less"));
            format!("fragmentation: {held} are reserved but unallocated, and {wanted} were wanted")
        })
    }

    /// Returns the remaining verdict: this process holds and needs more than the card has.
    fn size(&self) -> Option<Verdict> {
        let (wanted, capacity) = (self.wanted?, self.capacity.filter(|&capacity| capacity > 0)? as f64);
        let tensors = self.tensors() as f64;
        let percent = |bytes: f64| format!("{:.0} %", 100.0 * bytes / capacity);
        let text = self.texts[0].as_deref().unwrap_or("it");
        if wanted >= LARGE_TENSOR * capacity {
            let reason = format!("size: {text} in one tensor is {} of the card", percent(wanted));
            let step = "make that tensor smaller: a smaller micro-batch, or shorter sequences";
            return Some(Verdict::of("cuda-oom").because(reason).first(step));
        }
        (tensors >= FULL * capacity).then(|| {
            let reason = format!("size: PyTorch's own tensors fill {} of the card", percent(tensors));
            Verdict::of("cuda-oom").because(reason)
        })
    }

    /// Returns the reason if other processes fill the card.
    fn other_processes(&self) -> Option<String> {
        let hidden = self.processes.iter().filter(|&&held| held == 0).count();
        let (capacity, free, wanted) = (self.capacity?, self.free.unwrap_or(0), self.wanted? as u64);
        let tensors = self.tensors();
        // A single "Process N" may be this one, seen from another process namespace: the nearest above its tensors.
        let namespace = (self.this.is_none() && self.processes.len() == 1)
            .then(|| self.processes[0])
            .filter(|&held| held >= tensors && held - tensors <= BESIDE_TENSORS.max(capacity / 10));
        let this = self.this.filter(|&this| self.is_own(this)).or(namespace);
        let is_hidden = this.is_none() && self.this.is_some_and(|this| this < tensors);
        let named: u64 = self.processes.iter().filter(|&&held| held <= capacity).sum();
        let slack = match (this.is_some(), is_hidden && named == 0) {
            (true, _) => 512 << 20,
            (false, true) => (HIDDEN_SHARE * capacity as f64) as u64,
            (false, false) => BESIDE_TENSORS.max(capacity / 5),
        };
        let others = capacity.saturating_sub(free).saturating_sub(this.unwrap_or(tensors));
        if self.this.is_none() && tensors == 0 && self.processes.is_empty() {
            return None;
        }
        let is_large = others >= slack && others >= wanted.min(capacity / 4) && tensors <= capacity;
        let are_hidden = hidden >= 2 && others >= (1 << 30).max(capacity / 20);
        (is_large || are_hidden).then(|| {
            let whose = match hidden {
                0 | 1 => String::new(),
                _ => format!(", by {hidden} processes whose sizes are hidden"),
            };
            let (others, capacity, own) = (shown(others), shown(capacity), shown(this.unwrap_or(tensors)));
            format!("others hold {others} of {capacity}{whose}: capacity less free less this process's {own}")
        })
    }
}

/// Formats a computed size with two decimals of a GiB, which is all that the numbers of a message hold.
fn shown(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0)
}

/// Reads a size as PyTorch writes it: powers of two, whatever the unit's name.
fn bytes(number: &str, unit: &str) -> Option<f64> {
    let number: f64 = number.trim_end_matches('.').parse().ok()?;
    let power = "KMGTP".find(unit.chars().next()?.to_ascii_uppercase()).map_or(0, |at| 10 * (at + 1));
    Some((number * (1u64 << power) as f64).min(SIZE_MAX))
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
        assert_eq!(numbers.fragmentation(), None);
        assert!(
            numbers
                .other_processes()
                .is_some_and(|words| words.starts_with("others hold 10.65 GiB of 79.15 GiB"))
        );
        let old = "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.00 GiB total capacity; 9.00 GiB already allocated; 18.00 MiB free; 9.50 GiB reserved in total by PyTorch)";
        let numbers = Numbers::parse(old);
        assert_eq!((numbers.capacity, numbers.unallocated), (gib(23.0), gib(0.5)));
        assert_eq!(numbers.fragmentation(), None);
        assert!(numbers.other_processes().is_some());
    }

    /// A sum of two sizes overflowed.
    #[test]
    fn r_sizes_beyond_any_machine() {
        let text = "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 17179869184.00 GiB of which 9e99 MiB is free. Process 1 has 17179869184.00 GiB memory in use. Process 2 has 17179869184.00 GiB memory in use. Of the allocated memory 17179869184.00 GiB is allocated by PyTorch, and 17179869184.00 GiB is reserved by PyTorch but unallocated.";
        let numbers = Numbers::parse(text);
        assert_eq!(numbers.tensors(), 1 << 57);
        assert!(!numbers.is_own(1 << 56));
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
