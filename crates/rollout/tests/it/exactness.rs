//! The log-probability that the rollout records equals that of training, to the bit, however samples are scheduled.
//!
//! Every case draws the same request many ways (sequences in flight, rows of a pass, preemption, threads) and packs the
//! responses many ways (cuts, recompute levels, threads). The ways take turns: after four commits all models had all.

use crate::common::cases::every_nth_from;
use crate::common::harness::{MIXED, Machine, Numbers, Setup, same_bits};
use crate::common::{World, sampling, sequences};
use plimsoll_arch::{Cache, Caches, LoraShape, LoraTarget, LoraTargets, Quantization};
use plimsoll_base::DType;
use plimsoll_cpu::Isa;
use plimsoll_model::{PassLimits, Recompute};
use plimsoll_rollout::{EngineLimits, OnFull, Request, Samples};
use plimsoll_train::PackLimits;

mod any_shape;
mod drafts;
mod fp8;

/// One request, owned.
#[derive(Clone, Debug)]
struct Ask {
    source: &'static str,
    dtype: DType,
    machine: Machine,
    prompts: Vec<Vec<u32>>,
    group_size: usize,
    new_tokens: usize,
    temperature: f32,
    eos: Vec<u32>,
    /// Adapters with random numbers, and their scale.
    lora: Option<(LoraShape, f32)>,
    merge: bool,
    quantize: Option<Quantization>,
    fp8: bool,
    /// Keys of a window, where layers with windows have a cache of their own.
    window: Option<usize>,
}

impl Ask {
    fn new(
        source: &'static str,
        dtype: DType,
        machine: Machine,
        prompt_lens: &[usize],
        group_size: usize,
    ) -> Ask {
        // Tokens of the vocabularies; a few of them end a response, so that lengths differ.
        let vocab = match source {
            source if source.contains(':') => 15,
            "llama" | "llama3_rope" | "qwen2" | "qwen3" | "mistral" => 260,
            _ => 96,
        };
        let mut numbers = Numbers::new(prompt_lens.len() as u64);
        let prompts = prompt_lens.iter().map(|&n| numbers.tokens(n, vocab)).collect();
        let eos = if source.contains(':') { vec![1] } else { (0..vocab / 21).collect() };
        let (new_tokens, temperature, lora, merge, quantize) = (24, 1.0, None, false, None);
        Ask {
            source,
            dtype,
            machine,
            prompts,
            group_size,
            new_tokens,
            temperature,
            eos,
            lora,
            merge,
            quantize,
            fp8: false,
            window: None,
        }
    }

    fn has_states(&self) -> bool {
        self.source.starts_with("qwen3_5") || self.source == "qwen3_next"
    }

    fn samples(&self) -> usize {
        self.prompts.len() * self.group_size
    }

    fn prompt_tokens(&self) -> usize {
        self.prompts.iter().map(Vec::len).max().unwrap()
    }

    fn setup(&self, pass: PassLimits) -> Setup {
        Setup {
            machine: self.machine,
            lora: self.lora,
            merge: self.merge,
            quantize: self.quantize,
            fp8: self.fp8,
            ..Setup::new(self.source, self.dtype, pass)
        }
    }

    /// Limits of the update in which `tokens` rows fit.
    fn pass(&self, tokens: usize) -> PassLimits {
        let segments = PackLimits::segments_of(tokens, self.prompts.len(), self.samples());
        PackLimits {
            micro_batch_tokens: tokens,
            prompt_tokens: self.prompt_tokens(),
            segments,
            caches: if self.has_states() { Caches::paged(0).and(Cache::State, 0) } else { Caches::paged(0) },
        }
        .pass()
    }

