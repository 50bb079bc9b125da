"""The walk to the saturation point, on servers that keep what they can and nothing more."""

from __future__ import annotations

import pytest

from kvahead_load.walk import GAP, POINTS_MAX, Walk, round_rate


def tried(walk: Walk, share) -> list[float]:
    """Walk to the end; returns the rates in the order in which they were asked."""
    rates = []
    while (rate := walk.next()) is not None:
        rates.append(rate)
        walk.tell(rate, share(rate))
    return rates


def upto(most: float):
    """Keep every request up to a rate, and half of them above it."""
    return lambda rate: 1.0 if rate <= most else 0.5


def test_walk__rises_and_closes_in():
    walk = Walk(1.0)
    assert tried(walk, upto(11)) == [1, 2, 4, 8, 16, 11, 13]
    assert (walk.kept, walk.lost) == (11, 13)


def test_walk__falls_where_the_first_rate_is_too_much():
    walk = Walk(50.0)
    assert tried(walk, upto(10)) == [50, 25, 12, 6, 8.5, 10]
    assert (walk.kept, walk.lost) == (10, 12)


@pytest.mark.parametrize("most", [0.0031, 0.07, 0.9, 3, 7.7, 42, 1234])
@pytest.mark.parametrize("first", [0.02, 1, 30])
def test_walk__ends_beside_the_point(most, first):
    walk = Walk(first)
    rates = tried(walk, upto(most))
    assert len(rates) == len(set(rates)) <= POINTS_MAX
    if len(rates) < POINTS_MAX:
        assert walk.kept <= most < walk.lost
        # Two digits: neighbours of a rate may be a tenth away.
        assert walk.lost / walk.kept <= GAP * 1.1


def test_walk__a_server_that_keeps_nothing_or_everything():
    walk = Walk(8.0)
    assert len(tried(walk, lambda rate: 0.0)) == POINTS_MAX
    assert walk.kept is None
    walk = Walk(8.0)
    assert len(tried(walk, lambda rate: 1.0)) == POINTS_MAX
    assert walk.lost is None


def test_walk__a_higher_rate_that_was_kept_counts():
    walk = Walk(2.0)
    walk.tell(2.0, 1.0)
    walk.tell(4.0, 0.5)  # something else was on
    walk.tell(5.0, 0.95)
    assert (walk.kept, walk.lost) == (5.0, None)
    assert walk.next() == 10


def test_walk__rates_can_be_typed():
    assert [round_rate(x) for x in (0.01234, 1.26, 17.4, 12345)] == [0.012, 1.3, 17, 12000]
