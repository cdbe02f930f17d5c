//! The tensors of one file of a checkpoint.

use plimsoll_model::{FlatTensors, ParamTable};

#[derive(Debug)]
pub(super) struct TensorsOf<'a> {
    pub(super) file: &'static str,
    pub(super) table: ParamTable,
    pub(super) sets: Vec<FlatTensors<'a>>,
}