    fn engine(&self, sequences: usize, rows: usize, blocks: usize) -> EngineLimits {
        let limits = EngineLimits {
            sequences,
            rows,
            samples: self.samples(),
            prompt_tokens: self.prompt_tokens(),
            new_tokens: self.new_tokens,
            ahead: false,
            listed: 0,
            own: plimsoll_model::OwnLogits::NONE,
            caches: Caches::paged(blocks),
            drafts: None,
        };
        let with = |cache, units| EngineLimits { caches: limits.caches.and(cache, units), ..limits };
        let (is_tight, together) = (blocks < self.blocks(), sequences.min(self.samples()));
        if self.has_states() {
            // As few as a prompt and two responses have, or enough.
            let enough = if is_tight { 3 } else { limits.enough(Cache::State, together, self.group_size) };
            return with(Cache::State, enough.max(2));
        }
        let Some(keys) = self.window else { return limits };
        let ring = Cache::Ring { keys };
        let ahead = EngineLimits { ahead: true, ..with(ring, 0) };
        // As few as the other cache has, or enough.
        let least = ahead.least(ring, 0, self.prompt_tokens());
        let few = least + blocks.saturating_sub(self.tight_blocks());
        let enough = ahead.enough(ring, together, self.group_size);
        with(ring, if is_tight { few } else { enough.max(least) })
    }

    /// Blocks with which nothing ever waits.
    fn blocks(&self) -> usize {
        let groups = (self.samples() / self.group_size + 1).min(self.samples());
        let own = (self.prompt_tokens() % 16 + self.new_tokens - 1).div_ceil(16);
        groups * self.prompt_tokens().div_ceil(16) + self.samples() * own + 64
    }

    fn draw(&self, limits: EngineLimits, on_full: OnFull, threads: usize) -> (Samples, u64) {
        let mut world = World::new(Setup { threads, ..self.setup(self.pass(64)) }, limits);
        let prompts: Vec<&[u32]> = self.prompts.iter().map(Vec::as_slice).collect();
        let (samples, stats) = world.sample(on_full, &self.request(&prompts)).unwrap();
        (samples, stats.preemptions)
    }

    /// The training forward's log-probs over `cuts` rows a micro-batch equal the recorded ones.
    fn check_training(&self, drawn: &Samples, tokens: usize, recompute: Recompute, threads: usize) {
        let pass = self.pass(tokens);
        let mut world = World::new(Setup { threads, recompute, ..self.setup(pass) }, self.engine(1, 1, 128));
        let prompts: Vec<&[u32]> = self.prompts.iter().map(Vec::as_slice).collect();
        let all = sequences(&prompts, drawn, self.group_size);
        let (logprobs, passes) = world.harness.logprobs(&all, 1.0 / self.temperature).unwrap();
        let rows: usize = all.iter().map(|s| s.response.len() - 1).sum();
        assert!(passes >= rows.div_ceil(tokens), "{passes} passes");
        for (s, trained) in logprobs.iter().enumerate() {
            let at = trained.iter().zip(drawn.logprobs(s)).position(|(a, b)| a.to_bits() != b.to_bits());
            assert!(
                at.is_none(),
                "{} {:?} {:?}, {tokens} rows, {recompute:?}, {threads} threads: sample {s} of prompt length {}, token \
                 {at:?}: {trained:?} trained, {:?} recorded",
                self.source,
                self.dtype,
                self.machine,
                all[s].prompt.len(),
                drawn.logprobs(s)
            );
        }
    }

    fn check_same(&self, drawn: &Samples, other: &Samples, how: &str) {
        for s in 0..self.samples() {
            let same = drawn.ids(s) == other.ids(s) && same_bits(drawn.logprobs(s), other.logprobs(s));
            assert!(
                same && drawn.finish(s) == other.finish(s),
                "{} {:?} {:?}, {how}: sample {s} differs: {:?} {:?} and {:?} {:?}",
                self.source,
                self.dtype,
                self.machine,
                drawn.ids(s),
                drawn.logprobs(s),
                other.ids(s),
                other.logprobs(s)
            );
        }
    }

