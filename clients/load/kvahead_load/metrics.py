"""From records to figures: percentiles, throughput, goodput.

    TTFT   first piece - planned      what a user waits for; from the planned moment, so that a
                                      client that is late itself does not hide a slow server
    ITL    gap between pieces
    TPOT   (last - first) / (output tokens - 1)
    E2E    end - planned

Only complete answers count for latencies; failed and cancelled ones are counted beside them.
Goodput (DistServe, arXiv:2401.09670) is complete answers within all given limits per second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .client import Record

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Limits:
    """What an answer must keep to count as good, in seconds; None: no limit. `itl` is that of a
    request's 99th percentile gap."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    itl_s: float | None = None
    e2e_s: float | None = None

    def any(self) -> bool:
        """Whether there is a limit."""
        return any(v is not None for v in (self.ttft_s, self.tpot_s, self.itl_s, self.e2e_s))


def ttft(record: Record) -> float:
    """Seconds to the first piece."""
    assert record.first_s is not None
    return record.first_s - record.planned_s


def tpot(record: Record) -> float | None:
    """Seconds per output token after the first; None: there is only one."""
    if record.output_tokens < 2 or record.first_s is None or record.last_s is None:
        return None
    return (record.last_s - record.first_s) / (record.output_tokens - 1)


def e2e(record: Record) -> float:
    """Seconds to the end."""
    assert record.end_s is not None
    return record.end_s - record.planned_s


def is_good(record: Record, limits: Limits) -> bool:
    """Whether the answer is complete and within the limits."""
    if not record.ok:
        return False
    per_token = tpot(record)
    gap = float(np.percentile(record.gaps_s, 99)) if record.gaps_s else None
    checks = (
        (limits.ttft_s, ttft(record)),
        (limits.tpot_s, per_token),
        (limits.itl_s, gap),
        (limits.e2e_s, e2e(record)),
    )
    return all(limit is None or value is None or value <= limit for limit, value in checks)


def good_share(records: list[Record], limits: Limits) -> float | None:
    """Of the requests that count and whose clients stayed, what share was good; None: there are
    none."""
    stayed = [record for record in records if not record.warm_up and not record.cancelled]
    return sum(is_good(record, limits) for record in stayed) / len(stayed) if stayed else None


def distribution(values: list[float]) -> dict[str, float] | None:
    """Mean, extremes and percentiles; None: nothing to describe."""
    if not values:
        return None
    points = np.percentile(values, PERCENTILES)
    figures = {"count": len(values), "mean": float(np.mean(values)), "min": min(values)}
    figures |= {f"p{p}": float(v) for p, v in zip(PERCENTILES, points, strict=True)}
    return figures | {"max": max(values)}


def summarise(records: list[Record], limits: Limits, seconds: float) -> dict[str, Any]:
    """Figures of one point of a sweep; `seconds` is how long its load lasted. Warm-up requests do
    not count; without any that does there are no rates (None)."""
    counted = [record for record in records if not record.warm_up]
    good = [record for record in counted if record.ok]
    errors = Counter(record.error for record in counted if record.error)
    gaps = [gap for record in good for gap in record.gaps_s]
    per_token = [value for record in good if (value := tpot(record)) is not None]
    prompts = [record.prompt_tokens for record in good if record.prompt_tokens is not None]
    cached = [record.cached_tokens for record in good if record.cached_tokens is not None]
    per_s: Callable[[int], float | None] = lambda value: (  # noqa: E731
        value / seconds if seconds > 0 else None
    )
    kept = sum(is_good(record, limits) for record in counted)
    return {
        "seconds": seconds,
        "requests": len(counted),
        "complete": len(good),
        "cancelled": sum(record.cancelled for record in counted),
        "failed": sum(errors.values()),
        "errors": dict(errors.most_common(10)),
        "requests_per_s": per_s(len(good)),
        "output_tokens_per_s": per_s(sum(record.output_tokens for record in counted)),
        "prompt_tokens_per_s": per_s(sum(prompts)) if prompts else None,
        "good": kept if limits.any() else None,
        "goodput_per_s": per_s(kept) if limits.any() else None,
        "good_share": good_share(records, limits) if limits.any() else None,
        "prompt_tokens": distribution([float(value) for value in prompts]),
        "cached_tokens": sum(cached) if cached else None,
        "output_tokens": distribution([float(record.output_tokens) for record in good]),
        "tokens_per_piece": (
            sum(r.output_tokens for r in good) / pieces
            if (pieces := sum(r.pieces for r in good))
            else None
        ),
        "ttft_s": distribution([ttft(record) for record in good]),
        "itl_s": distribution(gaps),
        "tpot_s": distribution(per_token),
        "e2e_s": distribution([e2e(record) for record in good]),
        # How late this client itself was: figures mean little where it is not far below the others.
        "lag_s": distribution([record.sent_s - record.planned_s for record in counted]),
    }
