# The first script of many: a model, a data set and a reward of its own.
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
MAX_TOKENS = 1024 * 2
LR = 1e-6

dataset = load_dataset("someone/short-stories", split="train")


def reward_len(completions, **kwargs):
    return [-abs(20 - len(completion)) for completion in completions]


def reward_words(completions, **kwargs):
    return [float("the" in completion) for completion in completions]


if __name__ == "__main__":
    training_args = GRPOConfig(
        output_dir=f"out/{MODEL}-grpo",
        learning_rate=LR,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=8,
        max_completion_length=MAX_TOKENS,
        max_steps=200,
        optim="adamw_8bit",
        logging_steps=10,
        report_to="wandb",
        model_init_kwargs={"torch_dtype": "bfloat16"},
    )
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[reward_len, reward_words],
        args=training_args,
        train_dataset=dataset,
    )
    trainer.train()
