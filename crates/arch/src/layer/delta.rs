//! Layers with linear attention: Gated DeltaNet, instead of attention over keys.

use crate::param::ParamKind as Kind;
use crate::tensor_row::{KeyGroups, TensorRow, matrix, vector};
use crate::{LoraTarget, Site};

/// Inputs that the convolution of queries, keys and values reads: its own row and the three before it.
pub const CONV_TAPS: u32 = 4;
/// Maximum elements of a head of queries, keys or values; a multiple of `DELTA_HEAD_STEP`.
pub const DELTA_HEAD_MAX: u32 = 128;
/// Divisor of the elements of a linear-attention head.
pub const DELTA_HEAD_STEP: u32 = 16;

/// The heads of a layer with linear attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSpec {
    /// Heads of queries and keys.
    pub key_heads: u32,
    /// Heads of values, a multiple of `key_heads`.
    pub value_heads: u32,
    /// Elements of a head of queries or keys.
    pub key_dim: u32,
    /// Elements of a head of values.
    pub value_dim: u32,
}

impl DeltaSpec {
    /// Returns the elements of all heads of queries, or of keys.
    pub const fn key_width(&self) -> u32 {
        self.key_heads * self.key_dim
    }

    /// Returns the elements of all heads of values.
    pub const fn value_width(&self) -> u32 {
        self.value_heads * self.value_dim
    }

    /// Returns the elements of queries, keys and values together, which the convolution reads.
    pub const fn conv_width(&self) -> u32 {
        2 * self.key_width() + self.value_width()
    }

    /// Returns the outputs per row of the input products: q, k, v, a gate per value, and two numbers per value head.
    pub const fn input_width(&self) -> u32 {
        self.conv_width() + self.value_width() + 2 * self.value_heads
    }

    /// Returns the elements of one layer's state of a sequence.
    pub const fn state(&self) -> u32 {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Returns the FLOPs of a row between the products: a state is decayed, read twice and added to.
    pub(super) fn flops(&self) -> u64 {
        8 * u64::from(self.state())
    }

    /// Calls `add` with each tensor; `is_grouped`: files have the input rows by key heads, in two tensors.
    pub(super) fn rows(&self, h: u32, is_grouped: bool, add: &mut impl FnMut(TensorRow)) {
        let (conv, v, heads) = (self.conv_width(), self.value_width(), self.value_heads);
        let input = |of, names, rows| matrix(Kind::Weight(Site::Delta), names, [rows, h]).of(of);
        if is_grouped {
            let (d, each) = (self.key_dim, heads / self.key_heads.max(1));
            let of_heads = [d, d, each * self.value_dim, each * self.value_dim];
            let grouped = |row: TensorRow, kinds| {
                let groups = Some(KeyGroups { heads: self.key_heads, kinds });
                TensorRow { groups, ..row }
            };
            let qkvz = ("linear_attn.in_proj_qkvz", "ssm_in");
            add(grouped(input(LoraTarget::DeltaQkvz, qkvz, conv + v), of_heads));
            let ba = ("linear_attn.in_proj_ba", "ssm_ba");
            add(grouped(input(LoraTarget::DeltaBa, ba, 2 * heads), [each, each, 0, 0]));
        } else {
            add(input(LoraTarget::DeltaQkv, ("linear_attn.in_proj_qkv", "attn_qkv"), conv));
            add(input(LoraTarget::DeltaZ, ("linear_attn.in_proj_z", "attn_gate"), v));
            add(input(LoraTarget::DeltaB, ("linear_attn.in_proj_b", "ssm_beta"), heads));
            add(input(LoraTarget::DeltaA, ("linear_attn.in_proj_a", "ssm_alpha"), heads));
        }
        add(matrix(Kind::DeltaConv, ("linear_attn.conv1d", "ssm_conv1d"), [conv, CONV_TAPS]));
        add(vector(Kind::DeltaDecay, ("linear_attn.A_log", "ssm_a", ""), heads));
        add(vector(Kind::DeltaBias, ("linear_attn.dt_bias", "ssm_dt.bias", ""), heads));
        add(vector(Kind::DeltaNorm, ("linear_attn.norm", "ssm_norm", "weight"), self.value_dim));
        let out = ("linear_attn.out_proj", "ssm_out");
        add(matrix(Kind::Weight(Site::DeltaOutput), out, [h, v]).of(LoraTarget::DeltaOut));
    }
}
