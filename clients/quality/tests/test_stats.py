"""Interval maths against published and hand-computed values, and against simulation."""

from __future__ import annotations

import math
import random

import pytest

from kvahead_quality import stats


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        # Newcombe 1998 (Stat. Med. 17, table I), method 3: Wilson without continuity correction.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        # By symmetry.
        (20, 20, 0.8389, 1.0),
    ],
)
def test_wilson__published_values(successes: int, count: int, low: float, high: float) -> None:
    assert stats.wilson(successes, count) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "count"), [(1, 0), (-1, 5), (6, 5)])
def test_wilson__impossible_input_is_an_error(successes: int, count: int) -> None:
    with pytest.raises(ValueError, match="successes of"):
        stats.wilson(successes, count)


def test_estimate__binary_scores_use_wilson() -> None:
    got = stats.estimate([1.0] * 15 + [0.0] * 5)
    assert (got.mean, got.count, got.method) == (0.75, 20, "wilson")
    assert (got.low, got.high) == pytest.approx(stats.wilson(15, 20))


def test_estimate__fractional_scores_use_bootstrap_near_the_normal_interval() -> None:
    rng = random.Random(1)
    scores = [rng.choice([0.25, 0.5, 0.75, 1.0]) for _ in range(400)]
    got = stats.estimate(scores)
    mean = sum(scores) / 400
    half = 1.96 * math.sqrt(sum((s - mean) ** 2 for s in scores) / 400 / 400)
    assert got.method == "bootstrap"
    assert (got.low, got.high) == pytest.approx((mean - half, mean + half), abs=0.004)
    assert stats.estimate(scores) == got  # seeded
    assert stats.estimate(scores, seed=1) != got


def test_estimate__equal_fractional_scores_are_not_called_certain() -> None:
    got = stats.estimate([0.5] * 4)
    assert got.method == "wilson-bound"
    assert (got.low, got.high) == pytest.approx(stats.wilson(2, 4))


def test_estimate__no_scores() -> None:
    got = stats.estimate([])
    assert math.isnan(got.mean) and got.method == "none" and got.count == 0


def test_estimate_average__binary_groups_of_one_size_are_pooled() -> None:
    got = stats.estimate_average([[1.0, 1.0], [0.0, 1.0]])
    assert (got.mean, got.method) == (0.75, "wilson")
    assert (got.low, got.high) == pytest.approx(stats.wilson(3, 4))


def test_estimate_average__tasks_weigh_the_same_and_mover_combines() -> None:
    groups = [[1.0] * 10, [0.0] * 40]
    got = stats.estimate_average(groups)
    first, second = stats.estimate(groups[0]), stats.estimate(groups[1])
    assert (got.mean, got.method) == (0.5, "mover")
    assert got.low == pytest.approx(0.5 - math.hypot(1 - first.low, 0) / 2)
    assert got.high == pytest.approx(0.5 + math.hypot(0, second.high) / 2)


def test_estimate_average__a_task_without_samples_leaves_it_undefined() -> None:
    assert math.isnan(stats.estimate_average([[1.0], []]).mean)
    assert math.isnan(stats.estimate_average([]).mean)


def test_estimate_average__covers_the_truth() -> None:
    """Mixed tasks, 300 simulated runs: the 95% interval must hold the true mean in most."""
    rng = random.Random(2)
    held = 0
    for run in range(300):
        binary = [float(rng.random() < 0.9) for _ in range(20)]
        fraction = [sum(rng.random() < 0.6 for _ in range(4)) / 4 for _ in range(20)]
        got = stats.estimate_average([binary, fraction], seed=run)
        held += got.low <= 0.75 <= got.high
    assert 0.91 <= held / 300 <= 1.0


def test_estimate_difference__pairing() -> None:
    pairs = [(1.0, 1.0)] * 18 + [(1.0, 0.0)] * 2
    got = stats.estimate_difference([pairs])
    assert got.mean == pytest.approx(-0.1)
    assert got.low == pytest.approx(-0.25, abs=0.051) and got.high == pytest.approx(0.0, abs=1e-9)
    assert got.method == "paired-bootstrap"


def test_estimate_difference__no_difference_seen_is_not_no_difference() -> None:
    got = stats.estimate_difference([[(1.0, 1.0)] * 10, [(0.5, 0.5)] * 10])
    reach = stats.wilson(0, 20)[1]
    assert (got.mean, got.low, got.high) == pytest.approx((0.0, -reach, reach))


def test_estimate_difference__groups_without_spread_are_not_called_certain() -> None:
    """Each group's differences are equal, but not those of one group and the other."""
    got = stats.estimate_difference([[(1.0, 1.0)] * 10, [(1.0, 0.0)] * 10])
    reach = stats.wilson(0, 20)[1]
    assert (got.mean, got.method) == (-0.5, "wilson-bound")
    assert (got.low, got.high) == pytest.approx((-0.5 - reach, -0.5 + reach))
    # Of groups of several sizes so many count as the smallest has.
    uneven = stats.estimate_difference([[(1.0, 1.0)] * 10, [(1.0, 0.0)] * 40])
    assert (uneven.low, uneven.high) == pytest.approx((got.low, got.high))
    # Fifths that are apart by a rounding are no spread.
    fifths = stats.estimate_difference([[(1.0, 0.8), (0.8, 0.6)] * 10])
    assert fifths.method == "wilson-bound" and fifths.low == pytest.approx(-0.2 - reach)
    one = stats.estimate_difference([[(1.0, 0.0)]])
    assert one.low == -1 and one.high > -0.5


def test_estimate_difference__one_group_without_spread_widens_the_interval() -> None:
    spread = [(1.0, 1.0)] * 5 + [(1.0, 0.5)] * 5
    alone = stats.estimate_difference([spread])
    got = stats.estimate_difference([spread, [(1.0, 1.0)] * 10])
    reach = stats.wilson(0, 10)[1]
    assert (got.mean, got.method) == (-0.125, "mover")
    below, above = alone.mean - alone.low, alone.high - alone.mean
    assert got.mean - got.low == pytest.approx(math.hypot(below, reach) / 2)
    assert got.high - got.mean == pytest.approx(math.hypot(above, reach) / 2)
