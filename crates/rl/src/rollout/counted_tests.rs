//! Counts of several ranks, which do not depend on how samples were dealt among them.

use super::*;
use crate::rollout::message::{Kind, pack, unpack};

/// Returns the counters of a rank whose function logged these numbers.
fn rank(name: &str, numbers: &[f64], crashes: u64) -> Counted {
    let mut sum = ExactSum::default();
    numbers.iter().for_each(|&number| sum.add(number));
    Counted {
        tallies: vec![("math".into(), Tally { crashes, none: 1, ..Tally::default() })],
        logged: vec![Logged { name: name.into(), sum: sum.bits(), count: numbers.len() as u64 }],
    }
}

#[test]
fn a_mean_has_the_same_bits_however_its_numbers_were_dealt() {
    let numbers: Vec<f64> = (0..40).map(|i| 0.1 * f64::from(i) * 10f64.powi(i % 13 - 6)).collect();
    let mean = |parts: Vec<&[f64]>| {
        let all = Counted::sum(parts.into_iter().map(|part| rank("length", part, 0)));
        assert_eq!(all.logged.len(), 1);
        all.logged[0].1
    };
    let whole = mean(vec![&numbers]);
    for cut in [1, 7, 20, 39] {
        let (a, b) = numbers.split_at(cut);
        assert_eq!(mean(vec![a, b]).to_bits(), whole.to_bits(), "{cut}");
        assert_eq!(mean(vec![b, &[], a]).to_bits(), whole.to_bits(), "{cut}");
    }
    let plain = numbers.iter().sum::<f64>() / 40.0;
    assert!((whole / plain - 1.0).abs() < 1e-12);
}

#[test]
fn failures_add_up_and_names_that_one_rank_knows_stay() {
    let all = Counted::sum([rank("a", &[1.0], 2), rank("b", &[3.0, 5.0], 3), Counted::default()]);
    let [(name, tally)] = all.tallies.as_slice() else { panic!("{:?}", all.tallies) };
    assert_eq!((name.as_str(), tally.crashes, tally.none), ("math", 5, 2));
    assert_eq!(all.logged, [("a".to_string(), 1.0), ("b".to_string(), 4.0)]);
    // Nothing was logged: a mean is 0, and no NaN reaches the metrics.
    assert_eq!(Counted::sum([rank("a", &[], 0)]).logged, [("a".to_string(), 0.0)]);
}

#[test]
fn counts_arrive_as_they_were_sent() {
    let sent = rank("länge", &[1e300, -1e300, 0.1], 7);
    let bytes = pack(Kind::Samples, Ok(&sent));
    let back: Counted = unpack(Kind::Samples, &bytes).expect("it is whole").expect("no error");
    assert_eq!((&back.tallies, &back.logged[0].sum), (&sent.tallies, &sent.logged[0].sum));
    assert_eq!(Counted::sum([back]).logged[0], ("länge".to_string(), 0.1 / 3.0));
}
