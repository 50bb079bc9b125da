"""More than the server can serve, for a moment: nothing is lost, and nothing stays."""

from __future__ import annotations

import contextlib

import pytest
from harness import wait_until
from overload import PATH, run_factor
from wire import resident_bytes

TOKENS = 16


@pytest.mark.parametrize(
    "options",
    [("--sequences", "2", "--waiting", "8"), ("--sequences", "2", "--waiting-time", "50ms")],
    ids=["queue", "time"],
)
def test_overload__every_request_is_answered_or_refused(tmp_path, options):
    """600 requests at once, far more than run or wait."""
    row = run_factor(tmp_path, options, 1, {"greedy": 500, "modest": 100}, 1.0, TOKENS)
    assert not row.problems()
    assert len(row.outcomes) == 600
    served, refused = ([o for o in row.outcomes if (o.status == 200) == ok] for ok in (True, False))
    assert served and refused, (len(served), len(refused))


def test_overload__memory_returns(servers):
    """Of thousands of requests that were refused nothing is left."""
    own = servers.start("--sequences", "2", "--waiting", "8")
    long = {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True}
    with own.stream(PATH, **long, n=2) as running, contextlib.closing(own.http()) as waiting:
        next(running.events())
        wait_until("both run", lambda: own.metrics()["kvahead_requests_running"] == 2)
        own.send(waiting, "POST", PATH, long | {"n": 8})
        wait_until("eight wait", lambda: len(own.live()) == 10)
        body = {"prompt": "word " * 7000, "max_tokens": 1}

        def refuse(count: int) -> int:
            for _ in range(count):
                assert own.post(PATH, body).status == 503
            return resident_bytes(own.process.pid)

        before = refuse(10)
        assert refuse(60) < before + (24 << 20)
        running.abandon()
    own.wait_idle()
