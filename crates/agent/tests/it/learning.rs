//! Updates against a plain network in f64, whose gradients are finite differences.

use crate::rig::{Case, World, bits, case};
use plimsoll_algo::advantage::Whiten;
use plimsoll_algo::policy_loss::PolicyLoss;
use plimsoll_device::MatrixLayout;
use plimsoll_model::mlp::MlpHead;

/// The flat weights as numbers in f64, and where each map of a stack lies among them.
struct Plain {
    weights: Vec<f64>,
    /// By stack: (first weight, first bias, outputs, inputs) of each map.
    stacks: [Vec<(usize, usize, usize, usize)>; 2],
    log_std: Option<usize>,
}

impl Plain {
    fn of(world: &World<'_, '_>) -> Plain {
        let params = &world.learner.table.params;
        let find = |name: String| params.iter().find(|param| param.parts[0].name == name);
        let stack = |stack: &str| {
            let maps = (0..).map_while(|i| {
                let weight = find(format!("{stack}.{}.weight", 2 * i))?;
                let bias = find(format!("{stack}.{}.bias", 2 * i))?;
                assert!(
                    weight.elements >= u64::from(weight.n * weight.k),
                    "rows one after the other, then padding"
                );
                Some((weight.offset as usize, bias.offset as usize, weight.n as usize, weight.k as usize))
            });
            maps.collect::<Vec<_>>()
        };
        Plain {
            weights: world.weights().iter().map(|&w| w.into()).collect(),
            stacks: [stack("actor"), stack("critic")],
            log_std: find("actor_logstd".into()).map(|param| param.offset as usize),
        }
    }

    fn run(&self, stack: usize, row: &[f32]) -> Vec<f64> {
        let maps = &self.stacks[stack];
        let mut x: Vec<f64> = row.iter().map(|&x| x.into()).collect();
        for (i, &(weight, bias, outputs, inputs)) in maps.iter().enumerate() {
            let out = (0..outputs).map(|o| {
                let at = |i: usize| weight + MatrixLayout::Single.index(inputs, o, i);
                let sum: f64 = x.iter().enumerate().map(|(i, x)| self.weights[at(i)] * x).sum();
                let y = sum + self.weights[bias + o];
                if i + 1 < maps.len() { y.tanh() } else { y }
            });
            x = out.collect();
        }
        x
    }

    /// (log-probability, entropy) of an action.
    fn score(&self, head: &MlpHead, row: &[f32], action: &[f32]) -> (f64, f64) {
        let outputs = self.run(0, row);
        match head {
            MlpHead::Categorical(sizes) => {
                assert_eq!(sizes.len(), 1, "one choice");
                let sum: f64 = outputs.iter().map(|logit| logit.exp()).sum();
                let logp = |i: usize| outputs[i] - sum.ln();
                let entropy = -(0..outputs.len()).map(|i| logp(i).exp() * logp(i)).sum::<f64>();
                (logp(action[0] as usize), entropy)
            }
            MlpHead::Gaussian(dims) => {
                let first = self.log_std.expect("a parameter");
                let half_ln_tau = 0.5 * std::f64::consts::TAU.ln();
                (0..*dims as usize).fold((0.0, 0.0), |(logp, entropy), i| {
                    let log_std = self.weights[first + i];
                    let z = (f64::from(action[i]) - outputs[i]) / log_std.exp();
                    (logp - 0.5 * z * z - log_std - half_ln_tau, entropy + 0.5 + half_ln_tau + log_std)
                })
            }
        }
    }

    /// The loss of PPO over all frames of a rollout.
    fn loss(&self, world: &World<'_, '_>, advantages: &[f64]) -> f64 {
        let (how, from) = (&world.case.settings.learner, &world.experience);
        let PolicyLoss::Ppo { clip_low, clip_high, .. } = how.policy else { panic!("{:?}", how.policy) };
        let (n, head) = (from.num_frames(), &world.case.settings.network.spec.head);
        let (width, dims) = (from.inputs.len() / n, from.actions.len() / n);
        let one = |i: usize| {
            let (row, action) = (&from.inputs[i * width..][..width], &from.actions[i * dims..][..dims]);
            let (logp, entropy) = self.score(head, row, action);
            let ratio = (logp - f64::from(from.logprobs[i])).exp();
            let held = ratio.clamp(1.0 - clip_low, 1.0 + clip_high);
            let policy = -(ratio * advantages[i]).min(held * advantages[i]);
            let (value, target) = (self.run(1, row)[0], f64::from(from.returns[i]));
            let old = f64::from(from.values[i]);
            let held = how.value_clip.map_or(value, |clip| old + (value - old).clamp(-clip, clip));
            let error = (value - target).powi(2).max((held - target).powi(2));
            policy - how.entropy_coef * entropy + how.value_coef * 0.5 * error
        };
        (0..n).map(one).sum::<f64>() / n as f64
    }

