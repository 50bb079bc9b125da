"""Loads: how many requests fly, when they are sent, and how a run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from scripted import Hang, Refuse, Scripted, words

from kvahead_load.client import Client, Record, ServerParams
from kvahead_load.runner import Outcome, Point, Runner
from kvahead_load.workload import Request


def requests(count: int | None = None, at_s: list[float] | None = None):
    """Requests without end, or `count` of them."""
    index = 0
    while count is None or index < count:
        yield Request(index, f"prompt {index}", 4, at_s=at_s[index] if at_s else None)
        index += 1


def run(
    point: Point,
    server: Scripted | None = None,
    source: Any = None,
    beside: Callable[[Scripted, asyncio.Event], Awaitable[None]] | None = None,
) -> tuple[Outcome, Scripted, list[Any]]:
    told: list[Any] = []

    async def do() -> Outcome:
        async with made, Client(ServerParams(made.url, model="scripted")) as client:
            stop = asyncio.Event()
            other = asyncio.ensure_future(beside(made, stop)) if beside else None
            runner = Runner(client, source or requests(), point, told.append, stop)
            outcome = await asyncio.wait_for(runner.run(), 60)
            if other:
                await other
            return outcome

    made = server or Scripted()
    made.in_step = False
    return asyncio.run(do()), made, told


def test_runner__closed_loop_keeps_so_many_flying():
    gate: list[asyncio.Event] = []

    async def open_when_full(server: Scripted, _stop: asyncio.Event) -> None:
        while server.flying < 5:
            await asyncio.sleep(0.005)
        for _ in range(20):
            await asyncio.sleep(0)
        assert server.flying == 5
        gate[0].set()

    class Gated(Scripted):
        async def _play(self, request, body, script):
            if not gate:
                gate.append(asyncio.Event())
            await gate[0].wait()
            return await super()._play(request, body, script)

    outcome, server, told = run(Point(concurrency=5, requests=23), Gated(), beside=open_when_full)
    assert len(outcome.records) == len(told) == 23
    assert all(record.ok for record in outcome.records)
    assert server.flying_max == 5
    assert {body["prompt"] for body in server.bodies} == {f"prompt {i}" for i in range(23)}
    assert outcome.seconds > 0


def test_runner__warm_up_is_marked_and_comes_on_top():
    outcome, server, _ = run(Point(concurrency=2, requests=6, warm_up=3))
    assert len(server.bodies) == 9
    assert sorted(r.index for r in outcome.records if r.warm_up) == [0, 1, 2]


@pytest.mark.parametrize("load", [{"concurrency": 4}, {"rate": 1000}])
def test_runner__knows_when_requests_that_count_are_under_way(load):
    """From the first one's sending to the end of the last one, however early all are sent."""
    outcome, _, _ = run(Point(requests=4, warm_up=2, **load))
    counted = [r for r in outcome.records if not r.warm_up]
    assert 0 <= min(r.sent_s for r in counted) - outcome.counted_s < 5
    assert outcome.counted_s >= max(r.sent_s for r in outcome.records if r.warm_up)
    assert outcome.ended_s >= max(r.end_s for r in counted)
    outcome, _, _ = run(Point(requests=0, warm_up=2, **load))
    assert outcome.counted_s is None


def test_runner__open_loop_does_not_wait_for_answers():
    async def stop_when_all_hang(server: Scripted, stop: asyncio.Event) -> None:
        while server.flying < 12:
            await asyncio.sleep(0.005)
        stop.set()

    outcome, server, _ = run(
        Point(rate=2000, requests=12),
        Scripted(script=lambda number, body: [Hang()]),
        beside=stop_when_all_hang,
    )
    assert outcome.interrupted
    assert server.flying_max == 12
    assert outcome.records == []  # given up, not failed


def test_runner__open_loop_follows_its_process():
    outcome, _, _ = run(Point(rate=400, arrivals="constant", requests=20))
    planned = sorted(r.planned_s - outcome.started_s for r in outcome.records)
    assert planned == pytest.approx([i / 400 for i in range(1, 21)])
    assert all(r.sent_s >= r.planned_s for r in outcome.records)


