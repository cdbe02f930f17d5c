"""GRPO, DPO, SFT and a reward model in plain PyTorch, written from the papers; transformers only computes logits.

    python peers/reference.py SETTINGS.json ...

Run by overlay.py, which writes the settings. Nothing here is taken from Plimsoll or from TRL.

B sequences, T tokens, V vocabulary. An answer is what is learnt after a prompt.

* GRPO arXiv 2402.03300, with the token mean of DAPO 2503.14476; KL estimate k3 with its unbiased gradient, 2512.02556
* DPO arXiv 2305.18290, equation 7
* reward model: Bradley-Terry, arXiv 2203.02155, equation 1
* LoRA arXiv 2106.09685: y = W x + (alpha / rank) B A x
"""

import math
import time

import overlay_peer as peer
import torch
import transformers
from torch.nn import functional as F

STD_EPSILON = 1e-4  # Of a group's deviation, as in TRL.


class Adapted(torch.nn.Module):
    """A frozen linear layer with an adapter."""

    def __init__(self, base, a, b, scale):
        super().__init__()
        self.base, self.scale, self.on = base, scale, True
        self.a, self.b = torch.nn.Parameter(a), torch.nn.Parameter(b)

    def forward(self, x):
        y = self.base(x)
        return y + self.scale * ((x @ self.a.T) @ self.b.T) if self.on else y


class Run:
    """A model, its optimizer and its tokenizer."""

    def __init__(self, settings, kind):
        self.set, self.device = settings, settings["device"]
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(settings["model"])
        self.model = kind.from_pretrained(settings["model"], dtype=torch.float32).to(self.device).train()
        self.adapters = adapt(self.model, settings) if settings["lora_rank"] else []
        self.trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.trained, lr=settings["learning_rate"], betas=settings["betas"], eps=settings["epsilon"],
            weight_decay=0.0,
        )
        self.step = 0

    def prompt_ids(self, prompt):
        if not isinstance(prompt, str):
            prompt = self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        return self.tokenizer(prompt, add_special_tokens=False)["input_ids"]

    def answer_ids(self, prompt, answer):
        """A plain answer ends in the end of text; a conversation in what its template writes after the answer."""
        if isinstance(prompt, str):
            return self.tokenizer(answer, add_special_tokens=False)["input_ids"] + [self.tokenizer.eos_token_id]
        whole = self.tokenizer.apply_chat_template(prompt + answer, tokenize=False)
        before = self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        assert whole.startswith(before)
        return self.tokenizer(whole[len(before) :], add_special_tokens=False)["input_ids"]

    def padded(self, sequences):
        """Tokens [B, T], padded on the right, where no token of a causal model sees them."""
        longest = max(map(len, sequences))
        return torch.tensor([ids + [0] * (longest - len(ids)) for ids in sequences], device=self.device)

    def logprobs(self, pairs, entropy=False):
        """Log-probabilities [B, T - 1] of the answers' tokens, their mask, and the entropy [B, T - 1]."""
        tokens = self.padded([prompt + answer for prompt, answer in pairs])
        mask = torch.zeros(tokens.shape, device=self.device)
        for i, (prompt, answer) in enumerate(pairs):
            mask[i, len(prompt) : len(prompt) + len(answer)] = 1
        logits = self.model(input_ids=tokens, use_cache=False).logits[:, :-1]
        logp = torch.log_softmax(logits, -1)
        drawn = logp.gather(2, tokens[:, 1:, None])[..., 0]
        spread = -(logp.detach().exp() * logp.detach()).sum(-1) if entropy else None
        return drawn, mask[:, 1:], spread

    def update(self):
        """One step of AdamW; returns the gradient norm before clipping, and the rate."""
        rate = self.set["learning_rate"] * (1 - self.step / self.set["steps"])
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(self.trained, self.set["grad_clip"])
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return {"grad_norm": norm.item(), "learning_rate": rate}

    def parts(self, rows):
        """Cuts a step's rows into passes."""
        size = self.set["micro_batch"] or len(rows)
        return [rows[i : i + size] for i in range(0, len(rows), size)]


