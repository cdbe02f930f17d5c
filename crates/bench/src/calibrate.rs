//! `bench calibrate`: this machine's rates, measured with the runs that the cost model predicts, and stored for the
//! planner. Each rate is the one with which the prediction equals the measured time.

use crate::{self as bench, BenchOptions, RolloutSize};
use plimsoll_base::Result;
use plimsoll_config::Auto;
use plimsoll_devices::{Rates, host};
use plimsoll_memory::Limits;
use plimsoll_plan::{plan_sampling, plan_with, predict_step};
use serde_json::{Value, json};

/// The timed rollout.
const ROLLOUT: RolloutSize = RolloutSize { sequences: 32, group: 1, prompt: 64, new: 16 };
/// Sequences and tokens of the timed training step.
const TRAIN: [usize; 2] = [4, 256];
/// The smallest model: the time of its passes is almost entirely overhead.
const SMALL: &str = "builtin:nano";
/// Its rollout: one row per pass.
const SMALL_ROLLOUT: RolloutSize = RolloutSize { sequences: 1, group: 1, prompt: 8, new: 48 };
/// Sequences and tokens of its training step: one small micro-batch.
const SMALL_TRAIN: [usize; 2] = [1, 16];
/// No pass is free: a rate of 0 would leave the search without a preference.
const SECONDS_MIN: f64 = 1e-7;

/// Measures and stores this machine's rates; returns them with the path of the file.
///
/// Errors: those of the benchmarks; `calibration-not-stored`, `write-failed`, `disk-full`.
pub fn calibrate(options: &BenchOptions) -> Result<Value> {
    let threads = bench::threads(options);
    Rates::check_store(threads)?;
    let measured = (host().peak)(threads, bench::PEAK_SECONDS, bench::BANDWIDTH_BYTES);
    let ([gflops, bandwidth], machine) = (measured.expect("its threads compute"), (host().probe)()?.name);
    let mut rates = Rates::built_in(&machine, threads);
    let f32_share = rates.flops_f32 / rates.flops_bf16;
    rates.flops_bf16 = gflops * 1e9;
    rates.flops_f32 = rates.flops_bf16 * f32_share;
    rates.bandwidth = bandwidth * 1e9;
    rates.source = "measured".into();
    // The overhead of a pass comes first: the shares are measured with it.
    let small = BenchOptions { model: SMALL.into(), ..options.clone() };
    rates.pass_s =
        fit(&rollout(&small, SMALL_ROLLOUT)?, &rates, SECONDS_MIN..1.0, |rates, s| rates.pass_s = s);
    rates.micro_batch_s =
        fit(&train(&small, SMALL_TRAIN)?, &rates, SECONDS_MIN..1.0, |rates, s| rates.micro_batch_s = s);
    rates.rollout_share =
        1.0 / fit(&rollout(options, ROLLOUT)?, &rates, 0.1..1e4, |rates, s| rates.rollout_share = 1.0 / s);
    rates.update_share =
        1.0 / fit(&train(options, TRAIN)?, &rates, 0.1..1e4, |rates, s| rates.update_share = 1.0 / s);
    let path = rates.store(threads)?;
    Ok(json!({
        "bench": "calibrate", "path": path, "rates": rates, "model": options.model, "machine": machine,
        "threads": threads,
    }))
}

/// A measured time, and what the model predicts with given rates.
struct Timed {
    seconds: f64,
    predict: Box<dyn Fn(&Rates) -> f64>,
}

fn rollout(options: &BenchOptions, size: RolloutSize) -> Result<Timed> {
    let RolloutSize { sequences, prompt, new, .. } = size;
    let found = bench::rollout(options, size)?;
    let mut run = bench::bench_run(options, sequences, 1, new);
    let facts = bench::facts(options, &mut run, prompt)?.1;
    let shape = plan_sampling(&run, &facts)?.shape;
    Ok(Timed {
        seconds: (sequences * new) as f64 / found["median"].as_f64().unwrap_or(f64::NAN),
        predict: Box::new(move |rates| predict_step(&run, &facts, &shape, rates).rollout_s),
    })
}

fn train(options: &BenchOptions, [batch, seq]: [usize; 2]) -> Result<Timed> {
    let found = bench::train(options, [batch, 1, seq])?;
    let mut run = bench::bench_run(options, batch, 1, seq);
    run.train_mut().micro_batch_tokens = Auto::Value((batch * seq) as u32);
    let facts = bench::facts(options, &mut run, 1)?.1;
    let shape = plan_with(&run, &facts, &Limits::default())?.shape;
    Ok(Timed {
        seconds: (batch * seq) as f64 / found["median"].as_f64().unwrap_or(f64::NAN),
        predict: Box::new(move |rates| predict_step(&run, &facts, &shape, rates).update_s),
    })
}

/// Returns the value of a rate, in seconds or in times slower than the peak, with which the prediction equals the
/// measurement; an end of the range where none does. Predictions rise with it.
fn fit(timed: &Timed, rates: &Rates, range: std::ops::Range<f64>, set: impl Fn(&mut Rates, f64)) -> f64 {
    let predicted = |value: f64| {
        let mut rates = rates.clone();
        set(&mut rates, value);
        (timed.predict)(&rates)
    };
    let (mut low, mut high) = (range.start, range.end);
    // Halving the exponent: the range spans seven decades, so 60 halvings leave a millionth of a per cent.
    for _ in 0..60 {
        let middle = (low * high).sqrt();
        (low, high) = if predicted(middle) < timed.seconds { (middle, high) } else { (low, middle) };
    }
    (low * high).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_fitted_to_the_time_that_was_measured() {
        let timed = Timed { seconds: 0.35, predict: Box::new(|rates| 0.25 + 100.0 * rates.pass_s) };
        let rates = Rates::built_in("scalar", 1);
        let fitted = fit(&timed, &rates, SECONDS_MIN..1.0, |rates, s| rates.pass_s = s);
        assert!((fitted - 1e-3).abs() < 1e-8, "{fitted}");
        let timed = Timed { seconds: 0.1, ..timed };
        let fitted = fit(&timed, &rates, SECONDS_MIN..1.0, |rates, s| rates.pass_s = s);
        assert!(fitted < 1.01 * SECONDS_MIN, "{fitted}");
    }
}
