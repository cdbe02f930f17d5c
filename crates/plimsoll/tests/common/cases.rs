//! Cases that take turns, some with each commit: all of them come in as many commits as there are parts.

#![allow(dead_code, reason = "each test binary uses only a part")]

/// True where everything is tried, as by `.ci/full`; otherwise says what is left out.
pub fn is_full(left_out: &str) -> bool {
    let full = std::env::var("PLIMSOLL_FULL").is_ok_and(|value| value == "1");
    if !full {
        eprintln!("skipped: {left_out}; PLIMSOLL_FULL=1 tries them");
    }
    full
}

/// Returns the commit's number in its history, by which what is chosen in turn moves on, as `.ci/run` sets it; else 0.
pub fn turn() -> usize {
    std::env::var("PLIMSOLL_TURN").ok().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns one of `n` cases, others with each commit, each with the number by which `in_turn` chooses its ways. All
/// of them where everything is tried.
pub fn every_nth<T>(n: usize, cases: impl IntoIterator<Item = T>) -> Vec<(usize, T)> {
    every_nth_from(0, n, cases)
}

/// Works as `every_nth`, `from` commits later: what is tried on many models meets all cases with each commit.
pub fn every_nth_from<T>(from: usize, n: usize, cases: impl IntoIterator<Item = T>) -> Vec<(usize, T)> {
    let (cases, turn) = (cases.into_iter().enumerate(), from + turn());
    if is_full(&format!("all but one of {n} cases, by PLIMSOLL_TURN={turn}")) {
        return cases.collect();
    }
    let mine: Vec<T> = cases.filter(|(index, _)| index % n == turn % n).map(|(_, case)| case).collect();
    assert!(!mine.is_empty(), "fewer than {n} cases");
    // A case that comes again meets the next way.
    mine.into_iter().enumerate().map(|(place, case)| (place + turn / n, case)).collect()
}

/// Returns the ways in which case `index` runs: the first, to which the others are compared, and one of them in turn,
/// so that every case and every way occurs. All of them where everything is tried.
pub fn in_turn<T>(index: usize, ways: &[T]) -> Vec<&T> {
    let (first, others) = ways.split_first().expect("a way");
    [vec![first], one_in_turn(index, others)].concat()
}

/// Works as `in_turn`, without the first.
pub fn one_in_turn<T>(index: usize, ways: &[T]) -> Vec<&T> {
    if is_full(&format!("case {index} in all but one of {} ways", ways.len())) {
        return ways.iter().collect();
    }
    vec![&ways[index % ways.len()]]
}
