"""The progress bar on a terminal, and plain lines every tenth elsewhere. Both go to stderr."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .records import Record


class RunProgress:
    """Shows done / total, running score, failures and time left. Called under the runner's lock."""

    def __init__(self, total: int, done: int, console: Console) -> None:
        self._console = console
        self._total = total
        self._done = done
        self._resumed = done
        self._failed = 0
        self._impossible: set[tuple[str, int]] = set()
        self._retries = 0
        self._score_sum = 0.0
        self._scored = 0
        self._started = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
            )
            self._task = self._bar.add_task("samples", total=total, completed=done, note="")

    def __enter__(self) -> RunProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def on_record(self, record: Record) -> None:
        """Count one record and show it."""
        self._done += 1
        self._retries += max(record.attempts - 1, 0)
        if record.error is not None:
            self._failed += not record.impossible
        elif record.score is not None:
            self._score_sum += record.score
            self._scored += 1
        if self._bar:
            self._bar.update(self._task, advance=1, note=self._note())
            if record.impossible:
                self._say_impossible(record)
            elif record.error is not None:
                name = f"{record.task} {record.length} {record.policy} #{record.index}"
                self._bar.console.print(f"failed: {name}: {record.error}", markup=False)
        else:
            self._plain()

    def _say_impossible(self, record: Record) -> None:
        """Once for all samples of a task and length."""
        cell = (record.task, record.length)
        if self._bar and cell not in self._impossible:
            self._impossible.add(cell)
            self._bar.console.print(
                f"not possible: {record.task} {record.length}: {record.error}", markup=False
            )

    def _note(self) -> str:
        score = f"score {100 * self._score_sum / self._scored:.1f}%" if self._scored else ""
        more = [f"{self._retries} retries"] if self._retries else []
        more += [f"{self._failed} failed"] if self._failed else []
        return ", ".join(filter(None, [score, *more]))

    def _plain(self) -> None:
        tenth = max(self._total // 10, 1)
        if self._done % tenth and self._done != self._total:
            return
        spent = time.monotonic() - self._started
        rate = (self._done - self._resumed) / spent if spent > 0 else 0.0
        left = f", {(self._total - self._done) / rate:.0f} s left" if rate else ""
        self._console.print(
            f"{self._done}/{self._total} samples{left}, {self._note()}",
            markup=False,
            soft_wrap=True,
        )
