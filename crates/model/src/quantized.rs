//! Frozen weights whose products are stored in codes: NF4, or the blocks of a GGUF file. Each is dequantized into one
//! buffer right before use, in rollout and update alike; embeddings, norms, biases and the head are stored in full.

use crate::params::{CodesAt, Param, ParamTable};
use crate::weights::{CodeBufs, LayerParams, Params};
use plimsoll_arch::{LayerEncodings, ModelSpec, Site};
use plimsoll_base::DType;
use plimsoll_device::{
    BLOCK_PARTS_MAX, Blocks, Codes, Device, Matrix, Nf4, block_words, matrix_elements, nf4_elements,
};
use plimsoll_memory::Buf;

/// How the products of a frozen model are quantized.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a handful in a run, and plans copy them")]
pub enum Coding {
    /// NF4; rows must be multiples of its block.
    Nf4,
    /// As in the model's file.
    File(LayerEncodings),
}

impl ParamTable {
    /// Returns the same table with all products stored in codes.
    pub fn coded(self, coding: &Coding) -> ParamTable {
        let mut table = ParamTable::empty(self.device);
        for mut param in self.params {
            let key = param.offset;
            let Some(site) = param.kind.site() else {
                table.push(Param { key, ..param });
                continue;
            };
            let (at, k) = (table.codes, u64::from(param.k));
            match coding {
                Coding::Nf4 => {
                    let (words, scales) = nf4_elements(u64::from(param.n), k);
                    table.codes = CodesAt { word: at.word + words, scale: at.scale + scales };
                }
                // Experts share a tensor of the file, and gates and ups one encoding: they are one run of rows.
                Coding::File(encodings) if param.is_of_experts() => {
                    let encoding = encodings.get(param.layer, site.layers()[0]);
                    param.parts.iter_mut().for_each(|part| part.encoding = Some(encoding));
                    table.codes.word += block_words(encoding, u64::from(param.n), k);
                }
                Coding::File(encodings) => {
                    for (part, target) in param.parts.iter_mut().zip(site.layers()) {
                        let encoding = encodings.get(param.layer, *target);
                        part.encoding = Some(encoding);
                        table.codes.word += block_words(encoding, u64::from(part.rows), k);
                    }
                }
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

impl<'a> CodeBufs<'a> {
    pub(crate) fn at(&self, param: &Param) -> Option<Codes<'a>> {
        let (at, n, k) = (param.codes?, param.n as usize, param.k as usize);
        if param.parts[0].encoding.is_none() {
            let (words, scales) = nf4_elements(n as u64, k as u64);
            let words = self.words.slice(at.word as usize, words as usize);
            let all = self.scales.expect("a table of NF4 has scales");
            return Some(Codes::Nf4(Nf4::new(words, all.slice(at.scale as usize, scales as usize), n, k)));
        }
        let (mut blocks, mut word) = ([None; BLOCK_PARTS_MAX], at.word);
        let runs = if param.is_of_experts() { 1 } else { param.parts.len() };
        for (part, blocks) in param.parts[..runs].iter().zip(&mut blocks) {
            let rows = if param.is_of_experts() { n } else { part.rows as usize };
            let encoding = part.encoding.expect("the parts of a matrix are stored alike");
            let words = block_words(encoding, rows as u64, k as u64);
            let buf = self.words.slice(word as usize, words as usize);
            *blocks = Some(Blocks::new(encoding, buf, rows, k));
            word += words;
        }
        Some(Codes::Blocks(blocks))
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
