//! Linear attention over the rows of a pass: shapes, buffers, checks against f64, and bits that no cut may change.
#![allow(dead_code)] // Each binary uses its part.

pub mod checks;
pub mod cuts;
pub mod differences;
pub mod reference;

use super::{Machine, Rig, Sized, f64s, normal};
use plimsoll_base::DType::{self, F32, U32};
use plimsoll_device::{
    CONV_TAPS, DeltaHeads, DeltaInputs, DeltaInputsBackward, DeltaRule, DeltaRuleBackward, DeltaWeights,
    NO_PARENT, NO_STATE, NormGated, NormGatedBackward, Places, SEGMENT_FIELDS, edges,
};
use plimsoll_memory::Buf;
use reference::Piece;

const EPS: f32 = 1e-6;

/// Sequences that begin with the same rows, or one alone.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Rows that all have; 0 if the children are sequences of their own.
    pub parent: usize,
    pub children: &'static [usize],
    /// Whether sequences go on from a state that is there.
    pub starts: bool,
}

/// A layer's heads, and the sequences of a pass.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub heads: DeltaHeads,
    pub groups: &'static [Group],
    /// Whether there are gates that underflow, gates of 0 and 1, and rows of zeros.
    pub extreme: bool,
}

pub const fn group(parent: usize, children: &'static [usize]) -> Group {
    Group { parent, children, starts: false }
}

const fn started(parent: usize, children: &'static [usize]) -> Group {
    Group { parent, children, starts: true }
}

pub const fn case(
    [key_dim, value_dim]: [usize; 2],
    [key_heads, value_heads]: [usize; 2],
    groups: &'static [Group],
) -> Case {
    Case { heads: DeltaHeads { key_heads, value_heads, key_dim, value_dim }, groups, extreme: false }
}

/// Every size of heads that differs to a kernel, both sides of a chunk, and parents shorter than the convolution.
pub const CASES: &[Case] = &[
    case([16, 16], [1, 1], &[group(0, &[1]), group(0, &[3, 2])]),
    case([32, 16], [2, 4], &[group(1, &[1, 2]), started(0, &[65]), group(2, &[5, 64])]),
    Case {
        extreme: true,
        ..case([16, 32], [1, 4], &[group(64, &[1, 63]), group(0, &[130]), started(3, &[])])
    },
    case([128, 128], [1, 2], &[started(65, &[3, 66]), group(0, &[64])]),
    Case { extreme: true, ..case([128, 128], [2, 2], &[group(0, &[130]), group(1, &[1, 1, 1])]) },
    case([48, 112], [1, 3], &[group(2, &[1, 1, 70]), group(0, &[63])]),
];

/// Some chunks more, and many children of one parent.
pub const LONG: &[Case] = &[
    case([128, 128], [2, 4], &[group(200, &[1, 2, 3, 4, 5, 6, 7, 200]), started(0, &[321])]),
    Case { extreme: true, ..case([64, 96], [1, 4], &[group(128, &[128, 192]), group(1, &[500])]) },
];

/// Lists what the backward pass writes.
pub const GRADIENTS: [&str; 10] =
    ["d", "dx", "d_rest", "d_states", "d_qkv", "d_gates", "d_conv", "d_decay", "d_bias", "d_w"];

/// The rows of a pass, and where its segments find their states.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// The case's row of each: x has their inputs.
    pub rows: Vec<usize>,
    pub segments: Vec<u32>,
    pub places: Vec<u32>,
    pub has_parents: bool,
    /// Whether inputs before a segment are in tails.
    pub has_tails: bool,
    pub has_rest: bool,
}

impl Pass {
    fn push(&mut self, rows: impl Iterator<Item = usize>, position: usize, parent: u32, places: [u32; 2]) {
        let first = self.rows.len();
        self.rows.extend(rows);
        self.segments.extend([first as u32, (self.rows.len() - first) as u32, position as u32, 0, parent]);
        self.places.extend(places);
    }
}

impl Case {
    /// Rows of the pass that has parents.
    pub fn rows(&self) -> usize {
        self.groups.iter().map(|group| group.parent + group.children.iter().sum::<usize>()).sum()
    }

