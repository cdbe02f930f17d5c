//! The parameter table: which tensors a decoder has, under which Hugging Face names, and where each lies in the one
//! flat buffer that weights, gradients and optimizer states share the order of.
//!
//! q, k and v are one matrix, gate and up another: a product reads its input once. The buffer is flat, so that the
//! optimizer is one element-wise pass over all parameters.

use plimsoll_arch::{ModelSpec, ParamKind, TensorRow, layer_tensors};
use plimsoll_base::{DType, Encoding};
use plimsoll_device::{CODE_BLOCK, Layouts, Run, matrix_elements};

/// Elements to which each parameter is aligned, so that no block of 8-bit moments holds numbers of two.
pub(crate) const ALIGN: u64 = CODE_BLOCK as u64;

/// A tensor on disk that is some rows of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Hugging Face name.
    pub name: String,
    /// Rows (elements of a vector) that it holds.
    pub rows: u32,
    /// The encoding of its rows, if they are stored in the blocks of their file.
    pub encoding: Option<Encoding>,
}

/// Where a matrix of codes begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodesAt {
    /// First word in the buffer of codes.
    pub word: u64,
    /// First scale in the buffer of scales.
    pub scale: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    pub kind: ParamKind,
    /// Layer, 0 for the ones outside layers.
    pub layer: u32,
    /// Rows, or elements of a vector.
    pub n: u32,
    /// Columns; 0 for a vector.
    pub k: u32,
    /// First element in the flat buffer.
    pub offset: u64,
    /// Elements, the device's padding included; 0 of one that is stored in codes.
    pub elements: u64,
    /// Where its codes begin, if it is stored in them.
    pub codes: Option<CodesAt>,
    /// Its random numbers are of this place: its first element in a table without codes.
    pub key: u64,
    /// The tensors it is stored as, in row order.
    pub parts: Vec<Part>,
}

impl Param {
    /// True for vectors: norms and biases.
    pub fn is_vector(&self) -> bool {
        self.k == 0
    }

    /// True for the matrices of a layer's experts.
    pub(crate) fn is_of_experts(&self) -> bool {
        self.kind.site().is_some_and(|site| self.parts.len() > site.layers().len())
    }

    /// True unless it is the embedding or comes after the layers.
    pub fn is_of_layer(&self) -> bool {
        use ParamKind::{Embed, FinalNorm, Head, ValueHead};
        !matches!(self.kind, Embed | FinalNorm | Head | ValueHead)
    }
}

/// All parameters of a decoder on a kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamTable {
    /// The kind of device whose element orders it is for.
    pub device: &'static Layouts,
    /// In the order of the flat buffer.
    pub params: Vec<Param>,
    /// Length of the flat buffer.
    pub elements: u64,
    /// Lengths of the buffers of codes and of scales; 0 where nothing is stored in codes.
    pub codes: CodesAt,
}

impl ParamTable {
    pub fn new(spec: &ModelSpec, kind: &'static Layouts, weights: DType) -> ParamTable {
        let mut table = ParamTable::body(spec, kind, weights);
        if !spec.tied {
            let parts = vec![("lm_head.weight".into(), spec.vocab)];
            table.add(kind, weights, ParamKind::Head, 0, spec.hidden, parts);
        }
        table
    }

    /// The table of a critic or a reward model: the decoder's body, and one linear map to a number instead
    /// of its head. The map has the name that transformers gives it in models for sequence classification.
    pub fn critic(spec: &ModelSpec, kind: &'static Layouts, weights: DType) -> ParamTable {
        let mut table = ParamTable::body(spec, kind, weights);
        let parts = vec![("score.weight".into(), 1)];
        table.add(kind, weights, ParamKind::ValueHead, 0, spec.hidden, parts);
        table
    }

    pub(crate) fn empty(device: &'static Layouts) -> ParamTable {
        ParamTable { device, params: Vec::new(), elements: 0, codes: CodesAt { word: 0, scale: 0 } }
    }

    fn body(spec: &ModelSpec, kind: &'static Layouts, weights: DType) -> ParamTable {
        let mut table = ParamTable::empty(kind);
        let (v, h) = (spec.vocab, spec.hidden);
        let mut add = |kind_of: ParamKind, layer: u32, k: u32, parts: Vec<(String, u32)>| {
            table.add(kind, weights, kind_of, layer, k, parts);
        };
        add(ParamKind::Embed, 0, h, vec![("model.embed_tokens.weight".into(), v)]);
        for layer in 0..spec.layers {
            for tensors in layer_tensors(spec, layer).chunk_by(|(a, _), (b, _)| a.kind == b.kind) {
                let (TensorRow { kind, cols, .. }, _) = tensors[0];
                // What no rows are multiplied by is a vector.
                let (k, each) = if kind.is_product() { (cols, 1) } else { (0, cols.max(1)) };
                let part = |(row, expert): &(TensorRow, Option<u32>)| {
                    (format!("model.layers.{layer}.{}", row.name(*expert)), row.rows * each)
                };
                add(kind, layer, k, tensors.iter().map(part).collect());
            }
        }
        add(ParamKind::FinalNorm, 0, 0, vec![("model.norm.weight".into(), h)]);
        table
    }