    fn gradient(&mut self, world: &World<'_, '_>, advantages: &[f64]) -> Vec<f64> {
        const STEP: f64 = 1e-6;
        let mut gradient = vec![0.0; self.weights.len()];
        for (at, gradient) in gradient.iter_mut().enumerate() {
            let weight = self.weights[at];
            let [above, below] = [STEP, -STEP].map(|step| {
                self.weights[at] = weight + step;
                self.loss(world, advantages)
            });
            self.weights[at] = weight;
            *gradient = (above - below) / (2.0 * STEP);
        }
        gradient
    }
}

fn whitened(how: Whiten, advantages: &[f32]) -> Vec<f64> {
    let all: Vec<f64> = advantages.iter().map(|&a| a.into()).collect();
    let n = all.len() as f64;
    let mean = all.iter().sum::<f64>() / n;
    let deviation = (all.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / n).max(1e-8).sqrt();
    match how {
        Whiten::Off => all,
        Whiten::NoStd => all.iter().map(|a| a - mean).collect(),
        Whiten::Full => all.iter().map(|a| (a - mean) / deviation).collect(),
    }
}

/// Two epochs over the whole rollout: in the second one ratios differ from 1 and values from those of the rollout.
#[test]
fn updates_are_those_of_a_plain_network_in_f64() {
    for (env, more) in [
        ("CartPole-v1", "critic.value_clip=0.2"),
        ("Pendulum-v1", "environment.normalise_observations=true"),
        ("FrozenLake-v1", "loss.entropy_coef=0.2"),
    ] {
        let case = case(&[
            &format!("environment.env={env}"),
            more,
            "model=mlp:5",
            "environment.frames_per_batch=64",
            "train.mini_batch=64",
            "train.learning_rate=0.05",
            // So large that no gradient near 0 becomes a whole step of either sign.
            "train.adam_epsilon=1e-2",
            "train.grad_clip=0.1",
        ]);
        case.world(|world| {
            world.rollout();
            let before = world.weights();
            let mut plain = Plain::of(world);
            let advantages = whitened(case.settings.learner.whiten, &world.experience.advantages);
            let options = case.run.train().update_options(1, case.run.seed);
            let (beta1, beta2) = (f64::from(options.betas.0), f64::from(options.betas.1));
            let mut moments = vec![(0.0, 0.0); plain.weights.len()];
            for update in 1..=case.settings.learner.epochs as i32 {
                let gradient = plain.gradient(world, &advantages);
                let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
                let scale = (f64::from(options.grad_clip) / norm).min(1.0);
                for ((weight, (m, v)), g) in plain.weights.iter_mut().zip(&mut moments).zip(&gradient) {
                    let g = g * scale;
                    (*m, *v) = (beta1 * *m + (1.0 - beta1) * g, beta2 * *v + (1.0 - beta2) * g * g);
                    let (m, v) = (*m / (1.0 - beta1.powi(update)), *v / (1.0 - beta2.powi(update)));
                    let lr = f64::from(options.lr);
                    *weight -= lr
                        * (m / (v.sqrt() + f64::from(options.epsilon))
                            + f64::from(options.weight_decay) * *weight);
                }
            }
            let report = world.learn(1).expect("finite losses");
            assert_eq!((report.updates, report.mismatch), (2, 0.0));
            let after = world.weights();
            let moved = before.iter().zip(&after).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max);
            let differs = after.iter().zip(&plain.weights).map(|(a, b)| (f64::from(*a) - b).abs());
            let worst = differs.fold(0.0, f64::max);
            assert!(moved > 0.02 && worst < 1e-3 * moved, "{env}: {worst} of {moved}");
        });
    }
}

