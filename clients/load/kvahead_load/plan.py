"""Which loads a command line asks for, one after the other: a sweep, a trace, or a walk."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from . import metrics, workload
from .arrivals import parse_process
from .client import Client
from .errors import UsageError
from .numbers import parse_numbers
from .runner import Outcome, Point
from .walk import Walk

# Of --rate auto, where nothing else is asked for: a reader is not kept waiting, and text comes
# faster than it is read.
AUTO_LIMITS = metrics.Limits(ttft_s=2.0, tpot_s=0.1)
AUTO_DURATION_S = 20.0
AUTO_REQUESTS = 5  # or as long as so many take to arrive
AUTO_LONE_REQUESTS = 3


def _is_auto(args: argparse.Namespace) -> bool:
    return args.rate is not None and args.rate.partition(":")[0] == "auto"


def _points(args: argparse.Namespace) -> list[Point]:
    """What is to be run; of --rate auto the first point only, whose rate may be None."""
    given = [name for name in ("concurrency", "rate", "trace") if getattr(args, name)]
    if len(given) != 1:
        raise UsageError("give one of --concurrency, --rate and --trace")
    parse_process(args.arrivals)
    requests, duration_s = args.requests, args.duration
    if requests is None and duration_s is None and not args.trace:
        if _is_auto(args):
            duration_s = AUTO_DURATION_S
        else:
            requests = 100
    common: dict[str, Any] = {
        "requests": requests,
        "duration_s": duration_s,
        "warm_up": args.warm_up,
        "in_flight_max": args.in_flight_max,
        "arrivals": args.arrivals,
        "seed": args.seed,
    }
    if args.concurrency:
        levels = parse_numbers(args.concurrency, "--concurrency", True, 100_000)
        return [Point(concurrency=int(level), **common) for level in levels]
    if _is_auto(args):
        first = args.rate.removeprefix("auto").removeprefix(":")
        rates = parse_numbers(first, "--rate auto", False, 1e6) if first else [None]
        if len(rates) > 1:
            raise UsageError(f"--rate: {args.rate!r} has more than one first rate")
        return [Point(rate=rates[0], **common)]
    if args.rate:
        return [
            Point(rate=rate, **common) for rate in parse_numbers(args.rate, "--rate", False, 1e6)
        ]
    return [Point(**common)]


def limits_of(args: argparse.Namespace) -> metrics.Limits:
    """What a good request keeps; of a walk there is always something."""
    values = {
        f"{name}_s": None if value is None else value / 1000
        for name in ("ttft", "tpot", "itl", "e2e")
        for value in (getattr(args, f"limit_{name}"),)
    }
    limits = metrics.Limits(**values)
    return AUTO_LIMITS if _is_auto(args) and not limits.any() else limits


async def _first_rate(client: Client, shape: workload.Shape) -> float:
    """Half of what a server would do that answers one request after the other. Its prompts are no
    load's, which would find them in the server's prefix cache."""
    seconds = []
    source = workload.synthetic(replace(shape, cancel_share=0.0, seed=f"{shape.seed}/lone"))
    for _ in range(AUTO_LONE_REQUESTS):
        record = await client.send(next(source))
        if record.error:
            raise UsageError(f"a lone request fails: {record.error}")
        seconds.append(metrics.e2e(record))
    return 0.5 / max(sorted(seconds)[len(seconds) // 2], 1e-3)


class Plan:
    """Which point comes next."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._points = _points(args)
        self._limits = limits_of(args)
        self.walk: Walk | None = None
        self._auto = _is_auto(args)
        self._chooses_duration = args.duration is None and args.requests is None

    async def prepare(self, client: Client, shape: workload.Shape) -> None:
        """Find the first rate of a walk."""
        if self._auto:
            self.walk = Walk(self._points[0].rate or await _first_rate(client, shape))

    def next(self) -> Point | None:
        """Return the next point; None: that was all."""
        if not self.walk:
            return self._points.pop(0) if self._points else None
        point, rate = self._points[0], self.walk.next()
        if rate is None:
            return None
        if self._chooses_duration:
            point = replace(point, duration_s=max(AUTO_DURATION_S, AUTO_REQUESTS / rate))
        return replace(point, rate=rate)

    def tell(self, outcome: Outcome) -> str:
        """Note what came of a point; returns words about it."""
        if not self._limits.any() or outcome.interrupted:
            return ""
        share = metrics.good_share(outcome.records, self._limits)
        if self.walk and outcome.point.rate is not None:
            self.walk.tell(outcome.point.rate, share)
        return "" if share is None else f", {share:.0%} good"
