"""Writes a run's results: report.md, results.json and the pictures."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from . import __version__, plots
from .records import write_json
from .specs import length_label
from .stats import Estimate
from .summary import Cell, Column, Summary
from .tasks import GENERATOR_VERSION

NO_KV_NOTE = (
    "KV bytes are left out: the server's `usage` has no `kvahead` entry with `device_kv_bytes`."
)


def versions() -> dict[str, str | int]:
    """Versions of what a result depends on."""
    found: dict[str, str | int] = {
        "kvahead-quality": __version__,
        "task generators": GENERATOR_VERSION,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }
    for name in ("openai", "numpy", "matplotlib", "rich", "tokenizers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _score(value: Estimate) -> str:
    """Write a score as RULER does, in percent: `92.4 [88.1, 95.2]`."""
    if math.isnan(value.mean):
        return "-"
    return f"{100 * value.mean:.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def _percent(value: Estimate) -> str:
    return "-" if math.isnan(value.mean) else f"{100 * value.mean:.0f}"


def _cell(cell: Cell, write: Callable[[Estimate], str]) -> str:
    return "not possible" if cell.impossible == cell.expected else write(cell.estimate)


def _signed(value: Estimate | None) -> str:
    if value is None or math.isnan(value.mean):
        return "-"
    return f"{100 * value.mean:+.1f} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"


def _table(header: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join(["---"] + ["---:"] * (len(header) - 1)) + "|"
    return [line(header), rule, *(line(row) for row in rows), ""]


def _mib(value: float | None) -> str:
    return "-" if value is None else f"{value / 2**20:,.2f}"


def _counted(args: dict[str, Any]) -> str:
    """Write how many samples a cell has."""
    questions = args.get("questions", 1)
    if questions == 1:
        return f"{args['samples']} samples"
    return (
        f"{args['samples']} contexts with up to {questions} questions each "
        "(intervals are over contexts)"
    )


def markdown(summary: Summary, run: dict[str, Any], pictures: list[Path]) -> str:
    """Write the report. `run` is run.json's content."""
    args, server = run["args"], run["server"]
    needle = run["identity"]["kind"] == "needle"
    what = "Needle grid" if needle else "RULER"
    out = [f"# {what}: {server['model']}", ""]
    out += [
        f"Server {server['base_url']}, {args['api']} API, greedy decoding, "
        f"{_counted(args)} per cell, seed {args['seed']}, "
        f"{run['started']} to {run['finished']}.",
        "Scores are percent of the references found in the answer (RULER's string match), "
        "with 95% intervals: Wilson for one-reference tasks, percentile bootstrap for the others, "
        "MOVER for averages over tasks.",
        "",
    ]
    out += _warnings(summary, run)
    if needle:
        out += _needle_tables(summary)
    else:
        out += _task_tables(summary)
    out += _average_tables(summary)
    out += _kv_table(summary)
    out += _fill_table(summary, run)
    for path in pictures:
        if path.suffix == ".png":
            out += [f"![{path.stem.replace('_', ' ')}]({path.name})", ""]
    out += ["## To reproduce", "", "```", run["command"], "```", ""]
    out += _table(["version", ""], [[name, str(value)] for name, value in run["versions"].items()])
    return "\n".join(out)


def _warnings(summary: Summary, run: dict[str, Any]) -> list[str]:
    """Everything a reader must know before the numbers."""
    out: list[str] = []
    if summary.missing:
        out.append(
            f"- **Incomplete: {summary.missing} samples are missing** and not part of any number."
        )
    out += [f"- failed {count} x: {reason}" for reason, count in summary.failures[:10]]
    out += [
        f"- **Not possible**: `{cell.task}` at {length_label(cell.length)} tokens, {cell.count} of "
        f"{cell.expected} samples: {cell.reason}."
        for cell in summary.impossible
    ]
    if any(cell.count == cell.expected for cell in summary.impossible):
        out.append("- Where a task is not possible there is no average over the tasks.")
    if summary.retries:
        out.append(f"- {summary.retries} requests had to be repeated.")
    empty = sum(cell.empty_outputs for cell in summary.cells)
    if empty:
        out.append(f"- {empty} answers were empty (scored 0).")
    if not run["identity"]["tokenizer_exact"]:
        out.append(
            "- **Lengths are estimated**: the server has no /tokenize and no tokenizer file was "
            "given, so prompts are shorter than their target by an unknown share (see below)."
        )
    for fill in summary.fills:
        if fill.server_max is not None and fill.server_max > fill.length:
            out.append(
                f"- At {length_label(fill.length)} the server counted up to {fill.server_max} "
                "tokens, more than the target: its template or start tokens need a larger "
                "--overhead."
            )
    if all(column.device_kv_bytes is None for column in summary.columns):
        out.append(f"- {NO_KV_NOTE}")
    return [*out, ""] if out else []


