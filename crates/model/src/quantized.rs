//! Frozen weights whose products are stored in 4 bits. Each is widened into one buffer right before it is read, in rollout and update
//! alike; embeddings, norms, biases and the head stay as they are.

use crate::adapters::Site;
use crate::params::{CodesAt, Param, ParamTable};
use crate::weights::{CodeBufs, LayerParams, Params};
use plimsoll_base::{DType, ModelSpec};
use plimsoll_device::{Codes, Device, DeviceKind, Matrix, Nf4, matrix_elements, nf4_elements};
use plimsoll_memory::Buf;

impl ParamTable {
    /// The table of a decoder whose products are stored in codes. Their rows are whole blocks.
    pub fn quantized(spec: &ModelSpec, kind: DeviceKind, weights: DType) -> ParamTable {
        ParamTable::new(spec, kind, weights).in_codes()
    }

    /// The table of a critic or a reward model whose products are stored in codes.
    pub fn quantized_critic(spec: &ModelSpec, kind: DeviceKind, weights: DType) -> ParamTable {
        ParamTable::critic(spec, kind, weights).in_codes()
    }

    fn in_codes(self) -> ParamTable {
        let mut table = ParamTable::empty(self.device);
        for param in self.params {
            let key = param.offset;
            let (codes, elements) = match param.kind.site() {
                Some(_) => (Some(table.codes), 0),
                None => (None, param.elements),
            };
            if codes.is_some() {
                let (words, scales) = nf4_elements(u64::from(param.n), u64::from(param.k));
                let CodesAt { word, scale } = table.codes;
                table.codes = CodesAt { word: word + words, scale: scale + scales };
            }
            table.push(Param { key, codes, elements, ..param });
        }
        table
    }

    /// Returns the elements of the widest matrix that is stored in codes, when it is widened; 0 if there is none.
    pub fn widened_elements(&self, weights: DType) -> u64 {
        let coded = self.params.iter().filter(|param| param.codes.is_some());
        coded.map(|param| self.widened(param, weights)).max().unwrap_or(0)
    }

    fn widened(&self, param: &Param, weights: DType) -> u64 {
        matrix_elements(self.device, u64::from(param.n), u64::from(param.k), weights)
    }
}

impl<'a> CodeBufs<'a> {
    /// Returns the codes of a parameter.
    pub(crate) fn at(&self, param: &Param) -> Option<Nf4<'a>> {
        let (at, n, k) = (param.codes?, param.n as usize, param.k as usize);
        let (words, scales) = nf4_elements(n as u64, k as u64);
        let words = self.words.slice(at.word as usize, words as usize);
        Some(Nf4::new(words, self.scales.slice(at.scale as usize, scales as usize), n, k))
    }
}

impl<'a> Params<'a> {
    /// As `bind`, of a table whose products are stored in codes.
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
                params.layers[param.layer as usize].codes[site as usize] = Some(codes);
            }
        }
        params
    }

    /// Returns the sum of squares of all weights, as products read them: it identifies a model.
    pub fn sum_squares(&self, dev: &dyn Device) -> f64 {
        let coded = self.layers.iter().flat_map(|layer| {
            let coded = Site::ALL.into_iter().filter(|site| layer.codes[*site as usize].is_some());
            coded.map(|site| dev.sum_squares(layer.ready(dev, site).buf))
        });
        dev.sum_squares(self.all) + coded.sum::<f64>()
    }
}

impl<'a> LayerParams<'a> {
    /// Returns the weights of a product, widened if they are stored in codes: until the next product of such weights.
    pub(crate) fn ready(&self, dev: &dyn Device, site: Site) -> Matrix<'a> {
        let weights = self.at(site);
        if let Some(codes) = self.codes[site as usize] {
            dev.dequantize(Codes::Nf4(codes), weights);
        }
        weights
    }
}
