//! Every native environment against trajectories recorded from Gymnasium 1.4.0 (`tests/gymnasium.json`).

use super::*;
use crate::Slot;
use serde_json::Value;

/// Says what the recordings overwrite and read.
pub trait Native: Environment {
    fn set_state(&mut self, state: &[f64]);
    fn state(&self) -> Vec<f64>;
    /// The first observation of the state.
    fn observe(&self, observation: &mut [u8]);
}

fn golden() -> Value {
    serde_json::from_str(include_str!("../../tests/gymnasium.json")).expect("the fixture is JSON")
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().expect("a list")
}

/// A number or a list of them.
fn numbers(value: &Value) -> Vec<f64> {
    match value {
        Value::Array(items) => items.iter().map(|item| item.as_f64().expect("a number")).collect(),
        number => vec![number.as_f64().expect("a number")],
    }
}

/// The recorded observation or action as a slot of `space`.
fn slot_of(space: &crate::Space, value: &Value) -> Vec<u8> {
    let slot = Slot::of(space).expect("native spaces have slots");
    let element = slot.leaves[0].element;
    let mut bytes = vec![0; slot.bytes];
    for (part, number) in bytes.chunks_exact_mut(element.bytes()).zip(numbers(value)) {
        element.write(number, part);
    }
    bytes
}

/// Steps the recorded actions from the recorded state.
fn check_episode(env: &mut impl Native, episode: &Value, what: &str) {
    let spec = env.spec();
    let mut observation = vec![0; Slot::of(&spec.observation).expect("a slot").bytes];
    env.reset(0, &mut observation);
    env.set_state(&numbers(&episode["start_state"]));
    env.observe(&mut observation);
    assert_eq!(observation, slot_of(&spec.observation, &episode["initial_observation"]), "{what}: first");
    let actions = list(&episode["actions"]);
    let limit =
        episode["kwargs"]["max_episode_steps"].as_u64().map_or(spec.episode_steps_max, |n| Some(n as u32));
    for (t, action) in actions.iter().enumerate() {
        let step = env.step(&slot_of(&spec.action, action), &mut observation);
        let expect = slot_of(&spec.observation, &episode["observations"][t]);
        assert_eq!(observation, expect, "{what}: observation {t}");
        let reward = episode["rewards"][t].as_f64().expect("a reward");
        assert!(step.reward == reward, "{what}: reward {t}: {} {reward}", step.reward);
        let is_last = t + 1 == actions.len();
        assert_eq!(step.terminated, is_last && episode["terminated"] == true, "{what}: terminated {t}");
        assert!(!step.truncated, "{what}: the limit is not the environment's own");
        assert_eq!(limit == Some(t as u32 + 1), is_last && episode["truncated"] == true, "{what}: limit {t}");
    }
    let bits = |state: Vec<f64>| state.into_iter().map(f64::to_bits).collect::<Vec<u64>>();
    assert_eq!(bits(env.state()), bits(numbers(&episode["final_state"])), "{what}: final state");
}

fn check_resets(env: &mut impl Native, resets: &Value, what: &str) {
    let spec = env.spec();
    let mut observation = vec![0; Slot::of(&spec.observation).expect("a slot").bytes];
    for reset in list(resets) {
        env.reset(reset["seed"].as_u64().expect("a seed"), &mut observation);
        assert_eq!(env.state(), numbers(&reset["state"]), "{what}: seed {}", reset["seed"]);
        assert_eq!(observation, slot_of(&spec.observation, &reset["observation"]), "{what}");
    }
}

fn check<E: Native>(golden: &Value, id: &str, make: impl Fn(&mut Options) -> E) {
    for (index, episode) in list(&golden["episodes"][id]).iter().enumerate() {
        let mut options = episode["kwargs"].as_object().cloned().unwrap_or_default();
        check_episode(&mut make(&mut options), episode, &format!("{id} episode {index}"));
    }
    if golden["resets"].get(id).is_some() {
        check_resets(&mut make(&mut Options::new()), &golden["resets"][id], id);
    }
}

