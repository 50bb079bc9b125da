"""The pictures, as PNG and SVG: latency against load, distributions, and the run in time.

Drawn from records and summaries only, without a display.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # before pyplot: it chooses a display otherwise

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

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
    "legend.edgecolor": "none",
    "legend.framealpha": 0.8,
    "axes.prop_cycle": plt.cycler(color=COLOURS),
    "svg.hashsalt": "kvahead-load",
    "svg.fonttype": "none",  # text as text, in a font by one name: half the bytes
    "font.sans-serif": ["DejaVu Sans"],
}
DPI = 150
LATENCIES = (("ttft_s", "time to first token (TTFT)"), ("itl_s", "time between pieces (ITL)"),
             ("tpot_s", "time per output token (TPOT)"),
             ("e2e_s", "time of a request (E2E)"))  # fmt: skip


def _slim(svg: str) -> str:
    """A third less: no indentation, and hundredths of a point are exact enough."""
    return re.sub(r"(\d\.\d\d)\d+", r"\1", re.sub(r"\n\s+", "\n", svg))


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg and close the figure."""
    paths = []
    for kind in ("png", "svg"):
        path = folder / f"{name}.{kind}"
        metadata = {"Date": None} if kind == "svg" else None
        figure.savefig(path, dpi=DPI, bbox_inches="tight", facecolor="white", metadata=metadata)
        if kind == "svg":
            path.write_text(_slim(path.read_text("utf-8")), "utf-8")
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
    subs = (1.0,) if decades > 2.5 else (1.0, 2.0, 5.0) if decades > 0.7 else tuple(range(1, 10))
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _load_axis(ax: Axes, loads: list[float], what: str) -> None:
    """A sweep that spans much is read on a log axis."""
    ax.set_xlabel(what)
    if max(loads) / min(loads) >= 6:
        ax.set_xscale("log")
        _log_axis(ax.xaxis)


def _latency(ax: Axes, points: list[dict[str, Any]], key: str, limit_s: float | None) -> None:
    loads = [point["level"] for point in points]
    for percentile in ("p50", "p95", "p99"):
        values = [1000 * p[key][percentile] if p[key] else np.nan for p in points]
        ax.plot(loads, values, marker="o", markersize=4, label=percentile)
    if limit_s is not None:
        ax.axhline(1000 * limit_s, color="#555555", ls=":", lw=1.2, label="limit")
    ax.set(ylabel="ms", yscale="log")
    _log_axis(ax.yaxis)
    ax.legend(fontsize=8)


def _throughput(ax: Axes, points: list[dict[str, Any]]) -> None:
    """Of an open loop: what is asked, answered and answered well; of a closed one: tokens."""
    loads = [point["level"] for point in points]
    tokens, answered, good = (
        [np.nan if p[name] is None else p[name] for p in points]
        for name in ("output_tokens_per_s", "requests_per_s", "goodput_per_s")
    )
    if points[0]["concurrency"]:
        ax.plot(loads, tokens, marker="o", markersize=4)
        ax.set(title="throughput", ylabel="output tokens / s", ylim=(0, None))
        return
    # Clients that leave and the run's last answers make the offered line lie above the others.
    ax.plot(loads, loads, color="#999999", ls="--", lw=1, label="offered")
    ax.plot(loads, answered, marker="o", markersize=4, label="complete")
    if not all(np.isnan(good)):
        ax.plot(loads, good, marker="s", markersize=4, label="good")
    # The line of what was offered may leave the picture: it is the other two that say something.
    top = 1.25 * np.nanmax([*answered, *good, 1e-9])
    ax.set(title="requests", ylabel="requests / s", ylim=(0, top))
    ax.legend(frameon=False, fontsize=8)


