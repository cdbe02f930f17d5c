//! The parts of a layer: a mixer, softmax or linear attention, and a feed-forward part, dense or of experts.
//!
//! Each part owns its regions and how long they are kept, their handles, its forward pass and its gradients. What
//! passes from one product of a layer to the next belongs to the layer, not to a part.

pub(crate) mod attention;
pub(crate) mod delta;
pub(crate) mod dense;
pub(crate) mod experts;
