//! Tests what a rollout holds against what its batch says, frame by frame.

use crate::rig::{Case, World, bits, case};
use plimsoll_base::PolicyVersion;
use plimsoll_collect::{Batch, Row};
use plimsoll_env::native::{Options, Visitor, visit};
use plimsoll_env::{Environment, Slot, flags, seed};

const ENVS: [&str; 3] = ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"];

fn short(env: &str, more: &[&str]) -> Case {
    let env = format!("environment.env={env}");
    // Episodes are truncated after 11 frames, so that every kind of end is in a batch.
    case(&[&[&*env, "environment.max_frames_per_traj=11"], more].concat())
}

/// The value of an observation as the learner computes it.
fn value(world: &mut World<'_, '_>, slot: &[u8]) -> f64 {
    let mut row = vec![0.0; world.case.settings.network.reader.width()];
    world.case.settings.network.reader.read(slot, &mut row);
    world.state.scales().apply(&mut row);
    let mut value = [0.0];
    world.learner.values(&row, &mut value);
    f64::from(value[0])
}

/// Advantages of a row by the recursion of arXiv 1506.02438, from its last frame to its first.
fn recursion(world: &mut World<'_, '_>, row: &Row) -> Vec<f64> {
    let (gamma, lambda) = (world.case.settings.gamma, world.case.settings.lambda);
    let layout = &world.case.settings.rows;
    let (rewards, values): (&[f32], &[f32]) = (row.column(&layout.rewards), row.column(&layout.values));
    let mut advantages = vec![0.0; row.num_frames];
    let (mut next_advantage, mut next_value) = (0.0, 0.0);
    for t in (0..row.num_frames).rev() {
        let flag = row.flags(layout)[t];
        if flag & (flags::DONE | flags::CUT) != 0 {
            next_advantage = 0.0;
            next_value = if flag & flags::TERMINATED != 0 {
                0.0
            } else {
                value(world, row.next_observation(layout, t))
            };
        }
        let delta = f64::from(rewards[t]) + gamma * next_value - f64::from(values[t]);
        advantages[t] = delta + gamma * lambda * next_advantage;
        (next_advantage, next_value) = (advantages[t], f64::from(values[t]));
    }
    advantages
}

#[test]
fn advantages_and_returns_are_those_of_the_recursion_over_the_batch() {
    for env in ENVS {
        short(env, &[]).world(|world| {
            let batch = world.collect();
            world.take(&batch);
            let mut at = 0;
            let mut kinds = 0;
            for row in batch.rows() {
                kinds |= row.flags(&world.case.settings.rows).iter().fold(0, |all, flag| all | flag);
                let values: Vec<f32> = row.column(&world.case.settings.rows.values).to_vec();
                for (t, expect) in recursion(world, row).into_iter().enumerate() {
                    let (advantage, of_return) =
                        (world.experience.advantages[at], world.experience.returns[at]);
                    let scale = 1.0 + expect.abs();
                    assert!((f64::from(advantage) - expect).abs() < 1e-4 * scale, "{env}, frame {at}");
                    let expect = expect + f64::from(values[t]);
                    assert!(
                        (f64::from(of_return) - expect).abs() < 1e-4 * (1.0 + expect.abs()),
                        "{env}, frame {at}"
                    );
                    at += 1;
                }
            }
            assert_eq!(at, world.experience.num_frames());
            assert!(kinds & flags::TRUNCATED != 0 && kinds & flags::CUT != 0, "{env}: {kinds}");
        });
    }
}