    /// Blocks so few that sequences give theirs back.
    fn tight_blocks(&self) -> usize {
        (self.prompt_tokens() + self.new_tokens).div_ceil(16) + 1
    }

    /// A number of its own for each model, type and storage, with which its turn begins.
    fn first_turn(&self) -> usize {
        let words = format!("{}{:?}{:?}{}", self.source, self.dtype, self.quantize, self.merge);
        words.bytes().map(usize::from).sum()
    }

    fn check_everything(&self) -> Samples {
        let (all, blocks, from) = (self.samples(), self.blocks(), self.first_turn());
        let (drawn, _) = self.draw(self.engine(all, 512, blocks), OnFull::WorstCase, 1);
        let schedules = [(1, 64, 1), (3, 3, 1), (8, 17, 2), (8, 48, 1)];
        for (_, (sequences, rows, threads)) in every_nth_from(from, 4, schedules) {
            let other = self.draw(self.engine(sequences, rows, blocks), OnFull::WorstCase, threads).0;
            self.check_same(
                &drawn,
                &other,
                &format!("{sequences} sequences, {rows} rows, {threads} threads"),
            );
        }
        let mut preemptions = 0;
        let tight = [(8, 48, 0), (8, 9, 0), (3, 16, 1), (all, 256, 3)];
        for (_, (sequences, rows, extra)) in every_nth_from(from, 2, tight) {
            let limits = self.engine(sequences, rows.max(sequences), self.tight_blocks() + extra);
            let (other, count) = self.draw(limits, OnFull::Preempt, 1);
            self.check_same(&drawn, &other, &format!("{limits:?}, {count} preemptions"));
            let (waited, none) = self.draw(limits, OnFull::WorstCase, 1);
            self.check_same(&drawn, &waited, &format!("{limits:?}, waiting"));
            assert_eq!(none, 0, "worst-case admission never preempts");
            preemptions += count;
        }
        assert!(preemptions > 0, "the blocks were to run out");
        let ahead = [
            (all, 512, false, OnFull::WorstCase),
            (5, 20, false, OnFull::WorstCase),
            (8, 48, true, OnFull::Preempt),
            (3, 16, true, OnFull::WorstCase),
        ];
        for (_, (sequences, rows, few, on_full)) in every_nth_from(from, 4, ahead) {
            let blocks = if few { self.tight_blocks() + 1 } else { blocks };
            let limits = EngineLimits { ahead: true, ..self.engine(sequences, rows, blocks) };
            let (other, _) = self.draw(limits, on_full, 1);
            self.check_same(&drawn, &other, &format!("{limits:?}, ahead of the host"));
        }
        self.check_drafts(&drawn);
        let longest = self.prompt_tokens() + self.new_tokens;
        let cuts = [
            (longest, Recompute::None, 1),
            (longest + 21, Recompute::Layer, 2),
            (2 * longest, Recompute::Cheap, 1),
            (4096, Recompute::None, 2),
        ];
        for (_, (tokens, recompute, threads)) in every_nth_from(from, 2, cuts) {
            self.check_training(&drawn, tokens, recompute, threads);
        }
        drawn
    }

    fn request<'r>(&'r self, prompts: &'r [&'r [u32]]) -> Request<'r> {
        Request {
            prompts,
            group_size: self.group_size,
            max_new_tokens: self.new_tokens,
            sampling: sampling(self.temperature, 3),
            eos: &self.eos,
            first_sample_id: 1 << 33,
            numbers: &[],
        }
    }
}

