"""From records to numbers: cells, averages, differences between policies, KV bytes, prompt fill."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from .records import Key, Record
from .stats import Estimate, estimate, estimate_average, estimate_difference


@dataclass(frozen=True)
class Cell:
    """One task at one length under one policy."""

    task: str
    length: int
    policy: str
    estimate: Estimate
    expected: int
    failed: int
    empty_outputs: int
    impossible: int


@dataclass(frozen=True)
class Column:
    """One policy at one length, over all tasks. Bytes are means per request, None if not told."""

    length: int
    policy: str
    average: Estimate
    difference: Estimate | None
    device_kv_bytes: float | None
    host_kv_bytes: float | None
    seconds: float


@dataclass(frozen=True)
class Impossible:
    """Samples of one task and length that cannot be made, `count` of `expected` over all policies,
    and why, of the first of them."""

    task: str
    length: int
    count: int
    expected: int
    reason: str


@dataclass(frozen=True)
class Fill:
    """How full the prompts were at one length, in tokens including the answer's budget.

    `server_max` and `server_min` use the server's own prompt count; None if it sends no usage.
    """

    length: int
    fitted_min: int
    fitted_max: int
    server_min: int | None
    server_max: int | None


@dataclass(frozen=True)
class Summary:
    """Everything a report shows, in the order of the run's arguments."""

    tasks: list[str]
    lengths: list[int]
    policies: list[str]
    cells: list[Cell]
    columns: list[Column]
    fills: list[Fill]
    retries: int
    missing: int
    failures: list[tuple[str, int]]
    impossible: list[Impossible]

    def cell(self, task: str, length: int, policy: str) -> Cell:
        for cell in self.cells:
            if (cell.task, cell.length, cell.policy) == (task, length, policy):
                return cell
        raise KeyError((task, length, policy))

    def column(self, length: int, policy: str) -> Column:
        for column in self.columns:
            if (column.length, column.policy) == (length, policy):
                return column
        raise KeyError((length, policy))

    def to_json(self) -> dict[str, object]:
        """As plain values; NaN becomes null."""
        return _plain(asdict(self))  # type: ignore[return-value]


def _plain(value: object) -> object:
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _mean(values: Iterable[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _contexts(
    records: Iterable[Record], values: Callable[[Record], tuple[float | None, ...]]
) -> list[Any]:
    """The means over each context's records of their values, one tuple a context."""
    groups: dict[int, list[tuple[float | None, ...]]] = {}
    for record in records:
        groups.setdefault(record.group, []).append(values(record))
    return [
        tuple(
            math.fsum(v for v in column if v is not None) / len(rows)
            for column in zip(*rows, strict=True)
        )
        for rows in groups.values()
    ]


def summarise(
    tasks: list[str],
    lengths: list[int],
    policies: list[str],
    samples: int,
    seed: int,
    answer_tokens: dict[str, int],
    finished: dict[Key, Record],
    failed: dict[Key, Record],
    questions: dict[str, int] | None = None,
    impossible: dict[Key, Record] | None = None,
) -> Summary:
    """Reduce a run's records.

    `answer_tokens` is each task's answer budget in tokens, `questions` how many a context of the
    task has (1). What is `impossible` is neither missing nor failed. Questions of one context are
    not independent, so a context counts as one sample, whose score is the mean over its questions.
    """
    settled = impossible or {}
    count = {task: samples * (questions or {}).get(task, 1) for task in tasks}

    def records(task: str, length: int, policy: str) -> list[Record]:
        keys = ((task, length, policy, index, seed) for index in range(count[task]))
        return [finished[key] for key in keys if key in finished]

    def scores(task: str, length: int, policy: str) -> list[float]:
        return [mean for (mean,) in _contexts(records(task, length, policy), lambda r: (r.score,))]

    def pairs(task: str, length: int, policy: str) -> list[tuple[float, float]]:
        base = {r.index: r.score for r in records(task, length, policies[0])}
        both = [r for r in records(task, length, policy) if r.index in base]
        return _contexts(both, lambda r: (base[r.index], r.score))

    cells, columns, fills = [], [], []
    wanted = {
        (task, length, policy, index, seed)
        for task in tasks
        for length in lengths
        for policy in policies
        for index in range(count[task])
    }
    for length in lengths:
        for policy in policies:
            for task in tasks:
                found = records(task, length, policy)
                cells.append(
                    Cell(
                        task,
                        length,
                        policy,
                        estimate(scores(task, length, policy), seed),
                        expected=count[task],
                        failed=sum(
                            (task, length, policy, index, seed) in failed
                            for index in range(count[task])
                        ),
                        empty_outputs=sum(not (r.output or "").strip() for r in found),
                        impossible=sum(
                            (task, length, policy, index, seed) in settled
                            for index in range(count[task])
                        ),
                    )
                )
            everything = [r for task in tasks for r in records(task, length, policy)]
            paired = [pairs(task, length, policy) for task in tasks]
            columns.append(
                Column(
                    length,
                    policy,
                    estimate_average([scores(task, length, policy) for task in tasks], seed),
                    None if policy == policies[0] else estimate_difference(paired, seed),
                    _mean(r.device_kv_bytes for r in everything),
                    _mean(r.host_kv_bytes for r in everything),
                    math.fsum(r.latency_s for r in everything),
                )
            )
        fills.append(_fill(length, answer_tokens, (finished[k] for k in wanted & finished.keys())))
    known = [finished[key] for key in wanted & finished.keys()]
    bad = [failed[key] for key in wanted & failed.keys()]
    reasons: dict[str, int] = {}
    for record in bad:
        reasons[record.error or "?"] = reasons.get(record.error or "?", 0) + 1
    return Summary(
        tasks=tasks,
        lengths=lengths,
        policies=policies,
        cells=cells,
        columns=columns,
        fills=fills,
        retries=sum(max(record.attempts - 1, 0) for record in (*known, *bad)),
        missing=len(wanted - finished.keys() - settled.keys()),
        failures=sorted(reasons.items(), key=lambda item: (-item[1], item[0])),
        impossible=_impossible(
            {task: count[task] * len(policies) for task in tasks}, lengths, wanted, settled
        ),
    )


def _impossible(
    expected: dict[str, int], lengths: list[int], wanted: set[Key], settled: dict[Key, Record]
) -> list[Impossible]:
    """`expected` is how many samples a task has at one length, under all policies."""
    cells: dict[tuple[str, int], list[Key]] = {}
    for key in wanted & settled.keys():
        cells.setdefault(key[:2], []).append(key)
    found = []
    for length in lengths:
        for task in expected:
            if keys := cells.get((task, length)):
                first = settled[min(keys, key=lambda key: (key[3], key[2]))]
                found.append(
                    Impossible(task, length, len(keys), expected[task], first.error or "?")
                )
    return found


def _fill(length: int, answer_tokens: dict[str, int], records: Iterable[Record]) -> Fill:
    here = [record for record in records if record.length == length]
    fitted = [record.fitted_tokens for record in here]
    counted = [
        record.usage["prompt_tokens"] + answer_tokens[record.task]
        for record in here
        if isinstance(record.usage.get("prompt_tokens"), int)
    ]
    return Fill(
        length,
        min(fitted, default=0),
        max(fitted, default=0),
        min(counted, default=None),
        max(counted, default=None),
    )