#[test]
fn every_native_environment_is_gymnasiums_to_the_bit() {
    let golden = golden();
    let of_table = |table: std::sync::Arc<table::Table>| TableEnvironment::new(&table);
    check(&golden, "CartPole-v1", |_| CartPole::default());
    check(&golden, "Acrobot-v1", |_| Acrobot::default());
    check(&golden, "MountainCar-v0", |_| MountainCar::default());
    check(&golden, "MountainCarContinuous-v0", |_| MountainCarContinuous::default());
    check(&golden, "Pendulum-v1", |_| Pendulum::default());
    check(&golden, "FrozenLake-v1", |options| of_table(table::frozen_lake(options).expect("known options")));
    check(&golden, "CliffWalking-v1", |_| of_table(table::cliff_walking()));
    check(&golden, "Taxi-v4", |_| of_table(table::taxi()));
    for (id, limit) in golden["max_episode_steps"].as_object().expect("limits by name") {
        let limit_of = |id: &str| visit(id, &Options::new(), Limit).expect("a native environment");
        assert_eq!(limit_of(id).map(u64::from), limit.as_u64(), "{id}");
    }
}

struct Limit;

impl Visitor for Limit {
    type Output = Option<u32>;

    fn visit<E: Environment + 'static>(self, make: impl Fn() -> E + Send + 'static) -> Option<u32> {
        make().spec().episode_steps_max
    }
}

#[test]
fn a_slippery_lake_draws_as_gymnasium_does() {
    for recorded in list(&golden()["frozen_lake_slippery"]) {
        let table = table::frozen_lake(&mut Options::new()).expect("no options");
        let mut env = TableEnvironment::new(&table);
        let mut observation = [0; 8];
        env.reset(recorded["seed"].as_u64().expect("a seed"), &mut observation);
        for (t, action) in list(&recorded["actions"]).iter().enumerate() {
            let step = env.step(&action.as_i64().expect("an action").to_ne_bytes(), &mut observation);
            assert_eq!(i64::from_ne_bytes(observation), recorded["observations"][t], "step {t}");
            assert_eq!(step.reward, recorded["rewards"][t].as_f64().expect("a reward"), "step {t}");
        }
    }
}

#[test]
fn the_generator_is_numpys() {
    for recorded in list(&golden()["rng"]) {
        let seed = recorded["seed"].as_u64().expect("a seed");
        let text = |value: &Value| value.as_str().expect("a number as text").to_string();
        let texts = |value: &Value| list(value).iter().map(text).collect::<Vec<_>>();
        let words = NumpyRandom::seed_state(seed).map(|word| word.to_string());
        assert_eq!(words.to_vec(), texts(&recorded["seed_sequence_generate_state_u64x4"]), "seed {seed}");
        let mut random = NumpyRandom::new(seed);
        let parts = (random.parts().0.to_string(), random.parts().1.to_string());
        assert_eq!(parts, (text(&recorded["pcg64_state"]), text(&recorded["pcg64_inc"])), "seed {seed}");
        let raw: Vec<String> = (0..4).map(|_| random.next_u64().to_string()).collect();
        assert_eq!(raw, texts(&recorded["raw_u64x4"]), "seed {seed}");
        let mut random = NumpyRandom::new(seed);
        let uniform: Vec<f64> = (0..4).map(|_| random.uniform(-0.05, 0.05)).collect();
        assert_eq!(uniform, numbers(&recorded["uniform_m0.05_p0.05_x4"]), "seed {seed}");
    }
}

#[test]
fn a_name_that_is_not_native_is_named_with_what_it_may_mean() {
    let hint = |id: &str| {
        let error = visit(id, &Options::new(), Limit).unwrap_err();
        assert_eq!(error.slug, "unknown-environment");
        error.hints[0].clone()
    };
    assert_eq!(hint("Cartpole-v1"), "did you mean `CartPole-v1`?");
    assert_eq!(hint("CartPole-v0"), "did you mean `CartPole-v1`?");
    assert_eq!(hint("Walker2d-v5"), "a Python environment is `gym:Walker2d-v5` or `python:file.py:make`");
}

#[test]
fn options_that_an_environment_lacks_are_refused() {
    let check = |id: &str, options: &str| {
        let options = serde_json::from_str(options).expect("an object");
        visit(id, &options, Limit).map_err(|error| (error.slug, error.message))
    };
    assert_eq!(check("FrozenLake-v1", r#"{"map_name": "8x8", "is_slippery": false}"#), Ok(Some(100)));
    for (id, options) in [
        ("FrozenLake-v1", r#"{"map_name": "9x9"}"#),
        ("FrozenLake-v1", r#"{"is_slippery": 1}"#),
        ("CartPole-v1", r#"{"gravity": 1}"#),
    ] {
        assert_eq!(check(id, options).unwrap_err().0, "env-bad-option", "{id} {options}");
    }
}