    /// The sequences: the number of the group, and the case's rows.
    pub fn sequences(&self) -> Vec<(usize, Vec<usize>)> {
        let (mut all, mut first) = (vec![], 0);
        for (index, group) in self.groups.iter().enumerate() {
            let parent = first..first + group.parent;
            first += group.parent;
            if group.children.is_empty() {
                all.push((index, parent.clone().collect()));
            }
            for &rows in group.children {
                all.push((index, parent.clone().chain(first..first + rows).collect()));
                first += rows;
            }
        }
        all
    }

    /// P: places for the edges of all segments, for two of each sequence, and for the states that groups start from.
    pub fn num_places(&self) -> usize {
        let of = |group: &Group| {
            edges(group.parent) + group.children.iter().map(|&rows| edges(rows)).sum::<usize>()
        };
        let edges: usize = self.groups.iter().map(of).sum();
        edges.max(2 * self.sequences().len()) + self.groups.len()
    }

    /// The place that a group's sequences start from.
    fn start(&self, group: usize) -> u32 {
        if self.groups[group].starts {
            (self.num_places() - self.groups.len() + group) as u32
        } else {
            NO_STATE
        }
    }

    /// All rows, of children after those of their parents. With `has_rest` states have places for their edges.
    pub fn whole(&self, has_rest: bool) -> Pass {
        let mut pass = Pass { has_parents: true, has_tails: !has_rest, has_rest, ..Pass::default() };
        let (mut next, mut row) = (0, 0);
        let places = |rows: usize| if has_rest { edges(rows) } else { 1 };
        for (index, group) in self.groups.iter().enumerate() {
            let (mut from, mut parent) = (self.start(index), NO_PARENT);
            if group.parent > 0 {
                parent = row as u32;
                pass.push(row..row + group.parent, 0, NO_PARENT, [from, next as u32]);
                next += places(group.parent);
                from = next as u32 - 1;
                row += group.parent;
            }
            for &rows in group.children {
                pass.push(row..row + rows, group.parent, parent, [from, next as u32]);
                next += places(rows);
                row += rows;
            }
        }
        pass
    }

    fn max_rows(&self) -> usize {
        self.sequences().iter().map(|(_, rows)| rows.len()).sum::<usize>().max(self.rows())
    }