fn check_model(source: &'static str, dtype: DType) {
    let mut machines = vec![Machine::detect(), Machine::path(Isa::Avx2)];
    machines.retain(|&m| m != Machine::Cpu(Isa::Avx2) || Isa::Avx2.is_available());
    machines.dedup();
    for machine in machines {
        let ask = Ask::new(source, dtype, machine, &[1, 7, 15, 16, 17, 31, 32, 33, 40], 3);
        let drawn = ask.check_everything();
        let lens: Vec<usize> = (0..drawn.len()).map(|s| drawn.ids(s).len()).collect();
        assert!(
            lens.iter().any(|&n| n < 24) && lens.iter().any(|&n| n > 8),
            "lengths are to differ: {lens:?}"
        );
        // Other group sizes and temperatures, less of everything else.
        for (_, (group_size, temperature)) in every_nth_from(ask.first_turn(), 2, [(1, 0.6), (4, 1.7)]) {
            let ask = Ask { temperature, ..Ask::new(source, dtype, machine, &[15, 40, 16], group_size) };
            let (drawn, _) = ask.draw(ask.engine(5, 32, ask.blocks()), OnFull::Preempt, 1);
            ask.check_training(&drawn, 100, Recompute::Cheap, 1);
        }
    }
    let ask = Ask::new(source, dtype, Machine::path(Isa::Scalar), &[5, 16, 23], 3);
    let (drawn, _) = ask.draw(ask.engine(9, 80, ask.blocks()), OnFull::WorstCase, 1);
    let (other, _) = ask.draw(ask.engine(2, 5, ask.tight_blocks()), OnFull::Preempt, 2);
    ask.check_same(&drawn, &other, "scalar");
    ask.check_training(&drawn, 64, Recompute::Layer, 2);
}

#[test]
fn qwen3_f32() {
    check_model("qwen3", DType::F32);
}

#[test]
fn qwen3_bf16() {
    check_model("qwen3", DType::Bf16);
}

#[test]
fn qwen2_f32() {
    check_model("qwen2", DType::F32);
}

#[test]
fn qwen2_bf16() {
    check_model("qwen2", DType::Bf16);
}

#[test]
fn llama_f32() {
    check_model("llama", DType::F32);
}

#[test]
fn llama_bf16() {
    check_model("llama", DType::Bf16);
}

/// Windows, layers that are not rotated, a second rule, norms after parts and of rows, factors, queries that grow.
#[test]
fn layers_that_differ() {
    check_model("olmo3", DType::F32);
    check_model("ministral3", DType::F32);
    for source in [
        "mistral_window",
        "smollm3",
        "olmo3",
        "gemma2",
        "gemma3",
        "granite",
        "llama_bias",
        "phi3",
        "phi4_mini_long",
        "ministral3",
        "gemma4",
    ] {
        check_model(source, DType::Bf16);
    }
}

#[test]
fn experts() {
    let sources = ["qwen3_moe", "qwen3_moe_mixed", "glm4_moe", "glm4_moe_groups", "gpt_oss", "gemma4_moe"];
    let of_latents = ["deepseek_v2", "deepseek_v3", "moonlight", "glm4_moe_lite"];
    for source in sources.into_iter().chain(of_latents) {
        check_model(source, DType::F32);
        check_model(source, DType::Bf16);
    }
}

/// States of linear attention go on from pass to pass, over the edges of the chunks that the backward pass takes.
#[test]
fn linear_attention() {
    for source in ["qwen3_5", "qwen3_5_wide", "qwen3_5_moe", "qwen3_next"] {
        check_model(source, DType::F32);
        check_model(source, DType::Bf16);
    }
    for (lens, group_size) in [([1, 62, 63, 64, 65], 2), ([127, 128, 3, 129, 50], 1)] {
        let ask = Ask::new("qwen3_5_wide", DType::Bf16, Machine::detect(), &lens, group_size);
        let (drawn, _) = ask.draw(ask.engine(10, 512, ask.blocks()), OnFull::WorstCase, 2);
        for (sequences, rows, blocks) in
            [(1, 64, ask.blocks()), (2, 7, ask.tight_blocks()), (3, 63, ask.blocks())]
        {
            let (other, _) = ask.draw(ask.engine(sequences, rows, blocks), OnFull::Preempt, 1);
            ask.check_same(&drawn, &other, &format!("{sequences} sequences, {rows} rows"));
        }
        for (tokens, recompute) in [(170, Recompute::None), (300, Recompute::Layer), (4096, Recompute::Cheap)]
        {
            ask.check_training(&drawn, tokens, recompute, 2);
        }
    }
}

