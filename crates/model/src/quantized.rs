//! Frozen weights whose products are stored in codes: one code for all, or those of a GGUF file. Each is dequantized
//! into one buffer right before use, in rollout and update alike; embeddings, norms, biases and the head are stored in
//! full.

use crate::params::{CodesAt, Param, ParamTable, Part};
use crate::weights::{CodeBufs, LayerParams, Params};
use plimsoll_arch::{LayerEncodings, ModelSpec, Quantization, Site};
use plimsoll_base::{DType, Encoding};
use plimsoll_device::{BLOCK_PARTS_MAX, Blocks, Codes, Device, Matrix, block_elements, matrix_elements};
use plimsoll_memory::Buf;

/// How the products of a frozen model are quantized.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a handful in a run, and plans copy them")]
pub enum Coding {
    /// In one encoding; rows must be whole blocks.
    All(Encoding),
    /// Each matrix in its encoding in the model's file.
    File(LayerEncodings),
    /// Those of experts in one encoding, and the others in full.
    Experts(Encoding),
}

impl Coding {
    /// Returns the coding of a kind of quantization; `of_file`: the encodings of the model's file.
    pub fn of(how: Quantization, of_file: impl FnOnce() -> LayerEncodings) -> Coding {
        match (how, how.encoding()) {
            (Quantization::Mxfp4, Some(encoding)) => Coding::Experts(encoding),
            (_, Some(encoding)) => Coding::All(encoding),
            (_, None) => Coding::File(of_file()),
        }
    }

    /// Returns whether a product's weights are stored in codes.
    fn has(&self, site: Site) -> bool {
        !matches!(self, Coding::Experts(_)) || site.is_of_experts()
    }
}

impl ParamTable {
    /// Returns the same table with all products stored in codes.
    pub fn coded(self, coding: &Coding) -> ParamTable {
        let mut table = ParamTable::empty(self.device);
        for mut param in self.params {
            let key = param.offset;
            let Some(site) = param.kind.site().filter(|site| coding.has(*site)) else {
                table.push(Param { key, ..param });
                continue;
            };
            let (at, k) = (table.codes, u64::from(param.k));
            match coding {
                Coding::All(encoding) | Coding::Experts(encoding) => {
                    param.parts.iter_mut().for_each(|part| part.encoding = Some(*encoding))
                }
                // Experts share a tensor of the file, and gates and ups one encoding.
                Coding::File(encodings) if param.is_of_experts() => {
                    let encoding = encodings.get(param.layer, site.layers()[0]);
                    param.parts.iter_mut().for_each(|part| part.encoding = Some(encoding));
                }
                Coding::File(encodings) => {
                    for (part, target) in param.parts.iter_mut().zip(site.layers()) {
                        part.encoding = Some(encodings.get(param.layer, *target));
                    }
                }
            }
            for (encoding, rows) in runs(&param) {
                let (words, scales) = block_elements(encoding, rows, k);
                table.codes = CodesAt { word: table.codes.word + words, scale: table.codes.scale + scales };
            }
            table.push(Param { key, codes: Some(at), elements: 0, ..param });
        }
        table
    }

    /// Returns the elements of the widest quantized matrix after dequantization; 0 if there is none.
    pub fn widened_elements(&self, weights: DType) -> u64 {
        let coded = self.params.iter().filter(|param| param.codes.is_some());
        coded.map(|param| self.widened(param, weights)).max().unwrap_or(0)
    }

    fn widened(&self, param: &Param, weights: DType) -> u64 {
        matrix_elements(self.device, u64::from(param.n), u64::from(param.k), weights)
    }
}

/// Returns the runs of rows of a matrix in codes, each with its encoding: all rows, if experts share a tensor of the
/// file or scales lie apart, else those of each tensor.
fn runs(param: &Param) -> impl Iterator<Item = (Encoding, u64)> {
    let encoding = |part: &Part| part.encoding.expect("every part of a matrix in codes has an encoding");
    let is_one = param.is_of_experts() || encoding(&param.parts[0]).has_scales();
    let each = param.parts[..if is_one { 1 } else { param.parts.len() }].iter();
    each.map(move |part| (encoding(part), u64::from(if is_one { param.n } else { part.rows })))
}

impl<'a> CodeBufs<'a> {
    pub(crate) fn at(&self, param: &Param) -> Option<Codes<'a>> {
        let (CodesAt { mut word, mut scale }, k) = (param.codes?, param.k);
        let mut parts = [None; BLOCK_PARTS_MAX];
        for ((encoding, rows), part) in runs(param).zip(&mut parts) {
            let (words, scales) = block_elements(encoding, rows, k.into());
            let of_scales = encoding.has_scales().then(|| {
                let all = self.scales.expect("a table of these codes has scales");
                all.slice(scale as usize, scales as usize)
            });
            let of_words = self.words.slice(word as usize, words as usize);
            *part = Some(Blocks::new(encoding, (of_words, of_scales), rows as usize, k as usize));
            (word, scale) = (word + words, scale + scales);
        }
        Some(Codes { parts })
    }
}

impl<'a> Params<'a> {
    /// Resolves the handles, as `bind` does, for a table whose products are stored in codes.
    pub fn bind_quantized(
        spec: &ModelSpec,
        table: &ParamTable,
        weights: DType,
        all: Buf<'a>,
        bufs: CodeBufs<'a>,
    ) -> Params<'a> {
        let slice = |param: &Param| match param.codes {
            Some(_) => bufs.widened.slice(0, table.widened(param, weights) as usize),
            None => all.slice(param.offset as usize, param.elements as usize),
        };
        let mut params = Params { codes: Some(bufs), ..Params::bind_where(spec, table, weights, all, slice) };
        for param in &table.params {
            if let Some((site, codes)) = param.kind.site().zip(bufs.at(param)) {
                let product = params.layers[param.layer as usize].products.get_mut(site);
                product.as_mut().expect("a product of the table").codes = Some(codes);
            }
        }
        params
    }

    /// Returns the sum of squares of all weights, dequantized: it identifies a model.
    pub fn sum_squares(&self, dev: &dyn Device) -> f64 {
        let coded = self.layers.iter().flat_map(|layer| {
            let is_coded =
                |site: &Site| layer.products.get(*site).is_some_and(|product| product.codes.is_some());
            Site::ALL.into_iter().filter(is_coded).map(|site| dev.sum_squares(layer.ready(dev, site).buf))
        });
        dev.sum_squares(self.all) + coded.sum::<f64>()
    }
}

impl<'a> LayerParams<'a> {
    /// Returns a product's weights, dequantized if stored in codes; then valid until the next product of such weights.
    pub(crate) fn ready(&self, dev: &dyn Device, site: Site) -> Matrix<'a> {
        let weights = self.at(site);
        if let Some(codes) = self.codes(site) {
            dev.dequantize(codes, weights);
        }
        weights
    }
}
