//! `bench adapters`: several adapters in one pass against one, in tokens a second and bit by bit.

use crate::{Bench, BenchOptions, RolloutSize, bench_sampling, median, random_prompts};
use plimsoll_base::{Error, Result};
use plimsoll_config::{Auto, Lora, LoraSpec};
use plimsoll_device::{ADAPTER_SLOTS_MAX, Sampling};
use plimsoll_infer::bound::Sources;
use plimsoll_infer::runner::{Runner, open};
use plimsoll_infer::sampler::sampling;
use plimsoll_plan::plan_sampling;
use plimsoll_rollout::{Ask, Finish, Listener, Live, PrefixScope};
use serde_json::{Value, json};
use std::time::Instant;

/// Ids and bits of log-probabilities of a response.
type Drawn = (Vec<u32>, Vec<u32>);

/// Collects what each slot of the engine draws.
struct Ears {
    of_slot: Vec<usize>,
    drawn: Vec<Drawn>,
}

impl Listener for Ears {
    fn drawn(&mut self, slot: usize, token: u32, logprob: f32) -> bool {
        let drawn = &mut self.drawn[self.of_slot[slot]];
        drawn.0.push(token);
        drawn.1.push(logprob.to_bits());
        false
    }

    fn ended(&mut self, _: usize, how: Result<Finish>) {
        how.expect("random adapters give finite logits");
    }
}

/// Draws a response to each prompt, with the adapter that `adapter` gives by its number, and the seconds that it took.
fn serve(
    mut live: Live<'_, '_, '_>,
    prompts: &[Vec<u32>],
    new: usize,
    how: Sampling,
    adapter: impl Fn(usize) -> Option<u32>,
) -> Result<(Vec<Drawn>, f64)> {
    let slots = live.limits().samples;
    let mut ears = Ears { of_slot: vec![0; slots], drawn: vec![Drawn::default(); prompts.len()] };
    let started = Instant::now();
    for (i, prompt) in prompts.iter().enumerate() {
        let ask = Ask {
            prompt,
            images: &[],
            sample_ids: &[i as u64],
            max_new_tokens: new,
            sampling: how,
            ends: &[],
            adapter: adapter(i),
            prefix: PrefixScope::default(),
            scores_prompt: false,
            named: None,
            lists: false,
            masked: false,
            biases: &[],
        };
        ears.of_slot[live.admit(&ask).expect("a slot for each sequence")[0]] = i;
    }
    while live.step(&mut ears)? {}
    Ok((ears.drawn, started.elapsed().as_secs_f64()))
}

/// Runs `bench adapters`: `size.sequences` sequences of 1, 4, 16 ... adapters, each number at most `slots`, and of one
/// adapter that all have.
///
/// Errors: `bad-usage`; those of planning and of passes.
pub fn adapters(options: &BenchOptions, size: RolloutSize, slots: usize) -> Result<Value> {
    let RolloutSize { sequences, prompt, new, .. } = size;
    if slots == 0 || slots > ADAPTER_SLOTS_MAX.min(sequences) {
        let message =
            format!("{slots} adapters of {sequences} sequences, and {ADAPTER_SLOTS_MAX} is the most");
        return Err(Error::usage("bad-usage", message));
    }
    let mut run = bench_sampling(options, sequences, 1, new);
    let lora = options.lora.clone().unwrap_or(Lora { rank: 16, ..Lora::default() });
    let rank = lora.rank;
    run.lora = Some(LoraSpec { slots: slots as u32, merge: Auto::Value(false), ..LoraSpec::new(&lora) });
    run.rollout.sequences_max = Auto::Value(sequences as u32);
    let bench = Bench::open_with(options, &mut run, prompt, plan_sampling)?;
    let (dev, mut arena) = open(&bench.report.shape, options.opening())?;
    let mut runner = Runner::new(&*dev, &mut arena, &bench.report.shape, Sources::one(&bench.model), 0)?;
    let scale = |slot: usize| 1.0 + slot as f32 / 8.0;
    let staging = bench.report.shape.host.staging;
    for slot in 0..slots {
        runner.model().randomise_slot(&*dev, slot, scale(slot), 1 + slot as u64, staging)?;
    }
    let how = sampling(&run.rollout, 0);
    runner.rehearse_live(&[how])?;
    let prompts = random_prompts(&bench.spec(), sequences, prompt);
    let counts: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(n * 4)).take_while(|n| *n < slots).chain([slots]).collect();
    // What each adapter draws alone.
    let mut expected = Vec::new();
    for slot in 0..slots {
        expected.push(
            runner.live_of_slot((slot, scale(slot)), |live| serve(live, &prompts, new, how, |_| None))?.0,
        );
    }
    let (mut one, mut mixed, mut differing) = (Vec::new(), vec![Vec::new(); counts.len()], 0u64);
    for repeat in 0..=options.repeats {
        let (drawn, seconds) =
            runner.live_of_slot((0, scale(0)), |live| serve(live, &prompts, new, how, |_| None))?;
        differing += differ(&drawn, |_| &expected[0]);
        one.extend((repeat > 0).then_some(seconds));
        for (count, times) in counts.iter().zip(&mut mixed) {
            let slot = |i: usize| i % count;
            let (drawn, seconds) =
                runner.live(|live| serve(live, &prompts, new, how, |i| Some(slot(i) as u32)))?;
            differing += differ(&drawn, |i| &expected[slot(i)]);
            times.extend((repeat > 0).then_some(seconds));
        }
    }
    let tokens = (sequences * new) as f64;
    let rows: Vec<Value> = counts
        .iter()
        .zip(&mixed)
        .map(|(count, times)| {
            let each: Vec<f64> = times.iter().zip(&one).map(|(mixed, one)| one / mixed).collect();
            let (least, most) = each.iter().fold((f64::MAX, 0.0f64), |(a, b), x| (a.min(*x), b.max(*x)));
            json!({
                "adapters": count, "tokens_per_s": tokens / median(times), "times_one": median(&each),
                "times_one_least": least, "times_one_most": most,
            })
        })
        .collect();
    let result = json!({
        "bench": "adapters", "model": options.model, "rank": rank, "sequences": sequences,
        "prompt_tokens": prompt, "new_tokens": new, "repeats": options.repeats,
        "one": { "tokens_per_s": tokens / median(&one) }, "mixed": rows, "differing_responses": differing,
        "equal": differing == 0,
    });
    Ok(crate::finish(result, &dev.machine_type(), dev.threads()))
}

/// Returns the number of responses that differ from those expected of their adapter.
fn differ<'e>(drawn: &[Drawn], expected: impl Fn(usize) -> &'e Vec<Drawn>) -> u64 {
    drawn.iter().enumerate().filter(|(i, drawn)| expected(*i)[*i] != **drawn).count() as u64
}

/// Returns the result in words.
pub fn words(found: &Value) -> String {
    let number = |of: &Value, key: &str| of[key].as_f64().unwrap_or(f64::NAN);
    let mut text = format!(
        "adapters of rank {}, {} sequences: one that all have {:.0} tokens/s\n",
        number(found, "rank"),
        number(found, "sequences"),
        number(&found["one"], "tokens_per_s")
    );
    for row in found["mixed"].as_array().into_iter().flatten() {
        text += &format!(
            "  {:>2} in one pass: {:.0} tokens/s, {:.2} times that of one ({:.2} to {:.2})\n",
            number(row, "adapters"),
            number(row, "tokens_per_s"),
            number(row, "times_one"),
            number(row, "times_one_least"),
            number(row, "times_one_most")
        );
    }
    text + &format!("  {} responses differ from their adapter alone\n", number(found, "differing_responses"))
}
