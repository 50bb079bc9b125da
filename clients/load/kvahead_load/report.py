"""Results as JSON, as a table, and as pictures."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

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


class RecordFile:
    """requests.jsonl, a line per request as it ends. Until `finish` it has another name: an earlier
    file stays until then, and there is nothing before the first record."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "requests.jsonl"
        self._part = folder / "requests.jsonl.part"
        self._file: TextIO | None = None
        self._fault: OSError | None = None

    def add(self, label: str, record: Record) -> None:
        """Write one line. Fails never: a load goes on, and `finish` says what was wrong."""
        if self._fault:
            return
        try:
            self._open().write(json.dumps({"load": label} | asdict(record)) + "\n")
        except OSError as fault:
            self._fault = fault

    def _open(self) -> TextIO:
        if not self._file:
            self._file = self._part.open("w", encoding="utf-8", buffering=1)  # line by line
        return self._file

    def finish(self) -> None:
        """Take the place of an earlier file. Fails with OSError if a line could not be written."""
        if self._fault:
            raise self._fault
        self._open().close()
        self._part.replace(self._path)


def _number(value: float | None, digits: int, scale: float = 1.0, unit: str = "") -> str:
    return "-" if value is None else f"{scale * value:.{digits}f}{unit}"


def _ms(point: dict[str, Any], name: str, figure: str) -> str:
    values = point[name]
    value = 1000 * values[figure] if values else None
    return _number(value, 1 if value is None or value < 100 else 0)


def saturation(document: dict[str, Any]) -> str:
    """The walk's result in words."""
    found, limits = document["saturation"], document["limits"]
    shown = ", ".join(
        f"{name.removesuffix('_s').upper()} {1000 * value:g} ms"
        for name, value in limits.items()
        if value is not None
    )
    kept, lost = found["rate_kept"], found["rate_lost"]
    share = f"{found['kept_share']:.0%} within {shown}"
    if kept is None and lost is None:
        return f"no rate was measured ({share})"
    if kept is None:
        text = f"saturated at every rate that was tried: never {share}"
    elif lost is None:
        text = f"not saturated at {kept:g}/s, where the walk ended ({share})"
    else:
        text = f"saturated above {kept:g}/s ({share}), at {lost:g}/s it is less"
    if found["goodput_per_s_max"]:
        best = f"{found['goodput_per_s_max']:.2f} good requests/s at {found['goodput_max_at']:g}/s"
        text += f"; most: {best}"
    return text


def _table(title: str | None, names: list[str], rows: list[list[str]]) -> Table:
    shown = Table(title=title, title_justify="left")
    for name in names:
        shown.add_column(name, justify="left" if name == "load" else "right", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    return shown


def latencies(points: list[dict[str, Any]]) -> Table:
    """One line per load: latencies in ms."""
    names = ["TTFT", "ITL", "TPOT", "E2E"]
    rows = []
    for point in points:
        cells = [
            " / ".join(_ms(point, f"{name.lower()}_s", figure) for figure in ("p50", "p95", "p99"))
            for name in names
        ]
        rows.append([point["load"], str(point["complete"]), *cells])
    return _table("latencies in ms; p50 / p95 / p99", ["load", "complete", *names], rows)


def rates(points: list[dict[str, Any]]) -> Table:
    """One line per load: what was done in a second, and what the server said meanwhile (means)."""
    names = ["load", "failed", "left", "req/s", "out tok/s"]
    goodput = any(point["goodput_per_s"] is not None for point in points)
    server = any(point["server"] for point in points)
    names += ["good", "good/s"] if goodput else []
    names += ["running", "waiting", "rows/step", "KV"] if server else []
    rows = []
    for point in points:
        row = [point["load"], str(point["failed"]), str(point["cancelled"])]
        row += [_number(point["requests_per_s"], 2), _number(point["output_tokens_per_s"], 1)]
        if goodput:
            row += [_number(point["good_share"], 0, 100, "%"), _number(point["goodput_per_s"], 2)]
        if server:
            own = point["server"]
            row += [_number(own.get(n, {}).get("mean"), 1) for n in ("running", "waiting")]
            row += [_number(own.get("rows_per_step"), 1)]
            row += [_number(own.get("kv_device", {}).get("max"), 1, 100, "%")]
        rows.append(row)
    return _table(None, names, rows)
