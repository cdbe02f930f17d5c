//! The loss of balance: its gradient by all weights is the slope of the number that is reported.

use crate::common::{Machine, fixture, golden_dir, whole_sequences};
use plimsoll_arch::{Cache, Caches};
use plimsoll_base::{Bytes, DType, Phase};
use plimsoll_device::KV_BLOCK;
use plimsoll_model::{
    Activations, Decoder, Derivatives, ExpertLoad, Mode, Params, Pass, PassIndex, PassLimits, Recompute,
    backward, head, layers, load, rope,
};

const ROWS: usize = 40;
const LIMITS: PassLimits = PassLimits {
    rows: ROWS,
    head_rows: ROWS,
    listed: 0,
    taught: 0,
    own: plimsoll_model::OwnLogits::NONE,
    segments: 3,
    table_entries: 5,
    copies: 0,
    caches: Caches::paged(4),
};

#[test]
fn a_loss_of_balance_has_the_slope_of_its_number() {
    let ids = ids();
    check("whole sequences", &whole_sequences(&[&ids[..15], &ids[15..]]), ROWS);
}

/// The rows of the prompt are in both of its responses: they count twice.
#[test]
fn a_prompt_weighs_as_its_responses_in_the_loss_of_balance() {
    let (ids, response) = (ids(), 12);
    let mut index = whole_sequences(&[&ids[..KV_BLOCK]]);
    for (child, block) in [(0, 1), (1, 2)] {
        let first = KV_BLOCK + child * response;
        let table = index.caches[Cache::PAGED].tables.len();
        index.segments.extend([first, response, KV_BLOCK, table, 0].map(|field| field as u32));
        index.caches[Cache::PAGED].tables.extend([0, block]);
        for (i, &id) in ids[first..first + response].iter().enumerate() {
            index.ids.push(id);
            index.positions.push((KV_BLOCK + i) as u32);
            index.caches[Cache::PAGED].slots.push(block * KV_BLOCK as u32 + i as u32);
            index.head_rows.push((first + i) as u32);
            index.targets.push(0);
        }
    }
    assert_eq!(index.ids.len(), ROWS);
    check("a shared prompt", &index, KV_BLOCK * 2 + 2 * response);
}

fn ids() -> Vec<u32> {
    (0..ROWS as u32).map(|i| (i * 37 + 11) % 90).collect()
}

/// Compares the gradient with a difference of the number. `rows`: those of the pass as its sequences have them.
fn check(what: &str, index: &PassIndex, rows: usize) {
    for name in ["qwen3_moe", "qwen3_moe_mixed"] {
        let recompute = Recompute::Layer;
        let source = golden_dir(name);
        let mut f = fixture(source.to_str().unwrap(), DType::F32, recompute, 2, Machine::detect(), LIMITS);
        let (resident, mut overlay) = f.arena.split();
        let dev = f.dev.as_dyn();
        let params = Params::bind(&f.spec, &f.table, f.dtype, resident.buf("actor.weights"));
        let grads = Params::bind(&f.spec, &f.table, f.dtype, resident.buf("actor.grads"));
        load(dev, &f.model, &f.table, &params, 0, Bytes::mib(1)).unwrap();
        let (all, table) = (params.all, resident.buf("rope.table"));
        rope::fill(dev, &f.spec, table);
        let decoder = Decoder { spec: f.spec, dtype: f.dtype, params, rope: table };
        let phase = overlay.enter(Phase::Update);
        let acts = Activations::bind(&phase, Mode::Update(recompute), f.limits);
        let experts = f.spec.file_shape().experts.unwrap();
        let factor = f64::from(experts.each.count) / (rows as f64 * f64::from(experts.layers.len()));
        // The loss at some weights, and the pairs of each expert.
        let at = |weights: &[f32]| {
            dev.write_f32(all, 0, weights);
            dev.zero(grads.all);
            let pass = Pass::upload(dev, acts, index).with_balance(factor as f32);
            layers(dev, &decoder, &pass);
            head(dev, &decoder, &pass, 1.0);
            let zeros = vec![0.0; ROWS];
            let of = Derivatives::Vocabulary {
                inv_temperature: 1.0,
                logprobs: &zeros,
                entropy: &zeros,
                divergence: &[],
            };
            backward(dev, &decoder, &grads, true, &pass, of);
            let mut load = ExpertLoad::of(&f.spec).unwrap();
            pass.add_load(dev, &mut load);
            let pairs = load.numbers()[..(experts.layers.len() * experts.each.count) as usize].to_vec();
            assert_eq!(
                pairs.iter().sum::<f64>(),
                f64::from(ROWS as u32 * experts.each.chosen * experts.layers.len())
            );
            (load.used(&[load.numbers().to_vec()], rows as u64), pairs)
        };
        let mut weights = vec![0.0; all.len()];
        dev.read_f32(all, 0, &mut weights);
        let (used, pairs) = at(&weights);
        let mut gradient = vec![0.0; all.len()];
        dev.read_f32(grads.all, 0, &mut gradient);
        let size = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
        let least = f64::from(experts.each.chosen) * 0.5;
        assert!(
            size > 0.01 && used.balance > least && used.load_max >= 1.0,
            "{what}, {name}: {size}, {used:?}"
        );
        // So small that no row goes elsewhere: shares are constants of the loss.
        let step = 4e-4 / size;
        let moved = |by: f64| -> Vec<f32> {
            let one = |(w, g): (&f32, &f32)| (f64::from(*w) + by * f64::from(*g)) as f32;
            weights.iter().zip(&gradient).map(one).collect()
        };
        let ((above, of_above), (below, of_below)) = (at(&moved(step)), at(&moved(-step)));
        assert!(of_above == pairs && of_below == pairs, "{what}, {name}: a row went elsewhere");
        let slope = (above.balance - below.balance) / (2.0 * step * size);
        assert!((slope / size - 1.0).abs() < 0.02, "{what}, {name}: slope {slope}, gradient {size}");
    }
}
