"""Measures a GRPO step of TRL: seconds from the end of one optimizer step to the end of the next.

P prompts of N tokens (random words), G samples each of exactly T new tokens, generated at once; micro-batches of
--micro-batch sequences (0: all in one), no checkpointing, beta 0 (no reference model), weights, gradients and AdamW's
moments in bf16. The reward is a hash of the completion, so that every group has variance. With --lora-rank R it trains
peft's adapters of rank R on all linear layers instead (alpha 2 R, dropout 0), in the dtypes that TRL and peft give them:
A, B and their states in f32, and autocast to bf16 in the update, which is TRL's default and makes the step faster.
Run by compare.py and h200.py (see server.py).
"""

import server  # First: it takes stdout.

import random
import re
import tempfile
import zlib

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import hf

STEPS_MAX = 1_000  # More than anyone asks for; the end of stdin ends the training.
DATASET_STEPS = 16  # After that many steps the prompts come again, in another order.


def main():
    args = server.arguments(
        __doc__, devices=hf.DEVICES, prompts=8, samples=4, prompt_tokens=46, new_tokens=64, micro_batch=0,
        lora_rank=0,
    )
    device = hf.Device(args)
    torch.manual_seed(0)
    tokenizer = hf.tokenizer(args.model)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=hf.model(args.model, device),
            processing_class=tokenizer,
            reward_funcs=hash_of_completion,
            args=config(args, folder),
            train_dataset=random_words(tokenizer, args.prompts * DATASET_STEPS, args.prompt_tokens),
            peft_config=adapters(args.lora_rank) if args.lora_rank else None,
        )
        trainer.add_callback(StepByStep(trainer, device, adapters=args.lora_rank > 0))
        trainer.train()


class StepByStep(TrainerCallback):
    """Pauses training after each step until the next one is requested."""

    def __init__(self, trainer, device, adapters):
        self.trainer, self.device, self.adapters = trainer, device, adapters
        self.started = None  # None during the first step, which is the warm-up.

    def on_step_end(self, args, state, control, **_):
        if self.started is None:
            packages = ["torch", "transformers", "trl", "accelerate", "datasets", *(["peft"] if self.adapters else [])]
            server.ready(packages, **self.device.facts(), dtypes=self.dtypes())
        else:
            seconds, memory = self.device.now() - self.started, self.device.memory()
            server.answer(value=seconds, peak_rss_bytes=server.peak_rss_bytes(), **memory, **self.last_log(state))
        if server.next_repeat() is None:
            control.should_training_stop = True
        self.started = self.device.now()
        return control

    def dtypes(self):
        """Returns the dtypes of frozen and trained parameters and of AdamW's states: the record shows what was compared."""
        optimizer = self.trainer.optimizer
        states = [state for of in getattr(optimizer, "optimizer", optimizer).state.values() for state in of.values()]
        parameters = list(self.trainer.model.parameters())
        found = {
            "frozen": names_of([parameter for parameter in parameters if not parameter.requires_grad]),
            "trained": names_of([parameter for parameter in parameters if parameter.requires_grad]),
            "optimizer": names_of([state for state in states if torch.is_tensor(state) and state.dim() > 0]),
        }
        if not self.adapters:
            assert found == {"frozen": [], "trained": ["bfloat16"], "optimizer": ["bfloat16"]}, found
        return found

    def last_log(self, state):
        """The measures of the step before: its tokens, and the share of groups without variance (should be 0)."""
        row = next((row for row in reversed(state.log_history) if "frac_reward_zero_std" in row), {})
        names = {"frac_reward_zero_std", "completions/min_length", "completions/max_length", "num_tokens"}
        return {name: row[name] for name in sorted(names & row.keys())}


def names_of(tensors):
    return sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors})


def adapters(rank):
    """Returns peft's configuration of adapters."""
    from peft import LoraConfig  # Not needed, and not everywhere installed, for all weights.

    return LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM")


def config(args, folder):
    sequences = args.prompts * args.samples
    micro_batch = args.micro_batch or sequences
    assert sequences % micro_batch == 0, (sequences, micro_batch)
    return GRPOConfig(
        output_dir=folder, use_cpu=args.device == "cpu", bf16=args.lora_rank > 0, beta=0.0, learning_rate=1e-6,
        per_device_train_batch_size=micro_batch, gradient_accumulation_steps=sequences // micro_batch,
        gradient_checkpointing=False,
        num_generations=args.samples, max_completion_length=args.new_tokens, temperature=1.0, top_p=1.0, top_k=0,
        generation_kwargs={"min_new_tokens": args.new_tokens}, max_steps=STEPS_MAX, logging_steps=1,
        save_strategy="no", report_to="none", disable_tqdm=True, seed=0,
    )


def random_words(tokenizer, num_rows, num_tokens):
    """Prompts of exactly `num_tokens` tokens: words that are one token each after a space."""
    words = [token[1:] for token in tokenizer.get_vocab() if re.fullmatch("Ġ[a-z]{3,9}", token)]
    draw = random.Random(0)
    rows = []
    while len(rows) < num_rows:
        text = "".join(" " + draw.choice(words) for _ in range(num_tokens))
        if len(tokenizer(text)["input_ids"]) == num_tokens:
            rows.append(text)
    return Dataset.from_dict({"prompt": rows})


def hash_of_completion(completion_ids, **_):
    """Rewards in [0, 1)."""
    return [zlib.crc32(",".join(map(str, row)).encode()) / 2**32 for row in completion_ids]


if __name__ == "__main__":
    main()
