"""TRL's own trainers with the settings of overlay.py: GRPO (all weights and LoRA), DPO, SFT and a reward model.

    python peers/overlay_trl.py SETTINGS.json ...

Run by overlay.py, which writes the settings. What is not set here is TRL's default. With `samples` GRPO learns from
samples that were drawn elsewhere (rollout_func), so that both programs see the same tokens.
"""

import os
import tempfile
import time
import uuid

import overlay_peer as peer

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402
from datasets import Dataset, fingerprint  # noqa: E402

# Names of cached data, which no run here reads. By default dill hashes the closures of TRL's trainers, and recurses
# without end under Python 3.12.
fingerprint.Hasher.hash = staticmethod(lambda _: uuid.uuid4().hex)

# Name of a metric in overlay_jobs.METRICS -> name in TRL's log.
LOGGED = {
    "grpo": {"reward": "reward", "accuracy": "accuracy", "response_length": "completions/mean_length"},
    "dpo": {
        "accuracy": "rewards/accuracies", "margin": "rewards/margins", "logps_chosen": "logps/chosen",
        "logps_rejected": "logps/rejected",
    },
    "sft": {},
    "reward_model": {"accuracy": "accuracy", "margin": "margin"},
}
TRAINERS = {"grpo": trl.GRPOTrainer, "dpo": trl.DPOTrainer, "sft": trl.SFTTrainer, "reward_model": trl.RewardTrainer}


def train(settings):
    with tempfile.TemporaryDirectory() as folder:
        trainer = build(settings, folder)
        began = time.monotonic()
        trainer.train()
        seconds = time.monotonic() - began
    return steps_of(settings, trainer), seconds


def build(settings, folder):
    method = settings["method"]
    scores = method == "reward_model"
    kind = transformers.AutoModelForSequenceClassification if scores else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(settings["model"], dtype=torch.float32)
    more = {}
    if method == "grpo":
        more = {"reward_funcs": peer.reward_of(settings)}
        if settings["samples"]:
            more["rollout_func"] = again(peer.Samples(settings))
    if settings["lora_rank"]:
        model, more["peft_config"] = adapters(settings, model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["model"])
    return watched(TRAINERS[method])(
        model=model, args=arguments(settings, folder), train_dataset=Dataset.from_list(peer.rows_of(settings)),
        processing_class=tokenizer, **more,
    )


def adapters(settings, model):
    """Returns the model and peft's configuration: with a given start the adapter is already on the model."""
    import peft

    if settings["adapter"]:
        return peft.PeftModel.from_pretrained(model, settings["adapter"], is_trainable=True), None
    return model, peft.LoraConfig(
        r=settings["lora_rank"], lora_alpha=settings["lora_alpha"], target_modules="all-linear", lora_dropout=0.0,
        task_type="CAUSAL_LM",
    )


def arguments(settings, folder):
    method, group = settings["method"], settings["group"]
    size = settings["rows"] * group
    micro = min(settings["micro_batch"] or size, size)
    common = dict(
        output_dir=folder, use_cpu=settings["device"] == "cpu", bf16=False, fp16=False, seed=settings["seed"],
        max_steps=settings["steps"], learning_rate=settings["learning_rate"], lr_scheduler_type="linear",
        warmup_steps=0,
        adam_beta1=settings["betas"][0], adam_beta2=settings["betas"][1], adam_epsilon=settings["epsilon"],
        weight_decay=0.0, max_grad_norm=settings["grad_clip"], per_device_train_batch_size=micro,
        gradient_accumulation_steps=size // micro, gradient_checkpointing=False, logging_steps=1, save_strategy="no",
        report_to="none", disable_tqdm=True,
    )
    assert size % micro == 0, (size, micro)
    if method == "grpo":
        return trl.GRPOConfig(
            **common, num_generations=group, max_completion_length=settings["new_tokens"], temperature=1.0, top_p=1.0,
            top_k=0, beta=settings["kl_coef"], epsilon=settings["clip"], loss_type="dapo", scale_rewards="group",
            shuffle_dataset=False,
        )
    common["train_sampling_strategy"] = "sequential"
    if method == "dpo":
        return trl.DPOConfig(**common, beta=settings["dpo_beta"])
    return trl.SFTConfig(**common) if method == "sft" else trl.RewardConfig(**common)


def again(samples):
    """Returns a rollout function that gives out samples of before, after the trainer's own tokens of each prompt."""

    def rollout(prompts, trainer):
        ids = trainer._tokenize_prompts(prompts)[0]
        return {"prompt_ids": ids, "completion_ids": [samples.next(prompt) for prompt in prompts], "logprobs": None}

    return rollout


def watched(kind):
    """Returns a trainer that keeps means over all tokens of a step; TRL's log has means of its passes' means."""

    class Watched(kind):
        kept = None
        last = None

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            self.last = [one if one is None else one.detach() for one in found[:2]]
            return found

        def _compute_loss(self, model, inputs, *more):
            loss = super()._compute_loss(model, inputs, *more)
            if "ref_per_token_logps" in inputs:
                d = self.last[0] - inputs["ref_per_token_logps"]
                k3 = torch.exp(-d) - 1 + d
                each = {"kl": k3.clamp(max=peer.KL_MAX), "kl_unbounded": k3, "entropy": self.last[1]}
                self.kept = self.kept or {}
                step = self.kept.setdefault(self.state.global_step, dict.fromkeys(each, 0.0))
                for name, value in each.items():
                    step[name] += ((value * inputs["completion_mask"]).sum() / inputs["num_items_in_batch"]).item()
            return loss

    return Watched


def steps_of(settings, trainer):
    names, steps = LOGGED[settings["method"]], []
    logs = [row for row in trainer.state.log_history if "grad_norm" in row]
    assert len(logs) == settings["steps"], len(logs)
    for at, row in enumerate(logs):
        kept = (trainer.kept or {}).get(at, {})
        # Compared is the policy loss without the KL term; TRL reports their sum.
        loss = row["loss"] - settings["kl_coef"] * kept.get("kl_unbounded", 0.0)
        found = {name: row[key] for name, key in names.items()} | kept | {"loss": loss}
        steps.append(found | {"grad_norm": float(row["grad_norm"]), "learning_rate": row["learning_rate"]})
    return steps


if __name__ == "__main__":
    peer.main(train, ["torch", "transformers", "trl", "peft", "accelerate"])
