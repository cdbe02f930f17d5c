//! `plimsoll collect` with a policy: of a checkpoint, and of a file that a PyTorch script saved.

use crate::common::{Folder, check_refused};
use crate::run::json;
use safetensors::SafeTensors;
use serde_json::Value;
use std::fs;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/policy");
const TRAIN: &str = "method = \"ppo\"\nmodel = \"mlp:32x32,relu\"\n[environment]\nenv = \"CartPole-v1\"\nnum_envs = 4\n\
    frames_per_batch = 512\ntotal_frames = 40960\nnormalise_observations = true\n[train]\nmini_batch = 128\n\
    epochs_per_rollout = 4\nlearning_rate = 1e-3\n";
const COLLECT: &str =
    "env = \"CartPole-v1\"\nnum_envs = 8\nframes_per_batch = 4096\ntotal_frames = 32768\nseed = 5\n";

/// Collects with these settings; the summary.
fn collected(folder: &Folder, sets: &[&str]) -> Value {
    let file = folder.write("env.toml", COLLECT);
    let flags = sets.iter().flat_map(|set| ["--set", set]);
    json(&["collect", &file, "--json"].into_iter().chain(flags).collect::<Vec<_>>())
}

/// The numbers of a tensor of a file.
fn numbers(bytes: &[u8], name: &str) -> Vec<f32> {
    let tensors = SafeTensors::deserialize(bytes).expect("a safetensors file");
    let tensor = tensors.tensor(name).unwrap_or_else(|_| panic!("a tensor `{name}`"));
    tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn choices(bytes: &[u8]) -> Vec<i64> {
    let tensors = SafeTensors::deserialize(bytes).expect("a safetensors file");
    let data = tensors.tensor("action").expect("actions").data().to_vec();
    data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

/// A stack of maps with tanh between them, in f64: what `torch.nn.Sequential` computes.
struct Twin(Vec<(Vec<f32>, Vec<f32>)>);

impl Twin {
    fn of(bytes: &[u8], stack: &str) -> Twin {
        let map = |i: usize| {
            let part = |what: &str| numbers(bytes, &format!("{stack}.{i}.{what}"));
            (part("weight"), part("bias"))
        };
        Twin([0, 2, 4].map(map).into())
    }

    fn run(&self, observation: &[f32]) -> Vec<f64> {
        let mut row: Vec<f64> = observation.iter().map(|&x| x.into()).collect();
        for (i, (weight, bias)) in self.0.iter().enumerate() {
            let out = weight.chunks_exact(row.len()).zip(bias).map(|(weights, bias)| {
                let sum: f64 = weights.iter().zip(&row).map(|(&w, x)| f64::from(w) * x).sum();
                sum + f64::from(*bias)
            });
            let out: Vec<f64> = out.collect();
            row = if i + 1 < self.0.len() { out.iter().map(|x| x.tanh()).collect() } else { out };
        }
        row
    }
}

#[test]
fn a_checkpoint_acts_as_it_was_trained_and_better_than_chance() {
    let folder = Folder::with("run.toml", TRAIN);
    let dir = folder.text_path("run");
    json(&["train", &folder.text_path("run.toml"), "--json", "--set", &format!("run.dir={dir}")]);
    let path = format!("policy.path={dir}/checkpoints/latest");
    let random = collected(&folder, &[]);
    let sampled = collected(&folder, &["policy.kind=mlp", &path]);
    let greedy = collected(&folder, &["policy.kind=mlp", &path, "explore=mode"]);
    let mean = |found: &Value| found["episode_return"].as_f64().expect("episodes ended");
    assert!(mean(&sampled) > 2.0 * mean(&random), "{} of {}", mean(&sampled), mean(&random));
    assert!(mean(&greedy) > mean(&sampled), "{} of {}", mean(&greedy), mean(&sampled));
    let held = |found: &Value, key: &str| found[key].as_u64().unwrap();
    assert!(held(&greedy, "rss_peak_bytes") <= held(&greedy, "rss_planned_bytes"), "{greedy}");

    let weights = format!("policy.path={dir}/checkpoints/latest/model.safetensors");
    let of_file = collected(&folder, &["policy.kind=mlp", &weights, "explore=mode"]);
    assert_eq!(mean(&of_file), mean(&greedy), "policy.json next to the weights is read with them");
    let words = ["error[contradictory-keys]", "policy.activation"];
    let file = folder.text_path("env.toml");
    let args =
        ["collect", &file, "--set", "policy.kind=mlp", "--set", &path, "--set", "policy.activation=tanh"];
    check_refused(&args, 2, &words);
    // Nor does training read weights through other numbers than they were made with.
    let model = format!("model=mlp:{dir}/checkpoints/latest");
    let run = folder.text_path("run.toml");
    let args = ["plan", &run, "--set", &model, "--set", "environment.normalise_observations=false"];
    check_refused(&args, 2, &["error[contradictory-keys]", "normalise_observations"]);
}

#[test]
fn weights_from_pytorch_choose_what_pytorch_chooses() {
    let (weights, seen) = (format!("{GOLDEN}/cartpole.safetensors"), format!("{GOLDEN}/seen.safetensors"));
    let (bytes, seen) = (fs::read(&weights).unwrap(), fs::read(seen).unwrap());
    let [actor, critic] = ["actor", "critic"].map(|stack| Twin::of(&bytes, stack));
    // The twin is PyTorch's network: f32 against f64, three sums of at most 17 terms below 4.
    let (logits, values) = (numbers(&seen, "logits"), numbers(&seen, "values"));
    for (i, observation) in numbers(&seen, "observations").chunks_exact(4).enumerate() {
        let near = |ours: f64, theirs: f32| (ours - f64::from(theirs)).abs() < 1e-5;
        let ours = actor.run(observation);
        assert!(near(ours[0], logits[2 * i]) && near(ours[1], logits[2 * i + 1]), "{i}: {ours:?}");
        assert!(near(critic.run(observation)[0], values[i]), "{i}");
    }

    let folder = Folder::new();
    let path = format!("policy.path={weights}");
    for (explore, mode) in [("explore=sample", false), ("explore=mode", true)] {
        let mut files = Vec::new();
        for threads in ["threads=1", "threads=2"] {
            let dir = format!("{explore}-{threads}");
            let set = format!("run.dir={}", folder.text_path(&dir));
            collected(&folder, &["policy.kind=mlp", &path, explore, &set, threads, "total_frames=8192"]);
            files.push(fs::read(folder.path(&dir).join("frames-000000.safetensors")).unwrap());
        }
        assert!(files[0] == files[1], "{explore}: bytes depend on the number of threads");
        let (frames, each) = (files[0].as_slice(), 512);
        let observations = numbers(frames, "observation");
        let (logprobs, values) = (numbers(frames, "logprob"), numbers(frames, "value"));
        let actions = choices(frames);
        let mut agreed = 0;
        for (frame, &action) in actions.iter().enumerate() {
            // Each row has an observation more than frames.
            let at = 4 * (frame + frame / each);
            let observation = &observations[at..at + 4];
            let logits = actor.run(observation);
            let top = logits[0].max(logits[1]);
            let sum: f64 = logits.iter().map(|logit| (logit - top).exp()).sum();
            let logprob = logits[action as usize] - top - sum.ln();
            assert!((logprob - f64::from(logprobs[frame])).abs() < 1e-5, "{explore}, frame {frame}");
            let value = critic.run(observation)[0];
            assert!((value - f64::from(values[frame])).abs() < 1e-5, "{explore}, frame {frame}");
            agreed += usize::from((action == 1) == (logits[1] > logits[0]));
            // Two logits nearer to each other than the bits of f32 may come in either order.
            let is_close = (logits[0] - logits[1]).abs() < 1e-5;
            assert!(!mode || is_close || (action == 1) == (logits[1] > logits[0]), "frame {frame}");
        }
        assert!(
            mode || (actions.len() / 4..actions.len()).contains(&agreed),
            "{agreed} of {}",
            actions.len()
        );
    }
}

/// A safetensors file of zeros with these tensors.
fn zeros(folder: &Folder, name: &str, shapes: &[(&str, &[usize])]) -> String {
    let data: Vec<Vec<u8>> =
        shapes.iter().map(|(_, shape)| vec![0; 4 * shape.iter().product::<usize>()]).collect();
    let views = shapes.iter().zip(&data).map(|((name, shape), data)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), data);
        (name.to_string(), view.expect("as many bytes as the shape has"))
    });
    let bytes = safetensors::serialize(views.collect::<Vec<_>>(), None).expect("a file");
    fs::write(folder.path(name), bytes).expect("a file in the folder");
    folder.text_path(name)
}

