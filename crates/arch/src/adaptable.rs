//! Which linear layers of a model adapters and codes fit, and their shapes there: folds over the model's table.

use crate::table::{each_row, products};
use crate::tensor_row::TensorRow;
use crate::{LoraShape, LoraTarget, LoraTargets, ModelSpec, ParamKind, Quantization, Site};

impl LoraTarget {
    /// Returns its path in a decoder layer of a model, or in one of the layer's experts.
    pub fn path_in(self, model: &ModelSpec, expert: Option<u32>) -> String {
        if self.is_of_all_experts() && model.architecture().joins_dense {
            return self.name().to_string(); // Next to `mlp`, not inside.
        }
        self.path(expert)
    }

    /// Returns this target's row of a layer's table; `None` if the layer has no such linear layer. Of all experts in
    /// one, it is that of one expert.
    pub fn row(self, model: &ModelSpec, layer: u32) -> Option<TensorRow> {
        let mut found = None;
        each_row(model, layer, |row| {
            if row.target == Some(self) {
                found = Some(row);
            }
        });
        // Where experts are apart, those of all are the rows of each.
        if let ([first, rest @ ..], None) = (self.spans(), found) {
            let first = first.row(model, layer).filter(|row| row.experts.is_some())?;
            let rest = rest.iter().filter_map(|target| target.row(model, layer)).map(|row| row.rows);
            let rows = first.rows + rest.sum::<u32>();
            return Some(TensorRow { rows, target: Some(self), ..first });
        }
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

    /// Returns the index of each expert of a layer; one `None` if the weight belongs to the layer itself, and nothing
    /// if the layer has no such weight.
    pub fn of_experts(self, model: &ModelSpec, layer: u32) -> impl Iterator<Item = Option<u32>> {
        let row = self.row(model, layer);
        let experts = row.and_then(|row| row.experts);
        let count = if row.is_some() { experts.unwrap_or(1) } else { 0 };
        (0..count).map(move |expert| experts.map(|_| expert))
    }
}

/// Why adapters of some targets do not fit a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Files hold these fused with others in one tensor, so no tensor name is theirs alone.
    Fused(LoraTargets),
    /// No layer has such a linear layer.
    InNoLayer(LoraTargets),
    /// peft turns these names into adapters of other parameters: those of all routed experts in one.
    OtherInPeft(LoraTargets),
    /// These change the same weights as others of the targets.
    Twice(LoraTargets),
}

impl LoraTargets {
    /// Returns why adapters of these targets do not fit a model, if they do not. The only place that decides it.
    pub fn unfit(self, model: &ModelSpec) -> Option<Unfit> {
        let rows =
            |target: LoraTarget| (0..model.layers.len()).filter_map(move |layer| target.row(model, layer));
        let fused = self.iter().filter(|target| rows(*target).any(|row| row.is_fused));
        let absent = || self.iter().filter(|target| rows(*target).next().is_none());
        // Of Qwen3-Next peft converts every name of a feed-forward part, that of a shared expert too.
        let row = model.architecture();
        let converts = row.has_shared_expert && !row.has_experts_alone;
        let ffn = |target: &LoraTarget| {
            LoraTargets::FFN.contains(*target) || target.name().contains('.') && target.parameter().is_none()
        };
        let other = || self.iter().filter(|target| converts && ffn(target));
        let fused = LoraTargets::new(fused).map(Unfit::Fused);
        let absent = fused.or_else(|| LoraTargets::new(absent()).map(Unfit::InNoLayer));
        let other = absent.or_else(|| LoraTargets::new(other()).map(Unfit::OtherInPeft));
        let is_of_experts = |target| rows(target).any(|row| row.experts.is_some());
        let twice = |target: &LoraTarget| self.spans(*target) && is_of_experts(*target);
        other.or_else(|| LoraTargets::new(self.iter().filter(twice)).map(Unfit::Twice))
    }

    /// Returns whether one of these is all experts' of another one.
    fn spans(self, target: LoraTarget) -> bool {
        self.iter().any(|whole| whole.spans().contains(&target))
    }

