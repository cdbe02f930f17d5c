//! Plans of runs on machines that are not at hand: what fits, what `"auto"` becomes, and whether hints hold.

mod hints;
mod rig;