    /// The buffers; `g` is the dtype of the gradients of weights.
    pub fn buffers(&self, e: DType, g: DType) -> Vec<Sized<'static>> {
        let (heads, m, places) = (&self.heads, self.max_rows(), self.num_places());
        let segments = self.sequences().len() + self.groups.len();
        let (c, v, h) = (heads.conv_width(), heads.value_width(), heads.value_heads);
        vec![
            ("x", e, m * heads.input_width()),
            ("conv", e, c * CONV_TAPS),
            ("decay", e, h),
            ("bias", e, h),
            ("w", e, heads.value_dim),
            ("segments", U32, segments * SEGMENT_FIELDS),
            ("places", U32, segments * 2),
            ("tails", e, places * heads.tail()),
            ("states", F32, places * heads.state()),
            ("qkv", e, m * c),
            ("gates", F32, m * 2 * h),
            ("out", e, m * v),
            ("rest", F32, m * v),
            ("y", e, m * v),
            ("d", e, m * v),
            ("dx", e, m * heads.input_width()),
            ("d_rest", F32, m * v),
            ("d_states", F32, places * heads.state()),
            ("d_qkv", F32, m * c),
            ("d_gates", F32, m * 2 * h),
            ("d_conv", g, c * CONV_TAPS),
            ("d_decay", g, h),
            ("d_bias", g, h),
            ("d_w", g, heads.value_dim),
        ]
    }

    /// The inputs of the case's rows.
    pub fn x(&self, e: DType) -> Vec<f32> {
        let (heads, m) = (&self.heads, self.rows());
        let width = heads.input_width();
        let mut x = normal(1, m * width, 1.0, e);
        if self.extreme {
            let (gates, h) = (heads.conv_width() + heads.value_width(), heads.value_heads);
            for (m, row) in x.chunks_mut(width).enumerate() {
                // Rows of zeros that are more than the convolution reads.
                if (5..10).contains(&(m % 23)) {
                    row[..heads.conv_width()].fill(0.0);
                }
                let (b, a) = row[gates..].split_at_mut(h);
                match m % 11 {
                    // e^g is 0, and then g is.
                    1 => a.fill(90.0),
                    2 | 3 => a.fill(-120.0),
                    // beta is 0 and 1.
                    4 => b.fill(-120.0),
                    5 | 6 => b.fill(30.0),
                    _ => {}
                }
            }
        }
        x
    }

    /// Gives weights and the states that groups start from numbers, and zeros to their tails.
    pub fn fill<D: Machine>(&self, rig: &Rig<D>, e: DType) {
        let (heads, places) = (&self.heads, self.num_places());
        let g = rig.buf("d_w").dtype();
        let set = |name: &str, seed: u64, scale: f32, dtype: DType| {
            rig.set(name, &normal(seed, rig.buf(name).len(), scale, dtype));
        };
        set("conv", 2, 0.5, e);
        set("decay", 3, 1.0, e);
        set("bias", 4, 1.0, e);
        set("w", 5, 1.0, e);
        set("states", 6, 0.3, F32);
        for (seed, name) in ["d_conv", "d_decay", "d_bias", "d_w"].into_iter().enumerate() {
            set(name, 20 + seed as u64, 1.0, g);
        }
        rig.set("tails", &vec![0.0; places * heads.tail()]);
    }

    /// The weights, or their gradients.
    fn weights<D: Machine>(&self, rig: &Rig<D>, [conv, decay, bias]: [&str; 3]) -> DeltaWeights<'static> {
        DeltaWeights { conv: rig.buf(conv), decay: rig.buf(decay), bias: rig.buf(bias) }
    }

    /// A buffer's part that has `rows`.
    fn part<D: Machine>(&self, rig: &Rig<D>, name: &str, rows: usize) -> Buf<'static> {
        let heads = &self.heads;
        let width = match name {
            "x" | "dx" => heads.input_width(),
            "qkv" | "d_qkv" => heads.conv_width(),
            "gates" | "d_gates" => 2 * heads.value_heads,
            "out" | "rest" | "y" | "d" | "d_rest" => heads.value_width(),
            "segments" => SEGMENT_FIELDS,
            "places" => 2,
            other => panic!("{other} has no rows"),
        };
        rig.buf(name).slice(0, rows * width)
    }

    fn places<D: Machine>(&self, rig: &Rig<D>, pass: &Pass) -> Places<'static> {
        let count = pass.places.len() / 2;
        let (places, segments) = (self.part(rig, "places", count), self.part(rig, "segments", count));
        Places { places, segments, has_parents: pass.has_parents }
    }

    /// The forward operations of a pass; `x`: the case's inputs.
    pub fn forward<D: Machine>(&self, rig: &Rig<D>, x: &[f32], pass: &Pass) {
        let heads = self.heads;
        let row = |&row: &usize| x[row * heads.input_width()..][..heads.input_width()].iter().copied();
        rig.dev.write_f32(rig.buf("x"), 0, &pass.rows.iter().flat_map(row).collect::<Vec<f32>>());
        rig.dev.write_u32(rig.buf("segments"), 0, &pass.segments);
        rig.dev.write_u32(rig.buf("places"), 0, &pass.places);
        self.inputs(rig, pass);
        self.rule(rig, pass);
        self.norm(rig, pass);
    }

    /// q, k, v, g and beta.
    pub fn inputs<D: Machine>(&self, rig: &Rig<D>, pass: &Pass) {
        let part = |name: &str| self.part(rig, name, pass.rows.len());
        rig.dev.delta_inputs(DeltaInputs {
            heads: self.heads,
            x: part("x"),
            weights: self.weights(rig, ["conv", "decay", "bias"]),
            places: self.places(rig, pass),
            tails: pass.has_tails.then(|| rig.buf("tails")),
            qkv: part("qkv"),
            gates: part("gates"),
        });
    }

    pub fn rule<D: Machine>(&self, rig: &Rig<D>, pass: &Pass) {
        let part = |name: &str| self.part(rig, name, pass.rows.len());
        rig.dev.delta_rule(DeltaRule {
            heads: self.heads,
            qkv: part("qkv"),
            gates: part("gates"),
            places: self.places(rig, pass),
            states: rig.buf("states"),
            out: part("out"),
            rest: pass.has_rest.then(|| part("rest")),
        });
    }

    /// The norm after it.
    pub fn norm<D: Machine>(&self, rig: &Rig<D>, pass: &Pass) {
        let part = |name: &str| self.part(rig, name, pass.rows.len());
        let (o, x, w, y) = (part("out"), part("x"), rig.buf("w"), part("y"));
        rig.dev.norm_gated(NormGated { heads: self.heads, o, x, w, eps: EPS, y });
    }

    /// The gradient of the norm: from the gradient of y in `d`.
    pub fn norm_backward<D: Machine>(&self, rig: &Rig<D>, add: bool, trains: bool) {
        let part = |name: &str| self.part(rig, name, self.rows());
        rig.dev.norm_gated_backward(NormGatedBackward {
            heads: self.heads,
            o: part("out"),
            x: part("x"),
            w: rig.buf("w"),
            eps: EPS,
            d: part("d"),
            dx: part("dx"),
            dw: trains.then(|| rig.buf("d_w")),
            add,
        });
    }

    /// The gradient of the rule: from the gradient of o in `d`.
    pub fn rule_backward<D: Machine>(&self, rig: &Rig<D>, pass: &Pass) {
        let part = |name: &str| self.part(rig, name, self.rows());
        rig.dev.delta_rule_backward(DeltaRuleBackward {
            heads: self.heads,
            qkv: part("qkv"),
            gates: part("gates"),
            places: self.places(rig, pass),
            states: rig.buf("states"),
            rest: part("rest"),
            dout: part("d"),
            d_rest: part("d_rest"),
            d_states: rig.buf("d_states"),
            d_qkv: part("d_qkv"),
            d_gates: part("d_gates"),
        });
    }

    /// The gradient of the inputs: from those in `d_qkv` and `d_gates`.
    pub fn inputs_backward<D: Machine>(&self, rig: &Rig<D>, pass: &Pass, add: bool, trains: bool) {
        let part = |name: &str| self.part(rig, name, self.rows());
        rig.dev.delta_inputs_backward(DeltaInputsBackward {
            heads: self.heads,
            x: part("x"),
            weights: self.weights(rig, ["conv", "decay", "bias"]),
            segments: self.places(rig, pass).segments,
            d_qkv: part("d_qkv"),
            d_gates: part("d_gates"),
            dx: part("dx"),
            grads: trains.then(|| self.weights(rig, ["d_conv", "d_decay", "d_bias"])),
            add,
        });
    }

    /// The gradients of all operations; `d` has that of y first.
    pub fn backward<D: Machine>(&self, rig: &Rig<D>, e: DType, pass: &Pass, add: bool) {
        rig.dev.write_f32(rig.buf("d"), 0, &normal(7, self.rows() * self.heads.value_width(), 1.0, e));
        self.norm_backward(rig, add, true);
        self.rule_backward(rig, pass);
        self.inputs_backward(rig, pass, add, true);
    }

    /// The first `rows` of a buffer.
    fn get<D: Machine>(&self, rig: &Rig<D>, name: &str, rows: usize) -> Vec<f32> {
        super::get(&rig.dev, self.part(rig, name, rows))
    }

    /// Returns what is written of a buffer of the pass with parents: of states those of its edges.
    pub fn written<D: Machine>(&self, rig: &Rig<D>, name: &str, pass: &Pass) -> Vec<f32> {
        match name {
            "states" | "d_states" => checks::of_edges(self, rig, name, pass),
            "d_conv" | "d_decay" | "d_bias" | "d_w" => rig.get(name),
            _ => self.get(rig, name, self.rows()),
        }
    }

    /// The segments of the pass with parents, for f64.
    fn pieces<D: Machine>(&self, rig: &Rig<D>, pass: &Pass) -> Vec<Piece> {
        let records = || pass.segments.chunks(SEGMENT_FIELDS);
        let states = rig.get("states");
        let piece = |(record, places): (&[u32], &[u32])| {
            let parent = records().position(|of| of[0] == record[4]);
            let start = |place: usize| f64s(&states[place * self.heads.state()..][..self.heads.state()]);
            let has_start = parent.is_none() && places[0] != NO_STATE;
            let zeros = || vec![0.0; self.heads.state()];
            let start = if has_start { start(places[0] as usize) } else { zeros() };
            Piece { first: record[0] as usize, rows: record[1] as usize, parent, start }
        };
        records().zip(pass.places.chunks(2)).map(piece).collect()
    }
}
