//! The simulation against what was measured, and what it recommends.

use super::lengths::ResponseLengths;
use super::simulate::{Simulation, Sizes, Step};
use super::{Gain, recommended, render};
use crate::cost::Stretch;

const MEASURED: Sizes = Sizes { prompts: 32, group: 8, carry: 32, new_tokens: 16_384, lag_tokens_max: None };

fn steps(sizes: Sizes, lengths: &str, first: usize, count: usize) -> Vec<Step> {
    let lengths = ResponseLengths::of(lengths).expect("a distribution");
    let mut simulation = Simulation::new(sizes, &lengths);
    (0..first + count).map(|_| simulation.step()).skip(first).collect()
}

fn mean(steps: &[Step], of: impl Fn(&Step) -> f64) -> f64 {
    steps.iter().map(of).sum::<f64>() / steps.len() as f64
}

/// `bench step` drew these lengths on an H200: bench/results/carry_speed.json, five steps after three.
#[test]
fn shares_are_those_that_were_measured() {
    let carried = steps(MEASURED, "lognormal:1000,0.894", 3, 5);
    let idle = mean(&carried, Step::idle_share);
    let stale = mean(&carried, |step| step.stale as f64 / step.trained as f64);
    assert_eq!((idle, stale), (0.5284496839188563, 0.7267182362106495));
    // Two steps after one, which took 21.2 s where these took 11.2 s: the ticks saved are those of few sequences, and
    // those of many take longer.
    let plain = steps(Sizes { carry: 0, ..MEASURED }, "lognormal:1000,0.894", 1, 2);
    let ticks = |steps: &[Step]| steps.iter().map(|step| step.ticks).collect::<Vec<u64>>();
    assert_eq!((ticks(&plain), ticks(&carried)), (vec![15512, 9111], vec![2870, 2490, 3019, 2680, 2648]));
    assert!(plain.iter().all(|step| step.stale + step.ages == 0 && step.drawn == step.trained));
}

#[test]
fn steps_are_those_that_were_counted_by_hand() {
    // Recorded are 4 and 4 tokens, of which a run of 3 cuts the last.
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("samples")).expect("a folder");
    let line = "{\"prompt_index\":5,\"response_tokens\":4,\"finish\":\"eos\",\"more\":0}\n";
    let lines = format!("{line}{line}not a sample\n");
    std::fs::write(folder.path().join("samples/step-000001.jsonl"), lines).expect("a file");
    let lengths = ResponseLengths::of(folder.path().to_str().expect("UTF-8")).expect("samples");
    assert!(lengths.words().starts_with("2 responses to 1 prompts that "), "{}", lengths.words());
    let sizes = Sizes { prompts: 1, group: 2, carry: 1, new_tokens: 3, lag_tokens_max: None };
    let mut simulation = Simulation::new(sizes, &lengths);
    // Both groups end at tick 3, and the older is trained; the other has waited when the next step begins.
    let first = simulation.step();
    assert_eq!((first.ticks, first.places, first.drawn, first.trained), (3, 4, 12, 6));
    assert_eq!((first.stale, first.tail, first.joined, first.again), (0, 0, 2, (0, 0)));
    let stretch = |ticks, rows, tokens| Stretch { ticks, rows, tokens };
    assert_eq!(first.stretches, [stretch(3.0, 4.0, 1.5)]);
    let second = simulation.step();
    assert_eq!((second.ticks, second.drawn, second.trained, second.stale, second.ages), (0, 0, 6, 6, 6));
    assert_eq!((first.idle_share(), second.idle_share()), (0.0, 0.0));
}

#[test]
fn responses_that_go_on_are_counted() {
    let sizes = Sizes { prompts: 1, group: 1, carry: 2, new_tokens: 100, lag_tokens_max: None };
    let lengths = ResponseLengths::of("lognormal:20,1").expect("a distribution");
    let own: Vec<u64> = (0..4).map(|n| lengths.length(n, 0, 1)).collect();
    let mut simulation = Simulation::new(sizes, &lengths);
    let first = simulation.step();
    let (mut sorted, least) = (own[..3].to_vec(), *own[..3].iter().min().expect("three"));
    sorted.sort_unstable();
    assert_eq!((first.ticks, first.drawn, first.trained), (least, 3 * least, least));
    let second = simulation.step();
    // Two go on after `least` tokens, and one begins.
    assert_eq!((second.joined, second.again), (1, (2, 2 * least)));
    let ends = [sorted[1] - least, sorted[2] - least, own[3]];
    assert_eq!(second.ticks, *ends.iter().min().expect("three"));

    // With a bound of one token, a step waits for both that go on.
    let mut bound = Simulation::new(Sizes { lag_tokens_max: Some(1), ..sizes }, &lengths);
    bound.step();
    assert_eq!(bound.step().ticks, sorted[2] - least);
}

#[test]
fn the_least_that_is_nearly_the_fastest_is_recommended() {
    let row = |carry, fits, trained_tokens_per_second, stale_share| Gain {
        carry,
        fits,
        trained_tokens_per_second,
        stale_share,
        staleness: 0.8,
        predicted_step_s: 10.0 / trained_tokens_per_second,
        host_bytes: plimsoll_base::Bytes::mib(100 + u64::from(carry)),
        ..Gain::default()
    };
    let rows =
        [row(0, true, 1.0, 0.0), row(8, true, 1.9, 0.4), row(16, true, 1.95, 0.6), row(32, false, 4.0, 0.8)];
    assert_eq!(recommended(&rows), Some(8));
    let words = render::sentence(&rows, Some(8), 0);
    for part in [
        "async.partial_rollouts = 8: 1.90 times",
        "a step of 5.3 s instead of 10.0 s",
        "40 %",
        "0.80 updates",
        "108.0 MiB",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert!(render::sentence(&rows, Some(8), 8).contains("= 8, as the run file has it: "));
    // Less than 5 % is no reason.
    let rows = [row(0, true, 1.0, 0.0), row(8, true, 1.04, 0.4), row(16, false, 9.0, 0.4)];
    assert_eq!(recommended(&rows), Some(0));
    let words = render::sentence(&rows, Some(0), 0);
    assert!(words.contains("= 0, as the run file has it: 8 would train 1.04 times"), "{words}");
    let rows = [row(0, false, 1.0, 0.0), row(8, false, 1.5, 0.4)];
    assert_eq!(recommended(&rows), None);
    assert!(render::sentence(&rows, None, 0).contains("does not fit"));
}
