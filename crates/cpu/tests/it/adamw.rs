//! The optimizer: values, stochastic rounding, sums of squares.

use crate::both::{Rig, close, get, numbers, paths, stored};
use plimsoll_base::DType;
use plimsoll_cpu::Isa;
use plimsoll_device::{AdamW, AdamWBufs, Device, PIECES, Run};

const HOW: AdamW = AdamW {
    lr: 1e-2,
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0.1,
    step: 3,
    grad_scale: 0.5,
    seed: 42,
    first_element: 0,
};

/// Dtypes of weights, gradient and moments; whether there is a master copy.
type Kinds = (DType, DType, DType, bool);

const KINDS: [Kinds; 6] = [
    (DType::F32, DType::F32, DType::F32, false),
    (DType::F32, DType::F32, DType::Bf16, false),
    (DType::Bf16, DType::Bf16, DType::F32, true),
    (DType::Bf16, DType::F32, DType::F32, true),
    (DType::Bf16, DType::Bf16, DType::Bf16, false),
    (DType::Bf16, DType::F32, DType::Bf16, false),
];

struct State {
    w: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
    master: Vec<f32>,
}

/// One update of parts of a parameter that end at `ends`.
fn update(
    (isa, threads): (Isa, usize),
    kinds: Kinds,
    how: AdamW,
    [w, g, m, v]: [&[f32]; 4],
    ends: &[usize],
) -> State {
    let (n, (we, ge, me, master)) = (w.len(), kinds);
    let rig = Rig::new(
        isa,
        threads,
        &[("w", we, n), ("g", ge, n), ("m", me, n), ("v", me, n), ("master", DType::F32, n)],
    );
    let (dev, r) = rig.bufs();
    for (name, x) in [("w", w), ("g", g), ("m", m), ("v", v), ("master", w)] {
        dev.write_f32(r.buf(name), 0, x);
    }
    let mut start = 0;
    for &end in ends {
        let part = |name| r.buf(name).slice(start, end - start);
        let bufs = AdamWBufs {
            weights: part("w"),
            grad: part("g"),
            m: part("m"),
            v: part("v"),
            master: master.then(|| part("master")),
            scales: None,
        };
        dev.adamw(AdamW { first_element: how.first_element + start as u64, ..how }, bufs);
        start = end;
    }
    State {
        w: get(dev, r.buf("w")),
        m: get(dev, r.buf("m")),
        v: get(dev, r.buf("v")),
        master: get(dev, r.buf("master")),
    }
}

#[test]
fn updates_are_close_and_do_not_depend_on_threads_or_cuts() {
    let n = 40_003;
    for isa in paths() {
        for kinds in KINDS {
            let (w, g) = (stored(kinds.0, &numbers(1, n)), stored(kinds.1, &numbers(2, n)));
            let m = stored(kinds.2, &numbers(3, n));
            let v = stored(kinds.2, &numbers(4, n).iter().map(|x| x.abs() + 0.01).collect::<Vec<_>>());
            // Counters around a carry into the high word.
            let how = AdamW { first_element: (1 << 32) - 20_001, ..HOW };
            let ours = update((isa, 2), kinds, how, [&w, &g, &m, &v], &[n]);
            let again = update((isa, 1), kinds, how, [&w, &g, &m, &v], &[16, 1600, 20_000, n]);
            for (what, a, b) in [("w", &ours.w, &again.w), ("m", &ours.m, &again.m), ("v", &ours.v, &again.v)]
            {
                assert_eq!(a, b, "{isa:?} {kinds:?} {what}: cuts");
            }
            let (mut rw, mut rm, mut rv) = (vec![], vec![], vec![]);
            for i in 0..n {
                let [w, g, m, v] = [w[i], g[i] * 0.5, m[i], v[i]].map(f64::from);
                let (m, v) = (0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g);
                let (mh, vh) = (m / (1.0 - 0.9f64.powi(3)), v / (1.0 - 0.95f64.powi(3)));
                rw.push(w * (1.0 - 1e-3) - 1e-2 * mh / (vh.sqrt() + 1e-8));
                rm.push(m);
                rv.push(v);
            }
            // beta and lr are f32 here: 6e-8 relative; stochastic rounding is off by less than one unit of 2^-8.
            let of = |dtype: DType, size: f64| 2e-6 + if dtype == DType::Bf16 { size / 128.0 } else { 0.0 };
            close("w", &ours.w, &rw, of(kinds.0, 1.2));
            close("m", &ours.m, &rm, of(kinds.2, 1.0));
            close("v", &ours.v, &rv, of(kinds.2, 1.1));
            if kinds.3 {
                close("master", &ours.master, &rw, 2e-6);
                assert_eq!(ours.w, stored(DType::Bf16, &ours.master), "weights are the rounded master");
            }
        }
    }
}

