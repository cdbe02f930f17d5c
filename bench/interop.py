#!/usr/bin/env python3
"""Files between Plimsoll and the installed transformers and peft: each opens what the other writes, and both compute the same.

    bench/interop.py BINARY [CASE ...]

Of every family, and of the models of text and images, a tiny random model is

* saved by transformers and answered by `plimsoll serve`,
* trained for a step by Plimsoll, and its checkpoint opened by transformers,
* trained at learning rate 0, after which transformers computes the same numbers, bit by bit, and saves the same tensors,
* given an adapter by peft and served; given one by Plimsoll and opened by peft.

Compared are greedy tokens with transformers' own choice after the same tokens, and log-probabilities in f32. Needs torch,
transformers, peft and tokenizers. Exits with 1 where anything differs.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
import warnings
from pathlib import Path

import peft
import tokenizers
import torch
import transformers

# Sums of f32 in another order: tiny models differ by 1e-5 at most, one rule of rotation or one epsilon by 1e-3 and more.
TOLERANCE = 2e-4
# Two tokens whose logits are closer than this may change places.
TIE = 1e-4
VOCAB = 320
NEW_TOKENS = 24
PROMPT_LENGTHS = (5, 60)

SMALL = dict(
    vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=512, bos_token_id=None, eos_token_id=0, pad_token_id=None,
)
LAYERS_4 = dict(num_hidden_layers=4)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 10000.0,
}
BASES = {"full_attention": {**YARN, "rope_theta": 850000.0}, "sliding_attention": {"rope_type": "default", "rope_theta": 30000.0}}
ONE_BASE = {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in BASES}
DELTA = dict(
    head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16, **LAYERS_4
)
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, head_dim=16, norm_topk_prob=True)
PLAIN = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
OF_DELTA = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]
OF_EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
OF_SHARED = ["shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"]
MOE = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=48, **DELTA)
# Experts after dense layers, scored by a sigmoid; then attention over latents.
OF_GLM = dict(
    n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=32, n_group=3, topk_group=2,
    routed_scaling_factor=1.5, norm_topk_prob=True, num_hidden_layers=3,
)
LATENT = dict(
    num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32,
    **OF_GLM,
)
GROWN = {**YARN, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.25, "mscale": 1.0, "mscale_all_dim": 1.0}
OF_GPT_OSS = dict(
    num_local_experts=6, num_experts_per_tok=2, head_dim=16, sliding_window=20, intermediate_size=32,
    rope_parameters={**YARN, "truncate": False},
)
TWO_KINDS = dict(
    num_hidden_layers=4, head_dim=16, global_head_dim=32, num_global_key_value_heads=1, attention_k_eq_v=True, sliding_window=16,
    layer_types=["sliding_attention", "full_attention"] * 2, hidden_size_per_layer_input=0, num_kv_shared_layers=0,
    enable_moe_block=False, use_double_wide_mlp=False, vocab_size_per_layer_input=VOCAB,
)
VISION = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14)
QWEN_VISION = dict(
    depth=1, hidden_size=32, intermediate_size=48, num_heads=2, out_hidden_size=64, patch_size=14, spatial_merge_size=1,
    temporal_patch_size=1, num_position_embeddings=16,
)

# Name: class of the configuration, what it differs in, layers that have adapters.
CASES = {
    "llama": ("LlamaConfig", dict(rope_parameters=LLAMA3, tie_word_embeddings=True), PLAIN),
    "llama-yarn-bias": ("LlamaConfig", dict(rope_parameters=YARN, attention_bias=True, mlp_bias=True), PLAIN),
    "qwen2": ("Qwen2Config", dict(use_sliding_window=True, sliding_window=20, max_window_layers=1), PLAIN),
    "qwen3": ("Qwen3Config", dict(head_dim=32, tie_word_embeddings=True), PLAIN),
    "qwen3-moe": ("Qwen3MoeConfig", EXPERTS, PLAIN[:4]),
    "qwen3-moe-experts": ("Qwen3MoeConfig", EXPERTS, PLAIN[:4] + OF_EXPERTS),
    "qwen3.5": ("Qwen3_5TextConfig", DELTA, PLAIN + OF_DELTA),
    "qwen3.5-moe": ("Qwen3_5MoeTextConfig", MOE, PLAIN[:4] + OF_DELTA + OF_SHARED + OF_EXPERTS),
    "qwen3-next": (
        "Qwen3NextConfig",
        dict(norm_topk_prob=True, mlp_only_layers=[1], **MOE),
        PLAIN[:4] + ["in_proj_qkvz", "in_proj_ba", "out_proj"],
    ),
    "mistral": ("MistralConfig", dict(head_dim=16, sliding_window=20), PLAIN),
    "smollm3": ("SmolLM3Config", LAYERS_4, PLAIN),
    "olmo2": ("Olmo2Config", dict(), PLAIN),
    "olmo3": ("Olmo3Config", dict(sliding_window=16, **LAYERS_4), PLAIN),
    "olmo3-bases": ("Olmo3Config", dict(sliding_window=16, rope_parameters=BASES, **LAYERS_4), PLAIN),
    "olmo3-one-base": ("Olmo3Config", dict(sliding_window=16, rope_parameters=ONE_BASE, **LAYERS_4), PLAIN),
    "gemma2": ("Gemma2Config", dict(head_dim=16, sliding_window=16, query_pre_attn_scalar=24), PLAIN),
    "gemma3": ("Gemma3TextConfig", dict(head_dim=16, sliding_window=16, query_pre_attn_scalar=24, num_hidden_layers=7), PLAIN),
    "granite": (
        "GraniteConfig",
        dict(embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0, attention_multiplier=0.2),
        PLAIN,
    ),
    "phi3": ("Phi3Config", dict(), ["o_proj", "down_proj"]),
    "glm4-moe": ("Glm4MoeConfig", dict(head_dim=16, attention_bias=True, first_k_dense_replace=1, **OF_GLM), PLAIN[:4] + OF_EXPERTS),
    "deepseek-v3": ("DeepseekV3Config", dict(first_k_dense_replace=1, **{**LATENT, "q_lora_rank": 48}), ["o_proj"]),
    "moonlight": ("DeepseekV3Config", dict(first_k_dense_replace=1, rope_interleave=True, **LATENT), ["o_proj"]),
    "glm4-moe-lite": (
        "Glm4MoeLiteConfig", dict(mlp_layer_types=["dense", "sparse", "sparse"], **{**LATENT, "q_lora_rank": 48}), ["o_proj"]
    ),
    "ministral3": ("Ministral3Config", dict(head_dim=16, rope_parameters=GROWN), PLAIN),
    "gemma4": ("Gemma4TextConfig", TWO_KINDS, PLAIN),
    "gpt-oss": ("GptOssConfig", OF_GPT_OSS, PLAIN[:4]),
    "gemma3-images": ("Gemma3Config", dict(), PLAIN),
    "gemma3-images-published": ("Gemma3Config", dict(), PLAIN),
    "mistral3-images": ("Mistral3Config", dict(), PLAIN),
    "qwen3.5-images": ("Qwen3_5Config", dict(), PLAIN + OF_DELTA),
    "qwen3.5-moe-images": ("Qwen3_5MoeConfig", dict(), PLAIN[:4] + OF_DELTA + OF_SHARED),
}


def text_config(case):
    name, extra, _ = CASES[case]
    return getattr(transformers, name)(**{**SMALL, **extra})


def model_of(case):
    """Returns a random model whose tokens depend on what is before them."""
    torch.manual_seed(4242)
    if case.startswith("gemma3-images"):
        config = transformers.Gemma3Config(
            text_config=text_config("gemma3").to_dict(), vision_config=VISION, mm_tokens_per_image=4, image_token_index=5,
            boi_token_index=6, eoi_token_index=7,
        )
        model = transformers.Gemma3ForConditionalGeneration(config)
    elif case == "mistral3-images":
        tower = transformers.PixtralVisionConfig(head_dim=16, **VISION)
        config = transformers.Mistral3Config(text_config=text_config("ministral3").to_dict(), vision_config=tower, image_token_index=5)
        model = transformers.Mistral3ForConditionalGeneration(config)
    elif case in ("qwen3.5-images", "qwen3.5-moe-images"):
        name = CASES[case][0]
        config = getattr(transformers, name)(
            text_config=text_config(case.removesuffix("-images")).to_dict(), vision_config=QWEN_VISION, image_token_id=5, video_token_id=6,
            vision_start_token_id=7, vision_end_token_id=8, tie_word_embeddings=False,
        )
        model = getattr(transformers, name.replace("Config", "ForConditionalGeneration"))(config)
    else:
        model = transformers.AutoModelForCausalLM.from_config(text_config(case), attn_implementation="eager")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "conv1d" not in name:
                weight.normal_(0.0, 0.12)
            elif name.endswith("bias"):
                weight.normal_(0.0, 0.05)
            elif "norm" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
    return model.float().eval()


def tokenizer(folder):
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    special = [f"<|{i}|>" for i in range(VOCAB - len(alphabet))]
    vocab = {token: i for i, token in enumerate(special + alphabet)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(special)
    made.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": special[0], "pad_token": special[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def publish(case, folder):
    """Leaves of a `text_config` what Google's files of Gemma 3 have: no base of either rotation."""
    if case != "gemma3-images-published":
        return
    path = folder / "config.json"
    config = json.loads(path.read_text())
    keep = (
        "hidden_size intermediate_size model_type num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size "
        "query_pre_attn_scalar sliding_window"
    ).split()
    text = {key: config["text_config"][key] for key in keep}
    config["text_config"] = text | {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    path.write_text(json.dumps(config))


def load(folder):
    """Opens a folder with transformers, as the class that its configuration names."""
    names = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, names[0]).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


