//! The parameter table: which tensors a decoder has, their Hugging Face names, and the offset of each in the one flat
//! buffer whose order weights, gradients and optimizer states share.
//!
//! q, k and v are one matrix, gate and up another, so that a product reads its input once. The buffer is flat, so that
//! the optimizer is one element-wise pass over all parameters.

use crate::transposed::Transposed;
use plimsoll_arch::{
    INPUT_CONTEXT, INPUT_NORM, INPUT_TABLE, KeyGroups, ModelSpec, ParamKind, TensorRow, layer_tensors,
};
use plimsoll_base::{DType, Encoding};
use plimsoll_device::{CODE_BLOCK, Layouts, Run, matrix_elements};

/// Alignment of each parameter in elements, so that no block of 8-bit moments spans two.
pub(crate) const ALIGN: u64 = CODE_BLOCK as u64;

/// A tensor on disk that holds some rows of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Hugging Face name.
    pub name: String,
    /// Rows (elements of a vector) in it.
    pub rows: u32,
    /// Its shape on disk.
    pub shape: Vec<u64>,
    /// The order of its rows on disk, if it is not that of the parameter.
    pub groups: Option<KeyGroups>,
    /// True if it has the matrices of all experts with inputs as rows.
    pub is_transposed: bool,
    /// The encoding of its rows, if they are stored in codes.
    pub encoding: Option<Encoding>,
}

impl Part {
    /// Returns a tensor of rows of `k` elements, or of a vector if that is 0.
    pub(crate) fn new(name: String, rows: u32, k: u32) -> Part {
        let shape = if k == 0 { vec![rows.into()] } else { vec![rows.into(), k.into()] };
        Part { name, rows, shape, groups: None, is_transposed: false, encoding: None }
    }

    /// Returns its sizes, if files have it transposed.
    pub(crate) fn transposed(&self) -> Option<Transposed> {
        self.is_transposed.then(|| Transposed::of(&self.shape))
    }

    /// Returns where the file has row `row`, and how many rows from there on are neighbours in both.
    pub(crate) fn stored_run(&self, row: usize) -> (usize, usize) {
        match self.groups {
            Some(groups) => {
                let (at, run) = groups.run(row as u32);
                (at as usize, run as usize)
            }
            None => (row, self.rows as usize - row),
        }
    }

    /// Returns which row the file has at `stored`, and how many rows from there on are neighbours in both.
    pub(crate) fn run_of_stored(&self, stored: usize) -> (usize, usize) {
        match self.groups {
            Some(groups) => {
                let (row, run) = groups.stored_run(stored as u32);
                (row as usize, run as usize)
            }
            None => (stored, self.rows as usize - stored),
        }
    }
}

/// Offsets of a quantized matrix.
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
    /// Layer; 0 if outside of layers.
    pub layer: u32,
    /// Rows, or elements of a vector.
    pub n: u32,
    /// Columns; 0 for a vector.
    pub k: u32,
    /// First element in the flat buffer.
    pub offset: u64,
    /// Elements, including the device's padding; 0 if stored in codes.
    pub elements: u64,
    /// Where its codes begin, if it is stored in codes.
    pub codes: Option<CodesAt>,
    /// Offset that keys its random numbers: its first element in a table without codes.
    pub key: u64,
    /// Its tensors on disk, in row order.
    pub parts: Vec<Part>,
}

impl Param {
    /// True if it is a vector: a norm or a bias.
    pub fn is_vector(&self) -> bool {
        self.k == 0
    }

    /// True if it holds matrices of a layer's experts, each in tensors of its own.
    pub(crate) fn is_of_experts(&self) -> bool {
        self.kind.site().is_some_and(|site| site.is_of_experts() && self.parts.len() > site.layers().len())
    }

    /// True if no training changes it.
    pub fn is_fixed(&self) -> bool {
        self.kind.is_fixed()
    }

    /// True if its numbers are sums of terms; files then have them in f32, whatever the dtype of the model.
    pub(crate) fn has_terms(&self) -> bool {
        self.kind.terms() > 1
    }

    /// Returns the dtype of its tensors in files whose dtype is `dtype`.
    pub(crate) fn stored(&self, dtype: DType) -> DType {
        if self.has_terms() { DType::F32 } else { dtype }
    }

    /// True if the rows of a tensor on disk are in another order, or are its columns.
    pub(crate) fn is_grouped(&self) -> bool {
        self.parts.iter().any(|part| part.groups.is_some() || part.is_transposed)
    }

