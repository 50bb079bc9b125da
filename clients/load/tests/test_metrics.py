"""Figures from records that are written out."""

from __future__ import annotations

import json

import pytest

from kvahead_load.client import Record
from kvahead_load.metrics import (
    Limits,
    distribution,
    e2e,
    good_share,
    is_good,
    summarise,
    tpot,
    ttft,
)


def answer(start: float = 10.0, first: float = 0.5, gap: float = 0.1, tokens: int = 5, **fields):
    """A record of an answer with a piece per token."""
    last = start + first + gap * (tokens - 1)
    made = {
        "index": 0,
        "planned_s": start,
        "sent_s": start + 0.001,
        "first_s": start + first,
        "last_s": last,
        "end_s": last + 0.05,
        "gaps_s": [gap] * (tokens - 1),
        "pieces": tokens,
        "output_tokens": tokens,
        "prompt_tokens": 100,
    }
    return Record(**(made | fields))


def test_metrics__of_one_record():
    record = answer()
    assert ttft(record) == pytest.approx(0.5)
    assert tpot(record) == pytest.approx(0.1)
    assert e2e(record) == pytest.approx(0.95)
    # Several tokens in one piece: TPOT is of tokens, gaps are of pieces.
    assert tpot(answer(output_tokens=9)) == pytest.approx(0.05)
    assert tpot(answer(tokens=1)) is None


def test_metrics__distribution():
    values = distribution([float(v) for v in range(1, 102)])
    assert values == {
        "count": 101, "mean": 51, "min": 1, "p50": 51, "p90": 91, "p95": 96, "p99": 100, "max": 101
    }  # fmt: skip
    assert distribution([]) is None


def test_metrics__good_means_within_every_limit():
    record = answer(gaps_s=[0.1, 0.1, 0.1, 0.3])
    for field, just, short in (
        ("ttft_s", 0.5001, 0.49),
        ("tpot_s", 0.1001, 0.09),
        ("itl_s", 0.3, 0.2),
        ("e2e_s", 0.9501, 0.94),
    ):
        assert is_good(record, Limits(**{field: just}))
        assert not is_good(record, Limits(**{field: short}))
    assert is_good(record, Limits())
    assert not is_good(answer(error="HTTP 503"), Limits())
    assert not is_good(answer(cancelled=True), Limits())


def test_metrics__summary_counts_everything_once():
    records = [
        answer(warm_up=True, first=99.0),
        answer(10.0),
        answer(10.5, first=2.0),
        answer(11.0, cancelled=True, output_tokens=2),
        Record(4, 12.0, 12.5, end_s=12.6, error="HTTP 503: full"),
        Record(5, 12.0, 12.0, end_s=12.6, error="HTTP 503: full"),
    ]
    figures = summarise(records, Limits(ttft_s=1.0), 4.0)
    assert (figures["requests"], figures["complete"]) == (5, 2)
    assert (figures["cancelled"], figures["failed"]) == (1, 2)
    assert figures["errors"] == {"HTTP 503: full": 2}
    assert figures["requests_per_s"] == 0.5
    assert figures["output_tokens_per_s"] == (5 + 5 + 2) / 4
    assert (figures["good"], figures["goodput_per_s"]) == (1, 0.25)
    # One of four whose clients stayed.
    assert figures["good_share"] == 0.25
    assert figures["ttft_s"]["max"] == pytest.approx(2.0)
    assert figures["itl_s"]["count"] == 8
    assert figures["lag_s"]["max"] == pytest.approx(0.5)
    json.dumps(figures, allow_nan=False)


def test_metrics__without_limits_there_is_no_goodput():
    figures = summarise([answer()], Limits(), 1.0)
    assert figures["good"] is figures["goodput_per_s"] is figures["good_share"] is None


def test_metrics__there_is_no_share_of_nothing():
    limits = Limits(ttft_s=1.0)
    assert good_share([], limits) is good_share([answer(cancelled=True)], limits) is None
    assert good_share([answer(cancelled=True), answer()], limits) == 1


@pytest.mark.parametrize("records", [[], [answer(warm_up=True)]])
def test_metrics__without_a_counted_request_there_are_no_rates(records):
    figures = summarise(records, Limits(ttft_s=1.0), 0.0)
    assert figures["requests"] == figures["complete"] == figures["good"] == 0
    for name in ("requests_per_s", "output_tokens_per_s", "prompt_tokens_per_s", "goodput_per_s",
                 "good_share"):  # fmt: skip
        assert figures[name] is None
    json.dumps(figures, allow_nan=False)


def test_metrics__nothing_came_back():
    figures = summarise([Record(0, 0.0, 0.0, end_s=1.0, error="x")], Limits(), 1.0)
    assert figures["complete"] == 0
    assert figures["ttft_s"] is figures["itl_s"] is figures["tpot_s"] is None
    json.dumps(figures, allow_nan=False)