def test_runner__too_many_in_flight_fail_here():
    async def release(server: Scripted, stop: asyncio.Event) -> None:
        while server.flying < 3:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        stop.set()

    outcome, server, _ = run(
        Point(rate=5000, requests=10, in_flight_max=3),
        Scripted(script=lambda number, body: [Hang()]),
        beside=release,
    )
    assert server.flying_max == 3
    assert [r.error for r in outcome.records] == ["not sent: 3 are on their way"] * 7


def test_runner__traces_say_when():
    times = [0.0, 0.01, 0.03]
    outcome, _, _ = run(Point(), source=requests(3, times))
    planned = [r.planned_s - outcome.started_s for r in outcome.records]
    assert sorted(planned) == pytest.approx(times)


def test_runner__failures_are_records():
    script = [Refuse(503)]
    outcome, _, _ = run(
        Point(concurrency=2, requests=6),
        Scripted(script=lambda number, body: script if number % 2 else words(2)),
    )
    assert sum(r.error is not None for r in outcome.records) == 3


def test_runner__duration_ends_the_sending():
    outcome, server, _ = run(Point(concurrency=2, duration_s=0.05))
    assert len(outcome.records) == len(server.bodies) >= 2
    assert all(record.ok for record in outcome.records)


class Gone:
    """A client whose server refuses for `until_s`; its clock goes on with pauses, and a little."""

    def __init__(self, until_s: float, status: int | None) -> None:
        self.now, self.until_s, self.status = 0.0, until_s, status
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    async def send(self, request: Request, at_s: float | None = None) -> Record:
        await asyncio.sleep(0)
        record = Record(request.index, self.now, self.now, status=self.status)
        self.now += 0.001
        record.end_s = self.now
        if self.now < self.until_s:
            record.error = "refused"
        else:
            record.first_s, record.status = self.now, 200
        return record

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def run(self, point: Point) -> Outcome:
        runner = Runner(self, requests(), point, pause=self.pause)
        return asyncio.run(asyncio.wait_for(runner.run(), 60))


@pytest.mark.parametrize("status", [None, 429, 503])
def test_runner__a_closed_loop_pauses_where_it_is_refused(status):
    gone = Gone(100.0, status)
    outcome = gone.run(Point(concurrency=1, duration_s=60.0))
    assert gone.pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    # The last one ends with the time to send for.
    assert max(gone.pauses) == 2.0 and gone.now == pytest.approx(60.0, abs=0.01)
    assert len(outcome.records) == pytest.approx(5 + 57 / 2, abs=2)
    # A server that is there again is asked as before.
    gone = Gone(0.5, status)
    outcome = gone.run(Point(concurrency=1, requests=50))
    assert gone.pauses == [0.1, 0.2, 0.4]
    assert sum(record.ok for record in outcome.records) == 47


def test_runner__a_request_that_is_refused_for_itself_is_no_reason_to_pause():
    gone = Gone(100.0, 400)
    outcome = gone.run(Point(concurrency=2, requests=50))
    assert len(outcome.records) == 50 and not gone.pauses


def test_runner__arrivals_after_the_duration_are_not_waited_for():
    """Nor sent. One that is planned for its very end is."""
    trace = requests(4, [0.0, 0.01, 0.02, 3600.0])
    outcome, server, _ = run(Point(duration_s=0.02), source=trace)
    assert len(outcome.records) == len(server.bodies) == 3
    outcome, _, _ = run(Point(rate=1e-3, duration_s=0.05))
    assert outcome.records == []
    outcome, _, _ = run(Point(rate=200, arrivals="constant", duration_s=0.05))
    assert len(outcome.records) == 10


def test_runner__a_stop_ends_closed_loops_at_once():
    async def stop_soon(server: Scripted, stop: asyncio.Event) -> None:
        while server.flying < 2:
            await asyncio.sleep(0.005)
        stop.set()

    outcome, server, _ = run(
        Point(concurrency=2, requests=100),
        Scripted(script=lambda number, body: [Hang()]),
        beside=stop_soon,
    )
    assert outcome.interrupted
    assert len(server.bodies) == 2


def test_runner__a_defect_of_ours_is_not_hidden():
    def broken():
        yield Request(0, "a", 1)
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as caught:
        run(Point(concurrency=1, requests=5), source=broken())
    assert [type(fault) for fault in caught.value.exceptions] == [ZeroDivisionError]
    with pytest.raises(ZeroDivisionError):
        run(Point(rate=1000, requests=5), source=broken())
