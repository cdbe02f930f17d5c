//! What an adapter fits, and how large it is there: folds over a model's table.

use crate::table::{TensorRow, each_row};
use crate::{LoraShape, LoraTarget, LoraTargets, ModelSpec};

impl LoraTarget {
    /// Returns the row of a layer's table that it is; `None` where the layer has no such linear layer.
    pub fn row(self, model: &ModelSpec, layer: u32) -> Option<TensorRow> {
        let mut found = None;
        each_row(model, layer, |row| {
            if row.target == Some(self) {
                found = Some(row);
            }
        });
        found
    }

    /// Returns (in, out) in a layer: the weight is [out, in], and each expert has one if the layer has experts. Both are 0 where the layer
    /// has no such linear layer.
    pub fn widths(self, model: &ModelSpec, layer: u32) -> (u32, u32) {
        self.row(model, layer).map_or((0, 0), |row| (row.cols, row.rows))
    }

    /// Returns the widths in the layer where the smaller of them is smallest, of those that have it.
    pub fn narrowest(self, model: &ModelSpec) -> (u32, u32) {
        let all = (0..model.layers).filter_map(|layer| self.row(model, layer));
        let all = all.map(|row| (row.cols, row.rows));
        all.min_by_key(|(inputs, outputs)| *inputs.min(outputs)).unwrap_or_default()
    }

    /// Returns the experts of a layer that have it, each with its number; `None` where the layer itself has it.
    pub fn of_experts(self, model: &ModelSpec, layer: u32) -> impl Iterator<Item = Option<u32>> {
        let experts = self.row(model, layer).and_then(|row| row.experts);
        (0..experts.unwrap_or(1)).map(move |expert| experts.map(|_| expert))
    }
}

/// Why adapters of some targets do not fit a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Files hold these in one tensor with others, so that no name is theirs alone.
    Fused(LoraTargets),
    /// Some layers have no such linear layer.
    NotInEveryLayer(LoraTargets),
}

impl LoraTargets {
    /// Returns why adapters of these do not fit a model, if they do not. This is the one place that decides it: callers add their words.
    pub fn unfit(self, model: &ModelSpec) -> Option<Unfit> {
        let those = |is: &dyn Fn(Option<TensorRow>) -> bool| {
            let has = |target: &LoraTarget| (0..model.layers).any(|layer| is(target.row(model, layer)));
            LoraTargets::new(self.iter().filter(has))
        };
        let fused = those(&|row| row.is_some_and(|row| row.is_fused)).map(Unfit::Fused);
        fused.or_else(|| those(&|row| row.is_none()).map(Unfit::NotInEveryLayer))
    }

    /// Returns those that adapters of this model can have: each is a tensor of its own, in every layer, or in every expert of it.
    ///
    /// Panics of a model whose layers have no linear layer in common.
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

    /// Number of trained parameters: r (in + out), summed over layers, targets and experts.
    pub fn parameters(self, model: &ModelSpec) -> u64 {
        self.sum(model, |target, layer| target.of_experts(model, layer).count() as u64)
    }

    /// Number of trained parameters that a row is computed with: of experts those that it goes to.
    pub fn active_parameters(self, model: &ModelSpec) -> u64 {
        self.sum(model, |target, layer| {
            let has_experts = target.row(model, layer).is_some_and(|row| row.experts.is_some());
            model.layer(layer).experts().filter(|_| has_experts).map_or(1, |experts| experts.chosen.into())
        })
    }

    fn sum(self, model: &ModelSpec, times: impl Fn(LoraTarget, u32) -> u64) -> u64 {
        let each = (0..model.layers).flat_map(|layer| self.targets.iter().map(move |target| (target, layer)));
        let elements = each.map(|(target, layer)| {
            let (width_in, width_out) = target.widths(model, layer);
            times(target, layer) * (u64::from(width_in) + u64::from(width_out))
        });
        u64::from(self.rank) * elements.sum::<u64>()
    }
}
