//! What a layer consists of: a mixer, which is attention or linear attention, and a feed-forward part, which is dense
//! or made of experts.
//!
//! Each part owns its regions with the time that they are kept, the handles to them, its forward pass and its
//! gradients. What passes from one product of a layer to the next is the layer's, not a part's.

pub(crate) mod attention;
pub(crate) mod delta;
pub(crate) mod dense;
pub(crate) mod experts;
