//! Draws random runs: model shape, method, storage, recompute, lengths, batches, threads. A seed fixes the draw.

use super::model::{FAMILIES, Shape};
use std::fmt::Write;

/// A run, as files.
pub struct RandomRun {
    /// Description for people and the table.
    pub what: String,
    /// The run file; `model` and `data.jsonl` are next to it.
    pub run_file: String,
    /// Rows of prompts with answers.
    pub data: String,
    /// The model; `None` for the built-in one.
    pub shape: Option<Shape>,
}

/// Random numbers by SplitMix64.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number from `least` to `most`, both included.
    fn between(&mut self, least: usize, most: usize) -> usize {
        least + (self.next() % (most - least + 1) as u64) as usize
    }

    fn one<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.between(0, choices.len() - 1)]
    }

    /// Returns true once in `n` times.
    fn once_in(&mut self, n: usize) -> bool {
        self.between(1, n) == 1
    }
}

const METHODS: [&str; 9] =
    ["grpo", "dr_grpo", "rloo", "reinforce", "reinforce_baseline", "gspo", "cispo", "sapo", "sft"];
/// One supervised run in three: it is one of nine methods and half of the code.
const SFT_ONCE_IN: usize = 3;
/// The longest prompt and response, for any model.
const TOKENS: (usize, usize) = (160, 64);
/// The built-in model has 64 positions and an alphabet of sums.
const NANO_TOKENS: (usize, usize) = (24, 16);

pub fn draw(rng: &mut Rng) -> RandomRun {
    let shape = if rng.once_in(5) { None } else { Some(draw_shape(rng)) };
    let method = if rng.once_in(SFT_ONCE_IN) { "sft" } else { rng.one(&METHODS) };
    let (prompt_max, response_max) = if shape.is_some() { TOKENS } else { NANO_TOKENS };
    let (prompt, response) = (rng.between(2, prompt_max), rng.between(2, response_max));
    let (prompts, group) = (rng.between(1, 12), rng.between(2, 8));
    let dtype = rng.one(&["bf16", "bf16", "f32"]);
    let optimizer = if dtype == "f32" { "f32" } else { rng.one(&["f32", "bf16", "int8", "auto"]) };
    let grads = if dtype == "f32" { "auto" } else { rng.one(&["auto", "bf16", "f32"]) };
    let recompute = rng.one(&["none", "cheap", "layer", "auto"]);
    let threads = rng.between(1, 4);
    let offload = rng.one(&["[]", "[]", "[\"optimizer\"]", "[\"optimizer\", \"reference\"]"]);
    // At least the longest sequence; a step's rows may take several.
    let micro_batch = match rng.between(0, 2) {
        0 => "\"auto\"".to_string(),
        _ => (prompt + response + rng.between(0, 1200)).to_string(),
    };
    let mut run = format!("method = \"{method}\"\nseed = {}\n", rng.between(0, 1 << 20));
    let model = if shape.is_some() { "model" } else { "builtin:nano" };
    let _ = write!(run, "model = \"{model}\"\n[model_options]\ndtype = \"{dtype}\"\n");
    if shape.is_some() {
        run += "tokenizer = \"bytes\"\n";
    }
    run += "[data]\nprompts = \"data.jsonl\"\nchat_template = \"none\"\n";
    let _ = write!(run, "[rollout]\nprompts_per_step = {prompts}\n");
    if method != "sft" {
        let sampling = sampling(rng, prompts * group);
        let _ = write!(run, "group_size = {group}\nmax_new_tokens = {response}\n{sampling}");
        run += "[[reward]]\nkind = \"hash\"\n";
        if rng.once_in(3) {
            run += "[loss]\nkl_coef = 0.1\n";
        }
    }
    let _ = write!(
        run,
        "[train]\nsteps = 2\nlearning_rate = 1e-5\nmicro_batch_tokens = {micro_batch}\nrecompute = \"{recompute}\"\n\
         optimizer_dtype = \"{optimizer}\"\ngrad_dtype = \"{grads}\"\n\
         [memory]\noffload = {offload}\nstaging = {}\n[run]\nthreads = {threads}\ndir = \"out\"\n",
        rng.one(&["\"auto\"", "\"1MiB\"", "\"8MiB\"", "\"64MiB\""])
    );
    let words = shape.as_ref().map_or("builtin:nano".into(), Shape::words);
    let what = format!(
        "{method} {words} {dtype}, {prompts} x {} of {prompt}+{response}, micro {}, {recompute}, states {optimizer}, grads {grads}, offload {offload}, {threads} threads",
        if method == "sft" { 1 } else { group },
        micro_batch.trim_matches('"'),
        offload = offload.replace('"', "")
    );
    let column = if method == "sft" { "completion" } else { "ground_truth" };
    let data = data(rng, column, [3 * prompts, prompt, response], shape.is_some());
    RandomRun { what, run_file: run, data, shape }
}

fn draw_shape(rng: &mut Rng) -> Shape {
    let kv_heads = rng.one(&[1, 2, 4]);
    Shape {
        family: rng.one(&FAMILIES),
        vocab: rng.one(&[259, 512, 1000, 4096, 16384]),
        hidden: 32 * rng.between(1, 12),
        layers: rng.between(1, 8),
        heads: kv_heads * rng.one(&[1, 2, 3]),
        kv_heads,
        head_dim: rng.one(&[16, 32, 64]),
        ffn: 32 * rng.between(2, 32),
        tied: rng.once_in(2),
    }
}

/// Returns keys of `[rollout]` that change what the engine holds.
fn sampling(rng: &mut Rng, samples: usize) -> String {
    let mut keys = String::new();
    if rng.once_in(3) {
        let _ = writeln!(keys, "sequences_max = {}", rng.between(1, samples));
    }
    if rng.once_in(4) {
        let _ = writeln!(keys, "top_k = {}", rng.between(1, 20));
    }
    if rng.once_in(4) {
        keys += "on_full = \"preempt\"\n";
    }
    keys
}

/// Returns rows whose longest prompt and answer have exactly these token counts.
fn data(rng: &mut Rng, column: &str, [rows, prompt, response]: [usize; 3], letters: bool) -> String {
    let alphabet: &[u8] = if letters { b"abcdefghijklmnopqrstuvwxyz ,." } else { b"0123456789" };
    let mut text = String::new();
    for row in 0..rows {
        let mut words = |most: usize| {
            let count = if row == 0 { most } else { rng.between(1, most) };
            (0..count).map(|_| rng.one(alphabet) as char).collect::<String>()
        };
        let (prompt, answer) = (words(prompt), words(response - 1));
        let _ = writeln!(text, "{{\"prompt\": \"{prompt}\", \"{column}\": \"{answer}\"}}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_runs_and_they_differ() {
        let all = |seed: u64| {
            let mut rng = Rng::new(seed);
            (0..40).map(|_| draw(&mut rng).run_file).collect::<Vec<_>>()
        };
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
        for words in
            ["\"sft\"", "\"grpo\"", "\"f32\"", "\"layer\"", "kl_coef", "top_k", "preempt", "builtin:nano"]
        {
            assert!(all(1).iter().any(|run| run.contains(words)), "no run has {words}");
        }
    }
}
