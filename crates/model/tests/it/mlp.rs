//! The small actor-critic: against PyTorch, against differences of its own forward pass, and row by row.

use plimsoll_base::rng::{Stream, philox, unit_f32};
use plimsoll_base::{Bytes, Phase, PhaseSet};
use plimsoll_cpu::{CpuDevice, Isa};
use plimsoll_device::{Activation, Device, MatrixLayout};
use plimsoll_memory::{Arena, ArenaMap, Buf, Layout, Pool};
use plimsoll_model::mlp::{MlpHead, MlpParams, MlpPass, MlpSpec, PolicyFile, backward, forward};
use plimsoll_model::{FlatTensors, ParamTable, save};
use std::path::{Path, PathBuf};

const ROWS: usize = 150;

struct Rig {
    spec: MlpSpec,
    table: ParamTable,
    arena: Arena,
    dev: CpuDevice,
}

impl Rig {
    fn new(spec: MlpSpec, threads: usize, isa: Isa) -> Rig {
        let table = spec.table(&plimsoll_cpu::LAYOUTS);
        let mut layout = Layout::new();
        for what in ["weights", "grads"] {
            let shape = [table.elements];
            layout
                .arena(what, "test", Pool::Host, PhaseSet::RESIDENT, &shape, plimsoll_base::DType::F32)
                .unwrap();
        }
        layout.extend(CpuDevice::scratch_of_matrices(&spec.matrices(), threads).unwrap());
        layout.extend(
            spec.layout("mlp", &plimsoll_cpu::LAYOUTS, Pool::Host, PhaseSet::UPDATE, ROWS as u64, true)
                .unwrap(),
        );
        let mut arena = Arena::new(ArenaMap::new(&layout, 0));
        let mut dev = CpuDevice::new(Bytes(arena.map().used_bytes()), threads, isa).unwrap();
        dev.bind_scratch(arena.split().0.buf("device.scratch"));
        Rig { spec, table, arena, dev }
    }

    fn run<T>(&mut self, work: impl FnOnce(&World<'_>) -> T) -> T {
        let (resident, mut overlay) = self.arena.split();
        let phase = overlay.enter(Phase::Update);
        work(&World {
            dev: &self.dev,
            spec: &self.spec,
            table: &self.table,
            params: MlpParams::bind(&self.table, resident.buf("weights")),
            grads: MlpParams::bind(&self.table, resident.buf("grads")),
            pass: MlpPass::bind("mlp", |name| phase.get(name)),
        })
    }
}

struct World<'a> {
    dev: &'a CpuDevice,
    spec: &'a MlpSpec,
    table: &'a ParamTable,
    params: MlpParams<'a>,
    grads: MlpParams<'a>,
    pass: MlpPass<'a>,
}

impl World<'_> {
    /// Outputs and values.
    fn forward(&self, x: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let rows = x.len() / self.spec.inputs as usize;
        self.dev.write_f32(self.pass.input, 0, x);
        forward(self.dev, &self.params, self.spec.activation, &self.pass, rows);
        let outputs = self.spec.head.outputs() as usize;
        (get(self.dev, self.pass.outputs(rows, outputs)), get(self.dev, self.pass.values(rows)))
    }

    /// Gradients, flat, after `forward`.
    fn backward(&self, d_outputs: &[f32], d_values: &[f32]) -> Vec<f32> {
        let rows = d_values.len();
        self.dev.write_f32(self.pass.d_outputs(rows, d_outputs.len() / rows), 0, d_outputs);
        self.dev.write_f32(self.pass.d_values(rows), 0, d_values);
        self.dev.zero(self.grads.all);
        backward(self.dev, &self.params, self.spec.activation, &self.grads, &self.pass, rows);
        get(self.dev, self.grads.all)
    }
}

fn get(dev: &CpuDevice, buf: Buf<'_>) -> Vec<f32> {
    let mut out = vec![0.0; buf.len()];
    dev.read_f32(buf, 0, &mut out);
    out
}

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    (0..n).map(|i| 2.0 * unit_f32(philox(seed, Stream::Bench, i as u64, 0)[0]) - 1.0).collect()
}

