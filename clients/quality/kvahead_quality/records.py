"""The run's files: `samples.jsonl` (one line per finished or failed sample) and `run.json`.

A sample is finished once: its key is (task, length, policy, index, seed). Failed ones are kept for
the record and tried again by the next run; those that are not possible (the task does not fit the
length) stay so, for whatever decides it is the same for every run of a folder. A line is written
whole and flushed before the sample counts as done, and a torn last line (power cut) is put aside,
never guessed at.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from .errors import UsageError

Key = tuple[str, int, str, int, int]


@dataclass(frozen=True)
class Record:
    """One sample under one policy. `error` is None for a finished one, and the reason for one that
    is `impossible`; lengths are in tokens."""

    task: str
    length: int
    policy: str
    index: int
    seed: int
    score: float | None
    output: str | None
    references: list[str]
    error: str | None
    attempts: int
    latency_s: float
    fitted_tokens: int
    size: int
    prompt_sha256: str
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    kv: dict[str, object] | None = None
    context: int | None = None
    impossible: bool = False

    @property
    def key(self) -> Key:
        return (self.task, self.length, self.policy, self.index, self.seed)

    @property
    def group(self) -> int:
        """Samples of one task, length and group share their context."""
        return self.index if self.context is None else self.context

    @property
    def device_kv_bytes(self) -> int | None:
        return self._kvahead("device_kv_bytes", "device_bytes")

    @property
    def host_kv_bytes(self) -> int | None:
        return self._kvahead("host_kv_bytes", "host_bytes")

    def _kvahead(self, *names: str) -> int | None:
        """Return the first of `names` that `usage.kvahead` has as a number."""
        extra = self.usage.get("kvahead")
        for name in names if isinstance(extra, dict) else ():
            value = extra.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None


class RecordFile:
    """Appends records; `finished`, `failed` and `impossible` hold what is known, newest last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.finished: dict[Key, Record] = {}
        self.failed: dict[Key, Record] = {}
        self.impossible: dict[Key, Record] = {}
        self.torn_lines = 0
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._closed = False
        self._load()

    def _load(self) -> None:
        if not self.path.exists():
            return
        for number, line in enumerate(self.path.read_bytes().split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                record = Record(**json.loads(line))
                hash(record.key)
            except (ValueError, TypeError):
                if not line.lstrip().startswith(b"{"):
                    raise UsageError(f"{self.path}:{number} is not a sample record") from None
                self.torn_lines += 1
                continue
            self._keep(record)

    def _keep(self, record: Record) -> None:
        if record.error is None:
            self.finished[record.key] = record
            self.failed.pop(record.key, None)
            self.impossible.pop(record.key, None)
        elif self.is_settled(record.key):
            return
        elif record.impossible:
            self.impossible[record.key] = record
            self.failed.pop(record.key, None)
        else:
            self.failed[record.key] = record

    def is_settled(self, key: Key) -> bool:
        """Whether nothing is left to be asked: the sample is finished, or not possible."""
        return key in self.finished or key in self.impossible

    def append(self, record: Record) -> None:
        """Write one record and flush it. Any thread; without effect after `close`."""
        line = json.dumps(asdict(record), ensure_ascii=False, separators=(",", ":")) + "\n"
        with self._lock:
            if self._closed:
                return  # a request that outlived an interrupted run
            if self._file is None:
                torn = self._ends_torn()
                self._file = self.path.open("ab")
                if torn:
                    self._file.write(b"\n")
            self._file.write(line.encode("utf-8", "backslashreplace"))
            self._file.flush()
            self._keep(record)

    def _ends_torn(self) -> bool:
        if not self.path.exists() or self.path.stat().st_size == 0:
            return False
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()
                self._file = None


def write_json(path: Path, value: object) -> None:
    """Write a file so that it is either the old one or the new one."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n", "utf-8")
    part.replace(path)


def check_identity(path: Path, identity: dict[str, object]) -> None:
    """Refuse to mix runs: everything in `identity` must equal what run.json says."""
    if not path.exists():
        return
    try:
        before = dict(json.loads(path.read_text("utf-8"))["identity"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} is not a run description; use another --out") from None
    for name, value in identity.items():
        if before.get(name) != value:
            raise UsageError(
                f"--out: {path.parent} holds a run with {name} = {before.get(name)!r}, "
                f"this one has {value!r}; use another folder"
            )