#[test]
fn stochastic_rounding_is_unbiased_and_finite_numbers_stay_finite() {
    let n = 1 << 16;
    for isa in paths() {
        let kinds = (DType::Bf16, DType::F32, DType::Bf16, false);
        // m = 0.1 g between two bf16 numbers 2^-8 apart relative to 1: the gradient sets the fraction.
        for fraction in [0.0, 0.1, 0.5, 0.93] {
            let target = 1.0 + fraction / 128.0;
            let g = vec![(target * 10.0) as f32; n];
            let how = AdamW { grad_scale: 1.0, lr: 0.0, weight_decay: 0.0, ..HOW };
            let zeros = vec![0.0; n];
            let state = update((isa, 2), kinds, how, [&vec![1.0; n], &g, &zeros, &zeros], &[n]);
            let up = state.m.iter().filter(|&&m| m > 1.0).count() as f64 / n as f64;
            assert!(state.m.iter().all(|&m| m == 1.0 || m == 1.0 + 1.0 / 128.0), "{isa:?}: neighbours only");
            // A frequency of 65,536 draws: standard deviation at most 0.002.
            assert!((up - fraction).abs() < 0.01, "{isa:?}: {up} up of {fraction}");
            assert!(state.w.iter().all(|&w| w == 1.0), "an exact number is kept");
            // Steps draw anew.
            let next =
                update((isa, 2), kinds, AdamW { step: 4, ..how }, [&vec![1.0; n], &g, &zeros, &zeros], &[n]);
            let same = state.m.iter().zip(&next.m).filter(|(a, b)| a == b).count() as f64 / n as f64;
            let expected = fraction * fraction + (1.0 - fraction) * (1.0 - fraction);
            assert!((same - expected).abs() < 0.02, "{isa:?}: {same} equal of {expected} across steps");
        }
        let largest = half::bf16::MAX.to_f32();
        let how = AdamW { lr: 1e-38, weight_decay: 0.0, ..HOW };
        let state =
            update((isa, 1), kinds, how, [&vec![-largest; 64], &[1.0; 64], &[0.0; 64], &[0.0; 64]], &[64]);
        assert!(state.w.iter().all(|w| w.is_finite()), "{isa:?}: the largest number");
    }
}

#[test]
fn weights_drift_as_the_sum_of_small_updates() {
    // 1,000 updates of 1/50 of a bf16 step each: nearest rounding would not move at all.
    let (n, steps) = (256, 1000);
    let isa = Isa::detect();
    let rig = Rig::new(
        isa,
        1,
        &[("w", DType::Bf16, n), ("g", DType::F32, n), ("m", DType::F32, n), ("v", DType::F32, n)],
    );
    let (dev, r) = rig.bufs();
    dev.write_f32(r.buf("w"), 0, &vec![1.0; n]);
    dev.write_f32(r.buf("g"), 0, &vec![-1.0; n]);
    dev.zero(r.buf("m"));
    dev.zero(r.buf("v"));
    let bufs = AdamWBufs {
        weights: r.buf("w"),
        grad: r.buf("g"),
        m: r.buf("m"),
        v: r.buf("v"),
        master: None,
        scales: None,
    };
    for step in 1..=steps {
        let lr = 1.0 / 128.0 / 50.0;
        dev.adamw(AdamW { lr, step, grad_scale: 1.0, weight_decay: 0.0, ..HOW }, bufs);
    }
    let mean = get(dev, r.buf("w")).iter().map(|&w| f64::from(w)).sum::<f64>() / n as f64;
    let expected = 1.0 + 1000.0 / 128.0 / 50.0; // a gradient of constant sign moves by lr each step
    // One weight's walk has a deviation of sqrt(1000 * 0.02) / 128 = 0.035; the mean of 256 of them 0.0022.
    assert!((mean - expected).abs() < 0.011, "{mean} against {expected}");
}

