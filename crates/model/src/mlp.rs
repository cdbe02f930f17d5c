//! The small actor-critic of environment policies: one stack of linear layers for actions and one for values.
//!
//! It owns their shapes and names, the regions of a pass, forward and backward. Everything is f32. It refuses nothing:
//! observations come flat, and `mlp::PolicyFile` checks files. An output row depends on its own inputs alone, as
//! everywhere, so a policy's log-probabilities do not depend on which others act at the same time.
//!
//! Legend: M rows, n inputs, h hidden, A outputs of the actor.

mod file;
mod init;

pub use file::PolicyFile;

use crate::params::{Param, ParamTable};
use plimsoll_arch::ParamKind;
use plimsoll_base::{DType, PhaseSet, Result};
use plimsoll_device::{Activation, Device, Layouts, Matrix, MatrixLayout};
use plimsoll_memory::{Buf, Layout, Pool};

/// Distribution that actions are drawn from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MlpHead {
    /// A choice per size: one for `Discrete`, several for `MultiDiscrete`; the logits are concatenated.
    Categorical(Vec<u32>),
    /// This many independent normals with trained standard deviations: `Box`.
    Gaussian(u32),
}

impl MlpHead {
    /// Returns A, the outputs of the actor.
    pub fn outputs(&self) -> u32 {
        match self {
            MlpHead::Categorical(sizes) => sizes.iter().sum(),
            MlpHead::Gaussian(dims) => *dims,
        }
    }

