//! Messages as they were written, cut, and changed on their way.

use super::*;
use plimsoll_base::rng::{Stream, philox};
use serde::Deserialize;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Row {
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    text: String,
    total: Option<f64>,
    #[serde(with = "as_json")]
    said: Vec<plimsoll_text::Message>,
    inner: Vec<Vec<u64>>,
    is_last: bool,
}

/// Random numbers below a bound, one after the other.
struct Draws(u64, u64);

impl Draws {
    fn below(&mut self, bound: u32) -> u32 {
        self.1 += 1;
        philox(self.0, Stream::Request, self.1, 0)[0] % bound.max(1)
    }

    fn text(&mut self) -> String {
        let letter = |draws: &mut Draws| char::from_u32(0x20 + draws.below(0x500)).unwrap_or('x');
        (0..self.below(6)).map(|_| letter(self)).collect()
    }

    fn row(&mut self) -> Row {
        Row {
            ids: (0..self.below(5)).map(|_| self.below(u32::MAX)).collect(),
            logprobs: (0..self.below(5)).map(|_| -(self.below(1000) as f32) / 7.0).collect(),
            text: self.text(),
            total: (self.below(2) == 1).then(|| f64::from(self.below(u32::MAX)) / 3.0),
            said: (0..self.below(3)).map(|_| plimsoll_text::Message::new("user", self.text())).collect(),
            inner: (0..self.below(3)).map(|_| vec![u64::from(self.below(u32::MAX)) << 31; 2]).collect(),
            is_last: self.below(2) == 1,
        }
    }
}

fn rows(seed: u64) -> Vec<Row> {
    let mut draws = Draws(seed, 0);
    (0..draws.below(4)).map(|_| draws.row()).collect()
}

fn read(bytes: &[u8]) -> Result<Sent<Vec<Row>>, String> {
    unpack(Kind::Samples, bytes)
}

#[test]
fn a_message_is_read_as_it_was_written() {
    for seed in 0..300 {
        let rows = rows(seed);
        let bytes = pack(Kind::Samples, Ok(&rows));
        assert_eq!(bytes.capacity(), bytes.len(), "as long as it has to be");
        assert_eq!(read(&bytes), Ok(Ok(rows)), "seed {seed}");
    }
    let bytes = pack::<Vec<Row>>(Kind::Samples, Err("a-slug: words".into()));
    assert_eq!(read(&bytes), Ok(Err("a-slug: words".into())));
    let floats = vec![f32::NAN, -0.0, f32::from_bits(0x7fa0_0001), f32::INFINITY, f32::MIN_POSITIVE];
    let bytes = pack(Kind::Samples, Ok(&floats));
    let back: Vec<f32> = unpack(Kind::Samples, &bytes).expect("it is whole").expect("no error");
    assert!(back.iter().map(|x| x.to_bits()).eq(floats.iter().map(|x| x.to_bits())));
}

#[test]
fn a_message_that_was_cut_or_is_another_is_refused() {
    let bytes = pack(Kind::Samples, Ok(&rows(3)));
    for length in 0..bytes.len() {
        assert!(read(&bytes[..length]).is_err(), "{length} of {} bytes", bytes.len());
    }
    assert_eq!(read(&[&bytes[..], &[0]].concat()), Err("1 bytes are left at its end".into()));
    let of = unpack::<Vec<Row>>(Kind::Episodes, &bytes);
    assert_eq!(of, Err("it is of kind 1, not of 2".into()));
    assert!(read(b"{\"Ok\":[]}").expect_err("JSON").starts_with("it begins with [7b, 22, 4f, 6b]"));
}

/// A list that claims to be longer than its message allocates nothing of that size, and is refused.
#[test]
fn what_a_message_claims_is_never_believed() {
    let claims = [&MAGIC[..], &[Kind::Samples as u8, 0], &[0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    assert!(unpack::<Vec<u64>>(Kind::Samples, &claims).is_err());
    assert!(unpack::<Vec<Vec<String>>>(Kind::Samples, &claims).is_err());
    let mut understood = 0;
    for seed in 0..300 {
        let (bytes, mut draws) = (pack(Kind::Samples, Ok(&rows(seed))), Draws(seed, 1 << 32));
        for _ in 0..60 {
            let mut changed = bytes.clone();
            for _ in 0..1 + draws.below(3) {
                let at = draws.below(changed.len() as u32) as usize;
                changed[at] = draws.below(256) as u8;
            }
            match read(&changed) {
                Ok(Ok(rows)) => {
                    let numbers = |row: &Row| row.ids.len() + 4 * row.logprobs.len() + row.text.len();
                    assert!(rows.iter().map(numbers).sum::<usize>() <= changed.len(), "seed {seed}");
                    understood += 1;
                }
                Ok(Err(words)) => assert!(words.len() <= changed.len()),
                Err(why) => assert!(!why.is_empty()),
            }
        }
    }
    assert!(understood > 100, "{understood} of the changed messages still mean something");
}
