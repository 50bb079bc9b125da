"""Keeps up a load: so many requests at a time, or arrivals that wait for nobody.

Thread rule: one event loop; `on_record` is called in it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import arrivals
from .client import Client, Record, wait_until
from .workload import Request

# A client of a closed loop that is refused asks again after so long, twice as long each time. It
# would do nothing but collect failures otherwise, thousands a second.
BACK_OFF_FIRST_S = 0.1
BACK_OFF_MAX_S = 2.0


@dataclass(frozen=True)
class Point:
    """One load of a sweep: `concurrency` requests at a time, or `rate` a second, or a trace."""

    concurrency: int | None = None
    rate: float | None = None
    arrivals: str = "poisson"
    requests: int | None = None  # send so many
    duration_s: float | None = None  # or send for so long: arrivals that are planned within it
    warm_up: int = 0  # the first so many do not count
    in_flight_max: int = 4096  # of an open loop: beyond it requests count as failed
    seed: int = 1

    @property
    def label(self) -> str:
        """What the load is, in a few words."""
        if self.concurrency:
            return f"{self.concurrency} at a time"
        return f"{self.rate:g}/s" if self.rate else "trace"


@dataclass
class Outcome:
    """Records in the order in which requests ended; `seconds` is from the first counted request to
    the end of the last one."""

    point: Point
    records: list[Record] = field(default_factory=list)
    seconds: float = 0.0
    started_s: float = 0.0
    counted_s: float | None = None  # the first one that counts was sent; None: none was
    ended_s: float = 0.0  # the last one ended, or what was on its way was given up
    interrupted: bool = False
    server: dict[str, Any] = field(default_factory=dict)  # what it said of itself: gauges.py


def _is_refusal(record: Record) -> bool:
    """Whether the server is gone or full: it gave no answer, and not because of the request."""
    if record.error is None or record.first_s is not None:
        return False
    return record.status is None or record.status == 429 or not 400 <= record.status < 500


class Runner:
    """One run of one point."""

    def __init__(
        self,
        client: Client,
        requests: Iterator[Request],
        point: Point,
        on_record: Callable[[Record], None] | None = None,
        stop: asyncio.Event | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.client = client
        self.requests = requests
        self.point = point
        self.outcome = Outcome(point)
        self._on_record = on_record or (lambda record: None)
        self._stop = stop or asyncio.Event()
        self._pause = pause
        self._sent = 0
        self._flying: set[asyncio.Task[Record]] = set()

    async def run(self) -> Outcome:
        """Send until there is enough, then wait for what is on its way. `stop` ends it early: what
        is on its way is given up."""
        self.outcome.started_s = self.client.clock()
        sender = asyncio.ensure_future(self._send_all())
        stopper = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({sender, stopper}, return_when=asyncio.FIRST_COMPLETED)
        if self._flying and not self._stop.is_set():
            landed = asyncio.ensure_future(asyncio.wait(set(self._flying)))
            await asyncio.wait({landed, stopper}, return_when=asyncio.FIRST_COMPLETED)
        stopper.cancel()
        self.outcome.ended_s = self.client.clock()
        self.outcome.interrupted = self._stop.is_set()
        for task in self._flying:
            task.cancel()
        if not sender.done():
            sender.cancel()
        await asyncio.gather(sender, *self._flying, return_exceptions=True)
        if not sender.cancelled() and (fault := sender.exception()):
            raise fault
        counted = [r for r in self.outcome.records if not r.warm_up]
        if counted:
            ends = [r.end_s for r in counted if r.end_s is not None]
            self.outcome.seconds = max(ends) - min(r.planned_s for r in counted)
        return self.outcome

    async def _send_all(self) -> None:
        if not self.point.concurrency:
            await self._arrive()
            return
        async with asyncio.TaskGroup() as workers:
            for _ in range(self.point.concurrency):
                workers.create_task(self._work())

    def _next(self) -> Request | None:
        """Return the next request, or None when there is enough."""
        point = self.point
        if self._stop.is_set():
            return None
        if point.requests is not None and self._sent >= point.requests + point.warm_up:
            return None
        request = next(self.requests, None)
        self._sent += request is not None
        return request

    def _is_over(self, offset_s: float) -> bool:
        """Whether the time to send for is over so long after the start."""
        return self.point.duration_s is not None and offset_s > self.point.duration_s

    def _spent_s(self) -> float:
        return self.client.clock() - self.outcome.started_s

    def _take(self, record: Record, number: int) -> None:
        record.warm_up = number <= self.point.warm_up
        self.outcome.records.append(record)
        self._on_record(record)

    async def _send(self, request: Request, number: int, at_s: float | None = None) -> Record:
        if number > self.point.warm_up and self.outcome.counted_s is None:
            self.outcome.counted_s = self.client.clock()
        record = await self.client.send(request, at_s)
        self._take(record, number)
        return record

    # ---- closed loop --------------------------------------------------------------------------

    async def _work(self) -> None:
        refused = 0  # so often, one after the other
        while (request := self._next()) is not None:
            number = self._sent
            if refused:
                await self._pause(self._back_off_s(refused))
            if self._is_over(self._spent_s()):
                return
            record = await self._send(request, number)
            refused = refused + 1 if _is_refusal(record) else 0

    def _back_off_s(self, refused: int) -> float:
        pause_s = min(BACK_OFF_FIRST_S * 2.0 ** min(refused - 1, 30), BACK_OFF_MAX_S)
        if self.point.duration_s is None:
            return pause_s
        return max(min(pause_s, self.point.duration_s - self._spent_s()), 0.0)

    # ---- open loop ----------------------------------------------------------------------------

    def _schedule(self) -> Iterator[float]:
        if self.point.rate is None:
            while True:  # a trace: each request says when
                yield -1.0
        rng = random.Random(f"{self.point.seed}/arrivals")
        yield from arrivals.process(self.point.arrivals, self.point.rate, rng)

    async def _arrive(self) -> None:
        for offset in self._schedule():
            request = self._next()
            if request is None:
                return
            if request.at_s is not None and offset < 0:
                offset = request.at_s
            # What counts is when it is planned: a client that is late leaves no request out.
            if self._is_over(offset):
                return
            at_s = self.outcome.started_s + offset
            await wait_until(self.client.clock, at_s)
            if len(self._flying) >= self.point.in_flight_max:
                now = self.client.clock()
                refused = Record(request.index, at_s, now, end_s=now)
                refused.error = f"not sent: {self.point.in_flight_max} are on their way"
                self._take(refused, self._sent)
                continue
            task = asyncio.ensure_future(self._send(request, self._sent, at_s))
            self._flying.add(task)
            task.add_done_callback(self._flying.discard)