/// Layers with windows keep only these while prompts and responses go on: nothing that is drawn or recorded changes.
#[test]
fn windows_in_a_cache_of_their_own() {
    for (source, dtype) in [
        ("mistral_window", DType::F32),
        ("olmo3", DType::Bf16),
        ("gemma3", DType::F32),
        ("gemma3", DType::Bf16),
        ("gemma2", DType::Bf16),
        ("gemma4", DType::F32),
    ] {
        let caches = Caches::paged(0);
        let pack = PackLimits { micro_batch_tokens: 64, prompt_tokens: 1, segments: 2, caches };
        let spec = Setup::new(source, dtype, pack.pass()).open().spec;
        let keys = spec.attentions().find_map(|of| of.window).unwrap() as usize;
        for (lens, group_size) in [(&[1, 16, 39, 305, 330][..], 3), (&[7, 320, 281, 2][..], 1)] {
            // All to the end where prompts are not shared; of many lengths where a prompt waits for its last response.
            let eos = if group_size == 1 { Vec::new() } else { vec![7, 8] };
            let whole =
                Ask { new_tokens: 200, eos, ..Ask::new(source, dtype, Machine::detect(), lens, group_size) };
            let (drawn, _) = whole.draw(whole.engine(5, 512, whole.blocks()), OnFull::WorstCase, 1);
            let longest = (0..drawn.len()).map(|s| drawn.ids(s).len()).max().unwrap();
            assert!(longest > 3 * keys && (group_size > 1 || longest == 200), "beyond windows: {longest}");
            let ask = Ask { window: Some(keys), ..whole.clone() };
            let limits = ask.engine(ask.samples(), 512, ask.blocks());
            assert!(
                limits.caches.units(Cache::RING) * 3 < limits.caches.units(Cache::PAGED) * 2,
                "{limits:?}"
            );
            let other = ask.check_everything();
            whole.check_same(&drawn, &other, "every key kept");
        }
    }
}

#[test]
fn nano_f32() {
    check_model("builtin:nano", DType::F32);
}

#[test]
fn nano_bf16() {
    check_model("builtin:nano", DType::Bf16);
}

/// Ranks that are no multiple of a vector, one target and all of them.
#[test]
fn with_adapters() {
    let [some, ends] =
        [LoraTarget::K, LoraTarget::O].map(|t| LoraTargets::new([t, LoraTarget::Down]).unwrap());
    for (source, dtype, rank, targets) in [
        ("qwen2", DType::F32, 3, LoraTargets::ALL),
        ("qwen2", DType::Bf16, 8, LoraTargets::ALL),
        ("llama", DType::Bf16, 32, LoraTargets::ALL),
        ("olmo3", DType::F32, 4, LoraTargets::ALL),
        ("llama_bias", DType::Bf16, 8, LoraTargets::ALL),
        ("phi4_mini_long", DType::Bf16, 8, ends),
        ("qwen3_moe", DType::Bf16, 8, LoraTargets::ALL),
        ("qwen3_moe_mixed", DType::Bf16, 5, some),
        ("gemma4_e", DType::Bf16, 8, LoraTargets::ALL),
    ] {
        let plain = Ask::new(source, dtype, Machine::detect(), &[1, 7, 16, 31, 40], 3);
        for merge in [false, true] {
            let ask = Ask { lora: Some((LoraShape { rank, targets }, 2.0)), merge, ..plain.clone() };
            let drawn = ask.check_everything();
            let (without, _) = plain.draw(plain.engine(4, 64, plain.blocks()), OnFull::WorstCase, 1);
            let differs = (0..drawn.len()).any(|s| !same_bits(drawn.logprobs(s), without.logprobs(s)));
            assert!(differs, "{source}: the adapters take part, merged: {merge}");
        }
    }
}

