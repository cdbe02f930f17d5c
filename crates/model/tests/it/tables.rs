//! Tables of parameters: what a model, its adapters, its merged products and its codes consist of.

use plimsoll_arch::{
    LoraShape, LoraTarget, LoraTargets, ModelSpec, PRESETS, ParamKind, Site, Values, products,
};
use plimsoll_base::{DType, Encoding};
use plimsoll_device::{Layouts, block_elements};
use plimsoll_model::{Coding, Param, ParamTable};

static KIND: &Layouts = &plimsoll_cuda::LAYOUTS;
const BF16: DType = DType::Bf16;

/// Numbers of a table, without what pads them.
/// Numbers of a table without those that nothing trains, which do not count as parameters.
fn numbers(table: &ParamTable) -> u64 {
    let trained = table.params.iter().filter(|param| !param.kind.is_fixed());
    trained.map(|param| u64::from(param.n) * u64::from(param.k.max(1))).sum()
}

fn spec(preset: &str) -> ModelSpec {
    ModelSpec::preset(preset).expect("a preset")
}

fn of_kind(table: &ParamTable, kind: ParamKind) -> Vec<&Param> {
    table.params.iter().filter(|param| param.kind == kind).collect()
}

#[test]
fn a_table_holds_every_parameter_of_every_preset() {
    for (name, spec) in PRESETS {
        for (kind, weights) in [(&plimsoll_cpu::LAYOUTS, DType::F32), (KIND, BF16)] {
            let table = ParamTable::new(spec, kind, weights);
            // Layers that share keys have the norm of these once more.
            let of_shared = spec.attentions().filter(|of| of.values == Values::Shared);
            let copies: u64 = of_shared.map(|of| u64::from(of.head_dim)).sum();
            assert_eq!(numbers(&table), spec.parameters() + copies, "{name} {kind:?}");
            assert_eq!(table.is_tied(), spec.tied, "{name}");
        }
    }
}

#[test]
fn every_product_of_a_layer_is_a_matrix_of_its_shape() {
    for (name, spec) in PRESETS {
        let table = ParamTable::new(spec, KIND, BF16);
        for layer in [0, spec.layers.len() / 2, spec.layers.len() - 1] {
            for product in products(spec, layer) {
                let param = table.find(product.kind, layer).expect("the table has it");
                let rows = product.n * product.experts.unwrap_or(1);
                assert_eq!((param.n, param.k), (rows, product.k), "{name} {layer} {:?}", product.kind);
            }
        }
    }
}

#[test]
fn a_critic_ends_in_one_row_in_place_of_its_head() {
    for name in ["smollm2-135m", "qwen2.5-7b"] {
        let (model, critic) = (spec(name), ParamTable::critic(&spec(name), KIND, BF16));
        let score = critic.params.last().expect("parameters");
        assert_eq!((score.kind, score.n, score.k), (ParamKind::ValueHead, 1, model.hidden), "{name}");
        assert_eq!(score.parts[0].name, "score.weight", "{name}");
        assert!(critic.find(ParamKind::Head, 0).is_none() && !critic.is_tied(), "{name}");
    }
}

#[test]
fn adapters_are_as_many_numbers_as_their_shape_says() {
    for name in ["smollm2-135m", "qwen2.5-7b", "qwen3.5-0.8b", "qwen3-30b-a3b"] {
        let spec = spec(name);
        let lora = LoraShape { rank: 8, targets: LoraTargets::built_for(&spec) };
        let table = ParamTable::adapters(&spec, KIND, BF16, lora);
        assert_eq!(numbers(&table), lora.parameters(&spec), "{name}");
        let with_score = ParamTable::adapters_and_score(&spec, KIND, BF16, lora);
        assert_eq!(numbers(&with_score), numbers(&table) + u64::from(spec.hidden), "{name}");
    }
}

