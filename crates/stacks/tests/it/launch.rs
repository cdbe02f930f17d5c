//! Settings as they are read from launch files: their keys, values and lines, and what a file says of its surroundings.

use plimsoll_stacks::{find, settings};

fn check(stack: &str, text: &str, expect: &[(&str, &str, usize)]) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x");
    std::fs::write(&path, text).expect("a file");
    let found = settings(find(stack).expect("a stack"), &path).unwrap_or_else(|err| panic!("{err}"));
    let found: Vec<(&str, &str, usize)> =
        found.iter().map(|one| (one.key.as_str(), one.value.as_str(), one.line)).collect();
    assert_eq!(found, expect, "{text}");
}

#[test]
fn a_script_with_its_surroundings() {
    check(
        "openrlhf",
        "#SBATCH --mem=500G\n#SBATCH --gres=gpu:a100:8\npip install openrlhf==0.8.1 vllm\n\
         export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nlr=1\n\
         docker run --gpus 8 -m 400g --shm-size=10g image\n\
         ray job submit --runtime-env-json='{\"env_vars\": {\"A\": \"1\"}}' -- python3 -m openrlhf.cli.train_ppo_ray \\\n  --bf16 \\\n  --max_len 8\n",
        &[
            ("machine.host_memory", "500G", 1),
            ("machine.gpus", "8", 2),
            ("env.PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", 4),
            ("version.openrlhf", "0.8.1", 3),
            ("machine.gpus", "8", 6),
            ("machine.host_memory", "400g", 6),
            ("machine.shm", "10g", 6),
            ("env.A", "1", 7),
            ("bf16", "", 8),
            ("max_len", "8", 9),
        ],
    );
}

#[test]
fn a_collector_with_names_filled_in() {
    check(
        "torchrl",
        "# torchrl==0.4.0\nimport os\nos.environ[\"X\"] = \"y\"\nworkers = 64\n\ncollector = MultiSyncDataCollector(\n    create_env_fn=[make] * workers,\n    frames_per_batch=1000,\n    device=\"cpu\",\n)\n",
        &[
            ("version.torchrl", "0.4.0", 1),
            ("env.X", "y", 3),
            ("collector", "MultiSyncDataCollector", 6),
            ("create_env_fn", "[make] * 64", 7),
            ("frames_per_batch", "1000", 8),
            ("device", "cpu", 9),
        ],
    );
}
