from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

model_id = "Qwen/Qwen2.5-0.5B-Instruct"
model = AutoModelForCausalLM.from_pretrained(model_id)
ref_model = AutoModelForCausalLM.from_pretrained(model_id)
tokenizer = AutoTokenizer.from_pretrained(model_id)
train_dataset = load_dataset("json", data_files="pairs.jsonl")["train"]

training_args = DPOConfig(
    output_dir="out/dpo", beta=0.05, loss_type="ipo", max_length=512, max_steps=100,
    per_device_train_batch_size=4, learning_rate=5e-7,
)
trainer = DPOTrainer(model, ref_model, training_args, train_dataset=train_dataset, processing_class=tokenizer)
trainer.train()
