"""The pictures, as PNG and SVG: heat maps, score by length, score against KV bytes.

Drawn from a Summary only, without a display. Scores are shown in percent, as RULER reports them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # before pyplot: it chooses a display otherwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from .specs import TopkFamily, length_label, topk_families
from .stats import Estimate
from .summary import Column, Summary

# Okabe and Ito's colours: distinguishable with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "svg.hashsalt": "kvahead-quality",
    "svg.fonttype": "none",  # text as text, in a font by one name: half the bytes
    "font.sans-serif": ["DejaVu Sans"],
    "figure.dpi": 100,
}
PER_ROW = 4
DPI = 150


@dataclass(frozen=True)
class HeatPanel:
    """One heat map: `values[row][column]` in 0..1, NaN where there is no sample."""

    title: str
    columns: list[str]
    rows: list[str]
    values: list[list[float]]


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg and close the figure."""
    paths = []
    for kind in ("png", "svg"):
        path = folder / f"{name}.{kind}"
        # No date inside: the same results give the same file.
        metadata = {"Date": None} if kind == "svg" else None
        with plt.rc_context(STYLE):
            figure.savefig(path, dpi=DPI, bbox_inches="tight", facecolor="white", metadata=metadata)
        if kind == "svg":
            path.write_text(_slim(path.read_text("utf-8")), "utf-8")
        paths.append(path)
    plt.close(figure)
    return paths


def _slim(svg: str) -> str:
    """Drop indentation and digits below a hundredth of a pixel: a third of the bytes."""
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)
    return re.sub(r"\n\s+", "\n", svg)


def _across(count: int) -> int:
    """How many panels stand in a row: at most four, and rows as even as they can be."""
    return math.ceil(count / math.ceil(count / PER_ROW))


