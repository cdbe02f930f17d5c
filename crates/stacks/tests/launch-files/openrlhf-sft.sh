set -x

read -r -d '' training_commands <<MARK
openrlhf.cli.train_sft \
   --max_len 2048 \
   --dataset data/answers.jsonl@0.7,data/chats.jsonl@0.3 \
   --input_key question \
   --output_key response \
   --train_batch_size 256 \
   --micro_train_batch_size 2 \
   --max_samples 51200 \
   --pretrain Qwen/Qwen2.5-1.5B \
   --save_path ./checkpoint/sft \
   --save_steps -1 \
   --logging_steps 1 \
   --eval_steps -1 \
   --zero_stage 2 \
   --max_epochs 2 \
   --bf16 \
   --flash_attn \
   --learning_rate 5e-6 \
   --packing_samples \
   --gradient_checkpointing
MARK
    # --use_wandb [TOKEN]; don't forget it

if [[ ${1} != "slurm" ]]; then
    deepspeed --module $training_commands
fi
