import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer

from my_rewards.text import shortness

bnb_config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained(
    "Qwen/Qwen2.5-7B-Instruct", torch_dtype=torch.bfloat16, quantization_config=bnb_config, device_map="auto"
)
peft_config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
args = GRPOConfig(learning_rate=1e-5, max_steps=250, num_generations=4)
GRPOTrainer(model=model, reward_funcs=shortness, args=args, train_dataset="data.jsonl", peft_config=peft_config).train()
