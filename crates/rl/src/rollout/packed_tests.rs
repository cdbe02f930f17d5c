//! Messages that were changed on their way: what can still be read is what those bytes mean, and no more.

use super::*;
use plimsoll_base::rng::{Stream, philox};

#[derive(Debug, PartialEq)]
struct Row {
    ids: Vec<u32>,
    text: String,
    total: Option<u64>,
    pairs: Vec<(bool, String)>,
    inner: Vec<Vec<u32>>,
}
packed!(Row {
    ids: Vec<u32>,
    text: String,
    total: Option<u64>,
    pairs: Vec<(bool, String)>,
    inner: Vec<Vec<u32>>,
});

/// Random numbers below a bound, one after the other.
struct Draws(u64, u64);

impl Draws {
    fn below(&mut self, bound: u32) -> u32 {
        self.1 += 1;
        philox(self.0, Stream::Request, self.1, 0)[0] % bound.max(1)
    }
}

fn row(draws: &mut Draws) -> Row {
    let numbers =
        |draws: &mut Draws| (0..draws.below(5)).map(|_| draws.below(u32::MAX)).collect::<Vec<u32>>();
    let text = |draws: &mut Draws| {
        (0..draws.below(6))
            .map(|_| char::from_u32(0x20 + draws.below(0x500)).unwrap_or('x'))
            .collect::<String>()
    };
    Row {
        ids: numbers(draws),
        text: text(draws),
        total: (draws.below(2) == 1).then(|| u64::from(draws.below(u32::MAX)) << 20),
        pairs: (0..draws.below(3)).map(|_| (draws.below(2) == 1, text(draws))).collect(),
        inner: (0..draws.below(3)).map(|_| numbers(draws)).collect(),
    }
}

#[test]
fn a_value_has_one_form_in_bytes_and_a_form_one_value() {
    let mut read = 0;
    for seed in 0..300 {
        let mut draws = Draws(seed, 0);
        let rows: Vec<Row> = (0..draws.below(4)).map(|_| row(&mut draws)).collect();
        let bytes = pack(Kind::Samples, Ok(&rows));
        assert_eq!(unpack(Kind::Samples, &bytes), Ok(Ok(rows)), "seed {seed}");
        for _ in 0..60 {
            let mut changed = bytes.clone();
            for _ in 0..1 + draws.below(3) {
                let at = draws.below(changed.len() as u32) as usize;
                changed[at] = draws.below(256) as u8;
            }
            match unpack::<Vec<Row>>(Kind::Samples, &changed) {
                Ok(Ok(rows)) => {
                    assert!(pack(Kind::Samples, Ok(&rows)) == changed, "seed {seed}: {rows:?}");
                    read += 1;
                }
                Ok(Err(words)) => assert!(pack::<Vec<Row>>(Kind::Samples, Err(words)) == changed),
                Err(why) => assert!(!why.is_empty()),
            }
        }
    }
    assert!(read > 100, "{read} of the changed messages still mean something");
}

#[test]
fn no_value_is_shorter_than_its_kind_says() {
    let empty = Row { ids: vec![], text: String::new(), total: None, pairs: vec![], inner: vec![] };
    let length = |rows: &Vec<Row>| pack(Kind::Samples, Ok(rows)).len();
    let one = length(&vec![empty]) - length(&vec![]);
    assert_eq!(one, Row::LEAST);
    let mut draws = Draws(1, 0);
    for _ in 0..50 {
        assert!(length(&vec![row(&mut draws)]) - length(&vec![]) >= Row::LEAST);
    }
}
