//! Makes inputs: one of the corpus, pieces of the language, or one piece within itself, then some changes; of JSON also
//! with values changed, so that it still parses.

use plimsoll_base::rng::{Stream, below, philox};
use serde_json::Value;

/// Longest input. Limits that lie higher have tests of their own.
const INPUT_BYTES_MAX: usize = 384 << 10;
/// Integers that lengths and counts are easily wrong at.
const INTEGERS: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX, 1 << 33];

/// The random numbers of one input.
pub struct Random {
    seed: u64,
    number: u64,
    draws: u64,
}

impl Random {
    pub fn new(seed: u64, number: u64) -> Random {
        Random { seed, number, draws: 0 }
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let [low, high, ..] = philox(self.seed, Stream::Bench, self.number, self.draws);
        self.draws += 1;
        below(low, high, bound.max(1) as u64) as usize
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }
}

/// The kind of an input, which decides how it is changed so that some of it still parses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    Text,
    /// Half of the inputs are changed as values and written again.
    Json,
    /// Most changes keep the length.
    Binary,
}

/// Returns an input made of `corpus` and `pieces`, neither of them empty.
pub fn input(random: &mut Random, shape: Shape, corpus: &[Vec<u8>], pieces: &[&str]) -> Vec<u8> {
    if shape == Shape::Json
        && random.below(2) == 0
        && let Some(input) = changed_value(random, corpus, pieces)
    {
        return input;
    }
    let mut input = match random.below(12) {
        0 => (0..random.below(60)).flat_map(|_| random.pick(pieces).bytes()).collect(),
        1 => nested(random, pieces),
        _ => corpus[random.below(corpus.len())].clone(),
    };
    // One change leaves the most to parse, several reach what one cannot.
    for _ in 0..1 + random.below(5) / 2 {
        if shape == Shape::Binary && random.below(4) > 0 {
            overwrite(random, &mut input)
        } else {
            change(random, &mut input, corpus, pieces)
        }
        input.truncate(INPUT_BYTES_MAX);
    }
    input
}

/// Changes some values within a JSON value of the corpus; none if there is no JSON in the entry that was drawn.
fn changed_value(random: &mut Random, corpus: &[Vec<u8>], pieces: &[&str]) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(&corpus[random.below(corpus.len())]).ok()?;
    let other = serde_json::from_slice(&corpus[random.below(corpus.len())]).unwrap_or(Value::Null);
    for _ in 0..1 + random.below(3) {
        let donor = some_value(random, &other).clone();
        let place = some_place(random, &mut value);
        *place = match random.below(9) {
            0 => Value::Null,
            1 => INTEGERS[random.below(INTEGERS.len())].into(),
            2 => (-1).into(),
            3 => random.pick(pieces).repeat(1 << random.below(14)).into(),
            4 => Value::Array(vec![place.clone(); 1 << random.below(6)]),
            5 => serde_json::json!({ "type": "Sequence", "a": place.clone() }),
            6 => Value::Bool(random.below(2) == 0),
            7 => 1e308.into(),
            _ => donor,
        };
    }
    Some(value.to_string().into_bytes())
}

fn some_value<'a>(random: &mut Random, value: &'a Value) -> &'a Value {
    let children: Vec<&Value> = match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(object) => object.values().collect(),
        _ => Vec::new(),
    };
    if random.below(4) == 0 || children.is_empty() {
        return value;
    }
    let index = random.below(children.len());
    some_value(random, children[index])
}

fn some_place<'a>(random: &mut Random, value: &'a mut Value) -> &'a mut Value {
    let count = match value {
        Value::Array(list) => list.len(),
        Value::Object(object) => object.len(),
        _ => 0,
    };
    if count == 0 || random.below(8) == 0 {
        return value;
    }
    let index = random.below(count);
    let child = match value {
        Value::Array(list) => list.get_mut(index),
        Value::Object(object) => object.values_mut().nth(index),
        _ => None,
    };
    some_place(random, child.expect("the index is below the count"))
}

/// Writes a byte or an integer over others.
fn overwrite(random: &mut Random, input: &mut [u8]) {
    let first = random.below(input.len());
    let integer = INTEGERS[random.below(INTEGERS.len())].to_le_bytes();
    let width = [1, 1, 4, 8][random.below(4)].min(input.len() - first);
    match random.below(2) {
        0 => input[first..first + width].copy_from_slice(&integer[..width]),
        _ if width > 0 => input[first] = random.below(256) as u8,
        _ => {}
    }
}

/// One piece many times, and another as often.
fn nested(random: &mut Random, pieces: &[&str]) -> Vec<u8> {
    let (open, close, count) = (random.pick(pieces), random.pick(pieces), 1 << random.below(15));
    [open.repeat(count), "1".into(), close.repeat(count)].concat().into_bytes()
}

fn change(random: &mut Random, input: &mut Vec<u8>, corpus: &[Vec<u8>], pieces: &[&str]) {
    let (a, b) = (random.below(input.len() + 1), random.below(input.len() + 1));
    let (first, last) = (a.min(b), a.max(b));
    // Most changes are short, so that what surrounds them still parses.
    let near = (first + random.below(16)).min(input.len());
    match random.below(11) {
        0 => drop(input.splice(first..first, random.pick(pieces).bytes())),
        1 => drop(input.splice(first..near, random.pick(pieces).bytes())),
        2 => drop(input.drain(first..near)),
        3 => drop(input.drain(first..last)),
        4 => {
            let part = input[first..near].repeat(1 << random.below(12));
            input.splice(first..first, part);
        }
        5 => {
            let other = &corpus[random.below(corpus.len())];
            let from = random.below(other.len() + 1);
            let to = (from + random.below(200)).min(other.len());
            input.splice(first..near, other[from..to].iter().copied());
        }
        6 => input.truncate(a),
        7 => {
            let integer = INTEGERS[random.below(INTEGERS.len())].to_le_bytes();
            let width = [1, 2, 4, 8][random.below(4)];
            let end = (first + width).min(input.len());
            input.splice(first..end, integer[..width].iter().copied());
        }
        8 => {
            let text = INTEGERS[random.below(INTEGERS.len())].to_string();
            let digits = input[first..].iter().position(u8::is_ascii_digit).map_or(first, |at| first + at);
            let end = digits + input[digits..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            input.splice(digits..end, text.into_bytes());
        }
        _ => {
            if let Some(byte) = input.get_mut(first) {
                *byte = random.below(256) as u8;
            }
        }
    }
}
