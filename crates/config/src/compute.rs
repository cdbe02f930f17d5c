//! The values of `model_options.compute`.

use crate::values::Expecting;
use plimsoll_arch::Compute;
use schemars::{Schema, SchemaGenerator, json_schema};

impl Expecting for Compute {
    const EXPECTING: &'static str = "\"full\" or \"fp8\"";
}

pub(crate) fn compute_schema(_: &mut SchemaGenerator) -> Schema {
    let [full, fp8] = Compute::ALL.map(Compute::name);
    json_schema!({ "enum": ["auto", full, fp8] })
}
