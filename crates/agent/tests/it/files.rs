//! Checkpoints and policy files: they read back to the last bit, and what is no policy of the environment is refused.

use crate::rig::{Case, World, bits, case, try_case};
use plimsoll_agent::network::{Network, StoredPolicy};
use plimsoll_agent::plan::checkpoint_bytes;
use plimsoll_agent::{policy, save};
use plimsoll_algo::action::Explore;
use plimsoll_base::PolicyVersion;
use plimsoll_collect::{ActionBatch, ObservationBatch, Policy};
use plimsoll_device::Activation;
use plimsoll_run::checkpoint::{Retention, RunState, Store};
use plimsoll_run::lead::{Savers, Saving};
use plimsoll_run::progress::Progress;
use std::path::{Path, PathBuf};

const GOLDEN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../plimsoll/tests/golden/policy/cartpole.safetensors");

fn save(world: &World<'_, '_>, folder: &Path, step: u32, is_resumable: bool) -> PathBuf {
    let state = RunState { policy_version: world.learner.updates, ..RunState::blank(Progress::default()) };
    let saving = Saving {
        step,
        store: Store::of_run(folder),
        retention: Retention { keep: 1, ..Retention::default() },
        everything: is_resumable.then_some((&state, "method = \"ppo\"\n")),
        savers: Savers::All,
    };
    std::fs::create_dir_all(folder.join("checkpoints")).expect("a folder");
    save::write(&world.learner, &world.case.settings, &world.state, "mlp:8x8", saving)
        .expect("room on the disk")
}

fn flat(world: &World<'_, '_>) -> Vec<Vec<u32>> {
    let states = world.learner.states().into_iter().map(|set| set.buf);
    let read = |buf| {
        let mut all = vec![0.0; world.learner.params.all.len()];
        world.learner.dev.read_f32(buf, 0, &mut all);
        bits(&all)
    };
    std::iter::once(world.learner.params.all).chain(states).map(read).collect()
}

#[test]
fn a_checkpoint_reads_back_and_the_next_step_is_the_same() {
    for env in ["CartPole-v1", "Pendulum-v1"] {
        let case = case(&[&format!("environment.env={env}"), "environment.normalise_observations=true"]);
        let folder = tempfile::tempdir().expect("a folder");
        let (kept, state, expect) = case.world(|world| {
            world.rollout();
            world.learn(1).expect("finite losses");
            save(world, folder.path(), 1, true);
            let (kept, state) = (flat(world), world.state.clone());
            world.rollout();
            world.learn(2).expect("finite losses");
            (kept, state, flat(world))
        });
        let checkpoint = Store::of_run(folder.path()).path(1);
        let bytes: u64 = walk(&checkpoint);
        assert!(bytes <= checkpoint_bytes(&case.settings).0, "{env}: {bytes}");
        let read =
            plimsoll_agent::state::AgentState::read(&checkpoint, &case.settings).expect("it was written");
        assert_eq!(read, state);
        case.world_from(read.underway(), |world| {
            save::read(&mut world.learner, &checkpoint, 8).expect("it was written");
            assert!(flat(world) == kept, "{env}");
            world.state = read;
            let scales = world.state.scales();
            world.board.publish(PolicyVersion(8), scales, |weights| world.learner.weights(weights));
            world.rollout();
            world.learn(2).expect("finite losses");
            assert!(flat(world) == expect, "{env}: another second step");
        });
    }
}

fn walk(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    entries
        .map(|entry| {
            if entry.path().is_dir() { walk(&entry.path()) } else { entry.metadata().expect("a file").len() }
        })
        .sum()
}

#[test]
fn the_last_checkpoint_of_a_run_is_a_policy_and_no_more() {
    let (case, folder) =
        (case(&["environment.normalise_observations=true"]), tempfile::tempdir().expect("a folder"));
    case.world(|world| {
        world.rollout();
        world.learn(1).expect("finite losses");
        let written = save(world, folder.path(), 1, false);
        assert!(!written.join("state").exists());
        let stored = StoredPolicy::open(&written).expect("a policy");
        stored.check(&world.case.settings.network).expect("it is of this environment");
        assert_eq!(stored.moments.as_ref(), world.state.observations.as_ref());
        assert_eq!(stored.activation, Some(Activation::Tanh));
    });
}

/// Returns what a policy chooses for these observations of CartPole, one environment each: actions and
/// log-probabilities.
fn acts(policy: &mut dyn Policy, case: &Case, observations: &[[f32; 4]]) -> (Vec<u8>, Vec<u32>) {
    let (observation, action) = (&case.settings.rows.observation, &case.settings.rows.action);
    let mut seen = vec![0; observations.len() * observation.bytes];
    for (slot, numbers) in seen.chunks_mut(observation.bytes).zip(observations) {
        slot.chunks_mut(4).zip(numbers).for_each(|(to, x)| to.copy_from_slice(&x.to_ne_bytes()));
    }
    let (episodes, steps) = (vec![0; observations.len()], vec![0; observations.len()]);
    let mut actions = vec![0; observations.len() * action.bytes];
    let (mut logprobs, mut values) = (vec![0.0; observations.len()], vec![0.0; observations.len()]);
    let batch = ObservationBatch {
        observations: &seen,
        slot: observation,
        first_env: 0,
        episodes: &episodes,
        steps: &steps,
    };
    let mut chosen =
        ActionBatch { actions: &mut actions, slot: action, logprobs: &mut logprobs, values: &mut values };
    policy.act(&batch, &mut chosen);
    (actions, bits(&logprobs))
}

