//! Plans of runs on machines that are not at hand: what fits, what `"auto"` becomes, and whether hints hold.

mod auto;
mod cards;
mod hints;
mod invariants;
mod limits;
mod rig;
mod rows;
mod words;
