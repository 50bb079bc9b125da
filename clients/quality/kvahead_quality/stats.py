"""Confidence intervals for scores in 0..1. All intervals here are two-sided 95%."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Z95 = 1.959963984540054
RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval; `method` names how, or is none for no data."""

    mean: float
    low: float
    high: float
    count: int
    method: str


def wilson(successes: float, count: int, z: float = Z95) -> tuple[float, float]:
    """Return Wilson's score interval for `successes` of `count`.

    Fractional successes are allowed: among scores in 0..1 with a given mean, 0/1 scores have the
    largest variance, so the interval is conservative for them.
    """
    if count <= 0 or not 0 <= successes <= count:
        raise ValueError(f"{successes} successes of {count}")
    p = successes / count
    z2 = z * z
    centre = (p + z2 / (2 * count)) / (1 + z2 / count)
    half = z / (1 + z2 / count) * math.sqrt(p * (1 - p) / count + z2 / (4 * count * count))
    return max(0.0, centre - half), min(1.0, centre + half)


def estimate(scores: Sequence[float], seed: int = 0) -> Estimate:
    """Estimate the mean of one cell (task, length, policy).

    0/1 scores: Wilson. Fractional scores: percentile bootstrap over samples. If all fractional
    scores are equal, resampling shows no spread at all and Wilson's bound is used instead.
    """
    if not scores:
        return Estimate(math.nan, math.nan, math.nan, 0, "none")
    mean = math.fsum(scores) / len(scores)
    if all(score in (0.0, 1.0) for score in scores):
        return Estimate(mean, *wilson(math.fsum(scores), len(scores)), len(scores), "wilson")
    if len(set(scores)) == 1:
        bounds = wilson(math.fsum(scores), len(scores))
        return Estimate(mean, *bounds, len(scores), "wilson-bound")
    return Estimate(mean, *_bootstrap([scores], seed), len(scores), "bootstrap")


def estimate_average(groups: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """Estimate the mean of the groups' means (RULER's average over tasks).

    0/1 scores in groups of one size: Wilson on all of them, which is conservative, since samples
    stratified by task vary less than a plain sample. Otherwise MOVER: the groups' own intervals
    combined by the square root of the sum of squared half-widths, each side by itself (Zou and
    Donner 2008). A bootstrap here would call an average of tasks at 100% certain. An empty group
    makes the average undefined (NaN).
    """
    count = sum(len(group) for group in groups)
    if not groups or not all(groups):
        return Estimate(math.nan, math.nan, math.nan, count, "none")
    parts = [estimate(group, seed) for group in groups]
    mean = math.fsum(part.mean for part in parts) / len(parts)
    if all(part.method == "wilson" for part in parts) and len({len(g) for g in groups}) == 1:
        successes = math.fsum(score for group in groups for score in group)
        return Estimate(mean, *wilson(successes, count), count, "wilson")
    below = math.sqrt(math.fsum((part.mean - part.low) ** 2 for part in parts)) / len(parts)
    above = math.sqrt(math.fsum((part.high - part.mean) ** 2 for part in parts)) / len(parts)
    return Estimate(mean, max(mean - below, 0.0), min(mean + above, 1.0), count, "mover")


def estimate_difference(groups: Sequence[Sequence[tuple[float, float]]], seed: int = 0) -> Estimate:
    """Estimate the mean over groups of (second - first), both scored on the same samples: -1..1.

    Paired, stratified percentile bootstrap: pairing removes the spread between samples, which is
    what makes two policies comparable at small sample counts. In a group whose differences are all
    equal, resampling shows no spread. Such groups together reach as far as Wilson's upper end for
    0 of n samples that differ from their group's others, n the smallest group's times the groups;
    with the bootstrap of the other groups that is combined by MOVER, as in `estimate_average`.
    """
    count = sum(len(group) for group in groups)
    if not groups or not all(groups):
        return Estimate(math.nan, math.nan, math.nan, count, "none")
    # Rounded, so that equal differences are equal: 1 - 0.8 is not quite 0.8 - 0.6.
    diffs = [[round(second - first, 12) for first, second in group] for group in groups]
    mean = _mean_of_means(diffs)
    flat = [group for group in diffs if len(set(group)) == 1]
    spread = [group for group in diffs if len(set(group)) > 1]
    if not flat:
        return Estimate(mean, *_bootstrap(diffs, seed), count, "paired-bootstrap")
    reach = wilson(0, len(flat) * min(len(group) for group in flat))[1] * len(flat) / len(diffs)
    below = above = 0.0
    if spread:
        share, centre = len(spread) / len(diffs), _mean_of_means(spread)
        low, high = _bootstrap(spread, seed)
        below, above = share * (centre - low), share * (high - centre)
    return Estimate(
        mean,
        max(mean - math.hypot(below, reach), -1.0),
        min(mean + math.hypot(above, reach), 1.0),
        count,
        "mover" if spread else "wilson-bound",
    )


def _mean_of_means(groups: Sequence[Sequence[float]]) -> float:
    return math.fsum(math.fsum(group) / len(group) for group in groups) / len(groups)


def _bootstrap(groups: Sequence[Sequence[float]], seed: int) -> tuple[float, float]:
    """Return the 2.5% and 97.5% points of the resampled mean of group means."""
    rng = np.random.default_rng(seed)
    total = np.zeros(RESAMPLES)
    for group in groups:
        values = np.asarray(group, dtype=float)
        picks = rng.integers(0, len(values), size=(RESAMPLES, len(values)))
        total += values[picks].mean(axis=1)
    low, high = np.percentile(total / len(groups), [2.5, 97.5])
    return float(low), float(high)