#[test]
fn a_file_of_pytorch_acts_alike_in_groups_and_alone() {
    let case = case(&["model=mlp:16x16"]);
    let stored = StoredPolicy::open(Path::new(GOLDEN)).expect("a policy");
    let network = Network::of(&case.settings.env, stored.file.hidden().expect("widths"), Activation::Tanh);
    let network = network.expect("spaces of CartPole");
    stored.check(&network).expect("it is of CartPole");
    let observations: Vec<[f32; 4]> =
        (0..9).map(|i| [0, 1, 2, 3].map(|j| ((i * 4 + j) * 29 % 17) as f32 * 0.05 - 0.4)).collect();
    for explore in [Explore::Sample, Explore::Mode] {
        let policies =
            || policy::of_file(&network, &stored, 5, 9, 1, explore).expect("memory").pop().expect("one");
        let (actions, logprobs) = acts(&mut policies(), &case, &observations);
        // The first environment alone: what it does does not depend on the others.
        let (one, logprob) = acts(&mut policies(), &case, &observations[..1]);
        assert_eq!((&actions[..one.len()], logprobs[0]), (&one[..], logprob[0]), "{explore:?}");
        if explore == Explore::Mode {
            let chance = (0.5_f32).ln();
            assert!(logprobs.iter().all(|&bits| f32::from_bits(bits) >= chance), "the likelier of two");
        }
    }
}

/// A safetensors file of zeros with these tensors.
fn zeros(path: &Path, shapes: &[(&str, &[usize])]) {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in shapes {
        let bytes = 4 * shape.iter().product::<usize>();
        let entry = serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [end, end + bytes] });
        header.insert(name.to_string(), entry);
        end += bytes;
    }
    let header = serde_json::Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; end]].concat();
    std::fs::write(path, bytes).expect("a file");
}

#[test]
fn what_is_no_policy_of_the_environment_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("cut"), &std::fs::read(GOLDEN).expect("a file")[..1000]).expect("a file");
    zeros(&at("wide"), &[("actor.0.weight", &[70000, 4]), ("actor.0.bias", &[2])]);
    zeros(&at("other"), &[("pi.0.weight", &[2, 4])]);
    zeros(&at("actor"), &[("actor.0.weight", &[2, 4]), ("actor.0.bias", &[2])]);
    std::fs::create_dir(at("both")).expect("a folder");
    std::fs::copy(GOLDEN, at("both/model.safetensors")).expect("a file");
    std::fs::write(at("both/policy.json"), "{\"activation\": \"swish\"}").expect("a file");
    for (path, more, slug, words) in [
        (
            PathBuf::from(GOLDEN),
            "environment.env=Pendulum-v1",
            "policy-shape-mismatch",
            "`actor.0.weight` is [16, 4]",
        ),
        (at("other"), "seed=1", "policy-shape-mismatch", "no tensor `actor.0.weight`"),
        (at("wide"), "seed=1", "policy-shape-mismatch", "70000 rows"),
        (at("actor"), "seed=1", "policy-shape-mismatch", "critic.0.weight"),
        (at("cut"), "seed=1", "model-file-truncated", ""),
        (at("both"), "seed=1", "checkpoint-damaged", "swish"),
        (at("none"), "seed=1", "bad-value", "is neither widths nor a file"),
    ] {
        let model = format!("model=mlp:{}", path.display());
        let error = try_case(&[&model, more]).err().unwrap_or_else(|| panic!("{model} is a policy"));
        assert!(error.slug == slug && error.message.contains(words), "{model}: {error}");
    }
}

#[test]
fn a_policy_that_saw_normalised_numbers_is_not_trained_on_others() {
    let (trained, folder) =
        (case(&["environment.normalise_observations=true"]), tempfile::tempdir().expect("a folder"));
    let checkpoint = trained.world(|world| {
        world.rollout();
        world.learn(1).expect("finite losses");
        save(world, folder.path(), 1, false)
    });
    let model = format!("model=mlp:{}", checkpoint.display());
    let error = try_case(&[&model, "environment.normalise_observations=false"]).err().expect("it is refused");
    assert!(
        error.slug == "contradictory-keys" && error.message.contains("normalise_observations"),
        "{error}"
    );
    let again = case(&[&model, "environment.normalise_observations=true"]);
    assert!(again.settings.first_moments.is_some_and(|moments| moments.width() == 4));
    let error = try_case(&[&format!("{model},relu"), "environment.normalise_observations=true"]).err();
    let error = error.expect("another activation");
    assert!(error.slug == "bad-value" && error.message.contains("another activation"), "{error}");
}