class Server:
    """`plimsoll serve` on a free port."""

    def __init__(self, binary, model):
        settings = ["--set", "model_options.dtype=f32", "--sequences", "4", "--prompt-tokens", "80", "--max-new-tokens", "32"]
        command = [binary, "serve", str(model), "--port", "0", *settings]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = ""
        for line in self.process.stdout:
            said += line
            if found := re.search(r"http://[\d.]+:\d+", line):
                self.url = found.group(0)
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise RuntimeError("serve: " + said.strip())

    def generate(self, ids):
        settings = {"max_tokens": NEW_TOKENS, "temperature": 0.0, "logprobs": 1, "ignore_eos": True}
        body = json.dumps({"token_ids": ids, "sampling_params": settings}).encode()
        request = urllib.request.Request(self.url + "/inference/v1/generate", body, {"Content-Type": "application/json"})
        choice = json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]
        return choice["token_ids"], [one["logprob"] for one in choice["logprobs"]["content"]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


@torch.no_grad()
def compare(binary, folder, model):
    """Returns what differs between Plimsoll's answers with `folder` and `model`: none, or a sentence."""
    generator = torch.Generator().manual_seed(7)
    with Server(binary, folder) as server:
        for length in PROMPT_LENGTHS:
            ids = torch.randint(70, VOCAB, (length,), generator=generator).tolist()
            out, logprobs = server.generate(ids)
            logits = model(input_ids=torch.tensor([ids + out]), use_cache=False).logits[0, length - 1 : -1].double()
            drawn = torch.tensor(out)[:, None]
            gap = (logits.max(-1).values - logits.gather(1, drawn)[:, 0]).max().item()
            if gap > TIE:
                return f"after {length} tokens the logit of a greedy token is {gap:.1e} less than that of transformers' choice"
            ours = torch.tensor(logprobs, dtype=torch.float64)
            off = (torch.log_softmax(logits, -1).gather(1, drawn)[:, 0] - ours).abs().max().item()
            if off > TOLERANCE:
                return f"after {length} tokens log-probabilities differ by {off:.1e}"
    return None


def run(binary, *args):
    ended = subprocess.run([binary, *map(str, args)], capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(ended.stderr.strip()[-600:])


@torch.no_grad()
def compare_bits(base, kept):
    """Returns what differs between two folders as transformers opens them: none, or a sentence. Of a model of text and images the text is kept."""
    before, after = load(base), load(kept)
    theirs, ours = before.state_dict(), after.state_dict()
    if type(before) is not type(after) and not type(before).__name__.endswith("ForConditionalGeneration"):
        return f"a {type(before).__name__} became a {type(after).__name__}"
    if type(before) is type(after) and (other := [name for name, tensor in theirs.items() if not torch.equal(tensor, ours[name])]):
        return f"{len(other)} tensors differ, the first is {other[0]}"
    ids = torch.arange(70, 134).reshape(1, -1)
    off = (before(input_ids=ids, use_cache=False).logits - after(input_ids=ids, use_cache=False).logits).abs().max().item()
    return f"logits of the same tensors differ by {off:.1e}" if off else None


def train(binary, base, folder, lora, rate=1e-2):
    """Trains two steps of SFT."""
    folder.mkdir()
    pairs = [{"prompt": prompt, "completion": " of a run"} for prompt in ("The plan", "Adapters")]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (folder / "run.toml").write_text(
        f'method = "sft"\nmodel = "{base}"\n[model_options]\ndtype = "f32"\n[data]\nprompts = "{folder}/pairs.jsonl"\n'
        f'chat_template = "none"\n[rollout]\nprompts_per_step = 2\n{lora}[train]\nsteps = 2\nlearning_rate = {rate}\n'
        f'[run]\ndir = "{folder}/out"\ndevice = "cpu"\n'
    )
    run(binary, "train", folder / "run.toml")
    return folder / "out"


def with_peft(base, folder, targets):
    """Saves a random adapter of `targets` with peft, and returns the model with it."""
    inner = ".*language_model.*\\.(" if "ForConditionalGeneration" in (base / "config.json").read_text() else ".*\\.("
    layers = [target for target in targets if target not in OF_EXPERTS]
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=inner + "|".join(layers) + ")", init_lora_weights=False,
        target_parameters=[f"mlp.{target}" for target in targets if target in OF_EXPERTS],
    )
    model = peft.get_peft_model(load(base), config)
    torch.manual_seed(5)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_(0.0, 0.1)
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(folder)
    return model.eval()


def steps(binary, case, work):
    """Yields the name of each step with what differs in it."""
    base = work / "base"
    model = model_of(case)
    model.save_pretrained(base)
    tokenizer(base)
    publish(case, base)
    yield "transformers to Plimsoll", compare(binary, base, load(base))
    targets = CASES[case][2]
    trained = train(binary, base, work / "sft", "") / "checkpoints/latest"
    yield "Plimsoll to transformers", compare(binary, trained, load(trained))
    kept = train(binary, base, work / "kept", "", rate=0) / "checkpoints/latest"
    yield "kept at learning rate 0", compare_bits(base, kept)
    adapted = with_peft(base, work / "peft", targets)
    yield "peft to Plimsoll", compare(binary, work / "peft", adapted)
    lora = f"[lora]\nrank = 4\ntargets = {json.dumps(targets)}\n"
    run(binary, "checkpoint", "export", train(binary, base, work / "lora", lora), "--to", work / "adapter")
    adapted = peft.PeftModel.from_pretrained(load(base), work / "adapter").eval()
    yield "Plimsoll to peft", compare(binary, work / "adapter", adapted)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="path of plimsoll")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="; ".join(CASES))
    args = parser.parse_args()
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    print(f"transformers {transformers.__version__}, peft {peft.__version__}, torch {torch.__version__}")
    passed = failed = 0
    for case in args.cases or CASES:
        work = Path(tempfile.mkdtemp(prefix="interop-"))
        made = steps(args.binary, case, work)
        while True:
            try:
                name, different = next(made)
            except StopIteration:
                break
            except Exception as error:  # whatever a library or the binary says is the finding
                name, different = "stopped", f"{type(error).__name__}: {str(error)[-400:]}"
            passed, failed = passed + (different is None), failed + (different is not None)
            print(f"{case}, {name}: {different or 'the same'}", flush=True)
            if name == "stopped":
                break
        shutil.rmtree(work)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
