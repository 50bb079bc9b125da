"""The pictures, as PNG and SVG: latency against load, distributions, and the run in time.

Drawn from records and summaries only, without a display.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # before pyplot: it chooses a display otherwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from . import metrics
from .client import Record

# Okabe and Ito's colours: distinguishable with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "axes.prop_cycle": plt.cycler(color=COLOURS),
    "svg.hashsalt": "kvahead-load",
}
DPI = 150
LATENCIES = (("ttft_s", "time to first token"), ("itl_s", "time between tokens"),
             ("e2e_s", "time of a request"))  # fmt: skip


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg and close the figure."""
    paths = []
    for kind in ("png", "svg"):
        path = folder / f"{name}.{kind}"
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(path, dpi=DPI, bbox_inches="tight", facecolor="white", metadata=metadata)
        paths.append(path)
    plt.close(figure)
    return paths


def _panels(count: int, width: float = 4.2, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    figure, axes = plt.subplots(
        1, count, figsize=(count * width, height), squeeze=False, layout="constrained"
    )
    return figure, list(axes[0])


def _log_axis(axis: Any) -> None:
    """Mark a log axis with plain numbers, also where it spans less than a decade."""
    low, high = axis.get_view_interval()
    decades = np.log10(high / low) if low > 0 else 9.0
    subs = (1.0,) if decades > 3 else (1.0, 2.0, 5.0) if decades > 0.7 else tuple(range(1, 10))
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def against_load(points: list[dict[str, Any]]) -> Figure | None:
    """Latency percentiles and throughput over a sweep."""
    loads = [point["level"] for point in points]
    if len(points) < 2 or any(load is None for load in loads):
        return None
    what = "requests at a time" if points[0]["concurrency"] else "requests sent per second"
    figure, axes = _panels(len(LATENCIES) + 1)
    for ax, (key, title) in zip(axes, LATENCIES, strict=False):
        for figure_name in ("p50", "p95", "p99"):
            values = [1000 * p[key][figure_name] if p[key] else np.nan for p in points]
            ax.plot(loads, values, marker="o", label=figure_name)
        ax.set(title=title, xlabel=what, ylabel="ms", yscale="log")
        _log_axis(ax.yaxis)
        ax.legend(frameon=False)
    last = axes[-1]
    last.plot(loads, [p["output_tokens_per_s"] for p in points], marker="o", label="output tokens")
    last.set(title="throughput", xlabel=what, ylabel="output tokens / s", ylim=(0, None))
    if any(p["goodput_per_s"] is not None for p in points):
        other = last.twinx()
        other.grid(False)
        values = [p["goodput_per_s"] for p in points]
        other.plot(loads, values, marker="s", color=COLOURS[1], label="good requests", ls="--")
        # Scaled apart, or lines that both follow the load would cover each other.
        other.set(ylabel="good requests / s", ylim=(0, 1.3 * max([*values, 1e-9])))
        other.spines["right"].set_visible(True)
        lines = last.get_lines() + other.get_lines()
        last.legend(lines, [line.get_label() for line in lines], frameon=False)
    return figure


def distributions(runs: list[tuple[str, list[Record]]]) -> Figure | None:
    """Cumulative distributions of the latencies, a line per load."""
    series: list[tuple[str, Callable[[list[Record]], list[float]]]] = [
        ("time to first token", lambda records: [metrics.ttft(r) for r in records]),
        ("time between tokens", lambda records: [gap for r in records for gap in r.gaps_s]),
        ("time of a request", lambda records: [metrics.e2e(r) for r in records]),
    ]
    complete = [(label, [r for r in records if r.ok and not r.warm_up]) for label, records in runs]
    if not any(records for _, records in complete):
        return None
    figure, axes = _panels(len(series))
    for ax, (title, take) in zip(axes, series, strict=True):
        for label, records in complete:
            values = np.sort(np.array(take(records)) * 1000)
            if len(values):
                ax.plot(values, np.arange(1, len(values) + 1) / len(values), label=label)
        ax.set(title=title, xlabel="ms", xscale="log", ylim=(0, 1))
        _log_axis(ax.xaxis)
    axes[0].set(ylabel="share of requests, of gaps")
    axes[-1].legend(frameon=False, loc="lower right")
    return figure


def timeline(label: str, records: list[Record]) -> Figure | None:
    """Requests as lines from sending to end, the first token marked, and how many fly."""
    shown = sorted((r for r in records if r.end_s is not None), key=lambda r: r.planned_s)
    if not shown:
        return None
    start = shown[0].planned_s
    figure, axes = plt.subplots(
        2, 1, figsize=(9, 5.5), sharex=True, height_ratios=(3, 1), layout="constrained"
    )
    upper, lower = axes
    colours = [COLOURS[2] if r.ok else "#999999" if r.cancelled else COLOURS[1] for r in shown]
    rows = np.arange(len(shown))
    upper.hlines(rows, [r.planned_s - start for r in shown], [r.end_s - start for r in shown],
                 colors=colours, linewidth=max(0.4, min(2.0, 200 / len(shown))))  # fmt: skip
    first = [(i, r.first_s - start) for i, r in enumerate(shown) if r.first_s is not None]
    if first:
        upper.plot([at for _, at in first], [i for i, _ in first], "k.", markersize=2)
    upper.set(title=f"{label}: requests (black: first token; grey: left; orange: failed)",
              ylabel="request")  # fmt: skip
    moments = sorted(
        [(r.planned_s - start, 1) for r in shown] + [(r.end_s - start, -1) for r in shown]
    )
    lower.step(
        [at for at, _ in moments], np.cumsum([change for _, change in moments]), where="post"
    )
    lower.set(xlabel="s", ylabel="on their way", ylim=(0, None))
    return figure


def draw(
    folder: Path, points: list[dict[str, Any]], runs: list[tuple[str, list[Record]]]
) -> list[Path]:
    """Draw and save what there is to show."""
    paths: list[Path] = []
    with plt.rc_context(STYLE):
        figures = {"load": against_load(points), "latency": distributions(runs)}
        for number, (label, records) in enumerate(runs, 1):
            figures[f"timeline_{number}"] = timeline(label, records)
        for name, figure in figures.items():
            if figure is not None:
                paths += save(figure, folder, name)
    return paths
