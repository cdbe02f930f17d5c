"""The common parts of the transformers peers: model, tokenizer, and the device's clock and memory.

`random:PRESET` is the shape that Plimsoll knows under that name, with random weights, so nothing is downloaded. A test
compares the table with crates/arch/src/model_spec.rs. The tokenizer of such a model has as many tokens as the model.
"""

import itertools
import string
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

from shapes import RANDOM, SHAPES

DEVICES = ("cpu", "cuda")
CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config}


class Device:
    """The device of a peer. GPU work is asynchronous, so the clock waits for it."""

    def __init__(self, args):
        self.name = args.device
        torch.set_num_threads(args.threads)

    def now(self):
        """Returns seconds, after all requested work is done."""
        if self.name == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def forget_peak(self):
        """Resets the peak that `memory` returns."""
        if self.name == "cuda":
            torch.cuda.reset_peak_memory_stats()

    def memory(self):
        """Returns the peaks of PyTorch's allocator: memory of tensors, and memory reserved on the GPU."""
        if self.name != "cuda":
            return {}
        return {
            "device_bytes": torch.cuda.max_memory_allocated(),
            "device_reserved_bytes": torch.cuda.max_memory_reserved(),
        }

    def facts(self):
        """Returns the facts about the device that the peer reports when it is ready."""
        gpu = {"gpu": torch.cuda.get_device_name()} if self.name == "cuda" else {}
        return {"device": self.name, "threads": torch.get_num_threads(), **gpu}


def model(source, device):
    """A causal language model in bf16 on the device: a Hugging Face directory, or random:PRESET."""
    if not source.startswith(RANDOM):
        return AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).to(device.name)
    torch.manual_seed(0)
    with torch.device(device.name):
        return AutoModelForCausalLM.from_config(config(source.removeprefix(RANDOM)), dtype=torch.bfloat16)


def config(preset):
    """The published configuration of a preset."""
    shape = SHAPES[preset]
    return CONFIGS[shape.family](
        vocab_size=shape.vocab, hidden_size=shape.hidden, num_hidden_layers=shape.layers, intermediate_size=shape.ffn,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, rms_norm_eps=shape.rms_eps,
        rope_theta=shape.rope_theta, tie_word_embeddings=shape.tied, max_position_embeddings=shape.max_positions,
        bos_token_id=None, eos_token_id=1, pad_token_id=0,
    )


def tokenizer(source):
    """The directory's tokenizer; for random:PRESET one whose tokens are the words aaaa, aaab, ..., each after a space."""
    if not source.startswith(RANDOM):
        return AutoTokenizer.from_pretrained(source, padding_side="left")
    words = ("Ġ" + "".join(letters) for letters in itertools.product(string.ascii_lowercase, repeat=4))
    tokens = ["<pad>", "<eos>", "<unk>", *itertools.islice(words, SHAPES[source.removeprefix(RANDOM)].vocab - 3)]
    table = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token="<unk>"))
    table.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    table.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=table, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left",
    )


def random_tokens(model, rows, tokens):
    """Ordinary tokens by PyTorch's generator on the CPU, [rows, tokens], on the model's device: no control token."""
    vocab = model.config.vocab_size
    low, high = min(100, vocab // 2), min(40_000, vocab)
    return torch.randint(low, high, (rows, tokens)).to(model.device)
