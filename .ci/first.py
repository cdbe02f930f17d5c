"""Checks what the README promises of its first run: .ci/first.py SUMMARY."""

import json
import sys

s = json.load(open(sys.argv[1]))
print({k: s[k] for k in ("eval_before", "eval_after", "seconds", "rss_peak_bytes", "rss_planned_bytes")})
assert 0.20 <= s["eval_before"] <= 0.45, s["eval_before"]
assert s["eval_after"] >= 0.95, s["eval_after"]
assert s["arena_used_bytes"] == s["arena_planned_bytes"]
assert s["logprob_mismatch_max"] == 0
over = s["rss_planned_bytes"] - s["rss_peak_bytes"]
assert 0 <= over <= max(0.05 * s["rss_planned_bytes"], 16 << 20), over