    /// Returns the sizes of its one tensor on disk, if that is transposed.
    pub(crate) fn transposed(&self) -> Option<Transposed> {
        self.parts.first().and_then(Part::transposed)
    }

    /// Calls `each` with runs of `rows` rows from `first` on that are neighbours on disk too: the number of rows before
    /// the run, its first row on disk, counted over all tensors, and its rows.
    pub(crate) fn each_stored_run<E>(
        &self,
        (first, rows): (usize, usize),
        mut each: impl FnMut(usize, usize, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut above, end) = (0, first + rows);
        for part in &self.parts {
            let below = above + part.rows as usize;
            let mut row = first.max(above);
            while row < end.min(below) {
                let (at, run) = part.stored_run(row - above);
                let run = run.min(end.min(below) - row);
                each(row - first, above + at, run)?;
                row += run;
            }
            above = below;
        }
        Ok(())
    }

    /// True unless it is outside of layers: the embedding, the final norm or the head.
    pub fn is_of_layer(&self) -> bool {
        use ParamKind::{Embed, FinalNorm, Head, InputContext, InputNorm, InputTable, ValueHead};
        let is_end = matches!(self.kind, Embed | FinalNorm | Head | ValueHead);
        !is_end && !matches!(self.kind, InputTable | InputContext | InputNorm) && !self.is_of_tower()
    }

    /// True if it is an adapter of a tower, which comes after all else.
    pub fn is_of_tower(&self) -> bool {
        matches!(self.kind, ParamKind::TowerA(_) | ParamKind::TowerB(..))
    }
}

/// All parameters of a decoder on one kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamTable {
    /// The kind of device, which decides element orders.
    pub device: &'static Layouts,
    /// Parameters in the order of the flat buffer.
    pub params: Vec<Param>,
    /// Length of the flat buffer.
    pub elements: u64,
    /// Lengths of the buffers of codes and of scales; 0 if nothing is stored in codes.
    pub codes: CodesAt,
}

impl ParamTable {
    /// Returns it with other names of tensors in files.
    pub fn renamed(&self, name: impl Fn(&str) -> String) -> ParamTable {
        let mut table = self.clone();
        let parts = table.params.iter_mut().flat_map(|param| &mut param.parts);
        parts.for_each(|part| part.name = name(&part.name));
        table
    }

    pub fn new(spec: &ModelSpec, kind: &'static Layouts, weights: DType) -> ParamTable {
        let mut table = ParamTable::body(spec, kind, weights);
        if !spec.tied {
            let parts = vec![("lm_head.weight".into(), spec.vocab)];
            table.add(kind, weights, ParamKind::Head, 0, spec.hidden, parts);
        }
        table
    }

    /// Returns the table of a critic or reward model: the decoder's body, and a linear layer to one number as head,
    /// named as in transformers' models for sequence classification.
    pub fn critic(spec: &ModelSpec, kind: &'static Layouts, weights: DType) -> ParamTable {
        let mut table = ParamTable::body(spec, kind, weights);
        let parts = vec![("score.weight".into(), 1)];
        table.add(kind, weights, ParamKind::ValueHead, 0, spec.hidden, parts);
        table
    }

    pub(crate) fn empty(device: &'static Layouts) -> ParamTable {
        ParamTable { device, params: Vec::new(), elements: 0, codes: CodesAt { word: 0, scale: 0 } }
    }