/// Products in 4 bits, with adapters on them, on a model whose rows are whole blocks.
#[test]
fn with_products_in_codes() {
    for dtype in [DType::F32, DType::Bf16] {
        let plain = Ask {
            eos: Vec::new(),
            ..Ask::new("builtin:nano", dtype, Machine::detect(), &[1, 7, 16, 31, 40], 3)
        };
        let lora = Some((LoraShape { rank: 8, targets: LoraTargets::ALL }, 2.0));
        let [whole, coded] = [None, Some(Quantization::Nf4)].map(|quantize| {
            let ask = Ask { lora, quantize, ..plain.clone() };
            ask.check_everything()
        });
        let differs = (0..coded.len()).any(|s| !same_bits(coded.logprobs(s), whole.logprobs(s)));
        assert!(differs, "{dtype:?}: the codes take part");
    }
}

/// Products in the blocks of their file, in every encoding, have the bits of the same file in full.
#[test]
fn with_products_as_their_file_has_them() {
    for dtype in [DType::F32, DType::Bf16] {
        let lora = Some((LoraShape { rank: 8, targets: LoraTargets::ALL }, 2.0));
        let plain = Ask {
            eos: Vec::new(),
            lora,
            ..Ask::new(MIXED, dtype, Machine::detect(), &[1, 7, 16, 31, 39], 3)
        };
        let [whole, coded] = [None, Some(Quantization::Gguf)].map(|quantize| {
            let ask = Ask { quantize, ..plain.clone() };
            ask.check_everything()
        });
        for s in 0..coded.len() {
            assert_eq!(coded.ids(s), whole.ids(s), "{dtype:?}: sample {s}");
            assert!(same_bits(coded.logprobs(s), whole.logprobs(s)), "{dtype:?}: sample {s}");
        }
    }
}

/// One arena, as a run has it: sample, compare, update the weights in place, and sample with the new ones.
#[test]
fn log_probs_stay_equal_as_the_weights_move() {
    for (source, dtype) in [("qwen3", DType::Bf16), ("qwen2", DType::F32), ("llama", DType::Bf16)] {
        let ask = Ask::new(source, dtype, Machine::detect(), &[12, 31, 29], 4);
        let setup = Setup { threads: 2, recompute: Recompute::Layer, ..ask.setup(ask.pass(64)) };
        let mut world = World::new(setup, ask.engine(7, 20, ask.tight_blocks()));
        let prompts: Vec<&[u32]> = ask.prompts.iter().map(Vec::as_slice).collect();
        let request = Request {
            prompts: &prompts,
            group_size: 4,
            max_new_tokens: ask.new_tokens,
            sampling: sampling(1.0, 3),
            eos: &ask.eos,
            first_sample_id: 0,
            numbers: &[],
        };
        let mut first: Option<Samples> = None;
        for step in 1..=3 {
            let (drawn, _) = world.sample(OnFull::Preempt, &request).unwrap();
            let all = sequences(&prompts, &drawn, 4);
            let (trained, passes) = world.harness.logprobs(&all, 1.0).unwrap();
            assert!(passes > 1, "several micro-batches");
            for (s, trained) in trained.iter().enumerate() {
                assert!(
                    same_bits(trained, drawn.logprobs(s)),
                    "{source} {dtype:?} step {step}: sample {s} differs"
                );
            }
            if let Some(first) = first.replace(drawn.clone()) {
                let moved = (0..drawn.len()).any(|s| !same_bits(first.logprobs(s), drawn.logprobs(s)));
                assert!(moved, "{source} {dtype:?} step {step}: the rollout reads the new weights");
            }
            world.harness.gradients(&all, 1.0, |s, _| (if s % 2 == 0 { 0.1 } else { -0.1 }, 0.0));
            world.harness.first_update(1e-3);
        }
    }
}

