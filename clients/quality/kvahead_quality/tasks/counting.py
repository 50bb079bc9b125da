"""Common and frequent words: RULER section 3 "Aggregation"."""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass

from .base import Sample, TaskError, stream
from .words import ALL_WORDS, NOUNS

CWE_PROMPT = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n{context}\n"
    "Question: What are the 10 most common words in the above list?"
)
CWE_PREFIX = " Answer: The top 10 words that appear most often in the list are:"
COMMON = 10

FWE_PROMPT = (
    "Read the following coded text and track the frequency of each coded word. Find the three most "
    "frequently appeared coded words. {context}\n"
    "Question: Do not provide any explanation. Please ignore the dots '....'. What are the three "
    "most frequently appeared words in the above coded text?"
)
FWE_PREFIX = (
    " Answer: According to the coded text above, the three most frequently appeared words are:"
)


def _numbered(words: list[str]) -> str:
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, start=1))


def _vocabulary(rng: random.Random) -> Iterator[str]:
    """Yield distinct words: the whole list shuffled, then compounds of two nouns."""
    words = list(ALL_WORDS)
    rng.shuffle(words)
    yield from words
    seen = set(words)
    while True:
        for _ in range(1000):
            word = rng.choice(NOUNS) + rng.choice(NOUNS)
            if word not in seen:
                break
        else:
            raise TaskError(f"no unused word left after {len(seen)} of them")
        seen.add(word)
        yield word


def _word_list(
    rng: random.Random, order: random.Random, count: int, often: int, rarely: int
) -> tuple[list[str], list[str]]:
    """Return (list, common words): 10 words `often` times, `count` - 10 words `rarely` times.

    A rare word that contains a common one, or is contained in it, is passed over: the scoring is
    by substring and would count it.
    """
    source = _vocabulary(rng)
    common: list[str] = []
    rare: list[str] = []
    while len(common) + len(rare) < count:
        word = next(source)
        if any(word in other or other in word for other in common):
            continue
        (common if len(common) < COMMON else rare).append(word)
    words = common * often + rare * rarely
    order.shuffle(words)
    return words, common


@dataclass(frozen=True)
class CommonWordsTask:
    """RULER's cwe; unit of size: one distinct word.

    From 4096 tokens the common words appear 30 times and the others 3 times, with an example of
    40 words (10 and 3 times); below that, 6 times and once, with an example of 20 words (3 times
    and once): RULER's numbers.
    """

    name: str = "cwe"
    max_tokens: int = 120
    min_size: int = COMMON + 1
    questions_max: int = 1

    def build(self, size: int, length: int, seed: int, index: int, question: int = 0) -> Sample:
        short = length < 4096
        label = (self.name, length, seed, index)
        shown, shown_answer = _word_list(
            stream(*label, "example"),
            stream(*label, "example order"),
            *((20, 3, 1) if short else (40, 10, 3)),
        )
        words, answer = _word_list(
            stream(*label, "words"),
            stream(*label, "order"),
            size,
            *((6, 1) if short else (30, 3)),
        )
        example = CWE_PROMPT.format(context=_numbered(shown)) + CWE_PREFIX
        return Sample(
            task=self.name,
            prompt=example
            + " "
            + _numbered(shown_answer)
            + "\n"
            + CWE_PROMPT.format(context=_numbered(words)),
            answer_prefix=CWE_PREFIX,
            references=tuple(answer),
            max_tokens=self.max_tokens,
            size=size,
            meta={"items": len(words)},
        )


def zeta(alpha: float) -> float:
    """Riemann's zeta for alpha > 1: the sum to 10,000 and Euler-Maclaurin's tail."""
    n = 10_000
    head = math.fsum(k**-alpha for k in range(1, n))
    return head + n ** (1 - alpha) / (alpha - 1) + 0.5 * n**-alpha + alpha / 12 * n ** (-alpha - 1)


@dataclass(frozen=True)
class FrequentWordsTask:
    """RULER's fwe: six-letter words with Zipf frequencies; unit of size: one word before rounding.

    The most frequent one is replaced by dots and is to be ignored; the answer is ranks 2 to 4.
    `alpha` is the exponent, 2.0 in RULER. The vocabulary has length/50 words.
    """

    name: str = "fwe"
    alpha: float = 2.0
    letters: int = 6
    max_tokens: int = 50
    # From 80 words on the counts of ranks 2 to 5 differ (80 * 6/pi^2 * (1/16 - 1/25) > 1).
    min_size: int = 80
    questions_max: int = 1

    def build(self, size: int, length: int, seed: int, index: int, question: int = 0) -> Sample:
        rng = stream(self.name, length, seed, index, "vocabulary")
        count = max(length // 50, 8)
        seen: dict[str, None] = {}
        while len(seen) < count:
            seen["".join(rng.choices(string.ascii_lowercase, k=self.letters))] = None
        vocabulary = ["...", *list(seen)[1:]]
        total = size / zeta(self.alpha)
        words: list[str] = []
        for rank, word in enumerate(vocabulary, start=1):
            words += [word] * int(total * rank**-self.alpha)
        stream(self.name, length, seed, index, "order").shuffle(words)
        return Sample(
            task=self.name,
            prompt=FWE_PROMPT.format(context=" ".join(words)),
            answer_prefix=FWE_PREFIX,
            references=tuple(vocabulary[1:4]),
            max_tokens=self.max_tokens,
            size=size,
            meta={"words": len(words)},
        )