#[test]
fn what_the_policy_saw_is_what_the_learner_reads() {
    for env in ENVS {
        short(env, &["environment.normalise_observations=true"]).world(|world| {
            // In the first batch nothing is known of the numbers; from the second on they are normalised.
            for step in 1..=3 {
                let scales = world.state.scales();
                let batch = world.collect();
                world.take(&batch);
                let (settings, from) = (&world.case.settings, &world.experience);
                let width = settings.network.reader.width();
                let mut rows = from.inputs.chunks(width).zip(from.raw_inputs.chunks(width));
                for row in batch.rows() {
                    for t in 0..row.num_frames {
                        let mut seen = vec![0.0; width];
                        settings.network.reader.read(row.observation(&settings.rows, t), &mut seen);
                        let (normalised, raw) = rows.next().expect("a frame");
                        assert_eq!(raw, seen, "{env}");
                        scales.apply(&mut seen);
                        assert_eq!(bits(normalised), bits(&seen), "{env}, step {step}");
                    }
                }
                let rewards: Vec<f32> = batch
                    .rows()
                    .iter()
                    .flat_map(|row| row.column::<f32>(&settings.rows.rewards)[..row.num_frames].to_vec())
                    .collect();
                assert_eq!(from.rewards, rewards, "{env}: rewards are not scaled unasked");
                // The log-probabilities of the rollout are the trainer's, to the bit.
                assert_eq!(world.learn(step).expect("finite losses").mismatch, 0.0, "{env}, step {step}");
            }
        });
    }
}

#[test]
fn ends_are_counted_with_the_returns_of_whole_episodes() {
    short("CartPole-v1", &[]).world(|world| {
        let mut so_far = [0.0; 4];
        let mut all: Vec<f64> = Vec::new();
        for _ in 0..3 {
            let batch = world.collect();
            let layout = &world.case.settings.rows;
            let mut returns = Vec::new();
            for row in batch.rows() {
                let sum = &mut so_far[row.env_index as usize];
                for t in 0..row.num_frames {
                    *sum += f64::from(row.column::<f32>(&layout.rewards)[t]);
                    if row.flags(layout)[t] & flags::DONE != 0 {
                        returns.push(std::mem::take(sum));
                    }
                }
            }
            let ended = world.take(&batch);
            assert_eq!((ended.count, ended.returns), (returns.len(), returns.iter().sum::<f64>()));
            // A reward of 1 for each frame.
            assert_eq!(ended.frames as f64, ended.returns);
            all.extend(returns);
        }
        assert_eq!((world.state.num_episodes, world.state.num_frames), (all.len() as u64, 3 * 256));
    });
}

/// Everything that a batch has, by environment.
fn columns(case: &Case, batch: &Batch) -> Vec<(u32, Vec<u8>)> {
    let layout = &case.settings.rows;
    let mut rows: Vec<(u32, Vec<u8>)> = batch
        .rows()
        .iter()
        .map(|row| {
            let ranges =
                [&layout.observations, &layout.actions, &layout.rewards, &layout.logprobs, &layout.values];
            (
                row.env_index,
                ranges.into_iter().flat_map(|range| row.bytes()[range.clone()].to_vec()).collect(),
            )
        })
        .collect();
    rows.sort();
    rows
}

#[test]
fn who_acts_at_the_same_time_changes_nothing() {
    for env in ENVS {
        let collected = |threads: &str| {
            let case = short(env, &[threads, "environment.num_envs=8"]);
            case.world(|world| {
                let batch = world.collect();
                columns(world.case, &batch)
            })
        };
        let alone = collected("run.threads=8");
        assert_eq!(alone.len(), 8);
        assert!(alone == collected("run.threads=1") && alone == collected("run.threads=3"), "{env}");
    }
}

#[test]
fn collecting_goes_on_where_the_state_was_left() {
    for env in ENVS {
        let case = short(env, &[]);
        let (state, expect) = case.world(|world| {
            world.rollout();
            world.rollout();
            let state = world.state.clone();
            let batch = world.collect();
            (state, columns(world.case, &batch))
        });
        // Other environments, which are replayed to where those were.
        let again = case.world_from(state.underway(), |world| {
            let batch = world.collect();
            columns(world.case, &batch)
        });
        assert!(again == expect, "{env}");
        // Episodes in progress have the actions since their reset, each a slot.
        let slot = case.settings.rows.action.bytes;
        assert!(state.episodes.iter().all(|episode| episode.actions.len() % slot == 0), "{env}");
        assert!(state.episodes.iter().all(|episode| episode.actions.len() / slot < 11), "{env}");
    }
}

