"""Results as JSON, as a table, and as pictures."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp
from rich.table import Table

from . import __version__
from .client import Record


def versions() -> dict[str, str]:
    """What the run was made with."""
    return {
        "kvahead-load": __version__,
        "python": sys.version.split()[0],
        "aiohttp": aiohttp.__version__,
        "platform": platform.platform(),
    }


def write_json(path: Path, value: object) -> None:
    """Write a document whole, or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", "utf-8")
    part.replace(path)


def write_records(path: Path, label: str, records: list[Record]) -> None:
    """Append one line per request."""
    with path.open("a", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps({"load": label} | asdict(record)) + "\n")


def _ms(point: dict[str, Any], name: str, figure: str) -> str:
    values = point[name]
    return f"{1000 * values[figure]:.1f}" if values else "-"


def table(points: list[dict[str, Any]]) -> Table:
    """One line per load: latencies in ms."""
    shown = Table(title="latencies in ms; p50 / p95 / p99", title_justify="left")
    columns = ["load", "complete", "failed", "left", "req/s", "out tok/s"]
    latencies = ["TTFT", "ITL", "TPOT", "E2E"]
    goodput = any(point["goodput_per_s"] is not None for point in points)
    for name in columns + latencies + (["goodput/s"] if goodput else []):
        shown.add_column(name, justify="left" if name == "load" else "right", no_wrap=True)
    for point in points:
        cells = [
            point["load"],
            str(point["complete"]),
            str(point["failed"]),
            str(point["cancelled"]),
            f"{point['requests_per_s']:.2f}",
            f"{point['output_tokens_per_s']:.1f}",
        ]
        for name in latencies:
            key = f"{name.lower()}_s"
            cells.append(" / ".join(_ms(point, key, figure) for figure in ("p50", "p95", "p99")))
        if goodput:
            cells.append(f"{point['goodput_per_s']:.2f}")
        shown.add_row(*cells)
    return shown