def _task_tables(summary: Summary) -> list[str]:
    out: list[str] = []
    for length in summary.lengths:
        out += [f"## {length_label(length)} tokens", ""]
        rows = [
            [task, *(_cell(summary.cell(task, length, p), _score) for p in summary.policies)]
            for task in summary.tasks
        ]
        rows.append(
            [
                "**average**",
                *(_score(summary.column(length, p).average) for p in summary.policies),
            ]
        )
        out += _table(["task", *summary.policies], rows)
    return out


def _needle_tables(summary: Summary) -> list[str]:
    out: list[str] = []
    for policy in summary.policies:
        out += [f"## Found, percent, under `{policy}`", ""]
        rows = []
        for task in summary.tasks:
            cells = [summary.cell(task, n, policy) for n in summary.lengths]
            rows.append(
                [task.removeprefix("needle_d") + "%", *(_cell(cell, _percent) for cell in cells)]
            )
        out += _table(["depth", *(length_label(n) for n in summary.lengths)], rows)
    return out


def _average_tables(summary: Summary) -> list[str]:
    def row(policy: str, write: Any) -> list[str]:
        return [policy, *(write(summary.column(n, policy)) for n in summary.lengths)]

    header = ["policy", *(length_label(length) for length in summary.lengths)]
    out = ["## Average", ""]
    out += _table(header, [row(p, lambda c: _score(c.average)) for p in summary.policies])
    if len(summary.policies) > 1:
        base = summary.policies[0]
        out += [f"Difference to `{base}` on the same samples (paired bootstrap):", ""]
        out += _table(
            header, [row(p, lambda c: _signed(c.difference)) for p in summary.policies[1:]]
        )
    return out


def _kv_table(summary: Summary) -> list[str]:
    if all(column.device_kv_bytes is None for column in summary.columns):
        return []

    def write(column: Column) -> str:
        return f"{_mib(column.device_kv_bytes)} + {_mib(column.host_kv_bytes)}"

    header = ["policy", *(length_label(length) for length in summary.lengths)]
    rows = [[p, *(write(summary.column(n, p)) for n in summary.lengths)] for p in summary.policies]
    return ["## KV cache, MiB per request: device + host", "", *_table(header, rows)]


def _fill_table(summary: Summary, run: dict[str, Any]) -> list[str]:
    rows = [
        [
            length_label(fill.length),
            f"{fill.fitted_min} to {fill.fitted_max}",
            "-" if fill.server_min is None else f"{fill.server_min} to {fill.server_max}",
        ]
        for fill in summary.fills
    ]
    return [
        "## Prompt lengths",
        "",
        f"Tokens of prompt and answer budget; fitted with: {run['identity']['tokenizer']}.",
        "",
        *_table(["target", "fitted", "by the server's usage"], rows),
    ]


def draw(summary: Summary, folder: Path, depths: dict[str, float] | None) -> list[Path]:
    """Draw what the results allow. `depths` is given for needle grids."""
    figures: dict[str, Any] = {}
    label = "needle found" if depths is not None else "RULER score"
    if depths is not None:
        figures["needle"] = lambda: plots.needle_heatmaps(summary, depths)
    else:
        figures["tasks"] = lambda: plots.task_heatmaps(summary)
    if len(summary.lengths) > 1:
        figures["score_by_length"] = lambda: plots.score_by_length(summary, label)
    if depths is None:
        figures["score_by_topk"] = lambda: plots.score_by_topk(summary, label)
    figures["score_by_kv"] = lambda: plots.score_by_kv(summary, label)
    return plots.draw(folder, figures)


def write(
    summary: Summary, run: dict[str, Any], folder: Path, depths: dict[str, float] | None
) -> str:
    """Write report.md, results.json and pictures; return the Markdown."""
    pictures = draw(summary, folder, depths)
    text = markdown(summary, run, pictures)
    (folder / "report.md").write_text(text, "utf-8")
    write_json(
        folder / "results.json",
        {**run, "results": summary.to_json(), "pictures": [path.name for path in pictures]},
    )
    return text
