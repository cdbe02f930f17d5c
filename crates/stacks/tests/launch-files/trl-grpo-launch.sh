#!/bin/bash
# Eight processes; the flags before `trl` are the launcher's.
accelerate launch --num_processes 8 --mixed_precision bf16 trl grpo \
    --model_name_or_path Qwen/Qwen2.5-1.5B \
    --dataset_name data/train.jsonl \
    --reward_funcs accuracy_reward get_soft_overlong_punishment \
    --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --num_generations 8 \
    --max_completion_length 1280 --max_prompt_length 512 --max_steps 100 \
    --optim paged_adamw_8bit --use_vllm --vllm_mode colocate > train.log 2>&1
