"""What every task shares: the sample record, the errors and the seeded random streams.

Everything under `tasks/` uses the standard library only, so that training and evaluation scripts
can import it without installing the command-line tool's dependencies.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import Protocol


class TaskError(ValueError):
    """A sample cannot be made as asked; the message is one line for the user."""


@dataclass(frozen=True)
class Sample:
    """One question with its references.

    `prompt` ends with the question; `answer_prefix` starts the answer in RULER's words (it begins
    with a space). `max_tokens` is the answer's budget in tokens, RULER's `tokens_to_generate`.
    `size` counts the task's haystack units (sentences, needles or words).
    """

    task: str
    prompt: str
    answer_prefix: str
    references: tuple[str, ...]
    max_tokens: int
    size: int
    meta: dict[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Prompt and answer prefix: what a completion model is given."""
        return self.prompt + self.answer_prefix


class Task(Protocol):
    """A generator: the same (size, length, seed, index) always gives the same sample."""

    @property
    def name(self) -> str:
        """The name in commands, tables and records."""
        ...

    @property
    def max_tokens(self) -> int:
        """The answer's budget in tokens."""
        ...

    @property
    def min_size(self) -> int:
        """The fewest haystack units that make a sample."""
        ...

    @property
    def questions_max(self) -> int:
        """How many questions can be asked about one context."""
        ...

    def build(self, size: int, length: int, seed: int, index: int, question: int = 0) -> Sample:
        """Make a sample with `size` haystack units for a target of `length` tokens.

        Samples that differ in `question` only (0..questions_max - 1) have the same context, and
        prompts that are the same up to the question.
        """
        ...


def stream(*labels: object) -> random.Random:
    """Return a random stream that depends on the labels only.

    A hash, not Python's `hash()`: the stream is the same in every process and on every machine.
    Separate streams for keys, haystack and positions keep a longer haystack a prolongation of the
    shorter one, which is what makes the search for a fitting size converge.
    """
    digest = hashlib.sha256("/".join(str(label) for label in labels).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))