def _grid(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Make `count` panels of the given size in inches, at most four a row."""
    across = _across(count)
    down = math.ceil(count / across)
    figure, axes = plt.subplots(
        down,
        across,
        figsize=(across * width, down * height),
        squeeze=False,
        layout="constrained",
    )
    flat = [ax for row in axes for ax in row]
    for ax in flat[count:]:
        ax.set_visible(False)
    return figure, flat[:count]


def heatmaps(panels: list[HeatPanel], title: str, x_label: str, y_label: str) -> Figure:
    """Draw panels side by side with one colour scale from 0 to 100%."""
    rows, columns = len(panels[0].rows), len(panels[0].columns)
    longest_row = max(len(row) for row in panels[0].rows)
    longest_column = max(len(column) for column in panels[0].columns)
    turn = longest_column * columns > 7 * max(columns, 4)
    width = max(0.62 * columns, 1.9) + 0.075 * longest_row + 0.35
    height = max(0.32 * rows, 1.4) + 0.7 + (0.05 * longest_column if turn else 0)
    with plt.rc_context(STYLE):
        figure, axes = _grid(len(panels), width, height)
        # A scale with one hue direction: light is bad, dark is good, grey hatching is "no data".
        scale = plt.get_cmap("YlGnBu").with_extremes(bad=(0, 0, 0, 0))
        images = []
        for number, (ax, panel) in enumerate(zip(axes, panels, strict=True)):
            values = np.array(panel.values, dtype=float)
            ax.set_facecolor("#f0f0f0")
            ax.patch.set_hatch("////")
            ax.patch.set_edgecolor("#c4c4c4")
            images.append(
                ax.imshow(np.ma.masked_invalid(values), vmin=0, vmax=1, cmap=scale, aspect="auto")
            )
            ax.set_title(panel.title)
            ax.set_xticks(range(columns), panel.columns)
            if turn:
                ax.tick_params(axis="x", labelrotation=40)
                for tick in ax.get_xticklabels():
                    tick.set(ha="right", rotation_mode="anchor")
            first = number % _across(len(panels)) == 0
            ax.set_yticks(range(rows), panel.rows if first else [""] * rows)
            ax.set_ylabel(y_label if first else "")
            ax.set_xlabel(x_label)
            ax.grid(False)
            ax.tick_params(length=0)
            for spine in ax.spines.values():
                spine.set_visible(False)
            ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
            ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
            ax.grid(True, which="minor", color="white", linewidth=1.2)
            ax.tick_params(which="minor", length=0)
            _write_values(ax, values)
        bar = figure.colorbar(
            images[0], ax=axes, shrink=0.85, pad=0.015, format=FuncFormatter(_percent), aspect=26
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0)
        figure.suptitle(title, fontsize=12, fontweight="bold")
    return figure


def _write_values(ax: Axes, values: np.ndarray) -> None:
    """Write each cell's percent into it, in the ink that reads on its colour."""
    if values.shape[0] > 26 or values.shape[1] > 16:
        return
    for (row, column), value in np.ndenumerate(values):
        if not math.isnan(value):
            ink = "white" if value > 0.55 else "#222222"
            ax.text(
                column, row, f"{100 * value:.0f}", ha="center", va="center", fontsize=8, color=ink
            )


def _percent(value: float, _position: object = None) -> str:
    return f"{100 * value:.0f}%"


def needle_heatmaps(summary: Summary, depths: dict[str, float]) -> Figure:
    """Depth x length per policy; `depths` maps task names to percent of the text."""
    panels = [
        HeatPanel(
            policy,
            [length_label(length) for length in summary.lengths],
            [f"{depths[task]:g}" for task in summary.tasks],
            [
                [summary.cell(task, length, policy).estimate.mean for length in summary.lengths]
                for task in summary.tasks
            ],
        )
        for policy in summary.policies
    ]
    return heatmaps(panels, "Needle found", "length (tokens)", "depth (% of text)")


def task_heatmaps(summary: Summary) -> Figure:
    """Task x policy per length."""
    panels = [
        HeatPanel(
            f"{length_label(length)} tokens",
            list(summary.policies),
            list(summary.tasks),
            [
                [summary.cell(task, length, policy).estimate.mean for policy in summary.policies]
                for task in summary.tasks
            ],
        )
        for length in summary.lengths
    ]
    return heatmaps(panels, "RULER score by task", "", "")


def _error_bar(ax: Axes, x: float, point: Estimate, number: int, label: str | None) -> None:
    ax.errorbar(
        [x],
        [point.mean],
        yerr=[[max(point.mean - point.low, 0)], [max(point.high - point.mean, 0)]],
        fmt=MARKERS[number % len(MARKERS)],
        color=COLOURS[number % len(COLOURS)],
        ecolor=COLOURS[number % len(COLOURS)],
        elinewidth=1.3,
        capsize=3,
        markersize=6.5,
        label=label,
    )


def _score_axis(ax: Axes, label: str) -> None:
    # A little over the ends, so that markers at 0% and 100% are whole.
    ax.set_ylim(-0.03, 1.05)
    ax.yaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1]))
    ax.yaxis.set_major_formatter(FuncFormatter(_percent))
    ax.set_ylabel(label)


def score_by_length(summary: Summary, y_label: str) -> Figure:
    """Average score against length, one line per policy, 95% intervals."""
    with plt.rc_context(STYLE):
        count = len(summary.policies)
        width = min(max(6.4, 2.0 + 0.21 * count * len(summary.lengths)), 14)
        figure, ax = plt.subplots(figsize=(width, 4.0), layout="constrained")
        for number, policy in enumerate(summary.policies):
            points = [
                (length, summary.column(length, policy).average) for length in summary.lengths
            ]
            points = [(x, y) for x, y in points if not math.isnan(y.mean)]
            # Policies share lengths: shift each a little so that their bars stand side by side.
            shift = 2 ** (0.5 * (number - (count - 1) / 2) / max(count, 4))
            ax.plot(
                [x * shift for x, _ in points],
                [y.mean for _, y in points],
                color=COLOURS[number % len(COLOURS)],
                linewidth=1.4,
                alpha=0.7,
            )
            for place, (x, y) in enumerate(points):
                _error_bar(ax, x * shift, y, number, policy if place == 0 else None)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_locator(FixedLocator(summary.lengths))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: length_label(round(v))))
        ax.set_xlabel("length (tokens, prompt and answer)")
        _score_axis(ax, y_label)
        if ax.get_legend_handles_labels()[0]:
            ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def score_by_topk(summary: Summary, y_label: str) -> Figure | None:
    """Average score against rows fetched per KV head, a panel per length; None without a sweep.

    A line per family of policies that differ in topk only; a policy without rows to fetch is its
    point at 0, and the exact ones are dashed lines.
    """
    families = topk_families(summary.policies)
    if not families:
        return None
    ticks = sorted({rows for family in families for rows in family.policies})
    exact = [p for p in summary.policies if p in ("full", "offload")]
    with plt.rc_context(STYLE):
        figure, axes = _grid(len(summary.lengths), 3.9, 3.2)
        for place, (ax, length) in enumerate(zip(axes, summary.lengths, strict=True)):
            for number, family in enumerate(families):
                shift = 0.12 * (number - (len(families) - 1) / 2)
                _topk_line(ax, summary, length, family, number, ticks, shift)
            for policy in exact:
                mean = summary.column(length, policy).average.mean
                ax.axhline(mean, color="#555555", linewidth=1.1, linestyle="--", label=policy)
            ax.set_title(f"{length_label(length)} tokens")
            ax.set_xlabel("rows fetched per KV head (topk)")
            ax.set_xticks(range(len(ticks)), [str(rows) for rows in ticks])
            _score_axis(ax, y_label if place % _across(len(summary.lengths)) == 0 else "")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=min(len(labels), 5), frameon=False
        )
    return figure