#[test]
fn sums_of_squares_are_the_same_for_all_paths_and_threads() {
    for dtype in [DType::F32, DType::Bf16] {
        for n in [0, 1, 100, 4096, 70_001, 5_000_000] {
            let x = stored(dtype, &numbers(8, n));
            let reference: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
            let mut first = None;
            for isa in paths() {
                for threads in [1, 2] {
                    let rig = Rig::new(isa, threads, &[("x", dtype, n)]);
                    let (dev, r) = rig.bufs();
                    dev.write_f32(r.buf("x"), 0, &x);
                    let sum = dev.sum_squares(r.buf("x"));
                    // The reference is one chain: 5e6 roundings of 1e-16 that add up as random ones, and some bias.
                    assert!((sum - reference).abs() <= 1e-11 * reference, "{n}: {sum} against {reference}");
                    assert_eq!(*first.get_or_insert(sum), sum, "{isa:?} x{threads}");
                }
            }
        }
    }
    let rig = Rig::new(Isa::detect(), 1, &[("x", DType::Bf16, 5000)]);
    let (dev, r) = rig.bufs();
    dev.write_f32(r.buf("x"), 4999, &[f32::NAN]);
    assert!(dev.sum_squares(r.buf("x")).is_nan());
}

#[test]
fn squares_of_runs_are_the_same_for_all_paths_and_threads_and_wherever_a_run_lies() {
    let len = 70_144 + (1 << 20);
    let buckets = [Run { start: 0, elements: 70_001 }, Run { start: 70_144, elements: 1 << 20 }];
    // More than are summed at once, some of them empty.
    let small = (0..500).map(|i| Run { start: i * 256, elements: i % 300 });
    let runs: Vec<Run> = buckets.into_iter().flat_map(Run::pieces).chain(small).collect();
    for dtype in [DType::F32, DType::Bf16] {
        let x = stored(dtype, &numbers(9, len));
        let mut first: Option<Vec<f64>> = None;
        for (isa, threads) in paths().flat_map(|isa| [(isa, 1), (isa, 2)]) {
            let rig = Rig::new(isa, threads, &[("x", dtype, len), ("own", dtype, len)]);
            let (dev, r) = rig.bufs();
            dev.write_f32(r.buf("x"), 0, &x);
            let mut sums = Vec::new();
            dev.squares_of(r.buf("x"), &mut runs.iter().copied(), &mut |sum| sums.push(sum));
            assert_eq!(sums.len(), runs.len());
            for (run, sum) in runs.iter().zip(&sums) {
                let want: f64 =
                    x[run.start as usize..run.end() as usize].iter().map(|&x| f64::from(x).powi(2)).sum();
                // At most 16 Ki positive terms in another order: roundings of 1e-16 each.
                assert!((sum - want).abs() <= 1e-12 * want, "{run:?}: {sum} against {want}");
            }
            assert_eq!(first.get_or_insert_with(|| sums.clone()), &sums, "{isa:?} x{threads}");
            // The owner of a piece has it elsewhere.
            let of = runs[PIECES + 17];
            dev.write_f32(r.buf("own"), 768, &x[of.start as usize..of.end() as usize]);
            let own = Run { start: 768, ..of };
            dev.squares_of(r.buf("own"), &mut std::iter::once(own), &mut |sum| {
                assert_eq!(sum.to_bits(), sums[PIECES + 17].to_bits());
            });
        }
    }
}
