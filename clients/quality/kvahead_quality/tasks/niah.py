"""The needle tasks: RULER section 3 "Retrieval" and appendix B, and the depth x length grid.

The prompt wording is RULER's, which is part of the benchmark's definition. Differences are the
word lists (words.py), the generated essays (filler.py), and that keys and values of one sample
are always distinct, so that a question never has two correct answers by chance.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from .base import Sample, TaskError, stream
from .filler import take
from .words import ADJECTIVES, NOUNS

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
MANY = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What are all the special magic {kind} for {query} mentioned in the provided text?"
)
MANY_PREFIX = " The special magic {kind} for {query} mentioned in the provided text are"
ONE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n{context}\n"
    "What is the special magic {kind} for {query} mentioned in the provided text?"
)
ONE_PREFIX = " The special magic {kind} for {query} mentioned in the provided text is"

MAX_TOKENS = 128
# Questions about one haystack that is made of needles: more say little, one context is one text.
QUESTIONS_MAX = 30
# RULER's forty depths, percent of the text: round(linspace(0, 100, 40)).
DEPTHS = tuple(round(100 * i / 39) for i in range(40))
# What surrounds the needles: generated essays, RULER's repeated noise, or other needles.
ESSAY, REPEAT, NEEDLES = "essay", "noise", "needle"


class _Unique:
    """Draws words, numbers or uuids and never the same one twice."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._seen: set[str] = set()

    def draw(self, kind: str) -> str:
        for _ in range(1000):
            text = self._make(kind)
            if text not in self._seen:
                self._seen.add(text)
                return text
        raise TaskError(f"no unused {kind} left after {len(self._seen)} of them")

    def _make(self, kind: str) -> str:
        if kind == "words":
            return f"{self._rng.choice(ADJECTIVES)}-{self._rng.choice(NOUNS)}"
        if kind == "numbers":
            return str(self._rng.randrange(10**6, 10**7))
        if kind == "uuids":
            return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
        raise TaskError(f"unknown kind of key or value: {kind!r}")


def _insert_at_depths(sentences: list[str], needles: list[str], depths: list[float]) -> str:
    """Put needle i at depths[i] percent of the sentences; depths ascend. RULER's essay layout."""
    out: list[str] = []
    last = 0
    for needle, depth in zip(needles, depths, strict=True):
        here = int(len(sentences) * depth / 100)
        out += sentences[last:here]
        out.append(needle)
        last = here
    return " ".join(out + sentences[last:])


def _question(kind: str, context: str, queries: list[str], single: bool) -> tuple[str, str]:
    """Return (prompt, answer prefix) in RULER's singular or plural wording."""
    query = queries[0] if len(queries) == 1 else ", ".join(queries[:-1]) + ", and " + queries[-1]
    shown = kind[:-1] if single else kind
    prompt, prefix = (ONE, ONE_PREFIX) if single else (MANY, MANY_PREFIX)
    return (
        prompt.format(kind=shown, context=context, query=query),
        prefix.format(kind=shown, query=query),
    )


