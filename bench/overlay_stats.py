"""The tests of overlay.py. Standard library only.

Step by step: both programs start from the same weights and learn the same tokens in the same order, so each metric
of each step should be the same up to the rounding of f32. A metric agrees if the root mean square of the
differences over all steps is at most 1 % of the root mean square of the peer's values, in every seed.

Bands: both programs draw samples of their own. Of each seed one number is taken, the mean of a metric over the last
third of the steps. The band of n seeds is mean +- t s sqrt(2 / n), with s their deviation and t the 99.5 % quantile
of Student's distribution with n - 1 degrees of freedom: if both programs do the same, the mean of n seeds of one
lies in the band of the other in 99 % of cases. A metric agrees if the mean of ours lies in their band and theirs in
ours.
"""

from math import sqrt
from statistics import mean, stdev

TOLERANCE = 0.01
SEEDS_MIN = 3  # Bands of fewer seeds are so wide that they hold anything.
LEVEL = 0.99
# 99.5 % quantiles of Student's t, from 2 to 9 degrees of freedom.
QUANTILES = {2: 9.925, 3: 5.841, 4: 4.604, 5: 4.032, 6: 3.707, 7: 3.499, 8: 3.355, 9: 3.250}
SEEDS_MAX = max(QUANTILES) + 1
ROUNDING = 1e-6  # Relative: a metric that is the same number in all seeds has a band of no width.


def last_third(series):
    return mean(series[-max(len(series) // 3, 1) :])


def band(values):
    """Returns (mean, half of the band's width) of one number for each seed."""
    assert SEEDS_MIN <= len(values) <= SEEDS_MAX, len(values)
    middle = mean(values)
    return middle, QUANTILES[len(values) - 1] * stdev(values) * sqrt(2 / len(values)) + ROUNDING * abs(middle)


def compare_bands(ours, theirs):
    """Compares one metric; `ours`, `theirs`: a series of steps for each seed."""
    our_mean, our_half = band([last_third(one) for one in ours])
    their_mean, their_half = band([last_third(one) for one in theirs])
    off = abs(our_mean - their_mean)
    return {
        "ours": our_mean, "ours_half": our_half, "theirs": their_mean, "theirs_half": their_half,
        "holds": off <= their_half and off <= our_half,
    }


def difference(ours, theirs):
    """Root mean square of the differences, relative to that of their values, or itself where these are 0."""
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    rms = lambda values: sqrt(mean([value * value for value in values]))  # noqa: E731
    size = rms(theirs)
    off = rms([a - b for a, b in zip(ours, theirs)])
    return off / size if size > 0 else off


def compare_steps(ours, theirs):
    """Compares one metric step by step; `ours`, `theirs`: a series for each seed, in the same order."""
    first = max(difference(a[:1], b[:1]) for a, b in zip(ours, theirs))
    every = max(difference(a, b) for a, b in zip(ours, theirs))
    return {"first_step": first, "all_steps": every, "holds": every <= TOLERANCE}


def compare(test, ours, theirs, metrics):
    """Applies a test to each metric; `ours`, `theirs`: a list of steps (dicts) for each seed."""
    series = lambda runs, name: [[step[name] for step in steps] for steps in runs]  # noqa: E731
    return {name: test(series(ours, name), series(theirs, name)) for name in metrics}


def curve(runs, name):
    """Returns for each step the mean over seeds, the least and the greatest, to draw."""
    return [[mean(found), min(found), max(found)] for found in zip(*[[step[name] for step in steps] for steps in runs])]