def adapt(model, settings):
    """Freezes the model and puts an adapter on each linear layer of its blocks; returns the adapters."""
    from safetensors.torch import load_file

    model.requires_grad_(False)
    device, scale = settings["device"], settings["lora_alpha"] / settings["lora_rank"]
    start = load_file(f"{settings['adapter']}/adapter_model.safetensors") if settings["adapter"] else None
    made = []
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or ".layers." not in name:
            continue
        key, bound = f"base_model.model.{name}.lora_", 1 / math.sqrt(module.in_features)
        a = torch.empty(settings["lora_rank"], module.in_features).uniform_(-bound, bound)
        b = torch.zeros(module.out_features, settings["lora_rank"])
        if start:
            a, b = start[key + "A.weight"].clone(), start[key + "B.weight"].clone()
        parent, child = name.rsplit(".", 1)
        layer = Adapted(module, a.to(device), b.to(device), scale)
        setattr(model.get_submodule(parent), child, layer)
        made.append(layer)
    return made


# ---- GRPO ----------------------------------------------------------------------------------------------------------


def grpo(settings):
    run = Run(settings, transformers.AutoModelForCausalLM)
    reference = run if settings["lora_rank"] else Run(settings, transformers.AutoModelForCausalLM)
    reward, rows = peer.reward_of(settings), peer.rows_of(settings)
    replay = peer.Samples(settings) if settings["samples"] else None
    steps, began = [], time.monotonic()
    for step in range(settings["steps"]):
        batch = rows[step * settings["rows"] : (step + 1) * settings["rows"]]
        batch = [row for row in batch for _ in range(settings["group"])]
        prompts = [run.prompt_ids(row["prompt"]) for row in batch]
        answers = [replay.next(row["prompt"]) for row in batch] if replay else sample(run, prompts)
        logged = {}
        rewards = reward(
            [row["prompt"] for row in batch], texts(run, batch, answers), answers,
            [row["ground_truth"] for row in batch], log_metric=logged.__setitem__,
        )
        found = grpo_update(run, reference, list(zip(prompts, answers)), torch.tensor(rewards, dtype=torch.float64))
        found |= {"reward": sum(rewards) / len(rewards), "accuracy": logged["accuracy"]}
        steps.append(found | {"response_length": sum(map(len, answers)) / len(answers)})
    return steps, time.monotonic() - began


def texts(run, batch, answers):
    plain = run.tokenizer.batch_decode(answers, skip_special_tokens=True)
    as_turn = lambda text: [{"role": "assistant", "content": text}]  # noqa: E731
    return [text if isinstance(row["prompt"], str) else as_turn(text) for row, text in zip(batch, plain)]


def grpo_update(run, reference, pairs, rewards):
    """One update; the ratio's value is 1, and its gradient that of the log-probability. The loss is without the KL."""
    # In f64: in f32 equal rewards differ from their mean by a rounding, which STD_EPSILON makes 3e-4.
    groups = rewards.view(-1, run.set["group"])
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + STD_EPSILON)
    tokens = sum(len(answer) for _, answer in pairs)
    total = {}
    for part in run.parts(list(zip(pairs, advantages.flatten().tolist()))):
        wanted = [pair for pair, _ in part]
        weight = torch.tensor([[advantage] for _, advantage in part], device=run.device)
        before = frozen_logprobs(run, reference, wanted)
        drawn, mask, entropy = run.logprobs(wanted, entropy=True)
        ratio = torch.exp(drawn - drawn.detach())
        clipped = ratio.clamp(1 - run.set["clip"], 1 + run.set["clip"])
        k3 = torch.exp(before - drawn) - 1 - (before - drawn)
        policy = -torch.min(ratio * weight, clipped * weight)
        ((policy + run.set["kl_coef"] * ratio * k3) * mask).sum().div(tokens).backward()
        each = {"loss": policy, "entropy": entropy, "kl_unbounded": k3, "kl": k3.clamp(max=peer.KL_MAX)}
        for name, value in each.items():
            total[name] = total.get(name, 0.0) + ((value * mask).sum() / tokens).item()
    return total | run.update()


@torch.no_grad()
def frozen_logprobs(run, reference, pairs):
    """Log-probabilities under the model with which the run began: a copy, or the model without its adapters."""
    for layer in run.adapters:
        layer.on = False
    drawn, _, _ = reference.logprobs(pairs)
    for layer in run.adapters:
        layer.on = True
    return drawn


