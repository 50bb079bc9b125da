"""Records to numbers, and the pictures of every shape a run can have."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from kvahead_quality import plots
from kvahead_quality.records import Key, Record
from kvahead_quality.summary import Summary, summarise

MIB = 2**20


def record(
    task: str, length: int, policy: str, index: int, score: float | None, **kwargs
) -> Record:
    given = {
        "output": "x" if score is not None else None,
        "references": ["x"],
        "error": None if score is not None else "HTTP 500: no",
        "attempts": 1,
        "latency_s": 0.5,
        "fitted_tokens": length - 10,
        "size": 9,
        "prompt_sha256": "",
        "usage": {
            "prompt_tokens": length - 40,
            "kvahead": {"device_kv_bytes": MIB * length // 1024, "host_kv_bytes": 3 * MIB},
        },
    }
    return Record(task, length, policy, index, 1, score, **(given | kwargs))


def summary(
    scores: dict[tuple[str, int, str], list[float | None]], samples: int, **kwargs
) -> Summary:
    records = [
        record(*cell, index, score, **kwargs)
        for cell, values in scores.items()
        for index, score in enumerate(values)
    ]
    finished: dict[Key, Record] = {r.key: r for r in records if r.error is None}
    failed: dict[Key, Record] = {r.key: r for r in records if r.error is not None}
    tasks = list(dict.fromkeys(task for task, _, _ in scores))
    return summarise(
        tasks=tasks,
        lengths=sorted({length for _, length, _ in scores}),
        policies=list(dict.fromkeys(policy for _, _, policy in scores)),
        samples=samples,
        seed=1,
        answer_tokens=dict.fromkeys(tasks, 30),
        finished=finished,
        failed=failed,
    )


def test_summarise__cells_averages_and_differences() -> None:
    got = summary(
        {
            ("vt", 1024, "full"): [1.0, 1.0],
            ("vt", 1024, "kivi:1"): [0.5, 1.0],
            ("cwe", 1024, "full"): [0.5, 0.75],
            ("cwe", 1024, "kivi:1"): [0.25, 0.75],
        },
        samples=2,
    )
    assert got.cell("vt", 1024, "kivi:1").estimate.mean == 0.75
    assert got.column(1024, "full").average.mean == pytest.approx((1 + 0.625) / 2)
    assert got.column(1024, "full").difference is None
    difference = got.column(1024, "kivi:1").difference
    assert difference is not None and difference.mean == pytest.approx((-0.25 - 0.125) / 2)
    assert got.column(1024, "full").device_kv_bytes == MIB
    assert got.column(1024, "full").host_kv_bytes == 3 * MIB
    assert got.missing == 0 and got.failures == []
    (fill,) = got.fills
    assert (fill.fitted_max, fill.server_max) == (1014, 1014)


def test_summarise__failed_and_absent_samples_are_missing_not_zero() -> None:
    got = summary(
        {("vt", 1024, "full"): [1.0, None], ("vt", 1024, "kivi:1"): [None, 0.0]}, samples=3
    )
    assert got.cell("vt", 1024, "full").estimate.mean == 1.0
    assert got.cell("vt", 1024, "full").estimate.count == 1
    assert got.cell("vt", 1024, "full").failed == 1
    assert got.missing == 4
    assert got.failures == [("HTTP 500: no", 2)]
    # No sample was scored under both policies.
    difference = got.column(1024, "kivi:1").difference
    assert difference is not None and math.isnan(difference.mean)
    json.dumps(got.to_json(), allow_nan=False)


def test_summarise__samples_beyond_the_plan_do_not_count() -> None:
    got = summary({("vt", 1024, "full"): [1.0, 1.0, 0.0]}, samples=2)
    assert got.cell("vt", 1024, "full").estimate.mean == 1.0


@pytest.mark.parametrize(("tasks", "lengths", "policies"), [(1, 1, 1), (8, 1, 6), (3, 6, 9)])
def test_plots__every_shape_is_drawn(
    tmp_path: Path, tasks: int, lengths: int, policies: int
) -> None:
    got = summary(
        {
            (f"needle_d{t}", 1024 << n, f"specache:{p}:64"): [float((t + n + p) % 2), None]
            for t in range(tasks)
            for n in range(lengths)
            for p in range(policies)
        },
        samples=2,
    )
    depths = {f"needle_d{t}": float(t) for t in range(tasks)}
    written = plots.draw(
        tmp_path,
        {
            "a": lambda: plots.needle_heatmaps(got, depths),
            "b": lambda: plots.task_heatmaps(got),
            "c": lambda: plots.score_by_length(got, "score"),
            "d": lambda: plots.score_by_kv(got, "score"),
        },
    )
    assert len(written) == 8
    assert all(path.stat().st_size > 3000 for path in written)


def test_plots__cells_without_samples_and_no_bytes(tmp_path: Path) -> None:
    got = summary(
        {
            ("vt", 1024, "full"): [None],
            ("vt", 2048, "full"): [1.0],
            ("cwe", 1024, "full"): [0.5],
            ("cwe", 2048, "full"): [0.5],
        },
        samples=1,
        usage={},
    )
    assert plots.score_by_kv(got, "score") is None
    assert math.isnan(got.column(1024, "full").average.mean)
    written = plots.draw(
        tmp_path,
        {
            "b": lambda: plots.task_heatmaps(got),
            "c": lambda: plots.score_by_length(got, "score"),
            "d": lambda: plots.score_by_kv(got, "score"),
        },
    )
    assert [path.name for path in written] == ["b.png", "b.svg", "c.png", "c.svg"]


def test_plots__same_results_same_picture(tmp_path: Path) -> None:
    got = summary({("vt", 1024, "full"): [1.0], ("vt", 2048, "full"): [0.0]}, samples=1)
    for name in ("one", "two"):
        plots.save(plots.task_heatmaps(got), tmp_path, name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_plots__score_by_topk(tmp_path: Path) -> None:
    sweep = [f"specache:{bits}:{rows}" for bits in (1, 2) for rows in (8, 16, 64)]
    got = summary(
        {
            ("vt", length, policy): [1.0, None if policy == "specache:2:8" else 0.0]
            for length in (1024, 2048)
            for policy in ["full", "kivi:1", *sweep]
        },
        samples=2,
    )
    figure = plots.score_by_topk(got, "score")
    assert figure is not None and len(figure.axes) == 2
    for ax in figure.axes:
        assert [tick.get_text() for tick in ax.get_xticklabels()] == ["0", "8", "16", "64"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["full", "specache:1", "specache:2"]
    plots.save(figure, tmp_path, "k")
    assert "specache:1" in (tmp_path / "k.svg").read_text()
    assert plots.score_by_topk(summary({("vt", 1024, "full"): [1.0]}, samples=1), "score") is None


def test_summarise__a_context_is_one_sample_whatever_its_questions() -> None:
    # Two contexts of two questions: 1, 0 and 1, 1 under full; all 1 under kivi:1.
    records = [
        record("facts", 1024, policy, index, score, context=index // 2)
        for policy, scores in (("full", (1.0, 0.0, 1.0, 1.0)), ("kivi:1", (1.0, 1.0, 1.0, 1.0)))
        for index, score in enumerate(scores)
    ]
    found = summarise(
        tasks=["facts"],
        lengths=[1024],
        policies=["full", "kivi:1"],
        samples=2,
        seed=1,
        answer_tokens={"facts": 30},
        finished={r.key: r for r in records},
        failed={},
        questions={"facts": 2},
    )
    cell = found.cell("facts", 1024, "full")
    assert (cell.estimate.mean, cell.estimate.count, cell.expected) == (0.75, 2, 4)
    difference = found.column(1024, "kivi:1").difference
    assert difference and (difference.mean, difference.count) == (0.25, 2)
    assert found.missing == 0
