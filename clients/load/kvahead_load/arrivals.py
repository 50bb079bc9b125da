"""When requests arrive in an open loop: seconds from the start, ascending.

Open loop means that arrivals do not wait for answers, as real users do not: latency under a given
rate can only be measured this way.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from .errors import UsageError

CV_MAX = 16.0


def poisson(rate: float, rng: random.Random) -> Iterator[float]:
    """Independent users: exponential gaps of mean 1 / rate."""
    at = 0.0
    while True:
        at += rng.expovariate(rate)
        yield at


def constant(rate: float, _rng: random.Random) -> Iterator[float]:
    """Yield one every 1 / rate seconds."""
    number = 0
    while True:
        number += 1
        yield number / rate


def gamma(rate: float, cv: float, rng: random.Random) -> Iterator[float]:
    """Burstier (cv > 1) or steadier (cv < 1) than Poisson: gamma gaps of this variation."""
    shape = 1.0 / cv**2
    at = 0.0
    while True:
        at += rng.gammavariate(shape, 1.0 / (rate * shape))
        yield at


def parse_process(text: str) -> tuple[str, float]:
    """Read `poisson`, `constant` or `gamma:CV`; returns the name and the variation."""
    if text == "poisson":
        return text, 1.0
    if text == "constant":
        return text, 0.0
    name, _, variation = text.partition(":")
    try:
        cv = float(variation)
    except ValueError:
        cv = 0.0
    if name != "gamma" or not 0 < cv <= CV_MAX:
        raise UsageError(
            f"--arrivals: {text!r} is not poisson, constant, or gamma:CV with CV up to {CV_MAX:g}"
        )
    return name, cv


def process(text: str, rate: float, rng: random.Random) -> Iterator[float]:
    """Return the arrival times of the named process."""
    name, cv = parse_process(text)
    if name == "gamma":
        return gamma(rate, cv, rng)
    return poisson(rate, rng) if name == "poisson" else constant(rate, rng)