fn cartpole(activation: Activation) -> MlpSpec {
    MlpSpec { inputs: 4, hidden: vec![64, 64], activation, head: MlpHead::Categorical(vec![2]) }
}

fn odd(activation: Activation) -> MlpSpec {
    MlpSpec { inputs: 3, hidden: vec![17, 33, 50], activation, head: MlpHead::Gaussian(5) }
}

fn paths() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/mlp").join(name)
}

#[test]
fn a_row_does_not_depend_on_its_batch_or_on_threads() {
    for isa in paths() {
        for spec in [cartpole(Activation::Tanh), odd(Activation::Relu)] {
            let n = spec.inputs as usize;
            let x = numbers(1, ROWS * n);
            let mut first = None;
            for threads in [1, 2] {
                let (outputs, values) = Rig::new(spec.clone(), threads, isa).run(|world| {
                    world.spec.init(world.dev, world.table, &world.params, 3);
                    let all = world.forward(&x);
                    let width = all.0.len() / ROWS;
                    for (start, rows) in [(0, 1), (1, 7), (63, 66), (149, 1)] {
                        let (outputs, values) = world.forward(&x[start * n..][..rows * n]);
                        assert_eq!(bits(&outputs), bits(&all.0[start * width..][..rows * width]));
                        assert_eq!(bits(&values), bits(&all.1[start..][..rows]));
                    }
                    all
                });
                let now = (bits(&outputs), bits(&values));
                assert_eq!(*first.get_or_insert(now.clone()), now, "{threads} threads");
            }
        }
    }
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn gradients_are_the_slopes_of_the_forward_pass() {
    for activation in [Activation::Tanh, Activation::Relu] {
        for spec in [cartpole(activation), odd(activation)] {
            Rig::new(spec, 2, Isa::detect()).run(slopes);
        }
    }
}

/// The loss is a fixed combination of outputs and values; each tensor is moved along its own gradient.
fn slopes(world: &World<'_>) {
    world.spec.init(world.dev, world.table, &world.params, 5);
    let rows = 70;
    let x = numbers(1, rows * world.spec.inputs as usize);
    let outputs = world.spec.head.outputs() as usize;
    let (d_outputs, d_values) = (numbers(2, rows * outputs), numbers(3, rows));
    let loss = || {
        let (out, values) = world.forward(&x);
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        dot(&out, &d_outputs) + dot(&values, &d_values)
    };
    loss();
    let grads = world.backward(&d_outputs, &d_values);
    let weights = get(world.dev, world.params.all);
    for p in world.table.params.iter().filter(|p| p.parts[0].name != "actor_logstd") {
        let range = p.offset as usize..(p.offset + p.elements) as usize;
        let norm = grads[range.clone()].iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
        assert!(norm > 1e-3, "{}: its gradient is {norm}", p.parts[0].name);
        let moved = |sign: f64| {
            let mut w = weights.clone();
            for i in range.clone() {
                w[i] += (sign * 3e-3 / norm * f64::from(grads[i])) as f32;
            }
            world.dev.write_f32(world.params.all, 0, &w);
            loss()
        };
        // A step of 3e-3 along the gradient raises the loss by 3e-3 |g|; central, so the error is of third order.
        let slope = (moved(1.0) - moved(-1.0)) / 6e-3;
        // A row that crosses a kink of relu changes the slope by its share of the 70; shorter steps drown in f32
        // rounding. The PyTorch module below has relu too, and bounds its gradients a thousand times tighter.
        let tolerance = if world.spec.activation == Activation::Relu { 3e-2 } else { 5e-3 };
        assert!(
            (slope / norm - 1.0).abs() < tolerance,
            "{}: slope {slope}, gradient {norm}",
            p.parts[0].name
        );
    }
    world.dev.write_f32(world.params.all, 0, &weights);
}

/// The file holds the weights of a PyTorch module, its input, what it gave, and the gradients of the sum of outputs and
/// values weighted by `d_out` and `d_value`; `make.py` in the same folder made it.
#[test]
fn the_module_of_pytorch_gives_the_same_outputs_and_gradients() {
    for (name, spec) in [
        (
            "categorical.safetensors",
            MlpSpec { inputs: 6, hidden: vec![20, 12], ..cartpole(Activation::Tanh) },
        ),
        (
            "gaussian.safetensors",
            MlpSpec { hidden: vec![24, 8], head: MlpHead::Gaussian(2), ..odd(Activation::Relu) },
        ),
    ] {
        let path = golden(name);
        let file = PolicyFile::open(&path).unwrap();
        assert_eq!(file.hidden().unwrap(), spec.hidden);
        let reference = plimsoll_files::TensorFile::open(&path).unwrap();
        let read = |name: &str| {
            let len = reference.tensor(name).unwrap().shape.iter().product::<u64>();
            let mut values = vec![0.0; len as usize];
            reference.read(name, 0, &mut [0; 4096], &mut values).unwrap();
            values
        };
        let close = |what: &str, ours: &[f32], theirs: &[f32]| {
            assert_eq!(ours.len(), theirs.len(), "{name} {what}");
            let largest = theirs.iter().fold(0f32, |m, x| m.max(x.abs()));
            let error = ours.iter().zip(theirs).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            // Sums of up to 24 products in f32, in another order.
            assert!(error <= 3e-6 * largest.max(1.0), "{name} {what}: {error:e} of {largest}");
        };
        Rig::new(spec, 2, Isa::detect()).run(|world| {
            file.load(world.dev, world.spec, world.table, &world.params).unwrap();
            let (outputs, values) = world.forward(&read("x"));
            close("outputs", &outputs, &read("out"));
            close("values", &values, &read("value"));
            let grads = world.backward(&read("d_out"), &read("d_value"));
            for p in world.table.params.iter().filter(|p| p.parts[0].name != "actor_logstd") {
                let part = &grads[p.offset as usize..(p.offset + p.elements) as usize];
                let k = p.k.max(1) as usize;
                let layout = if p.k == 0 { MatrixLayout::Rows } else { MatrixLayout::Single };
                let rows: Vec<f32> =
                    (0..p.n as usize * k).map(|i| part[layout.index(k, i / k, i % k)]).collect();
                close(&p.parts[0].name, &rows, &read(&format!("grad.{}", p.parts[0].name)));
            }
        });
    }
}

#[test]
fn a_saved_policy_is_loaded_bit_for_bit_and_another_shape_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut rig = Rig::new(odd(Activation::Tanh), 1, Isa::detect());
    let before = rig.run(|world| {
        world.spec.init(world.dev, world.table, &world.params, 9);
        world.dev.write_f32(world.params.log_std.unwrap(), 0, &[0.5, -0.5, 0.0, 1.0, 2.0]);
        let sets = [FlatTensors::weights(world.params.all)];
        save(world.dev, world.table, MatrixLayout::Single, &sets, &path, Bytes::mib(1)).unwrap();
        get(world.dev, world.params.all)
    });
    // A folder names the model in it.
    let file = PolicyFile::open(folder.path()).unwrap();
    assert_eq!(file.hidden().unwrap(), [17, 33, 50]);
    rig.run(|world| {
        world.dev.write_f32(world.params.all, 0, &vec![7.0; before.len()]);
        file.load(world.dev, world.spec, world.table, &world.params).unwrap();
        assert_eq!(bits(&get(world.dev, world.params.all)), bits(&before));
    });
    for (spec, words) in [
        (MlpSpec { inputs: 4, ..odd(Activation::Tanh) }, "`actor.0.weight` is [17, 3]"),
        (MlpSpec { head: MlpHead::Gaussian(4), ..odd(Activation::Tanh) }, "`actor.6.weight` is [5, 50]"),
        (MlpSpec { hidden: vec![17, 33, 50, 5], ..odd(Activation::Tanh) }, "no tensor `actor.8.weight`"),
    ] {
        let error = file.check(&spec, &spec.table(&plimsoll_cpu::LAYOUTS)).unwrap_err();
        assert!(error.slug == "policy-shape-mismatch" && error.message.contains(words), "{error}");
    }
}
