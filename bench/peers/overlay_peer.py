"""What reference.py and overlay_trl.py share: settings in, one JSON file out, samples to learn from again.

    python peers/reference.py SETTINGS.json ...

Settings are written by overlay_jobs.peer_settings.
"""

import importlib.metadata
import importlib.util
import json
import os
import resource
import sys
import warnings
from pathlib import Path

# Plimsoll reports the estimate of the KL with at most this for a token; a peer reports it so, and as it is.
KL_MAX = 10.0

os.environ.update(TQDM_DISABLE="1", HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
os.environ.update(TOKENIZERS_PARALLELISM="false")


def main(train, packages):
    """Runs `train(settings)` for each file of settings and writes its steps, seconds and peaks."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    for path in sys.argv[1:]:
        settings = json.loads(Path(path).read_text())
        if settings["threads"]:
            torch.set_num_threads(settings["threads"])
        torch.manual_seed(settings["seed"])
        if settings["device"] == "cuda":
            torch.cuda.reset_peak_memory_stats()
        reset_peak()
        steps, seconds = train(settings)
        found = {"steps": steps, "seconds": seconds, "peak_rss_bytes": peak_rss_bytes()}
        if settings["device"] == "cuda":
            found["peak_device_bytes"] = torch.cuda.max_memory_reserved()
            found["card"] = torch.cuda.get_device_name()
        found["versions"] = {name: importlib.metadata.version(name) for name in packages}
        Path(settings["out"]).write_text(json.dumps(found))


def reset_peak():
    """Begins a new measurement of the highest resident memory, where the kernel allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def peak_rss_bytes():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rows_of(settings):
    return [json.loads(line) for line in Path(settings["data"]).read_text().splitlines()]


def reward_of(settings):
    """Returns the reward function of the run's own copy."""
    spec = importlib.util.spec_from_file_location("overlay_reward", settings["reward"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.keep = lambda *_: None  # Only Plimsoll's samples are kept.
    return module.reward


class Samples:
    """Samples that were graded elsewhere, by prompt. Each is given out once."""

    def __init__(self, settings):
        self.by_prompt = {}
        for line in Path(settings["samples"]).read_text().splitlines():
            prompt, ids = json.loads(line)
            self.by_prompt.setdefault(json.dumps(prompt), []).append(ids)
        wrong = [key for key, group in self.by_prompt.items() if len(group) != settings["group"]]
        assert not wrong, f"{len(wrong)} prompts without {settings['group']} samples, the first {wrong[0]}"

    def next(self, prompt):
        return self.by_prompt[json.dumps(prompt)].pop(0)
