//! The regions of values whose heads are divided by the root of their mean square, and the handles to them.

use crate::activations::shape::{Life, PassShape, Regions};
use plimsoll_arch::{AttentionSpec, ModelSpec, Values};
use plimsoll_base::{DType, Result};
use plimsoll_memory::Buf;

/// Kinds of layers that share keys: with windows and without.
const KINDS: usize = 2;

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
    /// Of a layer that gives keys and values to others, or has those of another; of a pass two kinds.
    pub(super) shared: Option<SharedBufs<'p>>,
    pub(crate) gradients: Option<ValueGradients<'p>>,
}

/// What a layer has to do with the keys and values of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Others have its keys and values.
    Donor,
    /// It has those of another.
    Sharer,
    /// It is the last one that has those of another: the first in a backward pass.
    LastSharer,
}

/// Keys, before their norm, and values that several layers have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedBufs<'p> {
    /// [M, 2k d] e
    pub(super) rows: Buf<'p>,
    /// [M, 2k d] f32: the sum of the gradients of those that were given them.
    pub(super) d: Option<Buf<'p>>,
    pub(super) role: Role,
}

impl SharedBufs<'_> {
    /// Returns whether the layer has keys and values of another.
    pub(super) fn is_given(&self) -> bool {
        self.role != Role::Donor
    }
}

impl Role {
    /// Returns the role of a layer, if it has one.
    fn of(spec: &ModelSpec, layer: u32) -> Option<Role> {
        let own = spec.layer(layer).attention()?;
        let mut after = (layer + 1..spec.layers.len()).filter_map(|layer| spec.layer(layer).attention());
        let next = after.find(|next| next.window == own.window);
        match (own.values == Values::Shared, next.is_some_and(|next| next.values == Values::Shared)) {
            (true, true) => Some(Role::Sharer),
            (true, false) => Some(Role::LastSharer),
            (false, is_donor) => is_donor.then_some(Role::Donor),
        }
    }
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
    let is_shared = of.spec.attentions().any(|attention| attention.values == Values::Shared);
    if is_shared {
        to.add(Life::Pass, "values.shared", &[KINDS, m, 2 * kv], weights)?;
    }
    if of.mode.recompute().is_none() {
        return Ok(());
    }
    if is_shared {
        to.add(Life::Pass, "values.d_shared", &[KINDS, m, 2 * kv], DType::F32)?;
    }
    to.add(Life::Layer, "values.d_qkv", &[m, qkv], weights)?;
    to.add(Life::Layer, "values.d_input", &[m, kv], DType::F32)?;
    to.add(Life::Layer, "values.rstd", &[m, heads], DType::F32)
}

impl<'p> ValueBufs<'p> {
    /// Resolves the handles, if the pass has such regions.
    pub(super) fn bind(get: &impl Fn(&str) -> Option<Buf<'p>>) -> Option<ValueBufs<'p>> {
        let buf = |what: &str| get(&format!("values.{what}"));
        let shared = buf("shared").map(|rows| SharedBufs { rows, d: buf("d_shared"), role: Role::Donor });
        let gradients = buf("d_qkv").zip(buf("d_input")).zip(buf("rstd"));
        Some(ValueBufs {
            qkv: buf("qkv")?,
            input: buf("input")?,
            normed: buf("normed")?,
            zeros: buf("zeros")?,
            shared,
            gradients: gradients.map(|((qkv, input), rstd)| ValueGradients { qkv, input, rstd }),
        })
    }

    /// Returns the first `m` rows of a layer's buffers.
    pub(super) fn layer(
        &self,
        pass: &PassShape<'_>,
        (of, layer): (&AttentionSpec, u32),
        m: usize,
    ) -> ValueBufs<'p> {
        let kind = usize::from(of.window.is_some());
        let [qkv, kv, d, heads] =
            [of.qkv_width(), of.kv_width(), of.head_dim, of.kv_heads].map(|width| width as usize);
        ValueBufs {
            qkv: self.qkv.slice(0, m * qkv),
            input: self.input.slice(0, m * kv),
            normed: self.normed.slice(0, m * kv),
            zeros: self.zeros.slice(0, d),
            shared: self.shared.zip(Role::of(pass.spec, layer)).map(|(all, role)| {
                let rows = |buf: Buf<'p>| buf.part(kind, buf.len() / KINDS).slice(0, m * 2 * kv);
                SharedBufs { rows: rows(all.rows), d: all.d.map(rows), role }
            }),
            gradients: self.gradients.map(|all| ValueGradients {
                qkv: all.qkv.slice(0, m * qkv),
                input: all.input.slice(0, m * kv),
                rstd: all.rstd.slice(0, m * heads),
            }),
        }
    }
}
