//! What does not go together among adapters, the optimizer, where weights lie, and how long a run is.

use super::setting::{Conflict, Setting, first, no, when, which};
use super::shared::{ENVIRONMENT, POLICY, WHOLE_ON_RANKS};
use crate::Frozen;
use crate::sections::RunFile;
use crate::values::{Auto, GradientWire, ModelDtype, Offload, OptimizerDtype};
use plimsoll_arch::Compute;

const LORA: Setting = when("lora", "[lora]", |run| run.lora.is_some(), &["lora.rank=4"]);
const MERGED: Setting = when(
    "lora.merge",
    "lora.merge = true",
    |run| run.lora.as_ref().is_some_and(|lora| lora.merge == Auto::Value(true)),
    &["lora.merge=true"],
);
const CODED: Setting = when(
    "lora.quantize",
    "lora.quantize",
    |run| run.lora.as_ref().is_some_and(|lora| lora.quantize.is_some()),
    &["lora.quantize=nf4"],
);
const MUON: Setting = when(
    "train.optimizer",
    "train.optimizer = \"muon\"",
    |run| !run.train.optimizer.is_adamw(),
    &["train.optimizer=muon"],
);
const FP8: Setting = value!(model_options.compute is Auto::Value(Compute::Fp8), "fp8");
const KEEPS_BLOCKS: Setting = value!(model_options.quantize is Auto::Value(Frozen::Gguf), "gguf");
const OFFLOADED: Setting = when(
    "memory.offload",
    "memory.offload = [\"reference\"]",
    |run| run.memory.offloads(Offload::Reference),
    &["memory.offload=[\"reference\"]"],
);
const EPOCHS: Setting = when(
    "train.epochs",
    "train.epochs",
    |run| run.train.epochs.is_some(),
    &["-train.steps", "train.epochs=2"],
);

/// True if passes are counted over such a list of data.
fn prompts(run: &RunFile, are_so: fn(&[crate::DataSet]) -> bool) -> bool {
    run.data.prompts.as_ref().is_some_and(|prompts| are_so(prompts.sets()))
}

pub(super) const ROWS: &[Conflict] = &[
    no(
        EPOCHS,
        when("environment", "[environment]", |run| run.environment.is_some(), ENVIRONMENT.example),
        "which has no end, and passes over data are counted",
        "set train.steps",
    )
    .slug("bad-value"),
    no(
        EPOCHS,
        which(
            "train.steps",
            "train.steps",
            |case| case.given(["train.steps"]),
            &["train.steps=60", "data.prompts=a.jsonl"],
        ),
        "which says how long the run is too",
        "remove one of them",
    )
    .slug("bad-value"),
    no(
        EPOCHS,
        when(
            "data.prompts",
            "a built-in task as data.prompts",
            |run| prompts(run, |sets| matches!(sets, [one] if one.is_builtin())),
            &["data.prompts=builtin:addition"],
        ),
        "which has no end, and passes over data are counted",
        "set train.steps",
    )
    .slug("bad-value"),
    no(
        EPOCHS,
        when(
            "data.prompts",
            "several data sets in data.prompts",
            |run| prompts(run, |sets| sets.len() > 1),
            &["data.prompts=[\"a.jsonl\", \"b.jsonl\"]"],
        ),
        "which are mixed by weights, and passes over one are counted",
        "set train.steps",
    )
    .slug("bad-value"),
    no(
        WHOLE_ON_RANKS,
        CODED,
        "which is not built yet: codes are whole on every rank",
        "set run.zero_stage = 2",
    )
    .slug("not-built"),
    no(
        WHOLE_ON_RANKS,
        MERGED,
        "which is not built yet: weights with their adapters in them are whole on every rank",
        "set run.zero_stage = 2",
    )
    .slug("not-built"),
    no(
        OFFLOADED,
        KEEPS_BLOCKS,
        "and weights in blocks stay on the device",
        "remove \"reference\" from memory.offload, or remove model_options.quantize",
    ),
    no(FP8, CODED, "and codes are of other numbers", "remove model_options.compute or lora.quantize"),
    no(
        FP8,
        MERGED,
        "and weights with their adapters in them would be rounded anew with each, which is not built yet",
        "remove lora.merge",
    )
    .slug("not-built"),
    no(
        FP8,
        WHOLE_ON_RANKS,
        "which is not built yet: rounded weights are whole on every rank",
        "set run.zero_stage = 2",
    )
    .slug("not-built"),
    no(
        FP8,
        OFFLOADED,
        "which is not built yet: rounded weights stay on the device",
        "remove \"reference\" from memory.offload",
    )
    .slug("not-built"),
    no(FP8, KEEPS_BLOCKS, "whose numbers are the file's", "remove one of them"),
    no(LORA, POLICY, "an environment policy, which is small and trained in full", "remove [lora]"),
    no(
        MERGED,
        CODED,
        "and merged weights are a copy in full, which codes are to save",
        "remove lora.merge or lora.quantize",
    ),
    no(
        above!(train.fold > 1, "2"),
        LORA,
        "whose gradients are added as they come",
        "remove train.fold: adapters are small",
    ),
    no(
        which(
            "train.*",
            "train.grad_dtype, gradient_wire or optimizer_dtype below f32",
            |case| {
                let train = &case.run.train;
                let narrow = |dtype: &OptimizerDtype| *dtype != OptimizerDtype::F32;
                first([
                    ("train.grad_dtype", train.grad_dtype == Auto::Value(ModelDtype::Bf16)),
                    ("train.gradient_wire", train.gradient_wire == GradientWire::Bf16),
                    (
                        "train.optimizer_dtype",
                        train.optimizer_dtype.value().is_some_and(|dtype| narrow(&dtype)),
                    ),
                ])
            },
            &["train.grad_dtype=bf16"],
        ),
        LORA,
        "and gradients and optimizer states of adapters are f32",
        "remove {key}, or set it to \"f32\"",
    ),
    no(
        which(
            "train.muon_*",
            "train.muon_*",
            |case| case.at.origins.keys().find(|key| key.starts_with("train.muon_")).cloned(),
            &["train.muon_momentum=0.9"],
        ),
        when("train.optimizer", "train.optimizer = \"adamw\"", |run| run.train.optimizer.is_adamw(), &[]),
        "which does not read it",
        "set train.optimizer = \"muon\", or remove {key}",
    ),
    no(MUON, POLICY, "an environment policy, which is small and trained by AdamW", "remove train.optimizer"),
    no(
        MUON,
        LORA,
        "whose adapters are trained by AdamW",
        "remove train.optimizer, or [lora] to train all weights",
    ),
    no(
        when(
            "train.optimizer_dtype",
            "train.optimizer_dtype below f32",
            |run| {
                matches!(run.train.optimizer_dtype, Auto::Value(OptimizerDtype::Bf16 | OptimizerDtype::Int8))
            },
            &["train.optimizer_dtype=int8"],
        ),
        MUON,
        "whose momentum and weights are f32",
        "remove train.optimizer_dtype, or set it to \"f32\"",
    ),
    no(
        when(
            "memory.offload",
            "memory.offload = [\"optimizer\"]",
            |run| run.memory.offloads(Offload::Optimizer),
            &["memory.offload=[\"optimizer\"]"],
        ),
        MUON,
        "whose states of whole matrices stay on the device",
        "remove \"optimizer\" from memory.offload",
    ),
];
