//! The cases, as command lines of the binary under test. Each takes about a second; nothing is downloaded.

pub struct Case {
    /// Name on the command line and in the table.
    pub name: &'static str,
    pub what: &'static str,
    /// Files written into its folder first.
    pub files: &'static [(&'static str, &'static str)],
    /// Command lines, run in order; `train` and `collect` are planned first.
    ///
    /// `@llm` and `@agent` are the settings below, `DIR` is the case's folder and `DIR/out` is compared. Commands that
    /// begin with `old:` run the old binary on both sides.
    pub commands: &'static [&'static str],
    /// Leaves that a race decides in this case, by substrings of their names.
    pub except: &'static [&'static str],
}

/// Settings of language model cases: few steps, with checkpoints and evaluations between them.
pub const LANGUAGE: &str = "--json -q --set memory.host=4GiB --set eval.every=2 --set eval.prompts_max=8 \
                            --set checkpoint.every=2 --set checkpoint.keep=2 --set run.dir=DIR/out/run";

/// Settings of agent cases.
pub const AGENT: &str = "--json -q --set memory.host=4GiB --set run.dir=DIR/out/run";

/// Ticks at which weights arrive: in the middle of rollouts, between two, and in one rollout twice.
const ARRIVALS: &str = "{\"step\":1,\"rollout\":2,\"tick\":3}\n{\"step\":2,\"rollout\":4,\"tick\":1}\n\
                        {\"step\":3,\"rollout\":4,\"tick\":3}\n{\"step\":4,\"rollout\":5,\"tick\":0}\n";

const fn case(name: &'static str, what: &'static str, commands: &'static [&'static str]) -> Case {
    Case { name, what, files: &[], commands, except: &[] }
}

