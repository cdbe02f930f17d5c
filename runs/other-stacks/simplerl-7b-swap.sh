#!/bin/bash
# GRPO of a 7B model on eight cards of 80 GB and 1 TB of memory, with 40 GiB of swap space for each card's engine:
#   plimsoll doctor --run verl runs/other-stacks/simplerl-7b-swap.sh --gpus 8 --gpu-memory 80GiB --host-memory 1TB
# The swap is pinned as 448 GiB and taken anew at each rollout; the node runs out of memory after a few of them.
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_batch_size=1024 data.max_prompt_length=1024 data.max_response_length=8192 \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.optim.lr=5e-7 actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.0001 \
    actor_rollout_ref.ref.fsdp_config.param_offload=True \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.75 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size=160 \
    actor_rollout_ref.rollout.free_cache_engine=True actor_rollout_ref.rollout.enforce_eager=True \
    actor_rollout_ref.rollout.swap_space=40 \
    trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.save_freq=5
