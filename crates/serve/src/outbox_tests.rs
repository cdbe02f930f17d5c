//! Tests what is written is read, once and in order, however the two take turns.

use super::*;
use plimsoll_base::rng::{Stream, philox};

fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test)
}

fn say(outbox: &Outbox, index: usize, id: u32, ends: bool) {
    outbox.write(index, |part| {
        part.text.push_str(&format!("{id};"));
        part.ids.push(id);
        part.logprobs.push(-(id as f32));
        part.end = ends.then_some(End::Length);
    });
}

#[test]
fn each_response_arrives_whole_however_writing_and_reading_take_turns() {
    for seed in 0..50 {
        let count = 1 + seed as usize % 4;
        let (outbox, mut next) = (Outbox::new(count, true), vec![0; count]);
        let mut taken: Vec<Part> = vec![Part::default(); count];
        let mut take = |outbox: &Outbox| {
            let Some((index, part)) = run(outbox.next()) else { return false };
            assert!(taken[index].end.is_none(), "nothing comes after the end");
            taken[index].text += &part.text;
            taken[index].ids.extend(part.ids);
            taken[index].logprobs.extend(part.logprobs);
            taken[index].end = part.end;
            true
        };
        for draw in 0..200 {
            let bits = philox(seed, Stream::Request, draw, 0);
            let index = bits[0] as usize % count;
            if next[index] < 20 {
                next[index] += 1;
                say(&outbox, index, next[index], next[index] == 20);
                if bits[1].is_multiple_of(3) {
                    assert!(take(&outbox));
                }
            }
        }
        for (index, next) in next.iter_mut().enumerate() {
            while *next < 20 {
                *next += 1;
                say(&outbox, index, *next, *next == 20);
            }
        }
        while take(&outbox) {}
        for part in &taken {
            assert_eq!(part.ids, (1..=20).collect::<Vec<u32>>(), "seed {seed}");
            assert_eq!(part.logprobs.len(), 20);
            assert_eq!(part.text, (1..=20).map(|id| format!("{id};")).collect::<String>());
        }
    }
}

#[test]
fn a_client_of_several_responses_hears_of_each_in_turn() {
    let outbox = Outbox::new(3, true);
    let mut heard = Vec::new();
    for round in 0..3 {
        (0..3).for_each(|index| say(&outbox, index, round, false));
        // One part is read while three are written: none of the responses waits for ever.
        heard.push(run(outbox.next()).expect("a part").0);
    }
    assert_eq!(heard, [0, 1, 2]);
}

#[test]
fn an_answer_as_a_whole_waits_for_its_last_response() {
    let outbox = Outbox::new(2, false);
    say(&outbox, 0, 1, true);
    let early = run(async { tokio::time::timeout(std::time::Duration::ZERO, outbox.whole()).await.is_ok() });
    assert!(!early);
    say(&outbox, 1, 7, false);
    say(&outbox, 1, 8, true);
    let parts = run(outbox.whole());
    assert_eq!(parts.iter().map(|part| part.ids.clone()).collect::<Vec<_>>(), [vec![1], vec![7, 8]]);
    assert!(run(outbox.next()).is_none(), "it is taken once");
}
