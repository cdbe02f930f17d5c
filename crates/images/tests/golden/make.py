"""Writes the golden files of this folder: what Pillow decodes and resizes, and the patches of transformers.

    python make.py            # needs pillow 13 and numpy; transformers too for patches.json

`resize.json` has hashes of resized images, whose pixels `pattern` makes as the test does. `files/` has small images of
each format and colour; `files.json` has the hashes of the pixels that transformers' `convert_to_rgb` makes of Pillow's,
and `NAME.rgb` has the pixels themselves where a format loses some. `patches.json` has hashes of transformers'
`pixel_values`, made by the PIL back end of Qwen2-VL's processor, and `sizes.json` what its `smart_resize` returns.
"""

import hashlib
import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

HERE = Path(__file__).parent
FILES = HERE / "files"


def pattern(width, height):
    """Pixels of any size that Rust makes as well: a generator's high bits, smooth in parts."""
    n = width * height * 3
    state = (np.arange(n, dtype=np.uint64) * np.uint64(6364136223846793005) + np.uint64(1442695040888963407))
    noise = ((state ^ (state >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)).astype(np.uint8)
    y, x, c = np.mgrid[0:height, 0:width, 0:3]
    smooth = (x * 255 // max(width - 1, 1) + y * 3 + c * 80) % 256
    rgb = np.where((x // 16 + y // 16) % 2 == 0, noise.reshape(height, width, 3), smooth)
    return rgb.astype(np.uint8)


SIZES = [
    ((1, 1), (32, 32)), ((1, 1), (1, 1)), ((2, 3), (64, 96)), ((37, 21), (32, 32)), ((37, 21), (64, 32)),
    ((10, 2000), (32, 3648)), ((2000, 10), (3648, 32)), ((640, 480), (640, 480)), ((640, 480), (320, 480)),
    ((640, 480), (640, 256)), ((801, 603), (800, 608)), ((801, 603), (96, 64)), ((333, 7), (32, 96)),
    ((5, 5), (160, 160)), ((1000, 1000), (992, 992)), ((64, 64), (63, 65)), ((1, 200), (32, 1792)),
    ((257, 129), (1, 1)), ((129, 257), (131, 255)), ((60, 200), (50, 179)), ((60, 200), (50, 180)), ((1920, 1080), (672, 384)),
]


def resize():
    cases = []
    for (width, height), to in SIZES:
        out = Image.fromarray(pattern(width, height)).resize(to, Image.BICUBIC)
        cases.append({"from": [width, height], "to": list(to), "sha256": hashlib.sha256(out.tobytes()).hexdigest()})
    (HERE / "resize.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


def to_rgb(image):
    """transformers' `load_image` and `convert_to_rgb`: EXIF applied, what is transparent on white."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode == "I":
        # Pillow cuts all above 255 off; the higher eight bits are what it takes of colours.
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def photo(width=29, height=22):
    """Smooth colours, as JPEG is made for."""
    y, x = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([x * 8 % 256, (x + y) * 5 % 256, 255 - y * 9 % 256], 2).astype(np.uint8))


def save(name, image, **how):
    image.save(FILES / name, **how)


def files():
    FILES.mkdir(exist_ok=True)
    for old in FILES.iterdir():
        old.unlink()
    smooth, noise = photo(), Image.fromarray(pattern(29, 22))
    grey = smooth.convert("L")
    alpha = Image.fromarray(np.dstack([pattern(29, 22), pattern(29, 22)[:, :, 0]]))
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, image in [("rgb", noise), ("rgba", alpha), ("grey", grey), ("grey_alpha", alpha.convert("LA")),
                        ("palette", noise.quantize(200)), ("two", grey.convert("1"))]:
        save(f"{name}.png", image)
    save("turned.png", noise, exif=exif)
    save("palette_clear.png", noise.quantize(64), transparency=3)
    save("four.png", noise.quantize(13), bits=4)
    wide = (np.asarray(noise).astype(np.uint16) << 8) + np.asarray(smooth)
    Image.fromarray(wide[:, :, 0]).save(FILES / "grey16.png")
    (FILES / "rgb16.png").write_bytes(png16(wide))
    for quality, sub in [(90, 0), (75, 1), (75, 2)]:
        save(f"q{quality}_{['444', '422', '420'][sub]}.jpg", smooth, quality=quality, subsampling=sub)
    save("noise.jpg", noise, quality=95, subsampling=0)
    save("grey.jpg", grey, quality=85)
    save("progressive.jpg", smooth, quality=80, progressive=True)
    save("turned.jpg", smooth, quality=90, exif=exif)
    save("cmyk.jpg", smooth.convert("CMYK"), quality=90)
    save("plain.gif", smooth.quantize(40))
    frames = [smooth.quantize(30), grey.convert("P")]
    save("moving.gif", frames[0], save_all=True, append_images=frames[1:], transparency=2)
    save("lossless.webp", noise, lossless=True)
    save("lossless_alpha.webp", alpha, lossless=True, exact=True)
    save("lossy.webp", smooth, quality=80)
    for name, image in [("rgb", noise), ("grey", grey), ("palette", noise.quantize(50)), ("two", grey.convert("1")),
                        ("rgba", alpha)]:
        save(f"{name}.bmp", image)
    cases = []
    for path in sorted(FILES.iterdir()):
        rgb = to_rgb(Image.open(path))
        digest = hashlib.sha256(rgb.tobytes()).hexdigest()
        cases.append({"file": path.name, "size": rgb.size, "sha256": digest})
        if path.suffix == ".jpg" or path.name == "lossy.webp":
            path.with_suffix(path.suffix + ".rgb").write_bytes(rgb.tobytes())
    (HERE / "files.json").write_text("[\n" + ",\n".join(map(json.dumps, cases)) + "\n]\n")


def png16(wide):
    """A PNG of 16 bits a colour, which Pillow does not write."""
    import struct
    import zlib

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    height, width, _ = wide.shape
    rows = b"".join(b"\0" + wide[y].astype(">u2").tobytes() for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def patches():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

    clip = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    cases = []
    for (width, height), patch, low, high, norm in [
        ((37, 21), 4, 256, 1024, half), ((50, 9), 4, 256, 1024, half), ((1, 1), 16, 65536, 16777216, half),
        ((120, 90), 16, 65536, 16777216, half), ((100, 130), 14, 3136, 12845056, clip),
        ((700, 500), 14, 3136, 100352, clip),
    ]:
        processor = Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, temporal_patch_size=2,
                                             size={"shortest_edge": low, "longest_edge": high}, **norm)
        out = processor(images=[Image.fromarray(pattern(width, height))], return_tensors="np")
        cases.append({
            "size": [width, height], "patch": patch, "pixels": [low, high], "mean": norm["image_mean"],
            "std": norm["image_std"], "grid": [int(n) for n in out["image_grid_thw"][0]],
            "sha256": hashlib.sha256(out["pixel_values"].astype("<f4").tobytes()).hexdigest(),
        })
    (HERE / "patches.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    sizes, state = [], 1
    for factor, low, high in [(32, 65536, 16777216), (28, 3136, 12845056), (28, 3136, 1003520), (32, 4096, 4096)]:
        for height, width in [(480, 640), (1000, 1000), (1, 1), (2000, 10), (3000, 4000), (80, 48), (16, 16), (1, 200)]:
            sizes.append([height, width, factor, low, high, *smart_resize(height, width, factor, low, high)])
        for _ in range(40):
            state = (state * 1103515245 + 12345) % 2**31
            height, width = 1 + state // 7 % 3000, 1 + state // 11 % 3000
            if max(height, width) / min(height, width) <= 200:
                sizes.append([height, width, factor, low, high, *smart_resize(height, width, factor, low, high)])
    (HERE / "sizes.json").write_text("[\n" + ",\n".join(map(json.dumps, sizes)) + "\n]\n")


if __name__ == "__main__":
    resize()
    files()
    if "transformers" in sys.argv or not (HERE / "patches.json").exists():
        patches()
