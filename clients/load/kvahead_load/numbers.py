"""Numbers from the command line: lists, durations in ms, and distributions of token counts.

A distribution is `N` (always), `LOW-HIGH` (uniform), or `lognormal:MEDIAN:SIGMA`, as lengths of
real prompts mostly are; SIGMA is that of the logarithm. Draws are whole and at least 1.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

from .errors import UsageError

TOKENS_MAX = 16_777_216


@dataclass(frozen=True)
class Distribution:
    """Token counts: uniform in [low, high], or lognormal with `median` and `sigma`, cut there."""

    text: str
    low: int
    high: int
    median: float = 0.0
    sigma: float = 0.0

    def draw(self, rng: random.Random) -> int:
        """Draw one count."""
        if self.sigma:
            value = round(math.exp(rng.gauss(math.log(self.median), self.sigma)))
            return min(max(value, self.low), self.high)
        return rng.randint(self.low, self.high)


def _count(text: str, option: str) -> int:
    match = re.fullmatch(r"(\d{1,9})([kK]?)", text.strip())
    value = int(match[1]) * (1024 if match[2] else 1) if match else 0
    if not 1 <= value <= TOKENS_MAX:
        raise UsageError(f"{option}: {text!r} is not a whole number in 1..{TOKENS_MAX}")
    return value


def parse_distribution(text: str, option: str) -> Distribution:
    """Read a distribution of token counts; `option` is named in errors."""
    if text.startswith("lognormal:"):
        parts = text.split(":")
        try:
            sigma = float(parts[2]) if len(parts) == 3 else math.nan
        except ValueError:
            sigma = math.nan
        if not 0 < sigma <= 4:
            raise UsageError(f"{option}: {text!r} is not lognormal:MEDIAN:SIGMA, sigma up to 4")
        median = _count(parts[1], option)
        # Three sigmas: a single draw in 740 would be beyond.
        high = min(round(median * math.exp(3 * sigma)), TOKENS_MAX)
        return Distribution(text, 1, high, float(median), sigma)
    low, dash, high = text.partition("-")
    first = _count(low, option)
    last = _count(high, option) if dash else first
    if last < first:
        raise UsageError(f"{option}: {text!r} ends before it begins")
    return Distribution(text, first, last)


def parse_numbers(text: str, option: str, whole: bool, high: float) -> list[float]:
    """Read `1,2.5,8`: positive numbers, each once, in the order given."""
    values: list[float] = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if not 0 < value <= high or (whole and value != int(value)):
            what = "whole numbers" if whole else "numbers"
            raise UsageError(f"{option}: {part!r} is not among {what} above 0 up to {high:g}")
        if value in values:
            raise UsageError(f"{option}: {part!r} is there twice")
        values.append(value)
    return values


def parse_share(text: str, option: str) -> float:
    """Read a share in 0..1, or a percentage with its sign."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise UsageError(f"{option}: {text!r} is not a share in 0..1")
    return value
