"""Variable tracking: RULER section 3 "Multi-hop tracing".

One chain VAR A = number, VAR B = VAR A, ... of four hops in the repeated noise; the answer is the
five names. As in RULER, one worked example with shorter names comes first. RULER fits that example
to 500 tokens of the tested model; ours has a fixed ten noise lines (400 to 550 tokens with common
tokenizers), so that the sample's text does not depend on the tokenizer twice.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from itertools import pairwise

from .base import Sample, stream
from .niah import NOISE

PROMPT = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
    "{context}\n"
    "Question: Find all variables that are assigned the value {query} in the text above."
)
# "assgined" is how RULER spells it; the wording is the benchmark's and stays.
PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} "
    "variables are assgined the value {query}, they are: "
)
HOPS = 4
EXAMPLE_NOISE_LINES = 10


def _names(rng: random.Random, count: int, letters: int) -> list[str]:
    """Draw distinct upper-case names of `letters` letters."""
    out: list[str] = []
    while len(out) < count:
        name = "".join(rng.choices(string.ascii_uppercase, k=letters))
        if name not in out:
            out.append(name)
    return out


def _question(
    names: list[str], value: int, noise_lines: int, where: random.Random
) -> tuple[str, str]:
    """Return (prompt, answer prefix) for one chain spread in order over the noise."""
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {new} = VAR {old} " for old, new in pairwise(names)]
    lines = [NOISE + "\n"] * noise_lines
    for shift, (place, link) in enumerate(
        zip(sorted(where.sample(range(noise_lines), len(chain))), chain, strict=True)
    ):
        lines.insert(place + shift, link)
    context = " ".join(lines)
    return (
        PROMPT.format(context=context, query=value),
        PREFIX.format(count=len(names), query=value),
    )


@dataclass(frozen=True)
class VariableTrackingTask:
    """RULER's vt with one chain of four hops; unit of size: one line of noise (about 25 tokens)."""

    name: str = "vt"
    hops: int = HOPS
    max_tokens: int = 30
    questions_max: int = 1

    @property
    def min_size(self) -> int:
        return self.hops + 2

    def build(self, size: int, length: int, seed: int, index: int, question: int = 0) -> Sample:
        rng = stream(self.name, length, seed, index, "names")
        names = _names(rng, self.hops + 1, 5)
        example_names = _names(rng, self.hops + 1, 3)
        value, example_value = rng.sample(range(10000, 99999), 2)
        where = stream(self.name, length, seed, index, "positions")
        shown, shown_prefix = _question(example_names, example_value, EXAMPLE_NOISE_LINES, where)
        prompt, prefix = _question(names, value, size, where)
        example = shown + shown_prefix + " ".join(example_names)
        return Sample(
            task=self.name,
            prompt=example + "\n\n\n\n" + prompt,
            answer_prefix=prefix,
            references=tuple(names),
            max_tokens=self.max_tokens,
            size=size,
            meta={"value": value},
        )