@torch.no_grad()
def sample(run, prompts):
    """Draws answers at temperature 1: tokens up to the end of text, or `new_tokens`."""
    longest, eos = max(map(len, prompts)), run.tokenizer.eos_token_id
    tokens = torch.tensor([[0] * (longest - len(ids)) + ids for ids in prompts], device=run.device)
    mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts], device=run.device)
    answers, live, cache = [[] for _ in prompts], set(range(len(prompts))), None
    for _ in range(run.set["new_tokens"]):
        places = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        out = run.model(
            input_ids=tokens, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True
        )
        drawn, cache = torch.multinomial(torch.softmax(out.logits[:, -1], -1), 1), out.past_key_values
        for i, token in enumerate(drawn[:, 0].tolist()):
            if i in live:
                answers[i].append(token)
                if token == eos:
                    live.discard(i)
        if not live:
            break
        tokens, mask = drawn, torch.cat([mask, torch.ones_like(drawn)], 1)
    return answers


# ---- what is given -------------------------------------------------------------------------------------------------


def supervised(settings, kind, learn):
    """Runs a job that learns from its rows as they are; `learn(run, rows)` computes one step's gradients."""
    run = Run(settings, kind)
    rows, steps, began = peer.rows_of(settings), [], time.monotonic()
    for step in range(settings["steps"]):
        found = learn(run, rows[step * settings["rows"] : (step + 1) * settings["rows"]])
        steps.append(found | run.update())
    return steps, time.monotonic() - began


def sft_step(run, rows):
    pairs = [(run.prompt_ids(row["prompt"]), run.answer_ids(row["prompt"], row["completion"])) for row in rows]
    tokens, total = sum(len(answer) for _, answer in pairs), 0.0
    for part in run.parts(pairs):
        drawn, mask, _ = run.logprobs(part)
        loss = -(drawn * mask).sum() / tokens
        loss.backward()
        total += loss.item()
    return {"loss": total}


def answers_of(run, rows, name):
    return [(run.prompt_ids(row["prompt"]), run.answer_ids(row["prompt"], row[name])) for row in rows]


def dpo(settings):
    reference = Run(settings, transformers.AutoModelForCausalLM)
    beta = settings["dpo_beta"]

    def step(run, rows):
        found = []
        for part in run.parts(rows):
            both = answers_of(run, part, "chosen") + answers_of(run, part, "rejected")
            with torch.no_grad():
                before, mask, _ = reference.logprobs(both)
            drawn, mask, _ = run.logprobs(both)
            policy, start = (drawn * mask).sum(1), (before * mask).sum(1)
            chosen, rejected = (beta * (policy - start)).view(2, -1)
            loss = -F.logsigmoid(chosen - rejected)
            (loss.sum() / len(rows)).backward()
            each = [loss, (chosen > rejected).float(), chosen - rejected, *policy.view(2, -1)]
            found.append(torch.stack(each).detach())
        return named(("loss", "accuracy", "margin", "logps_chosen", "logps_rejected"), found)

    return supervised(settings, transformers.AutoModelForCausalLM, step)


def reward_step(run, rows):
    found = []
    for part in run.parts(rows):
        whole = [prompt + answer for name in ("chosen", "rejected") for prompt, answer in answers_of(run, part, name)]
        hidden = run.model.model(input_ids=run.padded(whole), use_cache=False).last_hidden_state
        last = torch.tensor([len(ids) - 1 for ids in whole], device=run.device)
        scores = run.model.score(hidden[torch.arange(len(whole), device=run.device), last])[:, 0]
        chosen, rejected = scores.view(2, -1)
        loss = -F.logsigmoid(chosen - rejected)
        (loss.sum() / len(rows)).backward()
        found.append(torch.stack([loss, (chosen > rejected).float(), chosen - rejected]).detach())
    return named(("loss", "accuracy", "margin"), found)


def named(names, found):
    """Means over the step's pairs."""
    return dict(zip(names, torch.cat(found, 1).mean(1).tolist()))


def train(settings):
    method, causal = settings["method"], transformers.AutoModelForCausalLM
    if method == "grpo":
        return grpo(settings)
    if method == "dpo":
        return dpo(settings)
    if method == "sft":
        return supervised(settings, causal, sft_step)
    return supervised(settings, transformers.AutoModelForSequenceClassification, reward_step)


if __name__ == "__main__":
    peer.main(train, ["torch", "transformers"])
