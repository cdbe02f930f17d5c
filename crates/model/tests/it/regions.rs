//! The regions of a pass: which layers have their own, of which shape, and when they are in use.

use plimsoll_arch::{Cache, Caches, LoraShape, LoraTargets, ModelSpec, PRESETS};
use plimsoll_base::{DType, PhaseSet};
use plimsoll_memory::{Arena, ArenaMap, Layout, Place, Pool, Region, Turn};
use plimsoll_model::{
    Activations, Mode, ParamTable, PassLimits, Recompute, Target, activations_layout, adapters_layout,
    places_for, streamed_layout,
};

const ROWS: usize = 64;
const M: u64 = ROWS as u64;
const TARGET: Target = Target { kind: &plimsoll_cpu::LAYOUTS, pool: Pool::Host, threads: 2 };
const LEVELS: [Recompute; 4] = [Recompute::None, Recompute::Cheap, Recompute::Layer, Recompute::Offload];
const ROLLOUT: Mode = Mode::Rollout { truncates: false };

/// Limits of a pass; with blocks for windows if `window_blocks` is not 0.
fn limits(window_blocks: usize) -> PassLimits {
    let (segments, blocks) = (4, 8);
    let caches = Caches::paged(blocks).and(Cache::State, places_for(ROWS, segments));
    PassLimits {
        rows: ROWS,
        head_rows: 16,
        listed: 0,
        taught: 0,
        own: plimsoll_model::OwnLogits::NONE,
        segments,
        table_entries: 8,
        copies: 2,
        caches: match window_blocks {
            0 => caches,
            _ => caches.and(Cache::Ring { keys: 16 }, window_blocks),
        },
    }
}

fn spec(preset: &str) -> ModelSpec {
    ModelSpec::preset(preset).expect("a preset")
}

fn layout(preset: &str, mode: Mode) -> Layout {
    activations_layout(&spec(preset), DType::Bf16, TARGET, mode, limits(0)).expect("it fits")
}

fn region<'l>(layout: &'l Layout, name: &str) -> &'l Region {
    layout.find(name).unwrap_or_else(|| panic!("no region {name}"))
}

/// Layers that have their own of a region of an update, and when it is in use.
fn of_update(preset: &str, recompute: Recompute, name: &str) -> (u64, Turn) {
    let layout = layout(preset, Mode::Update(recompute));
    let region = region(&layout, &format!("update.{name}"));
    (region.shape[0], region.turn)
}

#[test]
fn a_rollout_keeps_keys_of_every_layer_and_a_score_of_one() {
    for (mode, name, layers) in [
        (ROLLOUT, "rollout.keys", 30),
        (Mode::Score, "score.keys", 1),
        (Mode::Teacher(0), "teacher.keys", 1),
        (Mode::Critic(Recompute::Cheap), "critic.keys", 30),
        (Mode::Critic(Recompute::Layer), "critic.keys", 1),
    ] {
        assert_eq!(region(&layout("smollm2-135m", mode), name).shape[0], layers, "{mode:?}");
    }
}

#[test]
fn windows_have_a_cache_of_their_own_in_a_rollout_that_has_blocks_for_them() {
    let with = |blocks| {
        let of = activations_layout(&spec("gemma-3-1b"), DType::Bf16, TARGET, ROLLOUT, limits(blocks));
        let layout = of.expect("it fits");
        let shape = |name: &str| layout.find(name).map(|region| region.shape[..2].to_vec());
        ["rollout.keys", "rollout.window.keys"].map(shape)
    };
    // Every sixth of 26 layers sees all keys.
    assert_eq!(with(3), [Some(vec![4, 8]), Some(vec![22, 3])]);
    assert_eq!(with(0), [Some(vec![26, 8]), None]);
}

#[test]
fn layers_with_linear_attention_have_states_and_no_keys() {
    let layout = layout("qwen3.5-0.8b", ROLLOUT);
    for (name, layers) in [("keys", 6), ("delta.states", 18), ("delta.tails", 18)] {
        assert_eq!(region(&layout, &format!("rollout.{name}")).shape[0], layers, "{name}");
    }
}

#[test]
fn layers_of_two_widths_lie_side_by_side() {
    let qkv = |preset| {
        let layout = layout(preset, Mode::Update(Recompute::None));
        region(&layout, "update.qkv").shape.clone()
    };
    let (alike, mixed) = (spec("qwen3-0.6b"), spec("qwen3.5-0.8b"));
    assert_eq!(qkv("qwen3-0.6b"), [28, M, alike.layer(0).mixer.input_width().into()]);
    let all: u64 = (0..24).map(|layer| u64::from(mixed.layer(layer).mixer.input_width())).sum();
    assert_eq!(qkv("qwen3.5-0.8b"), [1, M, all]);
    assert_ne!(mixed.layer(0).mixer.input_width(), mixed.layer(3).mixer.input_width());
}