    fn body(spec: &ModelSpec, of_device: &'static Layouts, weights: DType) -> ParamTable {
        let mut table = ParamTable::empty(of_device);
        let (v, h) = (spec.vocab, spec.hidden);
        let embedding = vec![("model.embed_tokens.weight".into(), v)];
        table.add(of_device, weights, ParamKind::Embed, 0, h, embedding);
        for layer in 0..spec.layers.len() {
            for tensors in layer_tensors(spec, layer).chunk_by(|(a, _), (b, _)| a.kind == b.kind) {
                let (TensorRow { kind, cols, .. }, _) = tensors[0];
                // What does not multiply rows is a vector.
                let (k, each) = if kind.is_product() { (cols, 1) } else { (0, cols.max(1)) };
                let part = |(row, expert): &(TensorRow, Option<u32>)| {
                    let name = format!("model.layers.{layer}.{}", row.name(*expert));
                    let all = if row.is_of_all_experts { row.experts.unwrap_or(1) } else { 1 };
                    let part = Part::new(name, row.rows * each * all, k);
                    Part { shape: row.shape(), groups: row.groups, is_transposed: row.is_transposed, ..part }
                };
                table.add_parts(of_device, weights, kind, layer, k, tensors.iter().map(part).collect());
            }
            if let Some((donor, of)) = spec.donor(layer).zip(spec.layer(layer).attention()) {
                // Keys of another layer go through its norm: its weights lie with this layer's too.
                let name = format!("model.layers.{donor}.self_attn.k_norm.weight");
                table.add(of_device, weights, ParamKind::KNorm, layer, 0, vec![(name, of.head_dim)]);
            }
        }
        table.add(of_device, weights, ParamKind::FinalNorm, 0, 0, vec![("model.norm.weight".into(), h)]);
        if let Some(width) = spec.inputs {
            let all = spec.layers.len() * width;
            for (kind, k, name, rows) in [
                (ParamKind::InputTable, all, INPUT_TABLE, v),
                (ParamKind::InputContext, h, INPUT_CONTEXT, all),
                (ParamKind::InputNorm, 0, INPUT_NORM, width),
            ] {
                table.add(of_device, weights, kind, 0, k, vec![(format!("model.{name}.weight"), rows)]);
            }
        }
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
        let parts = parts.into_iter().map(|(name, rows)| Part::new(name, rows, k)).collect();
        self.add_parts(kind, weights, param, layer, k, parts);
    }

    pub(crate) fn add_parts(
        &mut self,
        kind: &'static Layouts,
        weights: DType,
        param: ParamKind,
        layer: u32,
        k: u32,
        parts: Vec<Part>,
    ) {
        let n = param.terms() * parts.iter().map(|part| part.rows).sum::<u32>();
        let elements = match k {
            0 => u64::from(n),
            k => matrix_elements(kind, u64::from(n), u64::from(k), weights),
        };
        let (offset, key) = (self.elements, self.elements);
        self.push(Param { kind: param, layer, n, k, offset, elements, codes: None, key, parts });
    }

    /// Appends a parameter and sets its offset.
    pub(crate) fn push(&mut self, param: Param) {
        let end = self.elements + param.elements;
        self.params.push(Param { offset: self.elements, ..param });
        self.elements = end.next_multiple_of(ALIGN);
    }

    /// True if the embedding is also the head.
    pub fn is_tied(&self) -> bool {
        let has = |kind| self.find(kind, 0).is_some();
        has(ParamKind::Embed) && !has(ParamKind::Head) && !has(ParamKind::ValueHead)
    }

    /// Returns the elements of a layer, which are contiguous.
    pub fn layer_run(&self, layer: u32) -> Run {
        let first = |layer| self.params.iter().find(|param| param.is_of_layer() && param.layer == layer);
        let next = first(layer + 1).map_or(self.head_run().start, |param| param.offset);
        let start = first(layer).expect("the table has each layer").offset;
        Run { start, elements: next - start }
    }

    /// Returns the elements after the embedding: the layers and what follows them.
    pub fn body_run(&self) -> Run {
        let start = self.layer_run(0).start;
        Run { start, elements: self.elements - start }
    }

    /// Returns the elements after the layers: the final norm and an untied head, or the head trained with adapters.
    pub fn head_run(&self) -> Run {
        let is_after = |param: &&Param| matches!(param.kind, ParamKind::FinalNorm | ParamKind::ValueHead);
        let end = self.tower_run().start;
        let start = self.params.iter().find(is_after).map_or(end, |param| param.offset);
        Run { start, elements: end - start }
    }

    /// Returns the elements of a tower's adapters, which are the last ones.
    pub fn tower_run(&self) -> Run {
        let first = self.params.iter().find(|param| param.is_of_tower());
        let start = first.map_or(self.elements, |param| param.offset);
        Run { start, elements: self.elements - start }
    }

    /// Iterates over the parameters, in runs whose tensors on disk are the same: all experts' of an adapter that peft
    /// has as one parameter, else one.
    pub(crate) fn by_tensor(&self) -> impl Iterator<Item = &[Param]> {
        self.params.chunk_by(|a, b| a.parts[0].name == b.parts[0].name)
    }

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
            for layer in 0..spec.layers.len() {
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
        for name in [
            "smollm2-135m",
            "qwen2.5-7b",
            "qwen3-0.6b",
            "nano",
            "phi-4-mini",
            "qwen3-30b-a3b",
            "qwen3.5-35b-a3b",
            "qwen3-next-80b-a3b",
        ] {
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