    /// Returns the numbers that make up an action.
    pub fn action_dims(&self) -> usize {
        match self {
            MlpHead::Categorical(sizes) => sizes.len(),
            MlpHead::Gaussian(dims) => *dims as usize,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MlpSpec {
    /// n: elements of a flat observation.
    pub inputs: u32,
    /// Hidden widths, the same for actor and critic.
    pub hidden: Vec<u32>,
    pub activation: Activation,
    /// The actor's output distribution.
    pub head: MlpHead,
}

/// The two stacks: names in files, and parameters.
const STACKS: [(&str, ParamKind, ParamKind); 2] = [
    ("actor", ParamKind::ActorLinear, ParamKind::ActorBias),
    ("critic", ParamKind::CriticLinear, ParamKind::CriticBias),
];

impl MlpSpec {
    /// Returns (outputs, inputs) of each linear layer of a stack that ends in `outputs`.
    fn maps(&self, outputs: u32) -> Vec<(u32, u32)> {
        let widths: Vec<u32> =
            [self.inputs].into_iter().chain(self.hidden.iter().copied()).chain([outputs]).collect();
        widths.windows(2).map(|pair| (pair[1], pair[0])).collect()
    }

    /// Returns the (outputs, inputs) of the actor's layers and of the critic's.
    fn stacks(&self) -> [Vec<(u32, u32)>; 2] {
        [self.maps(self.head.outputs()), self.maps(1)]
    }

    /// Returns the table, named as in `torch.nn.Sequential`: activations count, so linear layer i is number 2 i.
    pub fn table(&self, device: &'static Layouts) -> ParamTable {
        let mut table = ParamTable::empty(device);
        for ((name, linear, bias), maps) in STACKS.into_iter().zip(self.stacks()) {
            for (i, (outputs, inputs)) in maps.into_iter().enumerate() {
                let part = |what: &str| vec![(format!("{name}.{}.{what}", 2 * i), outputs)];
                table.add(device, DType::F32, linear, i as u32, inputs, part("weight"));
                table.add(device, DType::F32, bias, i as u32, 0, part("bias"));
            }
        }
        if let MlpHead::Gaussian(dims) = self.head {
            table.add(device, DType::F32, ParamKind::LogStd, 0, 0, vec![("actor_logstd".into(), dims)]);
        }
        table
    }

    pub fn parameters(&self) -> u64 {
        let of =
            |maps: &Vec<(u32, u32)>| maps.iter().map(|&(n, k)| u64::from(n) * u64::from(k + 1)).sum::<u64>();
        let log_std = if let MlpHead::Gaussian(dims) = self.head { u64::from(dims) } else { 0 };
        self.stacks().iter().map(of).sum::<u64>() + log_std
    }

    pub fn forward_flops(&self) -> u64 {
        self.stacks().iter().flatten().map(|&(n, k)| 2 * u64::from(n) * u64::from(k)).sum()
    }

    /// Returns (outputs, inputs) of all linear layers, which decide a device's scratch.
    pub fn matrices(&self) -> Vec<(u64, u64)> {
        self.stacks().iter().flatten().map(|&(n, k)| (n.into(), k.into())).collect()
    }

    /// Returns the regions of a pass of up to `rows` rows, named after `name`; with `backward` also its gradients.
    ///
    /// Errors: `size-overflow`.
    pub fn layout(
        &self,
        name: &str,
        device: &Layouts,
        pool: Pool,
        phases: PhaseSet,
        rows: u64,
        backward: bool,
    ) -> Result<Layout> {
        let mut layout = Layout::new();
        let mut add = |what: &str, shape: &[u64]| {
            layout.arena(&format!("{name}.{what}"), "model", pool, phases, shape, DType::F32)
        };
        add("input", &[rows, self.inputs.into()])?;
        for ((stack, ..), maps) in STACKS.iter().zip(self.stacks()) {
            for (i, &(outputs, _)) in maps.iter().enumerate() {
                add(&format!("{stack}.{i}"), &[rows, outputs.into()])?;
            }
            if backward {
                let (outputs, _) = maps[maps.len() - 1];
                let widest = maps.iter().map(|&(_, k)| k).max().expect("a stack has a map");
                let pack =
                    maps.iter().map(|&(n, k)| (device.pack)(rows, n.into(), k.into(), DType::F32)).max();
                add(&format!("{stack}.d_out"), &[rows, outputs.into()])?;
                add(&format!("{stack}.d"), &[2, rows, widest.into()])?;
                add(&format!("{stack}.pack"), &[pack.expect("a stack has a map")])?;
            }
        }
        Ok(layout)
    }
}

/// A linear layer; also the shape of its gradients.
#[derive(Clone, Copy, Debug)]
struct Linear<'a> {
    /// [n, k]
    weight: Matrix<'a>,
    /// [n]
    bias: Buf<'a>,
}

/// All parameters of an actor-critic over one flat buffer; also the shape of its gradients.
#[derive(Clone, Debug)]
pub struct MlpParams<'a> {
    pub all: Buf<'a>,
    /// [A]: logs of the standard deviations, Gaussian actors only.
    pub log_std: Option<Buf<'a>>,
    stacks: [Vec<Linear<'a>>; 2],
}

impl<'a> MlpParams<'a> {
    /// Resolves the handles. `all` holds `table.elements` f32.
    pub fn bind(table: &ParamTable, all: Buf<'a>) -> MlpParams<'a> {
        assert_eq!(all.len() as u64, table.elements, "the flat parameter buffer");
        let layout = MatrixLayout::of_weights(table.device, DType::F32);
        let slice = |p: &Param| all.slice(p.offset as usize, p.elements as usize);
        let stacks = STACKS.map(|(_, linear, bias)| {
            let weights = table.params.iter().filter(|p| p.kind == linear);
            let biases = table.params.iter().filter(|p| p.kind == bias);
            weights
                .zip(biases)
                .map(|(w, b)| Linear {
                    weight: Matrix::new(slice(w), w.n as usize, w.k as usize, layout),
                    bias: slice(b),
                })
                .collect()
        });
        MlpParams { all, log_std: table.find(ParamKind::LogStd, 0).map(slice), stacks }
    }
}

#[derive(Clone, Debug)]
pub struct MlpPass<'p> {
    /// [rows, n]: flat observations.
    pub input: Buf<'p>,
    stacks: [StackPass<'p>; 2],
}

#[derive(Clone, Debug)]
struct StackPass<'p> {
    /// Output of each layer, after its activation.
    outputs: Vec<Buf<'p>>,
    gradients: Option<StackGradients<'p>>,
}

#[derive(Clone, Copy, Debug)]
struct StackGradients<'p> {
    d_out: Buf<'p>,
    /// Gradients of a layer's outputs and of its inputs, alternating.
    d: Buf<'p>,
    pack: Buf<'p>,
}

impl<'p> MlpPass<'p> {
    /// Resolves the regions of `MlpSpec::layout` under `name`; `get` finds a region.
    pub fn bind(name: &str, get: impl Fn(&str) -> Option<Buf<'p>>) -> MlpPass<'p> {
        let region = |what: &str| get(&format!("{name}.{what}"));
        let stacks = STACKS.map(|(stack, ..)| {
            let here = |what: &str| region(&format!("{stack}.{what}"));
            let gradients = here("d_out").zip(here("d")).zip(here("pack"));
            StackPass {
                outputs: (0..).map_while(|i| here(&i.to_string())).collect(),
                gradients: gradients.map(|((d_out, d), pack)| StackGradients { d_out, d, pack }),
            }
        });
        MlpPass { input: region("input").expect("the layout has the regions of a pass"), stacks }
    }

    /// Returns [M, A]: logits, or means.
    pub fn outputs(&self, rows: usize, outputs: usize) -> Buf<'p> {
        last(&self.stacks[0]).slice(0, rows * outputs)
    }

