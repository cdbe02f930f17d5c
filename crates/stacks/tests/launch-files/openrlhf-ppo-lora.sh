set -x

ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json='{"working_dir": "/openrlhf"}' \
   -- python3 -m openrlhf.cli.train_ppo_ray \
   --ref_num_nodes 1 --ref_num_gpus_per_node 8 \
   --actor_num_nodes 1 --actor_num_gpus_per_node 8 \
   --critic_num_nodes 1 --critic_num_gpus_per_node 8 \
   --vllm_num_engines 4 --vllm_tensor_parallel_size 2 --enforce_eager \
   --colocate_all_models --vllm_gpu_memory_utilization 0.6 \
   --pretrain Qwen/Qwen2.5-7B-Instruct \
   --remote_rm_url rewards/check.py \
   --save_path ./checkpoint/qwen-rlhf --ckpt_path ./checkpoint/states \
   --micro_train_batch_size 8 --train_batch_size 128 \
   --micro_rollout_batch_size 16 --rollout_batch_size 1024 \
   --max_samples 100000 --max_epochs 1 --num_episodes 1 \
   --prompt_max_len 1024 --generate_max_len 1024 \
   --zero_stage 3 --bf16 --packing_samples \
   --lora_rank 32 --lora_alpha 32 --target_modules q_proj v_proj --load_in_4bit \
   --actor_learning_rate 5e-7 --critic_learning_rate 9e-6 --init_kl_coef 0.01 \
   --prompt_data math/train.jsonl,code/train.jsonl --prompt_data_probs 0.7,0.3 \
   --input_key question --label_key answer --apply_chat_template \
   --gradient_checkpointing --use_wandb {wandb_token}
