//! The regions of values whose heads are divided by the root of their mean square, and the handles to them.

use crate::activations::shape::{Life, Regions};
use plimsoll_arch::{AttentionSpec, Values};
use plimsoll_base::{DType, Result};
use plimsoll_memory::Buf;

/// Buffers of normalised values, for one layer at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueBufs<'p> {
    /// [M, (a + 2k) d] e: q, k and the values.
    pub(crate) qkv: Buf<'p>,
    /// [M, k d] f32: values before their norm.
    pub(super) input: Buf<'p>,
    /// [M, k d] e: values, and then their gradient.
    pub(super) normed: Buf<'p>,
    /// [d] e: the norm has no weights, which is weights of 1 + 0.
    pub(super) zeros: Buf<'p>,
    pub(crate) gradients: Option<ValueGradients<'p>>,
}

/// Gradients of normalised values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueGradients<'p> {
    /// [M, (a + 2k) d] e: that of `ValueBufs::qkv`.
    pub(crate) qkv: Buf<'p>,
    /// [M, k d] f32: that of `ValueBufs::input`.
    pub(super) input: Buf<'p>,
    /// [M k] f32
    pub(super) rstd: Buf<'p>,
}

/// Adds the buffers, if a layer has such values.
///
/// Errors: `size-overflow`.
pub(crate) fn add_regions(to: &mut Regions<'_>) -> Result<()> {
    let (of, weights, m) = (to.of, to.weights, to.of.limits.rows);
    let those = || of.spec.attentions().filter(|attention| attention.values != Values::Own);
    let most = |number: fn(&AttentionSpec) -> u32| those().map(|of| number(&of)).max().map(|n| n as usize);
    let (Some(qkv), Some(kv), Some(d), Some(heads)) =
        (most(|of| of.qkv_width()), most(|of| of.kv_width()), most(|of| of.head_dim), most(|of| of.kv_heads))
    else {
        return Ok(());
    };
    to.add(Life::Layer, "values.qkv", &[m, qkv], weights)?;
    to.add(Life::Layer, "values.input", &[m, kv], DType::F32)?;
    to.add(Life::Layer, "values.normed", &[m, kv], weights)?;
    to.add(Life::Layer, "values.zeros", &[d], weights)?;
    if of.mode.recompute().is_none() {
        return Ok(());
    }
    to.add(Life::Layer, "values.d_qkv", &[m, qkv], weights)?;
    to.add(Life::Layer, "values.d_input", &[m, kv], DType::F32)?;
    to.add(Life::Layer, "values.rstd", &[m, heads], DType::F32)
}

impl<'p> ValueBufs<'p> {
    /// Resolves the handles, if the pass has such regions.
    pub(super) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<ValueBufs<'p>> {
        let buf = |what: &str| get(&format!("values.{what}"));
        let gradients = buf("d_qkv").zip(buf("d_input")).zip(buf("rstd"));
        Some(ValueBufs {
            qkv: buf("qkv")?,
            input: buf("input")?,
            normed: buf("normed")?,
            zeros: buf("zeros")?,
            gradients: gradients.map(|((qkv, input), rstd)| ValueGradients { qkv, input, rstd }),
        })
    }

    /// Returns the first `m` rows of a layer's buffers.
    pub(super) fn layer(&self, of: &AttentionSpec, m: usize) -> ValueBufs<'p> {
        let [qkv, kv, d, heads] =
            [of.qkv_width(), of.kv_width(), of.head_dim, of.kv_heads].map(|width| width as usize);
        ValueBufs {
            qkv: self.qkv.slice(0, m * qkv),
            input: self.input.slice(0, m * kv),
            normed: self.normed.slice(0, m * kv),
            zeros: self.zeros.slice(0, d),
            gradients: self.gradients.map(|all| ValueGradients {
                qkv: all.qkv.slice(0, m * qkv),
                input: all.input.slice(0, m * kv),
                rstd: all.rstd.slice(0, m * heads),
            }),
        }
    }
}