    /// Returns [M]: values.
    pub fn values(&self, rows: usize) -> Buf<'p> {
        last(&self.stacks[1]).slice(0, rows)
    }

    /// Returns [M, A]: gradients of the outputs, an input of `backward`. Panics on a pass without gradients.
    pub fn d_outputs(&self, rows: usize, outputs: usize) -> Buf<'p> {
        gradients(&self.stacks[0]).d_out.slice(0, rows * outputs)
    }

    /// Returns [M]: gradients of the values, an input of `backward`. Panics on a pass without gradients.
    pub fn d_values(&self, rows: usize) -> Buf<'p> {
        gradients(&self.stacks[1]).d_out.slice(0, rows)
    }
}

fn last<'p>(stack: &StackPass<'p>) -> Buf<'p> {
    *stack.outputs.last().expect("a stack has a map")
}

fn gradients<'p>(stack: &StackPass<'p>) -> StackGradients<'p> {
    stack.gradients.expect("the layout of a pass with gradients")
}

/// Computes outputs and values of the first `rows` rows of `pass.input`.
pub fn forward(dev: &dyn Device, params: &MlpParams<'_>, how: Activation, pass: &MlpPass<'_>, rows: usize) {
    let run = |stack: usize| forward_stack(dev, params, how, pass, rows, stack);
    dev.both(&|| run(0), &|| run(1));
}

/// Computes the outputs alone, with the bits of `forward`.
pub fn forward_actor(
    dev: &dyn Device,
    params: &MlpParams<'_>,
    how: Activation,
    pass: &MlpPass<'_>,
    rows: usize,
) {
    forward_stack(dev, params, how, pass, rows, 0);
}

fn forward_stack(
    dev: &dyn Device,
    params: &MlpParams<'_>,
    how: Activation,
    pass: &MlpPass<'_>,
    rows: usize,
    stack: usize,
) {
    let maps = &params.stacks[stack];
    let mut x = pass.input.slice(0, rows * maps[0].weight.k);
    for (i, (map, out)) in maps.iter().zip(&pass.stacks[stack].outputs).enumerate() {
        let y = out.slice(0, rows * map.weight.n);
        dev.matmul(x, map.weight, Some(map.bias), y, false);
        if i + 1 < maps.len() {
            dev.activate(how, y, y);
        }
        x = y;
    }
}

/// Computes gradients of weights and biases from `d_outputs` and `d_values`, after `forward` of the same rows. They are
/// written, not added. The caller computes the gradient of `log_std`: no network is involved.
pub fn backward(
    dev: &dyn Device,
    params: &MlpParams<'_>,
    how: Activation,
    grads: &MlpParams<'_>,
    pass: &MlpPass<'_>,
    rows: usize,
) {
    let run = |stack: usize| {
        let (maps, parts) = (&params.stacks[stack], &pass.stacks[stack]);
        let StackGradients { d_out, d, pack } = gradients(parts);
        let mut dy = d_out.slice(0, rows * maps[maps.len() - 1].weight.n);
        for (i, (map, grad)) in maps.iter().zip(&grads.stacks[stack]).enumerate().rev() {
            let Matrix { n, k, .. } = map.weight;
            let x = if i == 0 { pass.input } else { parts.outputs[i - 1] }.slice(0, rows * k);
            let pack = pack.slice(0, (dev.kind().pack)(rows as u64, n as u64, k as u64, DType::F32) as usize);
            dev.matmul_dw(dy, x, grad.weight, false, pack);
            dev.bias_backward(dy, grad.bias, false);
            if i > 0 {
                let dx = d.part(i % 2, d.len() / 2).slice(0, rows * k);
                dev.matmul_dx(dy, map.weight, dx, false);
                dev.activate_backward(how, x, dx, dx);
                dy = dx;
            }
        }
    };
    dev.both(&|| run(0), &|| run(1));
}
