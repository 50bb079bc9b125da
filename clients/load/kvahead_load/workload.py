"""What is asked: prompts of wanted lengths, with shared beginnings, and when clients leave.

Prompts are made of seeded words, or of token ids (`completions` takes them as they are). A server
counts tokens its own way; how many tokens a word makes is calibrated once with its /tokenize where
it has one, and what a request really had is read from its usage.
"""

from __future__ import annotations

import csv
import datetime
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import UsageError
from .numbers import Distribution

# Tokens that one hash of a Mooncake trace stands for.
TRACE_BLOCK_TOKENS = 512
TOKENS_PER_WORD = 1.4  # of the words below, with vocabularies of 30 to 150 thousand

WORDS = (
    "time year people way day man thing woman life child world school state family student "
    "group country problem hand part place case week company system program question work "
    "government number night point home water room mother area money story fact month lot "
    "right study book eye job word business issue side kind head house service friend father "
    "power hour game line end member law car city community name president team minute idea "
    "body information back parent face others level office door health person art war history "
    "party result change morning reason research girl guy moment air teacher force education "
).split()


@dataclass(frozen=True)
class Request:
    """One request to be sent. `cancel_after` output tokens the client leaves; None: it stays."""

    index: int
    prompt: str | list[int]
    output_tokens: int
    cancel_after: int | None = None
    at_s: float | None = None  # arrival, in traces


@dataclass(frozen=True)
class Prefixes:
    """Shared beginnings: each request takes one of `groups`, of `tokens` tokens."""

    tokens: int = 0
    groups: int = 1


@dataclass(frozen=True)
class Shape:
    """What requests look like."""

    prompt_tokens: Distribution
    output_tokens: Distribution
    prefixes: Prefixes = field(default_factory=Prefixes)
    cancel_share: float = 0.0
    vocab: int | None = None  # prompts of token ids below this; None: of words
    tokens_per_word: float = TOKENS_PER_WORD
    seed: int | str = 1


class Texts:
    """Prompts of about so many tokens; the same key gives the same text, and of fewer tokens its
    beginning."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def make(self, key: str, tokens: int) -> str | list[int]:
        """Make a piece of `tokens` tokens."""
        rng = random.Random(f"{self.shape.seed}/{key}")
        if self.shape.vocab:
            # Special tokens are at the ends of most vocabularies.
            low, high = self.shape.vocab // 10, self.shape.vocab * 9 // 10
            return [rng.randrange(low, high) for _ in range(tokens)]
        words = max(1, round(tokens / self.shape.tokens_per_word))
        return " ".join(rng.choices(WORDS, k=words))

    def join(self, pieces: list[str | list[int]]) -> str | list[int]:
        """Put pieces behind each other."""
        if self.shape.vocab:
            return [token for piece in pieces for token in piece]  # type: ignore[misc]
        return " ".join(pieces)  # type: ignore[arg-type]


def synthetic(shape: Shape) -> Iterator[Request]:
    """Requests without end. Which prompt has which length depends on the seed and the index."""
    texts = Texts(shape)
    index = 0
    while True:
        rng = random.Random(f"{shape.seed}/request/{index}")
        tokens = shape.prompt_tokens.draw(rng)
        output = shape.output_tokens.draw(rng)
        pieces: list[str | list[int]] = []
        shared = min(shape.prefixes.tokens, tokens - 1)
        if shared > 0:
            group = rng.randrange(shape.prefixes.groups)
            pieces.append(texts.make(f"prefix/{group}", shared))
        pieces.append(texts.make(f"own/{index}", tokens - max(shared, 0)))
        leaves = rng.random() < shape.cancel_share
        yield Request(
            index=index,
            prompt=texts.join(pieces),
            output_tokens=output,
            cancel_after=rng.randint(0, max(output - 1, 0)) if leaves else None,
        )
        index += 1


# ---- traces -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TraceRow:
    """One line of a trace: arrival in seconds, lengths, and the prompt's shared blocks."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def _row_of_json(line: dict[str, Any]) -> TraceRow:
    if "timestamp" in line:  # Mooncake: milliseconds, and hashes of blocks of 512 tokens
        return TraceRow(
            float(line["timestamp"]) / 1000,
            int(line["input_length"]),
            int(line["output_length"]),
            tuple(int(block) for block in line.get("hash_ids", ())),
        )
    return TraceRow(float(line["at_s"]), int(line["prompt_tokens"]), int(line["output_tokens"]))


def _time_of(text: str) -> float:
    """Read seconds, or a date with a time as Azure's traces have it: UTC where it has no offset."""
    try:
        return float(text)
    except ValueError:
        moment = datetime.datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()


def _rows_of_csv(text: str) -> list[TraceRow]:
    return [
        TraceRow(
            _time_of(line["TIMESTAMP"]), int(line["ContextTokens"]), int(line["GeneratedTokens"])
        )
        for line in csv.DictReader(text.splitlines())
    ]


def load_trace(path: Path) -> list[TraceRow]:
    """Read a trace, in order of arrival, the first at 0.

    JSON lines of `at_s, prompt_tokens, output_tokens`; Mooncake's JSON lines (`timestamp` in ms,
    `input_length`, `output_length`, `hash_ids`); Azure's CSV (`TIMESTAMP, ContextTokens,
    GeneratedTokens`). Fails with UsageError, which names the line.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--trace: cannot read {path}: {error}") from None
    rows: list[TraceRow] = []
    if path.suffix == ".csv":
        try:
            rows = _rows_of_csv(text)
        except (KeyError, ValueError, TypeError) as error:
            raise UsageError(
                f"--trace: {path}: not TIMESTAMP,ContextTokens,GeneratedTokens: {error}"
            ) from None
    else:
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                rows.append(_row_of_json(json.loads(line)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(f"--trace: {path}, line {number}: {error!r}") from None
    if not rows:
        raise UsageError(f"--trace: {path} has no requests")
    for number, row in enumerate(rows, 1):
        if row.prompt_tokens < 1 or row.output_tokens < 1:
            raise UsageError(f"--trace: {path}: request {number} has no tokens")
    rows.sort(key=lambda row: row.at_s)
    start = rows[0].at_s
    return [
        TraceRow(row.at_s - start, row.prompt_tokens, row.output_tokens, row.blocks) for row in rows
    ]


def from_trace(rows: list[TraceRow], shape: Shape, speed: float) -> Iterator[Request]:
    """Requests of a trace, `speed` times as fast. Equal block hashes give equal text."""
    texts = Texts(shape)
    for index, row in enumerate(rows):
        rng = random.Random(f"{shape.seed}/request/{index}")
        pieces: list[str | list[int]] = []
        left = row.prompt_tokens
        for block in row.blocks:
            if left <= 0:
                break
            pieces.append(texts.make(f"block/{block}", min(TRACE_BLOCK_TOKENS, left)))
            left -= TRACE_BLOCK_TOKENS
        if left > 0:
            pieces.append(texts.make(f"own/{index}", left))
        leaves = rng.random() < shape.cancel_share
        yield Request(
            index=index,
            prompt=texts.join(pieces),
            output_tokens=row.output_tokens,
            cancel_after=rng.randint(0, row.output_tokens - 1) if leaves else None,
            at_s=row.at_s / speed,
        )
