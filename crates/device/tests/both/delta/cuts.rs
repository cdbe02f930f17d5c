//! A sequence's numbers are the same to the bit however it is cut into passes, and whatever else is in them.

use super::{Case, Pass};
use crate::both::{Machine, Rig, bits};
use plimsoll_base::DType;
use plimsoll_device::{NO_PARENT, NO_STATE, SEGMENT_FIELDS, edges};

/// Holds what a sequence's rows, and the place that it was left at, hold.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    rows: Vec<[Vec<u32>; 4]>,
    state: Vec<u32>,
    tail: Vec<u32>,
}

/// The names of what is compared of rows.
const OF_ROWS: [&str; 4] = ["qkv", "gates", "out", "y"];

/// Panics unless a sequence has the same bits however it is cut into passes, and whatever else is in them.
pub fn check_cuts<D: Machine>(case: &Case, rig: &mut Rig<D>, e: DType, how: &str) {
    case.fill(rig, e);
    let x = case.x(e);
    let starts: Vec<u32> = bits(&rig.get("states"));
    let all: Vec<usize> = (0..case.sequences().len()).collect();
    let longest = case.sequences().iter().map(|(_, rows)| rows.len()).max().expect("sequences");
    let want = walk(case, rig, &x, &all, longest);
    for cut in [1, 2, 63, 64, 65, 127, 128, 129] {
        if cut < longest {
            let got = walk(case, rig, &x, &all, cut);
            same(&got, &want, &format!("cut at {cut} of {case:?}, {}, {how}", e.name()));
        }
    }
    for &alone in &all {
        let got = walk(case, rig, &x, &[alone], 50);
        same(&got, &want[alone..=alone], &format!("alone {alone} of {case:?}, {}, {how}", e.name()));
    }
    for has_rest in [false, true] {
        let pass = case.whole(has_rest);
        case.forward(rig, &x, &pass);
        let got = of_whole(case, rig, &pass);
        let mut want = want.clone();
        if has_rest {
            want.iter_mut().for_each(|seen| seen.tail.clear());
        }
        same(&got, &want, &format!("with parents, rest: {has_rest}, of {case:?}, {}, {how}", e.name()));
    }
    // A pass that leaves nothing.
    let mut pass = case.whole(false);
    pass.has_parents = false;
    pass.has_tails = true;
    let before = (bits(&rig.get("states")), bits(&rig.get("tails")));
    pass.places.chunks_mut(2).for_each(|places| places[1] = NO_STATE);
    case.forward(rig, &x, &pass);
    assert!(
        before == (bits(&rig.get("states")), bits(&rig.get("tails"))),
        "nothing is left: {case:?}, {how}"
    );
    let state = case.heads.state();
    for group in (0..case.groups.len()).filter(|&group| case.groups[group].starts) {
        let place = case.start(group) as usize * state..(case.start(group) as usize + 1) * state;
        assert!(
            before.0[place.clone()] == starts[place],
            "the start of group {group} is kept: {case:?}, {how}"
        );
    }
    rig.check_guards();
}

#[track_caller]
fn same(got: &[Seen], want: &[Seen], what: &str) {
    for (sequence, (got, want)) in got.iter().zip(want).enumerate() {
        for (row, (got, want)) in got.rows.iter().zip(&want.rows).enumerate() {
            for ((got, want), name) in got.iter().zip(want).zip(OF_ROWS) {
                assert!(got == want, "{name} of row {row} of sequence {sequence}, {what}");
            }
        }
        assert!(got.state == want.state, "the state of sequence {sequence}, {what}");
        assert!(got.tail == want.tail, "the tail of sequence {sequence}, {what}");
        assert_eq!(got.rows.len(), want.rows.len(), "rows of sequence {sequence}, {what}");
    }
    assert_eq!(got.len(), want.len(), "{what}");
}

/// Computes sequences, `cut` rows of each a pass; the last passes have fewer sequences.
fn walk<D: Machine>(case: &Case, rig: &Rig<D>, x: &[f32], which: &[usize], cut: usize) -> Vec<Seen> {
    let all = case.sequences();
    let mut seen = vec![Seen::default(); which.len()];
    let mut at: Vec<u32> = which.iter().map(|&i| case.start(all[i].0)).collect();
    let longest = which.iter().map(|&i| all[i].1.len()).max().expect("sequences");
    for (round, position) in (0..longest).step_by(cut).enumerate() {
        let mut pass = Pass { has_tails: true, ..Pass::default() };
        let mut here = vec![];
        for (index, &i) in which.iter().enumerate() {
            let rows = &all[i].1;
            if position < rows.len() {
                let end = (position + cut).min(rows.len());
                // A place of its own that is kept now and then, and changed now and then.
                let keeps = position > 0 && (round + i) % 3 > 0;
                let to = if keeps { at[index] } else { (2 * i + round % 2) as u32 };
                pass.push(rows[position..end].iter().copied(), position, NO_PARENT, [at[index], to]);
                at[index] = to;
                here.push((index, end - position));
            }
        }
        case.forward(rig, x, &pass);
        let of_rows = rows_of(case, rig, pass.rows.len());
        let mut first = 0;
        for (index, rows) in here {
            seen[index].rows.extend_from_slice(&of_rows[first..first + rows]);
            first += rows;
        }
    }
    let (states, tails) = (rig.get("states"), rig.get("tails"));
    for (seen, at) in seen.iter_mut().zip(at) {
        (seen.state, seen.tail) =
            (of_place(&states, case.heads.state(), at), of_place(&tails, case.heads.tail(), at));
    }
    seen
}

fn of_place(all: &[f32], len: usize, place: u32) -> Vec<u32> {
    bits(&all[place as usize * len..][..len])
}

/// The numbers of the first rows, by row.
fn rows_of<D: Machine>(case: &Case, rig: &Rig<D>, rows: usize) -> Vec<[Vec<u32>; 4]> {
    let all = OF_ROWS.map(|name| bits(&case.get(rig, name, rows)));
    (0..rows)
        .map(|row| all.each_ref().map(|all| all.chunks(all.len() / rows).nth(row).unwrap().to_vec()))
        .collect()
}

/// Returns what the pass with parents gave, by sequence.
fn of_whole<D: Machine>(case: &Case, rig: &Rig<D>, pass: &Pass) -> Vec<Seen> {
    let of_rows = rows_of(case, rig, pass.rows.len());
    let (states, tails) = (rig.get("states"), rig.get("tails"));
    let sequence = |(_, rows): (usize, Vec<usize>)| {
        let last = *rows.last().expect("rows") as u32;
        let is_last = |record: &[u32]| record[0] + record[1] == last + 1;
        let index =
            pass.segments.chunks(SEGMENT_FIELDS).position(is_last).expect("a segment with the last row");
        let count = pass.segments[index * SEGMENT_FIELDS + 1] as usize;
        let place = pass.places[2 * index + 1] + if pass.has_rest { edges(count) as u32 - 1 } else { 0 };
        let tail = if pass.has_tails { of_place(&tails, case.heads.tail(), place) } else { vec![] };
        let rows = rows.iter().map(|&row| of_rows[row].clone()).collect();
        Seen { rows, state: of_place(&states, case.heads.state(), place), tail }
    };
    case.sequences().into_iter().map(sequence).collect()
}
