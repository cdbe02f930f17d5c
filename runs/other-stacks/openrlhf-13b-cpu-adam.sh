#!/bin/bash
# PPO of a 13B model with its optimizer on the host, eight cards of 80 GB, a container that allows 500 GB:
#   plimsoll doctor --run openrlhf runs/other-stacks/openrlhf-13b-cpu-adam.sh --gpus 8 --gpu-memory 80GiB --host-memory 500GB
# Training goes through; the node runs out of memory while the actor is saved.
pip install openrlhf==0.1.4
MODEL=baichuan-inc/Baichuan-13B-Base
ray job submit -- python3 examples/train_ppo_ray.py \
    --actor_num_nodes 1 --actor_num_gpus_per_node 4 \
    --critic_num_nodes 1 --critic_num_gpus_per_node 2 \
    --ref_num_nodes 1 --ref_num_gpus_per_node 1 \
    --reward_num_nodes 1 --reward_num_gpus_per_node 1 \
    --pretrain $MODEL --reward_pretrain $MODEL --save_path ./ckpt \
    --micro_train_batch_size 2 --train_batch_size 128 \
    --micro_rollout_batch_size 4 --rollout_batch_size 1024 \
    --prompt_max_len 1024 --generate_max_len 1024 \
    --zero_stage 2 --adam_offload --bf16 --flash_attn --gradient_checkpointing \
    --prompt_data prompts.jsonl --max_samples 80000