def _topk_line(
    ax: Axes,
    summary: Summary,
    length: int,
    family: TopkFamily,
    number: int,
    ticks: list[int],
    shift: float,
) -> None:
    points = [
        (ticks.index(rows) + shift, summary.column(length, policy).average)
        for rows, policy in sorted(family.policies.items())
    ]
    points = [(x, y) for x, y in points if not math.isnan(y.mean)]
    ax.errorbar(
        [x for x, _ in points],
        [y.mean for _, y in points],
        yerr=[
            [max(y.mean - y.low, 0) for _, y in points],
            [max(y.high - y.mean, 0) for _, y in points],
        ],
        fmt=f"{MARKERS[number % len(MARKERS)]}-",
        color=COLOURS[number % len(COLOURS)],
        linewidth=1.4,
        elinewidth=1.0,
        capsize=2.5,
        markersize=5,
        label=family.label,
    )


def score_by_kv(summary: Summary, y_label: str) -> Figure | None:
    """Average score against KV bytes on the device, a panel per length; None without any bytes."""
    lengths = [
        length
        for length in summary.lengths
        if any(_device_mib(summary.column(length, p)) is not None for p in summary.policies)
    ]
    if not lengths:
        return None
    with plt.rc_context(STYLE):
        figure, axes = _grid(len(lengths), 3.7, 3.3)
        for place, (ax, length) in enumerate(zip(axes, lengths, strict=True)):
            sizes = []
            for number, policy in enumerate(summary.policies):
                column = summary.column(length, policy)
                mib = _device_mib(column)
                if mib is not None:
                    sizes.append(mib)
                    _error_bar(ax, mib, column.average, number, policy)
            ax.set_title(f"{length_label(length)} tokens")
            ax.set_xlabel("KV cache on the device (MiB per request)")
            _mib_axis(ax, sizes)
            _score_axis(ax, y_label if place % _across(len(lengths)) == 0 else "")
        entries: dict[str, Artist] = {}
        for ax in axes:
            handles, labels = ax.get_legend_handles_labels()
            entries.update({lb: h for h, lb in zip(handles, labels, strict=True)})
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="outside lower center",
            ncols=min(len(entries), 2 * len(lengths) + 1),
            frameon=False,
        )
    return figure


def _device_mib(column: Column) -> float | None:
    """Return the MiB to draw a point at, or None if there is nothing to draw."""
    if not column.device_kv_bytes or math.isnan(column.average.mean):
        return None
    return column.device_kv_bytes / 2**20


def _mib_axis(ax: Axes, sizes: list[float]) -> None:
    """A log axis with a few round ticks over what is shown, whatever its range."""
    if not sizes:
        return
    low, high = min(sizes) / 1.5, max(sizes) * 1.5
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    octaves = math.log2(high / low)
    step = max(1, math.ceil(octaves / 5))
    first = math.ceil(math.log2(low))
    ticks = [2.0**e for e in range(first, math.floor(math.log2(high)) + 1, step)]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}" if v >= 1 else f"{v:.3g}"))


def draw(folder: Path, figures: dict[str, Callable[[], Figure | None]]) -> list[Path]:
    """Draw and save each figure that has something to show."""
    paths: list[Path] = []
    for name, make in figures.items():
        figure = make()
        if figure is not None:
            paths += save(figure, folder, name)
    return paths
