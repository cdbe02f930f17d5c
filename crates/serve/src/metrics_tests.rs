//! The text that Prometheus reads.

use super::*;
use std::collections::BTreeMap;

#[test]
fn a_histogram_counts_upwards_to_all_of_its_times() {
    let metrics = Metrics::default();
    let times = [1, 5, 6, 40, 700, 3_000, 500_000].map(Duration::from_millis);
    times.iter().for_each(|time| metrics.whole.add(*time));
    let text = metrics.text();
    let name = "plimsoll_serve_response_seconds";
    let buckets: Vec<(f64, u64)> = text
        .lines()
        .filter_map(|line| line.strip_prefix(&format!("{name}_bucket{{le=\""))?.split_once("\"} "))
        .map(|(bound, count)| (bound.replace("+Inf", "inf").parse().unwrap(), count.parse().unwrap()))
        .collect();
    for (bound, count) in &buckets {
        let below = times.iter().filter(|time| time.as_secs_f64() <= *bound).count();
        assert_eq!(*count, below as u64, "{bound}");
    }
    assert!(buckets.is_sorted_by(|a, b| a.0 < b.0) && buckets.last().unwrap().0.is_infinite());
    let sum: f64 = times.iter().map(Duration::as_secs_f64).sum();
    assert!(text.contains(&format!("{name}_sum {sum}\n{name}_count 7\n")), "{text}");
}

#[test]
fn every_number_has_its_help_and_its_kind_once() {
    let metrics = Metrics::default();
    metrics.refused.add(3);
    let text = metrics.text();
    let mut kinds = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            assert!(kinds.insert(name, kind).is_none(), "{name} twice");
            assert!(text.contains(&format!("# HELP {name} ")), "{name}");
        } else if !line.starts_with('#') {
            let name = line.split([' ', '{']).next().unwrap();
            let of = |name: &str| kinds.get(name).copied();
            let kind = of(name).or_else(|| of(name.rsplit_once('_').unwrap().0));
            let counts_up = name.ends_with("_total");
            assert!(kind.is_some() && counts_up == (kind == Some("counter")), "{line}: {kind:?}");
        }
    }
    assert!(text.contains("plimsoll_serve_refused_total 3\n"));
}
