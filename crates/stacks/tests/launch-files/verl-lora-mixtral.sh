# Arrays of overrides, as newer examples write them.
LORA=64
MODEL=(
    actor_rollout_ref.model.path=mistralai/Mixtral-8x7B-v0.1
    actor_rollout_ref.model.lora_rank=$LORA   # an adapter
    actor_rollout_ref.model.lora_alpha=32
)
DATA=(data.train_files=~/data/train.parquet data.train_batch_size=64)
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=8 \
    "${MODEL[@]}" "${DATA[@]}" \
    custom_reward_function.path=rewards/check.py trainer.total_training_steps=100 "$@"
