"""Look-alike facts: facts of one form spread over an essay, and questions about each.

Not one of RULER's tasks. There, a needle in an essay stands out from it, and a haystack of needles
is no text; a document that people ask about has both, prose and facts that look alike. A context
answers many questions: what a long prefill costs is paid once.
"""

from __future__ import annotations

from dataclasses import dataclass

from .base import Sample, stream
from .filler import take
from .words import ADJECTIVES, NOUNS

FACT = "The access code of the {key} locker is {value}."
PROMPT = (
    "Read the following text and remember the access codes of the lockers in it.\n\n{context}\n\n"
    "What is the access code of the {key} locker?"
)
PREFIX = " The access code of the {key} locker is"
CODE_DIGITS = 8  # hexadecimal
# As many facts as leave most of the text to the essay, up to sixty (from 7680 tokens on).
FACTS_MAX, TOKENS_PER_FACT = 60, 128


@dataclass(frozen=True)
class FactsTask:
    """Facts that look alike among generated sentences; unit of size: one sentence."""

    name: str = "facts"
    max_tokens: int = 16
    min_size: int = FACTS_MAX
    questions_max: int = 30

    def build(self, size: int, length: int, seed: int, index: int, question: int = 0) -> Sample:
        label = (self.name, length, seed, index)
        count = min(max(length // TOKENS_PER_FACT, 4), FACTS_MAX)
        rng = stream(*label, "facts")
        pairs = zip(rng.sample(ADJECTIVES, count), rng.sample(NOUNS, count), strict=True)
        keys = [f"{first} {second}" for first, second in pairs]
        smallest = 16 ** (CODE_DIGITS - 1)
        codes = stream(*label, "codes").sample(range(smallest, 16 * smallest), count)
        lines = take(stream(*label, "haystack"), size)
        # From the back, so that an earlier insertion moves no later place.
        places = sorted(stream(*label, "positions").sample(range(size), count), reverse=True)
        for place, key, code in zip(places, keys, codes, strict=True):
            lines.insert(place, FACT.format(key=key, value=f"{code:x}"))
        order = stream(*label, "questions").sample(range(count), count)
        asked = order[question % count]
        return Sample(
            task=self.name,
            prompt=PROMPT.format(context=" ".join(lines), key=keys[asked]),
            answer_prefix=PREFIX.format(key=keys[asked]),
            references=(f"{codes[asked]:x}",),
            max_tokens=self.max_tokens,
            size=size,
            meta={"keys": keys, "asked": [keys[asked]]},
        )