#[test]
fn values_of_any_number_of_rows_are_those_of_the_plain_critic() {
    let case = case(&["train.mini_batch=64"]);
    case.world(|world| {
        let plain = Plain::of(world);
        // More rows than a mini-batch has: they go through the network in parts.
        for rows in [1, 63, 64, 65, 200] {
            let inputs: Vec<f32> = (0..rows * 4).map(|i| ((i * 37) % 101) as f32 * 0.02 - 1.0).collect();
            let mut values = vec![f32::NAN; rows];
            world.learner.values(&inputs, &mut values);
            for (row, value) in inputs.chunks(4).zip(&values) {
                let expect = plain.run(1, row)[0];
                assert!((f64::from(*value) - expect).abs() < 1e-5, "{rows} rows: {value} for {expect}");
            }
        }
    });
}

#[test]
fn every_epoch_sees_every_frame_in_an_order_of_its_own() {
    let case = case(&["train.mini_batch=32", "train.epochs_per_rollout=3"]);
    case.world(|world| {
        world.rollout();
        let report = world.learn(1).expect("finite losses");
        assert_eq!(report.updates, 3 * 8);
        assert_eq!(world.learner.updates, 24);
        assert_eq!((report.policy.tokens, report.value.tokens), (3.0 * 256.0, 3.0 * 256.0));
        world.rollout();
        world.learn(2).expect("finite losses");
        assert_eq!(world.learner.updates, 48);
    });
}

/// The weights after two steps.
fn trained(case: &Case) -> Vec<u32> {
    case.world(|world| {
        for step in 1..=2 {
            world.rollout();
            world.learn(step).expect("finite losses");
        }
        bits(&world.weights())
    })
}

#[test]
fn threads_change_no_bit_and_the_seed_changes_all() {
    for env in ["CartPole-v1", "Pendulum-v1"] {
        let of = |more: &str| {
            let env = format!("environment.env={env}");
            trained(&case(&[
                &env,
                more,
                "environment.normalise_observations=true",
                "environment.normalise_rewards=true",
            ]))
        };
        let one = of("run.threads=1");
        assert!(one == of("run.threads=2") && one == of("run.threads=3"), "{env}");
        assert!(one != of("seed=1"), "{env}");
    }
}

#[test]
fn a_loss_that_is_no_number_ends_the_step_with_the_weights_before_it() {
    let case = case(&[]);
    case.world(|world| {
        world.rollout();
        let before = bits(&world.weights());
        world.experience.returns[7] = f32::NAN;
        let error = world.learn(5).expect_err("no number");
        assert!(error.slug == "loss-not-finite" && error.message.contains('5'), "{error}");
        // The frame is in one of four mini-batches of the first epoch; updates before it are good.
        assert!(world.learner.updates < 4);
        world.learner.prove().expect("every weight is finite");
        assert!(world.learner.updates > 0 || bits(&world.weights()) == before);
    });
}

#[test]
fn a_weight_that_is_no_number_is_named() {
    let case = case(&["environment.env=Pendulum-v1"]);
    case.world(|world| {
        world.learner.prove().expect("the first weights are finite");
        let param = world.learner.table.params.iter().find(|param| param.parts[0].name == "critic.2.bias");
        let at = param.expect("a second map").offset as usize + 3;
        world.learner.dev.write_f32(world.learner.params.all, at, &[f32::INFINITY]);
        let error = world.learner.prove().expect_err("one is not");
        assert!(
            error.slug == "model-weight-not-finite" && error.message.contains("critic.2.bias"),
            "{error}"
        );
    });
}

#[test]
fn a_gradient_longer_than_the_clip_is_shortened_to_it() {
    let first_moment = |clip: &str| {
        let clip = format!("train.grad_clip={clip}");
        let sets = ["train.epochs_per_rollout=1", "train.mini_batch=256", clip.as_str()];
        let case = case(&sets);
        case.world(|world| {
            world.rollout();
            let norm = world.learn(1).expect("finite losses").grad_norm;
            let m = world.learner.states()[0].buf;
            (
                norm,
                world.learner.dev.sum_squares(m).sqrt() / (1.0 - f64::from(case.run.train().betas[0] as f32)),
            )
        })
    };
    let (norm, free) = first_moment("1e9");
    assert!((free / norm - 1.0).abs() < 1e-4, "{free} of {norm}");
    let half = norm / 2.0;
    let (same, held) = first_moment(&half.to_string());
    assert!(same == norm && (held / half - 1.0).abs() < 1e-4, "{held} of {half}");
    let (_, off) = first_moment("0");
    assert_eq!(off, free, "0 never clips");
}
