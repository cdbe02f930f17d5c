//! Arguments of operations for rows of images: in a tower, and among the rows of a text.

use plimsoll_arch::RopeAxes;
use plimsoll_memory::Buf;

/// Places of rows that have three numbers each, in place of one position.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// [M, 3] u32: time, height and width of each row. They choose the angles; a row's key stays at its position.
    pub places: Buf<'a>,
    /// Which number each pair of a head takes.
    pub of: RopeAxes,
}

/// A norm by mean and variance.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// [h]
    pub w: Buf<'a>,
    /// [h]
    pub b: Buf<'a>,
    pub eps: f32,
}

/// Gradients of a norm by mean and variance.
#[derive(Clone, Copy, Debug)]
pub struct LayerNormGrads<'a> {
    /// [M, h] f32, added to.
    pub dx: Buf<'a>,
    /// [M, h] e: the new `dx`, rounded for the products that follow.
    pub rounded: Option<Buf<'a>>,
    /// [h] each: gradients of the weight and of the bias; none if they are frozen.
    pub dw_db: Option<(Buf<'a>, Buf<'a>)>,
    /// True if `dw_db` are added to, false if overwritten.
    pub add: bool,
    /// [2, M] f32: scratch.
    pub stats: Buf<'a>,
}