#[test]
fn adapters_of_experts_follow_each_other() {
    let spec = spec("qwen3-30b-a3b");
    let lora = LoraShape { rank: 8, targets: LoraTargets::new([LoraTarget::Down]).expect("one") };
    let table = ParamTable::adapters(&spec, KIND, BF16, lora);
    // 128 A and then 128 B of each of 48 layers.
    assert_eq!(table.params.len(), 48 * 256);
    for (i, param) in table.params[..256].iter().enumerate() {
        let (is_b, expert) = (i >= 128, i % 128);
        assert_eq!(matches!(param.kind, ParamKind::AdapterB(LoraTarget::Down)), is_b, "{i}");
        assert!(param.parts[0].name.contains(&format!(".experts.{expert}.")), "{}", param.parts[0].name);
    }
}

#[test]
fn merged_products_are_those_that_have_an_adapter() {
    for (targets, kinds) in [
        (vec![LoraTarget::Q], vec![ParamKind::Weight(Site::Qkv)]),
        (vec![LoraTarget::Up, LoraTarget::O], [Site::Output, Site::GateUp].map(ParamKind::Weight).to_vec()),
    ] {
        let spec = spec("qwen3-0.6b");
        let lora = LoraShape { rank: 4, targets: LoraTargets::new(targets).expect("some") };
        let (all, merged) = (ParamTable::new(&spec, KIND, BF16), ParamTable::merged(&spec, KIND, BF16, lora));
        assert_eq!(merged.params.len(), kinds.len() * spec.layers.len() as usize);
        for param in &merged.params {
            assert!(kinds.contains(&param.kind), "{:?}", param.kind);
            let whole = all.find(param.kind, param.layer).expect("a product of the model");
            assert_eq!((param.n, param.k, param.elements), (whole.n, whole.k, whole.elements));
        }
    }
}

#[test]
fn codes_take_the_place_of_products_alone() {
    let spec = spec("qwen2.5-0.5b");
    let whole = ParamTable::new(&spec, KIND, BF16);
    let coded = whole.clone().coded(&Coding::All(Encoding::Nf4));
    let (mut words, mut scales) = (0, 0);
    for (param, before) in coded.params.iter().zip(&whole.params) {
        assert_eq!((param.kind, param.key), (before.kind, before.offset));
        if let Some(at) = param.codes {
            assert_eq!((at.word, at.scale, param.elements), (words, scales, 0), "{:?}", param.kind);
            let more = block_elements(Encoding::Nf4, param.n.into(), param.k.into());
            (words, scales) = (words + more.0, scales + more.1);
        } else {
            assert_eq!(param.elements, before.elements, "{:?}", param.kind);
        }
        assert_eq!(param.codes.is_some(), param.kind.site().is_some(), "{:?}", param.kind);
    }
    assert_eq!((coded.codes.word, coded.codes.scale), (words, scales));
}

#[test]
fn codes_are_widened_one_matrix_at_a_time() {
    let spec = spec("qwen2.5-0.5b");
    let whole = ParamTable::new(&spec, KIND, BF16);
    let largest = of_kind(&whole, ParamKind::Weight(Site::GateUp))[0].elements;
    assert_eq!(whole.clone().coded(&Coding::All(Encoding::Nf4)).widened_elements(BF16), largest);
    assert_eq!(whole.widened_elements(BF16), 0);
}

#[test]
fn the_embedding_the_layers_and_what_follows_are_the_whole_buffer() {
    for (name, spec) in PRESETS {
        let table = ParamTable::new(spec, KIND, BF16);
        let mut next = table.layer_run(0).start;
        for layer in 0..spec.layers.len() {
            let run = table.layer_run(layer);
            assert_eq!(run.start, next, "{name} {layer}");
            next = run.end();
        }
        assert_eq!((next, table.head_run().end()), (table.head_run().start, table.elements), "{name}");
        assert_eq!(table.body_run().end(), table.elements, "{name}");
    }
}