@dataclass(frozen=True)
class NiahTask:
    """One needle configuration of RULER; unit of size: a sentence, a noise line or a needle."""

    name: str
    haystack: str
    key_kind: str = "words"
    value_kind: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1
    max_tokens: int = MAX_TOKENS

    @property
    def min_size(self) -> int:
        """Smallest haystack that has a place for every needle."""
        return max(self.keys, self.queries) * self.values + 1

    @property
    def questions_max(self) -> int:
        """Each needle can be asked for, also those that are the haystack; lists only as a whole."""
        if self.queries * self.values > 1:
            return 1
        return QUESTIONS_MAX if self.haystack == NEEDLES else self.keys

    def build(self, size: int, length: int, seed: int, index: int, question: int = 0) -> Sample:
        label = (self.name, length, seed, index)
        names = _Unique(stream(*label, "needles"))
        keys = [names.draw(self.key_kind) for _ in range(max(self.keys, self.queries))]
        values = [[names.draw(self.value_kind) for _ in range(self.values)] for _ in keys]
        needles = [
            NEEDLE.format(kind=self.value_kind, key=key, value=value)
            for key, group in zip(keys, values, strict=True)
            for value in group
        ]
        where = stream(*label, "positions")
        where.shuffle(needles)
        if self.haystack == ESSAY:
            depths = sorted(where.sample(DEPTHS, len(needles)))
            text = take(stream(*label, "haystack"), size)
            context = _insert_at_depths(text, needles, [float(d) for d in depths])
        else:
            lines = self._lines(size, names, keys, values)
            # Needles go in from the back, so an earlier insertion moves no later place.
            for place, needle in zip(
                sorted(where.sample(range(size), len(needles)), reverse=True), needles, strict=True
            ):
                lines.insert(place, needle)
            context = "\n".join(lines)
        asked = where.sample(range(max(self.keys, self.queries)), self.queries)
        if question:
            others = [i for i in range(len(keys)) if i not in asked]
            stream(*label, "questions").shuffle(others)
            asked = [others[(question - 1) % len(others)]]
        prompt, prefix = _question(
            self.value_kind, context, [keys[i] for i in asked], self.queries * self.values == 1
        )
        return Sample(
            task=self.name,
            prompt=prompt,
            answer_prefix=prefix,
            references=tuple(v for i in asked for v in values[i]),
            max_tokens=self.max_tokens,
            size=size,
            meta={"keys": keys[: max(self.keys, self.queries)], "asked": [keys[i] for i in asked]},
        )

    def _lines(
        self, size: int, names: _Unique, keys: list[str], values: list[list[str]]
    ) -> list[str]:
        """The haystack's lines. Needles among them are added to `keys` and `values`."""
        if self.haystack == REPEAT:
            return [NOISE] * size
        for _ in range(size):
            keys.append(names.draw(self.key_kind))
            values.append([names.draw(self.value_kind)])
        return [
            NEEDLE.format(kind=self.value_kind, key=key, value=group[0])
            for key, group in zip(keys[-size:], values[-size:], strict=True)
        ]


@dataclass(frozen=True)
class NeedleGridTask:
    """One needle at a given depth of an essay or of noise: a cell of the depth x length picture.

    `depth` is percent of the haystack's sentences that precede the needle (0 first, 100 last).
    """

    depth: float
    haystack: str = ESSAY
    max_tokens: int = MAX_TOKENS
    min_size: int = 2
    questions_max: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= 100:
            raise TaskError(f"depth {self.depth:g} is outside 0..100 percent")
        if self.haystack not in (ESSAY, REPEAT):
            raise TaskError(f"unknown haystack {self.haystack!r} (have: {ESSAY}, {REPEAT})")

    @property
    def name(self) -> str:
        return f"needle_d{self.depth:g}"

    def build(self, size: int, length: int, seed: int, index: int, question: int = 0) -> Sample:
        label = ("needle_grid", self.haystack, length, seed, index, f"{self.depth:g}")
        names = _Unique(stream(*label, "needles"))
        key, value = names.draw("words"), names.draw("numbers")
        needle = NEEDLE.format(kind="numbers", key=key, value=value)
        if self.haystack == ESSAY:
            text = take(stream(*label, "haystack"), size)
        else:
            text = list(islice(_noise_sentences(), size))
        context = _insert_at_depths(text, [needle], [self.depth])
        prompt, prefix = _question("numbers", context, [key], True)
        return Sample(
            task=self.name,
            prompt=prompt,
            answer_prefix=prefix,
            references=(value,),
            max_tokens=self.max_tokens,
            size=size,
            meta={"depth": self.depth, "keys": [key], "asked": [key]},
        )


def _noise_sentences() -> Iterator[str]:
    """Yield the sentences of the repeated noise, one after another, without end."""
    parts = [part.strip() + "." for part in NOISE.split(".") if part.strip()]
    while True:
        yield from parts


NIAH_TASKS: tuple[NiahTask, ...] = (
    NiahTask("niah_single_1", REPEAT),
    NiahTask("niah_single_2", ESSAY),
    NiahTask("niah_single_3", ESSAY, value_kind="uuids"),
    NiahTask("niah_multikey_1", ESSAY, keys=4),
    NiahTask("niah_multikey_2", NEEDLES),
    NiahTask("niah_multikey_3", NEEDLES, key_kind="uuids", value_kind="uuids"),
    NiahTask("niah_multivalue", ESSAY, values=4),
    NiahTask("niah_multiquery", ESSAY, queries=4),
)
