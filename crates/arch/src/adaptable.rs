//! Which linear layers of a model adapters and codes fit, and their shapes there: folds over the model's table.

use crate::table::{each_row, products};
use crate::tensor_row::TensorRow;
use crate::{LoraShape, LoraTarget, LoraTargets, ModelSpec, Quantization, Site};

impl LoraTarget {
    /// Returns this target's row of a layer's table; `None` if the layer has no such linear layer.
    pub fn row(self, model: &ModelSpec, layer: u32) -> Option<TensorRow> {
        let mut found = None;
        each_row(model, layer, |row| {
            if row.target == Some(self) {
                found = Some(row);
            }
        });
        found
    }

    /// Returns (in, out) in a layer; the weight is [out, in], once per expert. Both are 0 if there is no such weight.
    pub fn widths(self, model: &ModelSpec, layer: u32) -> (u32, u32) {
        self.row(model, layer).map_or((0, 0), |row| (row.cols, row.rows))
    }

    /// Returns the widths in the layer where the smaller of the two is smallest.
    pub fn narrowest(self, model: &ModelSpec) -> (u32, u32) {
        let all = (0..model.layers.len()).filter_map(|layer| self.row(model, layer));
        let all = all.map(|row| (row.cols, row.rows));
        all.min_by_key(|(inputs, outputs)| *inputs.min(outputs)).unwrap_or_default()
    }

    /// Returns the index of each expert of a layer; one `None` if the weight belongs to the layer itself.
    pub fn of_experts(self, model: &ModelSpec, layer: u32) -> impl Iterator<Item = Option<u32>> {
        let experts = self.row(model, layer).and_then(|row| row.experts);
        (0..experts.unwrap_or(1)).map(move |expert| experts.map(|_| expert))
    }
}

/// Why adapters of some targets do not fit a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Files hold these fused with others in one tensor, so no tensor name is theirs alone.
    Fused(LoraTargets),
    /// Some layers have no such linear layer.
    NotInEveryLayer(LoraTargets),
}

impl LoraTargets {
    /// Returns why adapters of these targets do not fit a model, if they do not. The only place that decides it.
    pub fn unfit(self, model: &ModelSpec) -> Option<Unfit> {
        let those = |is: &dyn Fn(Option<TensorRow>) -> bool| {
            let has = |target: &LoraTarget| (0..model.layers.len()).any(|layer| is(target.row(model, layer)));
            LoraTargets::new(self.iter().filter(has))
        };
        let fused = those(&|row| row.is_some_and(|row| row.is_fused)).map(Unfit::Fused);
        fused.or_else(|| those(&|row| row.is_none()).map(Unfit::NotInEveryLayer))
    }

    /// Returns the targets that adapters of this model can have: those with their own tensor in every layer or expert.
    ///
    /// Panics if a model's layers have no linear layer in common.
    pub fn built_for(model: &ModelSpec) -> LoraTargets {
        let fits =
            |target: &LoraTarget| LoraTargets::new([*target]).is_some_and(|one| one.unfit(model).is_none());
        LoraTargets::new(LoraTarget::ALL.into_iter().filter(fits)).expect("layers end in one linear layer")
    }
}

impl LoraShape {
    /// Returns the shapes of A, [r, in], and of B, [out, r], in a layer.
    pub fn shapes(self, target: LoraTarget, model: &ModelSpec, layer: u32) -> ([u32; 2], [u32; 2]) {
        let (width_in, width_out) = target.widths(model, layer);
        ([self.rank, width_in], [width_out, self.rank])
    }

    /// Returns the number of trained parameters: r (in + out), summed over layers, targets and experts.
    pub fn parameters(self, model: &ModelSpec) -> u64 {
        self.sum(model, |target, layer| target.of_experts(model, layer).count() as u64)
    }

    /// Returns the number of trained parameters that compute one row: of the experts, only the chosen ones.
    pub fn active_parameters(self, model: &ModelSpec) -> u64 {
        self.sum(model, |target, layer| {
            let has_experts = target.row(model, layer).is_some_and(|row| row.experts.is_some());
            model.layer(layer).experts().filter(|_| has_experts).map_or(1, |experts| experts.chosen.into())
        })
    }

    fn sum(self, model: &ModelSpec, times: impl Fn(LoraTarget, u32) -> u64) -> u64 {
        let each =
            (0..model.layers.len()).flat_map(|layer| self.targets.iter().map(move |target| (target, layer)));
        let elements = each.map(|(target, layer)| {
            let (width_in, width_out) = target.widths(model, layer);
            times(target, layer) * (u64::from(width_in) + u64::from(width_out))
        });
        u64::from(self.rank) * elements.sum::<u64>()
    }
}

impl Quantization {
    /// True if the rows of every linear layer are whole blocks; those of a GGUF file always are.
    pub fn takes(self, model: &ModelSpec) -> bool {
        let Some(block) = self.encoding().map(|encoding| encoding.block_values()) else { return true };
        let mut all = (0..model.layers.len()).flat_map(|layer| products(model, layer));
        all.all(|product| u64::from(product.k).is_multiple_of(block))
    }
}

impl Site {
    /// Returns the targets that have an adapter, each with the index of its first output (within one expert, if any).
    pub fn targets(
        self,
        spec: &ModelSpec,
        lora: LoraShape,
        layer: u32,
    ) -> impl Iterator<Item = (LoraTarget, usize)> {
        let mut first = 0;
        let each = self.layers().iter().map(move |&target| {
            let start = first;
            first += target.widths(spec, layer).1 as usize;
            (target, start)
        });
        each.filter(move |(target, _)| lora.targets.contains(*target))
    }
}