#[test]
fn what_is_made_again_is_free_while_the_head_runs() {
    for (recompute, cheap, kept) in [
        (Recompute::None, (24, Turn::Whole), (24, Turn::Whole)),
        (Recompute::Cheap, (1, Turn::Layers), (24, Turn::Whole)),
        (Recompute::Layer, (1, Turn::Layers), (1, Turn::Layers)),
        (Recompute::Offload, (1, Turn::Layers), (1, Turn::Layers)),
    ] {
        for name in ["norm_attn", "norm_ffn", "mid", "product"] {
            assert_eq!(of_update("qwen2.5-0.5b", recompute, name), cheap, "{recompute:?} {name}");
        }
        for name in ["q", "attn", "gate_up", "keys", "values", "lse"] {
            assert_eq!(of_update("qwen2.5-0.5b", recompute, name), kept, "{recompute:?} {name}");
        }
    }
}

#[test]
fn first_products_are_kept_where_the_backward_pass_reads_them() {
    // Norms of heads, gates and linear attention do; rotated heads alone do not.
    assert_eq!(of_update("qwen2.5-0.5b", Recompute::None, "qkv"), (1, Turn::Layers));
    assert_eq!(of_update("qwen3-0.6b", Recompute::Cheap, "qkv"), (28, Turn::Whole));
    assert_eq!(of_update("qwen3-0.6b", Recompute::Layer, "qkv"), (1, Turn::Layers));
}

#[test]
fn what_parts_add_before_a_norm_is_kept_of_feed_forward_parts() {
    for recompute in LEVELS {
        assert_eq!(of_update("gemma-2-2b", recompute, "ffn_out"), (26, Turn::Whole), "{recompute:?}");
    }
    assert_eq!(of_update("gemma-2-2b", Recompute::Cheap, "attn_out"), (1, Turn::Layers));
    assert!(layout("qwen3-0.6b", Mode::Score).find("score.attn_out").is_none());
}

#[test]
fn experts_make_their_products_again_at_every_level() {
    let spec = spec("qwen3-30b-a3b");
    for recompute in LEVELS {
        assert_eq!(of_update("qwen3-30b-a3b", recompute, "product"), (1, Turn::Layers), "{recompute:?}");
    }
    let layout = layout("qwen3-30b-a3b", Mode::Update(Recompute::None));
    let width = u64::from(2 * spec.layer(0).ffn.product_width());
    assert_eq!(region(&layout, "update.gate_up").shape, [48, M, width]);
}

#[test]
fn routes_are_kept_as_layers_are_and_their_starts_always() {
    for (recompute, layers) in [(Recompute::Cheap, 48), (Recompute::Layer, 1)] {
        assert_eq!(of_update("qwen3-30b-a3b", recompute, "experts.chosen").0, layers, "{recompute:?}");
        assert_eq!(of_update("qwen3-30b-a3b", recompute, "experts.starts"), (48, Turn::Whole));
    }
    assert_eq!(region(&layout("qwen3-30b-a3b", Mode::Score), "score.experts.starts").shape, [1, 129]);
}

#[test]
fn inputs_of_layers_wait_in_the_memory_of_the_host() {
    let inputs = |recompute| {
        let layout = layout("smollm2-135m", Mode::Update(recompute));
        let host = layout.find("offload.update.resid").map(|region| (region.shape[0], region.place));
        (region(&layout, "update.resid").shape[0], host)
    };
    // Three are in the arena at a time, of which two never leave.
    assert_eq!(inputs(Recompute::Offload), (3, Some((28, Place::Offloaded))));
    assert_eq!(inputs(Recompute::Layer), (31, None));
}

#[test]
fn a_critic_has_values_and_no_vocabulary() {
    let layout = layout("smollm2-135m", Mode::Critic(Recompute::Cheap));
    assert_eq!(region(&layout, "critic.head.values").shape, [16]);
    for name in ["head.logprobs", "head.tile", "head.d_tile", "targets", "tokens"] {
        assert!(layout.find(&format!("critic.{name}")).is_none(), "{name}");
    }
}

#[test]
fn passes_of_several_shapes_in_a_phase_have_names_of_their_own() {
    for (mode, prefix) in [
        (Mode::Reward(0), "reward."),
        (Mode::Reward(1), "reward2."),
        (Mode::Reward(3), "reward4."),
        (Mode::Score, "score."),
        (Mode::Teacher(0), "teacher."),
    ] {
        let layout = layout("nano", mode);
        assert!(layout.regions.iter().all(|region| region.name.starts_with(prefix)), "{mode:?}");
        assert!(layout.regions.iter().all(|region| region.phases == PhaseSet::of(&[mode.phase()])));
    }
}

