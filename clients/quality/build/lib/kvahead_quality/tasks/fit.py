"""Find the haystack size with which a sample fills its target length and never exceeds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .base import Sample, Task, TaskError

# The search ends early at 99% of the target: 1% of a length is below what any score resolves,
# and each further step costs a count of the whole prompt.
CLOSE_ENOUGH = 0.99
AIM = 0.995
# A haystack of more units than this is not a text a model reads, but a search that went wrong.
SIZE_MAX = 4_000_000


@dataclass(frozen=True)
class Fitted:
    """A sample with its length: prompt, answer prefix, answer budget and overhead, in tokens."""

    sample: Sample
    length: int
    tokens: int

    @property
    def fill(self) -> float:
        """Share of the target that is used, 0..1."""
        return self.tokens / self.length


def fit(
    task: Task,
    length: int,
    seed: int,
    index: int,
    count_tokens: Callable[[str], int],
    overhead: int = 0,
) -> Fitted:
    """Return the sample of (task, length, seed, index) that fits `length` tokens closely.

    As in RULER, the length includes the tokens to generate. `overhead` tokens are reserved on top
    (chat template). The size is found by bisection whose next point is interpolated, because
    tokens are almost linear in it. Fails with TaskError if the smallest sample is too long.
    """

    def measure(size: int) -> Fitted:
        sample = task.build(size, length, seed, index)
        tokens = count_tokens(sample.text) + sample.max_tokens + overhead
        return Fitted(sample, length, tokens)

    best = measure(task.min_size)
    if best.tokens > length:
        raise TaskError(
            f"{task.name}: the smallest sample needs {best.tokens} tokens, "
            f"the target length is {length}"
        )
    low, low_tokens = task.min_size, best.tokens
    slope = 0.0  # tokens per unit between the last two sizes that fit; 0: only one is known
    high, high_tokens = 0, 0  # 0: no size is known yet to be too long
    while best.tokens < CLOSE_ENOUGH * length and high != low + 1:
        if high:
            size = _between(low, low_tokens, high, high_tokens, length)
        else:
            # The smallest sample is mostly fixed text and says nothing about the unit: double it.
            # Fourfold growth at most, for steps too small to change the count (fwe rounds).
            step = (AIM * length - low_tokens) / slope if slope else low
            size = low + min(max(1, int(step)), 3 * low)
        if size > SIZE_MAX:
            raise TaskError(f"{task.name}: no haystack of {SIZE_MAX} units fills {length} tokens")
        tried = measure(size)
        if tried.tokens <= length:
            slope = max((tried.tokens - low_tokens) / (size - low), 1e-6)
            low, low_tokens = size, tried.tokens
            if tried.tokens > best.tokens:
                best = tried
        else:
            high, high_tokens = size, tried.tokens
    return best


def _between(low: int, low_tokens: int, high: int, high_tokens: int, length: int) -> int:
    """Interpolate the next size strictly between `low`, which fits, and `high`, which does not."""
    step = (AIM * length - low_tokens) * (high - low) / max(high_tokens - low_tokens, 1)
    # Stay off the ends by a sixteenth of the bracket, so that it always shrinks by a fraction.
    margin = max((high - low) // 16, 1)
    return min(max(low + int(step), low + margin), high - margin)
