trl reward --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --dataset_name pairs.jsonl \
    --num_processes 2 --per_device_train_batch_size 8 --max_steps 300 --learning_rate 1e-5 --max_length 1024
