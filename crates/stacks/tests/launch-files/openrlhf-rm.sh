deepspeed --module openrlhf.cli.train_rm \
   --save_path ./checkpoint/rm --train_batch_size 64 --micro_train_batch_size 2 \
   --pretrain Qwen/Qwen2.5-0.5B-Instruct --bf16 --max_epochs 1 --max_len 1024 --max_samples 6400 \
   --zero_stage 3 --learning_rate 9e-6 --dataset data/pairs.jsonl --apply_chat_template \
   --chosen_key chosen --rejected_key rejected --loss logexp --gradient_checkpointing
