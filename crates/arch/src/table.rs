//! The table of tensors: what a layer consists of, in the order of files and of the flat buffer, with all names.
//!
//! This is the one place that lists a layer's matrices. A new kind of layer adds its rows here.

use crate::param::ParamKind as Kind;
use crate::{
    AttentionSpec, CONV_TAPS, DeltaSpec, DenseSpec, ExpertsSpec, Ffn, LayerSpec, LoraTarget, Mixer,
    ModelSpec, QkNorms,
};

/// A tensor of a layer, or of each of its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorRow {
    /// The parameter that holds these rows: rows of one kind are adjacent, grouped by expert.
    pub kind: Kind,
    /// The linear layer that an adapter may change here.
    pub target: Option<LoraTarget>,
    /// Hugging Face name of the module within a layer or an expert: `self_attn.q_proj`.
    pub module: &'static str,
    /// Name within a GGUF block: `attn_q`; one tensor holds all experts.
    pub gguf: &'static str,
    /// Suffix of the module's name: `weight`, `bias`, or empty.
    pub leaf: &'static str,
    /// Rows (of one expert), or elements of a vector.
    pub rows: u32,
    /// Columns; 0 for a vector.
    pub cols: u32,
    /// Number of experts that each have one.
    pub experts: Option<u32>,
    /// True if files hold it in one tensor with its neighbours of the same module.
    pub is_fused: bool,
}

/// A matrix that a layer multiplies rows by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The parameter with the weights.
    pub kind: Kind,
    /// Outputs (of one expert, if experts have it).
    pub n: u32,
    /// Inputs.
    pub k: u32,
    /// Number of experts that each have one.
    pub experts: Option<u32>,
}

impl TensorRow {
    /// Returns the tensor's name in a layer: `mlp.experts.7.gate_proj.weight`.
    pub fn name(&self, expert: Option<u32>) -> String {
        let expert = expert.map_or(String::new(), |expert| format!("mlp.experts.{expert}."));
        format!("{expert}{}", self.with_leaf(self.module))
    }

    /// Returns the tensor's name in a GGUF block; one tensor holds all experts.
    pub fn gguf_name(&self) -> String {
        self.with_leaf(self.gguf)
    }

    fn with_leaf(&self, module: &str) -> String {
        if self.leaf.is_empty() { module.to_string() } else { format!("{module}.{}", self.leaf) }
    }

    /// Returns the tensor's shape in files (of one expert), slowest axis first.
    pub fn shape(&self) -> Vec<u64> {
        let (rows, cols) = (self.rows.into(), self.cols.into());
        match (self.kind, self.cols) {
            // A depthwise convolution: one group per channel.
            (Kind::DeltaConv, _) => vec![rows, 1, cols],
            (_, 0) => vec![rows],
            _ => vec![rows, cols],
        }
    }

    /// Returns the number of elements (of one expert).
    pub fn elements(&self) -> u64 {
        u64::from(self.rows) * u64::from(self.cols.max(1))
    }
}

/// Calls `add` with each tensor of a layer.
pub(crate) fn each_row(spec: &ModelSpec, layer: u32, mut add: impl FnMut(TensorRow)) {
    let LayerSpec { norms, mixer, ffn } = spec.layer(layer);
    let (h, is_fused) = (spec.hidden, spec.architecture().is_fused);
    let norm = |kind, names: Option<[&'static str; 2]>, part: usize, gguf| {
        names.map(|names| vector(kind, (names[part], gguf, "weight"), h))
    };
    // llama.cpp names the second norm after its place in families with linear attention.
    let second = if spec.architecture().has_delta { "post_attention_norm" } else { "ffn_norm" };
    norm(Kind::AttnNorm, norms.before, 0, "attn_norm").into_iter().for_each(&mut add);
    match mixer {
        Mixer::Delta(delta) => of_delta(delta, h, &mut add),
        Mixer::Attention(attention) => of_attention(attention, (h, is_fused), &mut add),
    }
    norm(Kind::AttnPostNorm, norms.after, 0, "post_attention_norm").into_iter().for_each(&mut add);
    norm(Kind::FfnNorm, norms.before, 1, second).into_iter().for_each(&mut add);
    match ffn {
        Ffn::Experts(experts) => of_experts(experts, h, &mut add),
        Ffn::Dense(dense) => of_dense(dense, (h, is_fused), &mut add),
    }
    norm(Kind::FfnPostNorm, norms.after, 1, "post_ffw_norm").into_iter().for_each(&mut add);
}