/// Responses that begin before and after the end of the first attention chunk (512 keys), with a shared prompt.
#[test]
fn contexts_over_an_attention_chunk() {
    for (source, dtype) in [("llama", DType::F32), ("llama", DType::Bf16), ("qwen3", DType::Bf16)] {
        let long = Ask::new(source, dtype, Machine::detect(), &[505, 530, 512], 3);
        let ask = Ask { new_tokens: 90, eos: vec![0, 1], ..long };
        let (drawn, _) = ask.draw(ask.engine(9, 700, ask.blocks()), OnFull::WorstCase, 2);
        let (other, count) = ask.draw(ask.engine(5, 33, ask.tight_blocks() + 2), OnFull::Preempt, 1);
        assert!(count > 0, "the blocks were to run out");
        ask.check_same(&drawn, &other, "preempted");
        ask.check_training(&drawn, 640, Recompute::Layer, 1);
        ask.check_training(&drawn, 2048, Recompute::None, 2);
    }
}

/// Truncated sampling draws from fewer tokens and still records the untruncated policy.
#[test]
fn truncated_sampling_records_the_untruncated_policy() {
    let ask = Ask::new("qwen2", DType::Bf16, Machine::detect(), &[9, 20], 4);
    let limits = ask.engine(8, 64, ask.blocks());
    let mut world = World::truncating(ask.setup(ask.pass(64)), limits, true);
    let prompts: Vec<&[u32]> = ask.prompts.iter().map(Vec::as_slice).collect();
    let mut drawn = Vec::new();
    for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (20, 1.0, 0.0), (0, 0.7, 0.0), (50, 0.9, 0.05)] {
        let request = Request {
            prompts: &prompts,
            group_size: 4,
            max_new_tokens: 24,
            sampling: plimsoll_device::Sampling { top_k, top_p, min_p, ..sampling(1.0, 3) },
            eos: &ask.eos,
            first_sample_id: 1 << 33,
            numbers: &[],
        };
        let (samples, _) = world.sample(OnFull::WorstCase, &request).unwrap();
        ask.check_training(&samples, 70, Recompute::None, 1);
        drawn.push(samples);
    }
    let plain = ask.draw(limits, OnFull::WorstCase, 1).0;
    ask.check_same(&plain, &drawn[0], "an arena that could truncate");
    assert!((0..8).any(|s| drawn[0].ids(s) != drawn[1].ids(s)), "top-k changes what is drawn");
}

/// A second request on the same engine is what a first one would be.
#[test]
fn an_engine_keeps_nothing_from_its_last_request() {
    let ask = Ask::new("llama", DType::Bf16, Machine::detect(), &[3, 33, 18], 3);
    let mut world = World::new(ask.setup(ask.pass(64)), ask.engine(6, 20, ask.tight_blocks()));
    let mut engine = plimsoll_rollout::Engine::new(world.limits, OnFull::Preempt);
    let prompts: Vec<&[u32]> = ask.prompts.iter().map(Vec::as_slice).collect();
    let mut out = Samples::with_capacity(9, 24);
    let mut request = Request {
        prompts: &prompts,
        group_size: 3,
        max_new_tokens: 24,
        sampling: sampling(1.0, 3),
        eos: &ask.eos,
        first_sample_id: 1 << 33,
        numbers: &[],
    };
    world.sample_with(&mut engine, &request, &mut out).unwrap();
    let first = out.clone();
    (request.first_sample_id, request.max_new_tokens) = (77, 5);
    world.sample_with(&mut engine, &request, &mut out).unwrap();
    assert!(
        (0..9).any(|s| out.ids(s) != &first.ids(s)[..first.ids(s).len().min(5)]),
        "sample ids key the numbers"
    );
    (request.first_sample_id, request.max_new_tokens) = (1 << 33, 24);
    world.sample_with(&mut engine, &request, &mut out).unwrap();
    ask.check_same(&first, &out, "the third request");
}