struct Constant(f64);

impl Visitor for Constant {
    /// By environment and round: the sum of rewards with always the same action.
    type Output = Vec<f64>;

    fn visit<E: Environment + 'static>(self, make: impl Fn() -> E + Send + 'static) -> Vec<f64> {
        let mut env = make();
        let spec = env.spec();
        let (observation, action) = (Slot::of(&spec.observation).unwrap(), Slot::of(&spec.action).unwrap());
        let (mut seen, mut slot) = (vec![0; observation.bytes], vec![0; action.bytes]);
        action.leaves[0].element.write(self.0, &mut slot);
        let mut play = |round: u32, number: u32| {
            env.reset(seed::reset_seed(0x6576_616c, number, round), &mut seen);
            let mut sum = 0.0;
            for _ in 0..spec.episode_steps_max.unwrap() {
                let step = env.step(&slot, &mut seen);
                sum += step.reward;
                if step.terminated || step.truncated {
                    break;
                }
            }
            sum
        };
        (0..2).flat_map(|round| [0, 1, 2, 3].map(|number| play(round, number)).to_vec()).collect()
    }
}

/// Weights of zero prefer nothing: the first choice is the most likely one, and the mean is 0.
#[test]
fn an_evaluation_plays_the_same_episodes_as_a_plain_loop() {
    for env in ["CartPole-v1", "Pendulum-v1"] {
        let case = case(&[&format!("environment.env={env}"), "eval.every=1", "eval.prompts_max=7"]);
        let expect = visit(env, &Options::default(), Constant(0.0)).expect("it is built in");
        case.world(|world| {
            let scales = world.state.scales();
            world.board.publish(PolicyVersion(1), scales, |weights| weights.fill(0.0));
            let returns = case.evaluate(&world.board);
            assert_eq!(returns.len(), 7, "four environments, two rounds, and one episode too many");
            for (number, (found, expect)) in returns.iter().zip(&expect).enumerate() {
                assert!(
                    (found - expect).abs() < 1e-6 * (1.0 + expect.abs()),
                    "{env}, {number}: {found} {expect}"
                );
            }
            assert_eq!(case.evaluate(&world.board), returns, "whatever the time");
        });
    }
}

#[test]
fn rewards_are_divided_by_the_deviation_of_their_discounted_returns() {
    short("Pendulum-v1", &["environment.normalise_rewards=true"]).world(|world| {
        let gamma = world.case.settings.gamma;
        // Mean 0, variance 1 and a weight of 1e-4 rows to begin with, as Gymnasium's wrapper.
        let (mut count, mut mean, mut variance) = (1e-4, 0.0, 1.0);
        let mut carried = [0.0_f64; 4];
        for _ in 0..2 {
            let batch = world.collect();
            world.take(&batch);
            let layout = &world.case.settings.rows;
            let (mut seen, mut raw) = (Vec::new(), Vec::new());
            for row in batch.rows() {
                let carry = &mut carried[row.env_index as usize];
                for t in 0..row.num_frames {
                    let reward = f64::from(row.column::<f32>(&layout.rewards)[t]);
                    *carry = *carry * gamma + reward;
                    seen.push(*carry);
                    raw.push(reward);
                    if row.flags(layout)[t] & flags::DONE != 0 {
                        *carry = 0.0;
                    }
                }
            }
            let n = seen.len() as f64;
            let of_batch = seen.iter().sum::<f64>() / n;
            let spread = seen.iter().map(|x| (x - of_batch).powi(2)).sum::<f64>() / n;
            let delta = of_batch - mean;
            variance =
                (variance * count + spread * n + delta * delta * count * n / (count + n)) / (count + n);
            mean += delta * n / (count + n);
            count += n;
            for (found, reward) in world.experience.rewards.iter().zip(&raw) {
                let expect = (reward / (variance + 1e-8).sqrt()).clamp(-10.0, 10.0);
                assert!((f64::from(*found) - expect).abs() < 1e-4, "{found} for {expect}");
            }
        }
    });
}