#[test]
fn passes_of_every_preset_and_mode_find_their_regions() {
    let updates = LEVELS.into_iter().flat_map(|level| [Mode::Update(level), Mode::UpdateScore(level)]);
    let modes: Vec<Mode> = [ROLLOUT, Mode::Score, Mode::Teacher(0), Mode::Reward(0)]
        .into_iter()
        .chain(LEVELS.map(Mode::Critic))
        .chain(updates)
        .collect();
    for (name, spec) in PRESETS {
        for &mode in &modes {
            let layout = activations_layout(spec, DType::Bf16, TARGET, mode, limits(0)).expect("it fits");
            let mut arena = Arena::new(ArenaMap::new(&layout, 0));
            let (_, mut overlay) = arena.split();
            // Panics at a name that is not there.
            Activations::bind(&overlay.enter(mode.phase()), mode, limits(0));
            assert!(layout.regions.len() > 10, "{name} {mode:?}");
        }
    }
}

#[test]
fn more_rows_take_no_less_memory() {
    for (name, spec) in PRESETS {
        for mode in [ROLLOUT, Mode::Score, Mode::Update(Recompute::Cheap)] {
            let bytes = |rows| {
                let limits = PassLimits {
                    rows,
                    caches: limits(0).caches.and(Cache::State, places_for(rows, 4)),
                    ..limits(0)
                };
                activations_layout(spec, DType::F32, TARGET, mode, limits).expect("it fits").arena_bytes()
            };
            assert!(bytes(ROWS) < bytes(4 * ROWS), "{name} {mode:?}");
        }
    }
}

fn adapters(preset: &str, mode: Mode, is_merged: bool) -> Layout {
    let spec = spec(preset);
    let lora = LoraShape { rank: 8, targets: LoraTargets::built_for(&spec) };
    adapters_layout(&spec, DType::Bf16, TARGET, mode, limits(0), lora, is_merged).expect("it fits")
}

#[test]
fn merged_adapters_add_nothing_to_a_forward_pass() {
    assert!(adapters("qwen3-0.6b", Mode::Score, true).regions.is_empty());
    let names: Vec<_> = adapters("qwen3-0.6b", Mode::Score, false).regions;
    let names: Vec<_> = names.iter().map(|region| region.name.as_str()).collect();
    assert_eq!(names, ["score.adapt.qkv", "score.adapt.output", "score.adapt.gate_up", "score.adapt.down"]);
}

#[test]
fn u_of_the_last_product_is_kept_at_every_level() {
    for (recompute, layers) in [(Recompute::None, 28), (Recompute::Cheap, 28), (Recompute::Layer, 1)] {
        let layout = adapters("qwen3-0.6b", Mode::Update(recompute), false);
        assert_eq!(region(&layout, "update.adapt.qkv").shape, [layers, M, 24], "{recompute:?}");
        assert_eq!(region(&layout, "update.adapt.down").shape, [28, M, 8], "{recompute:?}");
    }
}

#[test]
fn experts_make_u_of_their_adapters_again() {
    let layout = adapters("qwen3-30b-a3b", Mode::Update(Recompute::None), false);
    assert!(layout.find("update.adapt.gate_up").is_none() && layout.find("update.adapt.down").is_none());
    // Two adapters of rank 8 for each of 8 experts of a row.
    assert_eq!(region(&layout, "update.adapt.u").shape, [M, 128]);
}

#[test]
fn a_decoder_that_streams_takes_two_layers_and_its_ends() {
    for name in ["smollm2-135m", "qwen2.5-7b", "qwen3.5-0.8b", "qwen3-30b-a3b"] {
        let table = ParamTable::new(&spec(name), &plimsoll_cpu::LAYOUTS, DType::Bf16);
        let phases = PhaseSet::of(&[Mode::Score.phase()]);
        let layout = streamed_layout("reference", &table, DType::Bf16, Pool::Host, phases).expect("it fits");
        let largest =
            (0..spec(name).layers.len()).map(|layer| table.layer_run(layer).elements).max().unwrap();
        let slots = region(&layout, "reference.layers");
        assert_eq!((&slots.shape[..], slots.turn), (&[2, largest][..], Turn::Layers), "{name}");
        let ends = table.layer_run(0).start + table.head_run().elements;
        assert_eq!(region(&layout, "reference.ends").shape, [ends], "{name}");
    }
}

#[test]
fn places_of_states_are_for_chunks_of_whole_sequences() {
    // Two of each sequence and one a chunk; of many short sequences two a chunk.
    for (rows, segments, places) in [(64, 1, 2), (1024, 1, 17), (1024, 9, 33), (1024, 1024, 38)] {
        assert_eq!(places_for(rows, segments), places, "{rows} rows in {segments} segments");
    }
    // Segments without rows have none.
    assert_eq!(places_for(16, 16), places_for(16, 1000));
}