fn vector(
    kind: Kind,
    (module, gguf, leaf): (&'static str, &'static str, &'static str),
    rows: u32,
) -> TensorRow {
    TensorRow { kind, target: None, module, gguf, leaf, rows, cols: 0, experts: None, is_fused: false }
}

fn matrix(kind: Kind, (module, gguf): (&'static str, &'static str), [rows, cols]: [u32; 2]) -> TensorRow {
    TensorRow { cols, ..vector(kind, (module, gguf, "weight"), rows) }
}

impl TensorRow {
    fn of(self, target: LoraTarget) -> TensorRow {
        TensorRow { target: Some(target), ..self }
    }

    /// Returns the row as part of a fused tensor of the file, if `is_fused`.
    fn fused(self, is_fused: bool, module: &'static str, gguf: &'static str) -> TensorRow {
        if is_fused { TensorRow { module, gguf, is_fused, ..self } } else { self }
    }
}

/// Adds the tensors of softmax attention; `h` is the model's width.
fn of_attention(of: AttentionSpec, (h, is_fused): (u32, bool), add: &mut impl FnMut(TensorRow)) {
    let (d, q, kv) = (of.head_dim, of.q_width(), of.kv_width());
    let of_q = if of.gated { 2 * q } else { q };
    let parts = [
        (LoraTarget::Q, "self_attn.q_proj", "attn_q", of_q),
        (LoraTarget::K, "self_attn.k_proj", "attn_k", kv),
        (LoraTarget::V, "self_attn.v_proj", "attn_v", kv),
    ];
    for (target, module, gguf, rows) in parts {
        let row = matrix(Kind::Qkv, (module, gguf), [rows, h]).of(target);
        add(row.fused(is_fused, "self_attn.qkv_proj", "attn_qkv"));
    }
    if of.qkv_bias {
        for (_, module, gguf, rows) in parts {
            let row = vector(Kind::QkvBias, (module, gguf, "bias"), rows);
            add(row.fused(is_fused, "self_attn.qkv_proj", "attn_qkv"));
        }
    }
    if let Some(norms) = of.qk_norms {
        let [q, k] = if norms == QkNorms::Rows { [q, kv] } else { [d, d] };
        add(vector(Kind::QNorm, ("self_attn.q_norm", "attn_q_norm", "weight"), q));
        add(vector(Kind::KNorm, ("self_attn.k_norm", "attn_k_norm", "weight"), k));
    }
    add(matrix(Kind::Output, ("self_attn.o_proj", "attn_output"), [h, q]).of(LoraTarget::O));
    if of.output_bias {
        add(vector(Kind::OutputBias, ("self_attn.o_proj", "attn_output", "bias"), h));
    }
}

/// Adds the tensors of linear attention; `h` is the model's width.
fn of_delta(delta: DeltaSpec, h: u32, add: &mut impl FnMut(TensorRow)) {
    let (conv, v, heads) = (delta.conv_width(), delta.value_width(), delta.value_heads);
    for (module, gguf, rows) in [
        ("linear_attn.in_proj_qkv", "attn_qkv", conv),
        ("linear_attn.in_proj_z", "attn_gate", v),
        ("linear_attn.in_proj_b", "ssm_beta", heads),
        ("linear_attn.in_proj_a", "ssm_alpha", heads),
    ] {
        add(matrix(Kind::Qkv, (module, gguf), [rows, h]));
    }
    add(matrix(Kind::DeltaConv, ("linear_attn.conv1d", "ssm_conv1d"), [conv, CONV_TAPS]));
    add(vector(Kind::DeltaDecay, ("linear_attn.A_log", "ssm_a", ""), heads));
    add(vector(Kind::DeltaBias, ("linear_attn.dt_bias", "ssm_dt.bias", ""), heads));
    add(vector(Kind::DeltaNorm, ("linear_attn.norm", "ssm_norm", "weight"), delta.value_dim));
    add(matrix(Kind::Output, ("linear_attn.out_proj", "ssm_out"), [h, v]));
}

/// Adds the tensors of a dense feed-forward part; `h` is the model's width.
fn of_dense(of: DenseSpec, (h, is_fused): (u32, bool), add: &mut impl FnMut(TensorRow)) {
    let f = of.width;
    // llama.cpp splits `ffn_up` in halves if there is no `ffn_gate`.
    let fused = |row: TensorRow| row.fused(is_fused, "mlp.gate_up_proj", "ffn_up");
    let (gate, up) = (("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"));
    add(fused(matrix(Kind::GateUp, gate, [f, h]).of(LoraTarget::Gate)));
    add(fused(matrix(Kind::GateUp, up, [f, h]).of(LoraTarget::Up)));
    add(matrix(Kind::Down, ("mlp.down_proj", "ffn_down"), [h, f]).of(LoraTarget::Down));
    if of.bias {
        for (module, gguf) in [gate, up] {
            add(fused(vector(Kind::GateUpBias, (module, gguf, "bias"), f)));
        }
        add(vector(Kind::DownBias, ("mlp.down_proj", "ffn_down", "bias"), h));
    }
}

/// Adds the tensors of a router and its experts; `h` is the model's width.
fn of_experts(experts: ExpertsSpec, h: u32, add: &mut impl FnMut(TensorRow)) {
    let f = experts.ffn;
    let each = |row: TensorRow| TensorRow { experts: Some(experts.count), ..row };
    add(matrix(Kind::Router, ("mlp.gate", "ffn_gate_inp"), [experts.count, h]));
    add(each(matrix(Kind::GateUp, ("gate_proj", "ffn_gate_exps"), [f, h]).of(LoraTarget::Gate)));
    add(each(matrix(Kind::GateUp, ("up_proj", "ffn_up_exps"), [f, h]).of(LoraTarget::Up)));
    add(each(matrix(Kind::Down, ("down_proj", "ffn_down_exps"), [h, f]).of(LoraTarget::Down)));
}

/// Returns the tensors of a layer.
pub fn layer_rows(spec: &ModelSpec, layer: u32) -> Vec<TensorRow> {
    let mut rows = Vec::with_capacity(20);
    each_row(spec, layer, |row| rows.push(row));
    rows
}

/// Returns the tensors of a layer as files hold them, fused rows as one.
pub fn file_rows(spec: &ModelSpec, layer: u32) -> Vec<TensorRow> {
    let mut rows = layer_rows(spec, layer);
    rows.dedup_by(|next, row| {
        let is_one = row.is_fused && (row.kind, row.module) == (next.kind, next.module);
        if is_one {
            (row.rows, row.target) = (row.rows + next.rows, None);
        }
        is_one
    });
    rows
}

/// Returns the tensors of a layer as files hold them, once per expert, grouped by expert.
pub fn layer_tensors(spec: &ModelSpec, layer: u32) -> Vec<(TensorRow, Option<u32>)> {
    let mut tensors: Vec<(TensorRow, Option<u32>)> = Vec::with_capacity(20);
    for rows in file_rows(spec, layer).chunk_by(|a, b| a.kind == b.kind) {
        match rows[0].experts {
            Some(count) => {
                tensors
                    .extend((0..count).flat_map(|expert| rows.iter().map(move |row| (*row, Some(expert)))));
            }
            None => tensors.extend(rows.iter().map(|row| (*row, None))),
        }
    }
    tensors
}

/// Returns the matrices that a layer multiplies rows by; those with a common input are one.
pub fn products(spec: &ModelSpec, layer: u32) -> Vec<Product> {
    let mut products: Vec<Product> = Vec::with_capacity(5);
    each_row(spec, layer, |TensorRow { kind, rows, cols, experts, .. }| {
        if let Some(product) = products.iter_mut().find(|product| product.kind == kind) {
            product.n += rows;
        } else if kind.is_product() {
            products.push(Product { kind, n: rows, k: cols, experts });
        }
    });
    products
}

/// Returns names and shapes of the tensors of a model with this spec, in the order in which they are saved.
///
/// A tied head is not listed: it is the embedding.
pub fn expected_tensors(spec: &ModelSpec) -> Vec<(String, Vec<u64>)> {
    let (v, h) = (u64::from(spec.vocab), u64::from(spec.hidden));
    let mut list = vec![("model.embed_tokens.weight".to_string(), vec![v, h])];
    for layer in 0..spec.layers.len() {
        let name = |(row, expert): (TensorRow, Option<u32>)| {
            (format!("model.layers.{layer}.{}", row.name(expert)), row.shape())
        };
        list.extend(layer_tensors(spec, layer).into_iter().map(name));
    }
    list.push(("model.norm.weight".to_string(), vec![h]));
    if !spec.tied {
        list.push(("lm_head.weight".to_string(), vec![v, h]));
    }
    list
}