    /// Returns what these targets of a run file reach in a model. As in peft, a name is that of each linear layer whose
    /// path ends with it, so those of a feed-forward part are also those of a shared expert. Where all experts of a
    /// layer are one parameter, no name of a linear layer reaches them.
    pub fn of_model(self, model: &ModelSpec) -> LoraTargets {
        use LoraTarget::{Down, Gate, SharedDown, SharedGate, SharedUp, Up};
        let layers = 0..model.layers.len();
        let has = |target: LoraTarget| layers.clone().any(|layer| target.row(model, layer).is_some());
        let alike = [(Gate, SharedGate), (Up, SharedUp), (Down, SharedDown)];
        let is_one = model.architecture().has_experts_alone;
        let reached = |target: LoraTarget| {
            let own = self.contains(target) && !(is_one && alike.iter().any(|(of, _)| *of == target));
            own || alike.iter().any(|(of, shared)| *shared == target && self.contains(*of) && has(target))
        };
        LoraTargets::new(LoraTarget::ALL.into_iter().filter(|target| reached(*target))).unwrap_or(self)
    }

    /// Returns those that some layer of a model has; none if there is no such.
    pub fn present_in(self, model: &ModelSpec) -> Option<LoraTargets> {
        let is_there = |target: &LoraTarget| target.narrowest(model) != (0, 0);
        LoraTargets::new(self.of_model(model).iter().filter(is_there))
    }

    /// Returns the targets that adapters of this model can have, as a run file names them: those with own tensors.
    ///
    /// Panics for a model without linear layers.
    pub fn built_for(model: &ModelSpec) -> LoraTargets {
        if LoraTargets::ALL.of_model(model).unfit(model).is_none() {
            return LoraTargets::ALL;
        }
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

    /// Returns in words what adapters reach and what stays frozen, for a model whose layers differ; none for others.
    pub fn reach(self, model: &ModelSpec) -> Option<String> {
        let words = |target: LoraTarget| {
            let rows = (0..model.layers.len()).filter_map(|layer| target.row(model, layer));
            let (layers, each) = rows.fold((0, ""), |(count, each), row| {
                (count + 1, if row.experts.is_some() { "each expert's " } else { each })
            });
            let each = if target.is_of_all_experts() { "" } else { each };
            (layers > 0).then(|| format!("{each}{target} ({layers} layers)"))
        };
        let of = |is_in: bool| {
            let is_one = |target: &LoraTarget| {
                let is_named = self.targets.spans(*target) || target.is_of_all_experts();
                self.targets.contains(*target) == is_in && (is_in || !is_named)
            };
            LoraTarget::ALL.into_iter().filter(is_one).filter_map(words).collect::<Vec<_>>().join(", ")
        };
        let frozen = of(false);
        let frozen = if frozen.is_empty() { String::new() } else { format!("; frozen: {frozen}") };
        model.has_states().then(|| format!("adapters of {}{frozen}", of(true)))
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
        let whole = self.of_all_experts().filter(|target| lora.targets.contains(*target));
        let whole = whole.filter(|target| self.row(*target, spec, layer).is_some()).map(|target| (target, 0));
        let mut first = 0;
        let each = self.layers().iter().map(move |&target| {
            let rows = self.row(target, spec, layer).map_or(0, |row| row.rows);
            let (start, width) = (first, rows as usize);
            first += width;
            (target, start, width)
        });
        let there = each.filter(move |(target, _, width)| *width > 0 && lora.targets.contains(*target));
        whole.into_iter().chain(there.map(|(target, start, _)| (target, start)))
    }

    /// Returns whether adapters change the product in a layer.
    pub fn has_adapter(self, spec: &ModelSpec, lora: LoraShape, layer: u32) -> bool {
        self.targets(spec, lora, layer).next().is_some()
    }

    /// Returns a linear layer of the product that a layer of the model has; the others have its inputs and its experts.
    pub fn target(self, spec: &ModelSpec, layer: u32) -> Option<LoraTarget> {
        let mut all = self.layers().iter().copied().chain(self.of_all_experts());
        all.find(|target| self.row(*target, spec, layer).is_some())
    }

    /// Returns S r, the width of A x, the largest of all layers; 0 without an adapter.
    pub fn width(self, spec: &ModelSpec, lora: LoraShape) -> usize {
        let with = (0..spec.layers.len()).filter(|layer| spec.layer(*layer).has(self));
        let most = with.map(|layer| self.targets(spec, lora, layer).count()).max().unwrap_or(0);
        most * lora.rank as usize
    }

    /// Returns the outputs in a layer (of one expert, if any).
    pub fn outputs(self, spec: &ModelSpec, layer: u32) -> u32 {
        let mut outputs = 0;
        each_row(spec, layer, |row| {
            outputs += if row.kind == ParamKind::Weight(self) { row.rows } else { 0 }
        });
        outputs
    }

    /// Returns a target's row of a layer's table, if it is of this product there.
    fn row(self, target: LoraTarget, spec: &ModelSpec, layer: u32) -> Option<TensorRow> {
        target.row(spec, layer).filter(|row| row.kind == ParamKind::Weight(self))
    }
}
