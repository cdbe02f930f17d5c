#!/usr/bin/env python3
"""Make tiny random models of text and images and their reference numbers with Hugging Face transformers, float32.

    python make_images_golden.py

For each entry of MODELS it writes <name>/ next to this file: config.json, model.safetensors and reference.safetensors.
README.md has the legend. Sequence 0 holds two images; the others are text. Pixels are random numbers in the order of a
tower's patches, so nothing decodes or resizes.

Needs torch, transformers >= 5.23, safetensors. The same versions give the same bytes on one machine.
"""

import json
import sys
from pathlib import Path

import safetensors.torch
import torch
import transformers

HERE = Path(__file__).resolve().parent
VOCAB, HIDDEN = 61, 32
IMAGE, VIDEO, BEFORE, AFTER = 58, 57, 56, 55
# Rows and columns of patches of the two images, and tokens before, between and after them.
GRIDS = [(6, 10), (4, 6)]
TEXT = [5, 4, 5]
LENGTHS = [23, 67]
# The loss leaves out the first targets of each sequence.
MASK_FIRST = 2

VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_heads": 2,
    "in_channels": 3,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": HIDDEN,
    "num_position_embeddings": 36,
    "initializer_range": 0.02,
}
TOKENS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": BEFORE,
    "vision_end_token_id": AFTER,
}
TEXT_CONFIG = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "bos_token_id": None,
    "eos_token_id": 59,
    "pad_token_id": None,
}


# Layer 0 sees windows of two vectors a side, layer 1 whole images.
VISION2_5 = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_heads": 2,
    "patch_size": 4,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": HIDDEN,
    "window_size": 16,
    "fullatt_block_indexes": [1],
}


def rope(section, **more):
    return {"rope_type": "default", "mrope_section": section, "mrope_interleaved": True, **more}


MODELS = {
    "qwen3_vl": {
        **TOKENS,
        "tie_word_embeddings": True,
        "vision_config": {**VISION, "deepstack_visual_indexes": [0, 1]},
        "text_config": {
            **TEXT_CONFIG,
            "rope_parameters": rope([4, 2, 2], rope_theta=5e6),
            "tie_word_embeddings": True,
        },
    },
    "qwen3_vl_moe": {
        **TOKENS,
        "tie_word_embeddings": False,
        "vision_config": {**VISION, "deepstack_visual_indexes": [1]},
        "text_config": {
            **TEXT_CONFIG,
            "rope_parameters": rope([4, 2, 2], rope_theta=5e6),
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [0],
            "tie_word_embeddings": False,
        },
    },
    "qwen2_5_vl": {
        **TOKENS,
        "vision_config": VISION2_5,
        "text_config": {
            **TEXT_CONFIG,
            "num_attention_heads": 2,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e6},
        },
    },
    "qwen3_5_vl": {
        **TOKENS,
        "vision_config": VISION,
        "text_config": {
            **TEXT_CONFIG,
            "rope_parameters": rope([2, 1, 1], rope_theta=1e4, partial_rotary_factor=0.5),
            "layer_types": ["linear_attention", "full_attention"],
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
    },
}


def model_of(name):
    model_type = {"qwen3_5_vl": "qwen3_5"}.get(name, name)
    config = transformers.AutoConfig.for_model(model_type, **MODELS[name])
    torch.manual_seed(5)
    how = {"attn_implementation": "eager"} | ({"experts_implementation": "eager"} if name.endswith("moe") else {})
    model = transformers.AutoModelForImageTextToText.from_config(config, **how).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Larger than a model's first weights, and norms and biases that are not all alike.
            scale, offset = (0.15, 0.0) if parameter.dim() > 1 else (0.1, float(parameter.mean()))
            parameter.copy_(offset + scale * torch.randn_like(parameter))
    return model


def inputs(generator):
    tokens = lambda n: torch.randint(1, 50, (n,), generator=generator)
    parts = [tokens(TEXT[0])]
    for (rows, columns), after in zip(GRIDS, TEXT[1:]):
        image = torch.full((rows * columns // 4,), IMAGE)
        parts += [torch.tensor([BEFORE]), image, torch.tensor([AFTER]), tokens(after)]
    patches = sum(rows * columns for rows, columns in GRIDS)
    pixels = torch.rand((patches, 3 * 2 * 4 * 4), generator=generator) * 2 - 1
    grid = torch.tensor([[1, rows, columns] for rows, columns in GRIDS])
    return [torch.cat(parts)] + [tokens(n) for n in LENGTHS], pixels, grid


def reference(model, sequences, pixels, grid):
    found, total, count = {}, 0.0, 0
    model.zero_grad()
    for i, ids in enumerate(sequences):
        more = {}
        if i == 0:
            kinds = (ids == IMAGE).int()[None]
            more = {"pixel_values": pixels, "image_grid_thw": grid, "mm_token_type_ids": kinds}
        logits = model(input_ids=ids[None], **more).logits[0]
        logprobs = logits[:-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        learnt = logprobs[MASK_FIRST:]
        total, count = total - learnt.sum(), count + len(learnt)
        found[f"seq{i}.input_ids"], found[f"seq{i}.log_probs"] = ids, logprobs.detach()
    loss = total / count
    loss.backward()
    found["loss"] = loss.detach().reshape(1)
    stored = model.state_dict().keys()
    for name, parameter in model.named_parameters():
        if name in stored and not (name.startswith("lm_head") and model.config.tie_word_embeddings):
            found[f"grad.{name}"] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    with torch.no_grad():
        seen = model.model.get_image_features(pixels, grid, return_dict=True)
        kinds = (sequences[0] == IMAGE).int()[None]
        positions, delta = model.model.get_rope_index(sequences[0][None], kinds, image_grid_thw=grid)
    for i, features in enumerate(seen.pooler_output):
        found[f"image{i}.features"] = features
    for k, deep in enumerate(getattr(seen, "deepstack_features", None) or []):
        for i, features in enumerate(deep):
            found[f"image{i}.deepstack{k}"] = features
    found["pixel_values"], found["image_grid_thw"] = pixels, grid
    found["seq0.positions"], found["seq0.rope_delta"] = positions[-3:, 0], delta.reshape(1)
    return {name: value.detach().contiguous().clone() for name, value in found.items()}


def store_as_published(model, folder):
    """Store the matrices of experts with inputs as rows, as the published files have them; transformers turns them."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    again = transformers.AutoModelForImageTextToText.from_pretrained(folder).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())


def main():
    if sys.argv[1:]:
        sys.exit(__doc__)
    torch.use_deterministic_algorithms(True)
    for name in MODELS:
        model, folder = model_of(name), HERE / name
        sequences, pixels, grid = inputs(torch.Generator().manual_seed(9))
        found = reference(model, sequences, pixels, grid)
        model.save_pretrained(folder)
        if name == "qwen3_vl_moe":
            store_as_published(model, folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        safetensors.torch.save_file(found, folder / "reference.safetensors")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        parameters = sum(parameter.numel() for parameter in model.parameters())
        exact = reference(model.double(), sequences, pixels.double(), grid)
        differs = lambda begin: max((found[k] - exact[k]).abs().max().item() for k in found if k.startswith(begin))
        print(f"{name}: {parameters} parameters, loss {found['loss'].item():.4f}; from float64 differ: images by "
              f"{differs('image'):.1e}, log-probs by {differs('seq'):.1e}, gradients by {differs('grad'):.1e}")


if __name__ == "__main__":
    main()