#[test]
fn an_actor_alone_acts_and_gives_no_values() {
    let folder = Folder::new();
    let shapes: &[(&str, &[usize])] = &[("actor.0.weight", &[2, 4]), ("actor.0.bias", &[2])];
    let (path, dir) = (zeros(&folder, "actor.safetensors", shapes), folder.text_path("frames"));
    let sets = [format!("policy.path={path}"), format!("run.dir={dir}")];
    collected(&folder, &["policy.kind=mlp", &sets[0], &sets[1], "total_frames=4096"]);
    let bytes = fs::read(folder.path("frames/frames-000000.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert!(tensors.tensor("value").is_err());
    let even = numbers(&bytes, "logprob");
    assert!(even.iter().all(|logprob| (logprob + std::f32::consts::LN_2).abs() < 1e-6));
    // Without a critic it does not learn.
    let run = folder.write("run.toml", TRAIN);
    let model = format!("model=mlp:{path}");
    check_refused(&["plan", &run, "--set", &model], 1, &["error[policy-shape-mismatch]", "critic.0.weight"]);
}

#[test]
fn what_is_no_policy_of_the_environment_is_refused_by_name() {
    let folder = Folder::with("env.toml", COLLECT);
    let file = folder.text_path("env.toml");
    let (golden, none) = (format!("{GOLDEN}/cartpole.safetensors"), folder.text_path("none"));
    for (path, more, code, parts) in [
        (
            golden.as_str(),
            "env=Pendulum-v1",
            1,
            &["policy-shape-mismatch", "`actor.0.weight` is [16, 4]"][..],
        ),
        (&none, "seed=1", 1, &["model-file-missing"]),
    ] {
        let set = format!("policy.path={path}");
        let args = ["collect", &file, "--set", "policy.kind=mlp", "--set", &set, "--set", more];
        check_refused(&args, code, parts);
    }
    check_refused(&["collect", &file, "--set", "policy.kind=mlp"], 2, &["error[missing-key]", "policy.path"]);
    for key in ["policy.path=x", "policy.activation=relu", "explore=mode"] {
        check_refused(&["collect", &file, "--set", key], 2, &["error[contradictory-keys]", "random"]);
    }
}
