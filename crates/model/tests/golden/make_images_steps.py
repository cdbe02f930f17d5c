#!/usr/bin/env python3
"""Print losses and gradient norms of a few steps on rows with images, as Hugging Face transformers and torch have them.

    python make_images_steps.py

The model is the folder qwen3_vl next to this file, the images are those of the crate `images`, prepared by
Qwen2VLImageProcessorPil. A row is ids of characters as in `crates/plimsoll/tests/it/learnt_images.rs`, which has the
printed numbers. Needs torch, transformers >= 5.23, Pillow.
"""

import json
from pathlib import Path

import torch
from PIL import Image, ImageOps
from transformers import AutoModelForImageTextToText
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

HERE = Path(__file__).resolve().parent
FILES = HERE.parents[2] / "images/tests/golden/files"
IMAGE, BEFORE, AFTER = 58, 56, 55
# Placeholders of images and films have no probability.
SUPPRESSED = [57, 58]
STEPS, RATE, BETA = 3, 1e-3, 0.1

# Prompts with <image>, their images, an answer to learn and one that is worse.
ROWS = [
    ("<image>what", ["rgb.png"], "ab", "ba"),
    ("<image>is<image>", ["rgb.png", "turned.png"], "yes", "no"),
    ("text", [], "c", "d"),
]


def letters(text):
    return [15 + ord(letter) - ord("a") for letter in text]


class Rows:
    def __init__(self):
        size = {"shortest_edge": 64, "longest_edge": 1024}
        self.processor = Qwen2VLImageProcessorPil(
            patch_size=4, merge_size=2, temporal_patch_size=2, size=size,
            image_mean=[0.5] * 3, image_std=[0.5] * 3,
        )

    def logprobs(self, model, row, answer):
        """Returns the log-probabilities of an answer, after which nothing comes."""
        prompt, names, *_ = row
        ids, more, grids = [], {}, iter(())
        if names:
            images = [ImageOps.exif_transpose(Image.open(FILES / name)).convert("RGB") for name in names]
            seen = self.processor(images=images, return_tensors="pt")
            grid = torch.as_tensor(seen["image_grid_thw"])
            more = {"pixel_values": torch.as_tensor(seen["pixel_values"]), "image_grid_thw": grid}
            grids = iter(grid.tolist())
        for index, part in enumerate(prompt.split("<image>")):
            if index > 0:
                _, rows, columns = next(grids)
                ids += [BEFORE] + [IMAGE] * (rows * columns // 4) + [AFTER]
            ids += letters(part)
        cut = len(ids)
        ids = torch.tensor(ids + letters(answer))
        if names:
            more["mm_token_type_ids"] = (ids == IMAGE).int()[None]
        logits = model(input_ids=ids[None], **more).logits[0].clone()
        logits[:, SUPPRESSED] = -1e30
        return logits[:-1].log_softmax(-1).gather(1, ids[1:, None])[cut - 1 :, 0]


def model_of(trains_tower):
    model = AutoModelForImageTextToText.from_pretrained(HERE / "qwen3_vl", attn_implementation="eager")
    model = model.float().eval()
    model.model.visual.requires_grad_(trains_tower)
    return model


def sft(rows, model, _):
    logprobs = torch.cat([rows.logprobs(model, row, row[2]) for row in ROWS])
    return -logprobs.mean()


def dpo(rows, model, reference):
    losses = []
    for row in ROWS:
        chosen, rejected = (rows.logprobs(model, row, answer).sum() for answer in row[2:])
        with torch.no_grad():
            first = [rows.logprobs(reference, row, answer).sum() for answer in row[2:]]
        losses.append(-torch.nn.functional.logsigmoid(BETA * ((chosen - first[0]) - (rejected - first[1]))))
    return torch.stack(losses).mean()


def steps(loss_of, trains_tower):
    rows, model, reference = Rows(), model_of(trains_tower), model_of(False)
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(rows, model, reference)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        found.append([round(loss.item(), 6), round(norm.item(), 6)])
    return found


print(json.dumps({
    "sft": steps(sft, False),
    "sft, with the tower": steps(sft, True),
    "dpo": steps(dpo, False),
    "dpo, with the tower": steps(dpo, True),
}, indent=1))