    pub(crate) fn add(
        &mut self,
        kind: &'static Layouts,
        weights: DType,
        param: ParamKind,
        layer: u32,
        k: u32,
        parts: Vec<(String, u32)>,
    ) {
        let n: u32 = parts.iter().map(|(_, rows)| rows).sum();
        let elements = match k {
            0 => u64::from(n),
            k => matrix_elements(kind, u64::from(n), u64::from(k), weights),
        };
        let parts = parts.into_iter().map(|(name, rows)| Part { name, rows, encoding: None }).collect();
        let (offset, key) = (self.elements, self.elements);
        self.push(Param { kind: param, layer, n, k, offset, elements, codes: None, key, parts });
    }

    /// Adds a parameter after the others, wherever it was.
    pub(crate) fn push(&mut self, param: Param) {
        let end = self.elements + param.elements;
        self.params.push(Param { offset: self.elements, ..param });
        self.elements = end.next_multiple_of(ALIGN);
    }

    /// True if the embedding is the head too.
    pub fn is_tied(&self) -> bool {
        let has = |kind| self.find(kind, 0).is_some();
        has(ParamKind::Embed) && !has(ParamKind::Head) && !has(ParamKind::ValueHead)
    }

    /// Returns the elements of a layer, which are neighbours.
    pub fn layer_run(&self, layer: u32) -> Run {
        let first = |layer| self.params.iter().find(|param| param.is_of_layer() && param.layer == layer);
        let next = first(layer + 1).map_or(self.head_run().start, |param| param.offset);
        let start = first(layer).expect("the table has each layer").offset;
        Run { start, elements: next - start }
    }

    /// Returns the elements after the embedding: the layers and what comes after them.
    pub fn body_run(&self) -> Run {
        let start = self.layer_run(0).start;
        Run { start, elements: self.elements - start }
    }

    /// Returns the elements after the layers: the last norm, and a head of its own. Of adapters the head that is learnt with them.
    pub fn head_run(&self) -> Run {
        let is_after = |param: &&Param| matches!(param.kind, ParamKind::FinalNorm | ParamKind::ValueHead);
        let start = self.params.iter().find(is_after).map_or(self.elements, |param| param.offset);
        Run { start, elements: self.elements - start }
    }

    /// The parameter of a kind in a layer.
    pub fn find(&self, kind: ParamKind, layer: u32) -> Option<&Param> {
        self.params.iter().find(|p| p.kind == kind && p.layer == layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedding_the_layers_and_the_head_are_neighbours() {
        let spec = ModelSpec::preset("qwen2.5-7b").unwrap();
        for table in
            [ParamTable::new, ParamTable::critic].map(|new| new(&spec, &plimsoll_cuda::LAYOUTS, DType::Bf16))
        {
            let mut next = table.layer_run(0).start;
            assert!(next >= table.params[0].elements, "after the embedding");
            for layer in 0..spec.layers {
                let run = table.layer_run(layer);
                assert_eq!(run.start, next, "layer {layer}");
                let inside = |param: &&Param| (run.start..run.end()).contains(&param.offset);
                assert!(table.params.iter().filter(inside).all(|param| param.layer == layer));
                next = run.end();
            }
            assert_eq!((table.head_run().start, table.head_run().end()), (next, table.elements));
        }
    }

    #[test]
    fn the_table_holds_every_parameter_once() {
        for name in ["smollm2-135m", "qwen2.5-7b", "qwen3-0.6b", "nano", "phi-4-mini", "qwen3-30b-a3b"] {
            let spec = ModelSpec::preset(name).unwrap();
            let table = ParamTable::new(&spec, &plimsoll_cpu::LAYOUTS, DType::Bf16);
            let count: u64 = table.params.iter().map(|p| u64::from(p.n) * u64::from(p.k.max(1))).sum();
            assert_eq!(count, spec.parameters(), "{name}");
            let ends: Vec<u64> = table.params.iter().map(|p| p.offset + p.elements).collect();
            assert!(
                table.params.iter().skip(1).zip(&ends).all(|(p, &end)| p.offset >= end),
                "{name} overlaps"
            );
        }
    }
}
