python3 -m openrlhf.cli.train_ppo_ray \
   --pretrain Qwen/Qwen2.5-0.5B-Instruct --agent_func_path agents/guess.py \
   --prompt_data data/train.jsonl --input_key question --apply_chat_template \
   --advantage_estimator reinforce --rollout_batch_size 32 --n_samples_per_prompt 8 --train_batch_size 256 \
   --prompt_max_len 512 --generate_max_len 512 --max_samples 3200 --num_episodes 1 --actor_learning_rate 5e-7