pub const CASES: &[Case] = &[
    case(
        "grpo",
        "GRPO, two threads, bf16",
        &["train runs/first.toml @llm --set train.steps=3 --set run.threads=2"],
    ),
    case(
        "grpo-f32-1-thread",
        "GRPO, one thread, f32, small micro-batches, several mini-batches and epochs",
        &[
            "train runs/first.toml @llm --set train.steps=3 --set run.threads=1 --set model_options.dtype=f32 \
           --set train.micro_batch_tokens=256 --set train.mini_batch=128 --set train.epochs_per_rollout=2",
        ],
    ),
    case("dr_grpo", "Dr.GRPO", &["train runs/first.toml @llm --set train.steps=2 --set method=dr_grpo"]),
    case("rloo", "leave-one-out", &["train runs/first.toml @llm --set train.steps=2 --set method=rloo"]),
    case(
        "reinforce",
        "REINFORCE with a discount",
        &["train runs/first.toml @llm --set train.steps=2 --set method=reinforce --set loss.gamma=0.9"],
    ),
    case(
        "reinforce_baseline",
        "REINFORCE++-baseline, KL in the reward by k1, adaptive",
        &[
            "train runs/first.toml @llm --set train.steps=3 --set method=reinforce_baseline --set loss.kl_in=reward \
           --set loss.kl_estimator=k1 --set loss.kl_coef=0.02 --set loss.kl_target=0.05",
        ],
    ),
    case(
        "gspo",
        "sequence ratios",
        &["train runs/first.toml @llm --set train.steps=2 --set method=gspo --set train.mini_batch=64"],
    ),
    case(
        "cispo",
        "clipped ratios",
        &["train runs/first.toml @llm --set train.steps=2 --set method=cispo --set train.mini_batch=64"],
    ),
    case(
        "sapo",
        "soft gates",
        &["train runs/first.toml @llm --set train.steps=2 --set method=sapo --set train.mini_batch=64"],
    ),
    case(
        "kl-reference",
        "reference model, KL in the loss, unbiased, entropy bonus",
        &[
            "train runs/first.toml @llm --set train.steps=3 --set loss.kl_coef=0.05 --set loss.kl_unbiased=true \
           --set loss.entropy_coef=0.01 --set train.mini_batch=128",
        ],
    ),
    case(
        "offload",
        "optimizer and reference offloaded",
        &["train runs/first.toml @llm --set train.steps=3 --set loss.kl_coef=0.05 \
           --set memory.offload=[\"optimizer\",\"reference\"]"],
    ),
    case(
        "recompute-layer-int8",
        "recompute by layer, 8-bit optimizer states",
        &[
            "train runs/first.toml @llm --set train.steps=3 --set train.recompute=layer --set train.optimizer_dtype=int8 \
           --set train.weight_decay=0.1",
        ],
    ),
    case(
        "recompute-cheap-bf16",
        "cheap recompute, bf16 states and gradients",
        &[
            "train runs/first.toml @llm --set train.steps=3 --set train.recompute=cheap --set train.optimizer_dtype=bf16 \
           --set train.grad_dtype=bf16",
        ],
    ),
    case(
        "dapo",
        "dynamic sampling, higher clip upwards, dual clip, price of overlong responses, masked cuts",
        &["train runs/first.toml @llm --set train.steps=3 --set loss.dynamic_sampling=true \
           --set loss.dynamic_sampling_retries=2 --set loss.clip_low=0.2 --set loss.clip_high=0.28 --set loss.dual_clip=10.0 \
           --set loss.aggregation=token_mean --set loss.overlong_buffer=2 --set loss.overlong_factor=1.0 \
           --set train.mini_batch=64 --set loss.mask_truncated=true"],
    ),
    case(
        "policy-lag",
        "samples of older policies, importance correction, top-k, stop strings, preemption",
        &[
            "train runs/first.toml @llm --set train.steps=4 --set rollout.policy_lag=1 --set loss.correction=tis \
           --set rollout.top_k=8 --set rollout.top_p=0.9 --set rollout.sequences_max=32 --set rollout.kv_blocks=20 \
           --set rollout.on_full=preempt --set checkpoint.every=1",
        ],
    ),
    case(
        "ppo-critic",
        "PPO with a critic",
        &["train runs/first-ppo.toml @llm --set train.steps=3 --set critic.warmup_steps=1"],
    ),
    case(
        "ppo-kl-reward",
        "PPO with GAE below 1, KL in the reward, several epochs",
        &[
            "train runs/first-ppo.toml @llm --set train.steps=3 --set loss.kl_in=reward --set loss.kl_coef=0.01 \
           --set loss.kl_estimator=k1 --set loss.lambda=0.95 --set loss.gamma=0.99 --set train.epochs_per_rollout=2 \
           --set train.mini_batch=128 --set critic.warmup_steps=0 --set run.threads=1",
        ],
    ),
    case("dpo", "DPO", &["train runs/first-dpo.toml @llm --set train.steps=3"]),
    case(
        "dpo-ipo-offload",
        "IPO with an offloaded reference",
        &[
            "train runs/first-dpo.toml @llm --set train.steps=2 --set loss.loss_type=ipo --set memory.offload=[\"reference\"]",
        ],
    ),
    case(
        "reward-model",
        "a reward model, then GRPO by its scores",
        &[
            "train runs/first-reward-model.toml @llm --set train.steps=3 --set train.warmup_steps=1",
            "train runs/first.toml @llm --set train.steps=2 --set reward.0.weight=0 --set reward.1.kind=model \
             --set reward.1.model=DIR/out/run/checkpoints/latest --set run.dir=DIR/out/by-model",
        ],
    ),
    case(
        "sft",
        "supervised steps on random weights",
        &[
            "train runs/nano.toml @llm --set train.steps=3 --set train.warmup_steps=1 --set rollout.prompts_per_step=64",
        ],
    ),
    case(
        "text-second-try",
        "a text environment with two turns",
        &["train runs/first-agent.toml @llm --set train.steps=3"],
    ),
    case(
        "text-kl",
        "a text environment with three turns, a reference, several mini-batches",
        &[
            "train runs/first-agent.toml @llm --set train.steps=3 --set environment.turns_max=3 --set loss.kl_coef=0.01 \
           --set train.mini_batch=64 --set rollout.prompts_per_step=16 --set run.threads=1",
        ],
    ),
    Case {
        name: "text-python",
        what: "a text environment in Python, three turns",
        // A copy: Python leaves a folder next to files that it reads.
        files: &[("three_tries.py", include_str!("../../../examples/three_tries.py"))],
        commands: &[
            "train examples/three_tries.toml @llm --set train.steps=3 --set rollout.prompts_per_step=16 \
             --set environment.env=python:DIR/three_tries.py:ThreeTries",
        ],
        // When the interpreter answers decides which turns share a pass.
        except: &["metrics.rollout/passes"],
    },
    case(
        "agent-cartpole",
        "a small policy by PPO, resumed",
        &[
            "train runs/cartpole-ppo.toml @agent --set train.schedule=constant --set environment.total_frames=2048",
            "train runs/cartpole-ppo.toml @agent --set train.schedule=constant --set environment.total_frames=4096 --resume",
        ],
    ),
    case(
        "agent-pendulum",
        "continuous actions, normalised observations and rewards",
        &["train runs/pendulum-ppo.toml @agent --set environment.total_frames=8192"],
    ),
    case(
        "agent-frozenlake",
        "discrete observations",
        &["train runs/frozenlake-ppo.toml @agent --set environment.total_frames=6144"],
    ),
    case(
        "collect",
        "frames as safetensors and as Parquet",
        &[
            "collect runs/cartpole-collect.toml --json -q --set total_frames=16384 --set run.dir=DIR/out/frames",
            "collect runs/cartpole-collect.toml --json -q --set total_frames=16384 --set run.dir=DIR/out/parquet \
             --set run.format=parquet --set env=Pendulum-v1",
        ],
    ),
    case(
        "resume",
        "stopped after two steps and resumed, with a reference and an adaptive coefficient",
        &[
            "train runs/first.toml @llm --set train.schedule=constant --set train.steps=2 --set loss.kl_coef=0.02 --set loss.kl_target=0.1",
            "train runs/first.toml @llm --set train.schedule=constant --set train.steps=5 --set loss.kl_coef=0.02 --set loss.kl_target=0.1 --resume",
        ],
    ),
    case(
        "resume-across",
        "PPO begun by the old binary and resumed by each",
        &[
            "old:train runs/first-ppo.toml @llm --set train.schedule=constant --set critic.warmup_steps=1 --set train.steps=2",
            "train runs/first-ppo.toml @llm --set train.schedule=constant --set critic.warmup_steps=1 --set train.steps=4 --resume",
        ],
    ),
    case(
        "resume-lag",
        "stopped between two steps of one rollout and resumed",
        &[
            "train runs/first.toml @llm --set train.schedule=constant --set train.steps=1 --set rollout.policy_lag=1 --set checkpoint.every=1",
            "train runs/first.toml @llm --set train.schedule=constant --set train.steps=4 --set rollout.policy_lag=1 --set checkpoint.every=1 --resume",
        ],
    ),
    case(
        "carried-across",
        "groups of several steps with a bound, begun by the old binary and resumed by each",
        &[
            "old:train runs/first.toml @llm --set train.schedule=constant --set rollout.carry=8 --set rollout.lag_tokens_max=3 \
           --set loss.correction=tis --set checkpoint.every=1 --set train.steps=2",
            "train runs/first.toml @llm --set train.schedule=constant --set rollout.carry=8 --set rollout.lag_tokens_max=3 \
           --set loss.correction=tis --set checkpoint.every=1 --set train.steps=5 --resume",
        ],
    ),
    Case {
        name: "carried-episodes",
        what: "episodes of several steps, on two ranks",
        files: &[],
        commands: &["train runs/first-agent.toml @llm --ranks 2 --set train.steps=3 --set rollout.carry=8"],
        // The clock's.
        except: &["ranks.json"],
    },
    case(
        "ahead-across",
        "samples of earlier steps with dynamic sampling, begun by the old binary and resumed by each",
        &[
            "old:train runs/first.toml @llm --set train.schedule=constant --set rollout.ahead=2 --set loss.correction=tis \
           --set loss.dynamic_sampling=true --set loss.dynamic_sampling_retries=2 --set checkpoint.every=1 --set train.steps=2",
            "train runs/first.toml @llm --set train.schedule=constant --set rollout.ahead=2 --set loss.correction=tis \
           --set loss.dynamic_sampling=true --set loss.dynamic_sampling_retries=2 --set checkpoint.every=1 --set train.steps=5 --resume",
        ],
    ),
    Case {
        name: "arrivals",
        what: "weights that arrive in the middle of rollouts, by a schedule",
        files: &[("made.jsonl", ARRIVALS)],
        commands: &[
            "train runs/first.toml @llm --set train.steps=4 --set rollout.ahead=2 --set loss.correction=tis \
                     --set rollout.arrivals=DIR/made.jsonl --set checkpoint.every=1",
        ],
        except: &[],
    },
    Case {
        name: "apart",
        what: "a rank that only samples and one that only trains, whole rollouts and by a schedule",
        files: &[("made.jsonl", ARRIVALS)],
        commands: &[
            "train runs/first.toml @llm --ranks 2 --set run.rollout_ranks=1 --set train.steps=3 --set rollout.ahead=1",
            "train runs/first.toml @llm --ranks 3 --set run.rollout_ranks=1 --set train.steps=4 --set rollout.ahead=2 \
             --set rollout.arrivals=DIR/made.jsonl --set checkpoint.every=1 --set run.dir=DIR/out/midway",
        ],
        // The clock's.
        except: &["ranks.json"],
    },
    Case {
        name: "verbs",
        what: "eval, generate, grade",
        files: &[(
            "answers.jsonl",
            "{\"response\":\"#### 42\",\"ground_truth\":\"42\",\"correct\":true}\n\
             {\"response\":\"\\\\boxed{1/2}\",\"ground_truth\":\"0.5\",\"correct\":true}\n\
             {\"response\":\"7\",\"ground_truth\":\"8\",\"correct\":false}\n",
        )],
        commands: &[
            "eval --model builtin:nano --data builtin:addition --samples 4 --prompts-max 16 --json -q",
            "generate --model builtin:nano --prompt 123+456= --json -q",
            "generate --model builtin:nano --prompt 77+5= --json -q --set rollout.temperature=0.7 --seed 3",
            "grade --reward math DIR/answers.jsonl -q",
        ],
        except: &[],
    },
    case(
        "plans",
        "plans of large runs, and the table",
        &[
            "plan runs/qwen2.5-7b-grpo.toml --json --limit host=512GiB,disk=4TiB",
            "plan runs/first-ppo.toml --json --limit host=256GiB,disk=4TiB --set model=random:qwen2.5-7b \
             --set rollout.max_new_tokens=2048 --set model_options.tokenizer=bytes --set train.recompute=auto",
            "plan runs/first-dpo.toml --json --limit host=96GiB,disk=4TiB --set model=random:qwen2.5-1.5b \
             --set model_options.tokenizer=bytes --set memory.offload=auto --set train.recompute=auto",
            "plan --table --models qwen2.5-0.5b,qwen2.5-7b --contexts 1024,8192 --methods grpo,ppo --limit host=64GiB --json",
        ],
    ),
    case(
        "other-stacks",
        "runs of other frameworks, planned and imported",
        &[
            "doctor --run openrlhf runs/other-stacks/openrlhf-1.5b-vllm.sh --gpus 4 --gpu-memory 80GiB --host-memory 500GB \
             --shm 64GiB --kernel 5.4 --json",
            "doctor --run openrlhf runs/other-stacks/openrlhf-13b-cpu-adam.sh --gpus 8 --gpu-memory 80GiB --host-memory 500GB \
             --shm 64GiB --kernel 5.4 --json",
            "doctor --run orz runs/other-stacks/orz-expandable.py --gpus 8 --gpu-memory 80GiB --host-memory 1TB \
             --shm 64GiB --kernel 5.4 --json",
            "doctor --run verl runs/other-stacks/simplerl-7b-swap.sh --gpus 8 --gpu-memory 80GiB --host-memory 1TB \
             --shm 64GiB --kernel 5.4 --json",
            "doctor --run torchrl runs/other-stacks/torchrl-64-workers.py --gpu-memory 24GiB --host-memory 64GiB \
             --shm 16GiB --kernel 5.4 --json",
            "import orz runs/other-stacks/orz-expandable.py -q",
            "import verl runs/other-stacks/simplerl-7b-swap.sh -q",
        ],
    ),
];