def _server(ax: Axes, points: list[dict[str, Any]]) -> None:
    """What the server said of itself: means while requests were under way."""
    loads = [point["level"] for point in points]
    for name, words in (("running", "running"), ("waiting", "waiting")):
        values = [p["server"].get(name, {}).get("mean", np.nan) for p in points]
        ax.plot(loads, values, marker="o", markersize=4, label=words)
    ax.set(title="in the server, mean", ylabel="requests", yscale="symlog", ylim=(0, None))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    lines = ax.get_lines()
    used = [100 * p["server"].get("kv_device", {}).get("max", np.nan) for p in points]
    if not all(np.isnan(used)):
        other = ax.twinx()
        other.grid(False)
        other.plot(loads, used, color=COLOURS[2], marker="s", markersize=4, ls="--",
                   label="KV in use, at most")  # fmt: skip
        other.set(ylabel="% of the KV cache", ylim=(0, max(5.0, 1.2 * np.nanmax(used))))
        other.spines["right"].set_visible(True)
        lines = [*lines, *other.get_lines()]
    ax.legend(lines, [line.get_label() for line in lines], frameon=False, fontsize=8,
              loc="upper left")  # fmt: skip


def against_load(
    points: list[dict[str, Any]], limits: dict[str, float | None] | None = None
) -> Figure | None:
    """Latency percentiles, throughput and the server's own figures over a sweep."""
    loads = [point["level"] for point in points]
    if len(points) < 2 or any(load is None for load in loads):
        return None
    what = "requests at a time" if points[0]["concurrency"] else "requests sent per second"
    server = any(point.get("server") for point in points)
    figure, grid = plt.subplots(2, 3, figsize=(12, 6.2), layout="constrained")
    axes = list(grid.flat)
    for ax, (key, title) in zip(axes, LATENCIES, strict=False):
        ax.set_title(title)
        _latency(ax, points, key, (limits or {}).get(key))
    _throughput(axes[4], points)
    if server:
        _server(axes[5], points)
    else:
        axes[5].remove()
    for number, ax in enumerate(axes[: 5 + server]):
        if number == 4:
            # What is offered is a straight line here, and the end of it is what matters.
            ax.set(xlabel=what, xlim=(0, None))
        else:
            _load_axis(ax, loads, what)
    return figure


def distributions(runs: list[tuple[str, list[Record]]]) -> Figure | None:
    """Cumulative distributions of the latencies, a line per load."""
    series: list[tuple[str, Callable[[list[Record]], list[float]]]] = [
        ("time to first token", lambda records: [metrics.ttft(r) for r in records]),
        ("time between pieces", lambda records: [gap for r in records for gap in r.gaps_s]),
        ("time of a request", lambda records: [metrics.e2e(r) for r in records]),
    ]
    complete = [(label, [r for r in records if r.ok and not r.warm_up]) for label, records in runs]
    if not any(records for _, records in complete):
        return None
    figure, axes = _panels(len(series))
    # Loads are in order, and so are the colours.
    colours = plt.colormaps["viridis"](np.linspace(0.9, 0.0, len(complete)))
    for ax, (title, take) in zip(axes, series, strict=True):
        ax.set_prop_cycle(color=colours)
        for label, records in complete:
            values = np.sort(np.array(take(records)) * 1000)
            if len(values):
                ax.plot(values, np.arange(1, len(values) + 1) / len(values), label=label)
        ax.set(title=title, xlabel="ms", xscale="log", ylim=(0, 1))
        _log_axis(ax.xaxis)
    axes[0].set(ylabel="share of requests, of gaps")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
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
    folder: Path,
    points: list[dict[str, Any]],
    runs: list[tuple[str, list[Record]]],
    limits: dict[str, float | None] | None = None,
) -> list[Path]:
    """Draw and save what there is to show."""
    paths: list[Path] = []
    with plt.rc_context(STYLE):
        figures = {"load": against_load(points, limits), "latency": distributions(runs)}
        for number, (label, records) in enumerate(runs, 1):
            figures[f"timeline_{number}"] = timeline(label, records)
        for name, figure in figures.items():
            if figure is not None:
                paths += save(figure, folder, name)
    return paths
