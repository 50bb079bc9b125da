"""What the server says of itself while it is under load: its /metrics, read at intervals.

The names of kvahead, vLLM, SGLang and llama.cpp are known; a server without them, or without
/metrics, is measured all the same, with nothing beside the client's figures.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .client import Client

INTERVAL_S = 0.5
LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")

# Figure -> what it may be called; with a label, only lines that have it. Lines of one name are
# added up, since reasons and engines are labels.
Names = dict[str, tuple[tuple[str, str], ...]]
GAUGES: Names = {
    "running": (
        ("kvahead_requests_running", ""),
        ("vllm:num_requests_running", ""),
        ("sglang:num_running_reqs", ""),
        ("llamacpp:requests_processing", ""),
    ),
    "waiting": (
        ("kvahead_requests_waiting", ""),
        ("vllm:num_requests_waiting", ""),
        ("sglang:num_queue_reqs", ""),
        ("llamacpp:requests_deferred", ""),
    ),
    "suspended": (("kvahead_requests_suspended", ""),),
    "kv_device": (
        ("kvahead_kv_usage_ratio", 'tier="device"'),
        ("vllm:kv_cache_usage_perc", ""),
        ("vllm:gpu_cache_usage_perc", ""),
        ("sglang:token_usage", ""),
        ("llamacpp:kv_cache_usage_ratio", ""),
    ),
    "kv_host": (("kvahead_kv_usage_ratio", 'tier="host"'),),
}
COUNTERS: Names = {
    "steps": (("kvahead_steps_total", ""), ("llamacpp:n_decode_total", "")),
    "step_rows": (("kvahead_step_rows_total", ""),),
    "step_seconds": (("kvahead_step_seconds_sum", ""),),
    "preemptions": (("kvahead_preemptions_total", ""), ("vllm:num_preemptions_total", "")),
    "output_tokens": (
        ("kvahead_generation_tokens_total", ""),
        ("vllm:generation_tokens_total", ""),
        ("llamacpp:tokens_predicted_total", ""),
    ),
    "prompt_tokens_computed": (
        ("kvahead_scheduler_prompt_tokens_total", 'source="computed"'),
        ("llamacpp:prompt_tokens_total", ""),
    ),
    "prompt_tokens_cached": (
        ("kvahead_scheduler_prompt_tokens_total", 'source="cached"'),
        ("llamacpp:prompt_tokens_cached_total", ""),
    ),
    "rejected": (("kvahead_requests_rejected_total", ""),),
}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def parse(text: str) -> dict[str, float]:
    """Read Prometheus' text format into the figures above; those that are missing, or no finite
    numbers, are absent."""
    lines = [found.groups() for line in text.splitlines() if (found := LINE.match(line))]
    figures: dict[str, float] = {}
    for figure, names in (GAUGES | COUNTERS).items():
        for wanted, label in names:
            values = [
                number
                for name, labels, value in lines
                if name == wanted and label in (labels or "")
                for number in (_number(value),)
                if math.isfinite(number)
            ]
            if values:
                figures[figure] = sum(values)
                break
    return figures


@dataclass
class Sampler:
    """Reads /metrics of a client's server from `start` to `stop`."""

    client: Client
    interval_s: float = INTERVAL_S
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def take(self) -> bool:
        """Take one sample now; false: there is nothing to read."""
        text = await self.client.read_metrics()
        figures = parse(text) if text else {}
        if figures:
            self.samples.append((self.client.clock(), figures))
        return bool(figures)

    async def start(self) -> None:
        """Take a sample, and one at every interval from then on if there was one."""
        if await self.take():
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            await self.take()

    async def stop(self) -> None:
        """End with a last sample."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self.take()


def summarise(
    samples: list[tuple[float, dict[str, float]]], from_s: float | None, until_s: float
) -> dict[str, Any]:
    """Figures of one load. Gauges are those of samples from `from_s` to `until_s`, while requests
    that count are under way (None: none ever were): the time that the client's own figures are
    over. Without a sample in it they are absent. Counters are their growth over all samples."""
    if len(samples) < 2:
        return {}
    under_way = [
        figures for at_s, figures in samples if from_s is not None and from_s <= at_s <= until_s
    ]
    summary: dict[str, Any] = {}
    for name in GAUGES:
        values = [figures[name] for figures in under_way if name in figures]
        if values:
            summary[name] = {"mean": sum(values) / len(values), "max": max(values)}
    first, last = samples[0][1], samples[-1][1]
    grown = {name: last[name] - first[name] for name in COUNTERS if name in first and name in last}
    summary |= {name: grown[name] for name in grown if name not in ("step_rows", "step_seconds")}
    ratio: Callable[[str], float | None] = lambda name: (  # noqa: E731
        grown[name] / grown["steps"] if name in grown and grown.get("steps") else None
    )
    return summary | {"rows_per_step": ratio("step_rows"), "step_s": ratio("step_seconds")}
