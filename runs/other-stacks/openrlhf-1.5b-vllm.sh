#!/bin/bash
# Two cards train a 1.5B model, two run an engine each; nothing sleeps:
#   plimsoll doctor --run openrlhf runs/other-stacks/openrlhf-1.5b-vllm.sh --gpus 4 --gpu-memory 80GiB --host-memory 500GB
# An illegal memory access in the engine cannot be judged from settings; the doctor names what to switch on.
pip install openrlhf==0.6.0
ray job submit -- python3 -m openrlhf.cli.train_ppo_ray \
    --actor_num_nodes 1 --actor_num_gpus_per_node 2 \
    --ref_num_nodes 1 --ref_num_gpus_per_node 2 --colocate_actor_ref \
    --vllm_num_engines 2 --vllm_tensor_parallel_size 1 \
    --vllm_gpu_memory_utilization 0.9 --enforce_eager \
    --pretrain Qwen/Qwen2.5-1.5B --remote_rm_url reward.py \
    --advantage_estimator reinforce --init_kl_coef 0.01 \
    --micro_train_batch_size 2 --train_batch_size 128 \
    --micro_rollout_batch_size 4 --rollout_batch_size 256 \
    --prompt_max_len 1024 --generate_max_len 3072 \
    --zero_stage 3 --bf16 --flash_attn --packing_samples --gradient_checkpointing \
    --prompt_data prompts.jsonl --input_key prompt --label_key answer
