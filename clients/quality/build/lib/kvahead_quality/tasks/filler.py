"""Essay-like filler text, generated: the haystack of the tasks that RULER builds on essays.

Plain declarative English without digits, so that a filler sentence can never contain a value that
a task asks for. The sentences repeat patterns, not each other: the grammar has several million
outcomes. It is easier for a language model to compress than real essays, which is stated in the
README because it can flatter a score.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_SUBJECTS = (
    "the craft of building things",
    "a careful reader",
    "my oldest friend",
    "a good founder",
    "a good programmer",
    "the city",
    "every serious hobby",
    "the history of painting",
    "a small company",
    "the first draft",
    "an old habit",
    "the market",
    "nearly every teacher",
    "a stubborn question",
    "the work itself",
    "the second version",
    "a group of students",
    "the language we speak",
    "somebody with no plan",
    "the committee",
    "a long walk",
    "the new tool",
    "my own experience",
    "the usual advice",
    "an expert from elsewhere",
    "whoever starts early",
    "the smallest team in the building",
    "a patient investor",
    "the common opinion",
    "an honest mistake",
    "the weather outside",
    "a quiet afternoon",
)
_VERBS = (
    "changes",
    "explains",
    "ignores",
    "rewards",
    "makes room for",
    "depends on",
    "competes with",
    "improves",
    "slows down",
    "reminds us of",
    "hides",
    "reveals",
    "outlives",
    "starts with",
    "looks nothing like",
    "is measured against",
    "borrows from",
    "grows out of",
    "prepares us for",
    "gets in the way of",
    "is easily mistaken for",
    "pays for",
    "turns into",
    "is limited by",
)
_OBJECTS = (
    "the ideas that seemed obvious",
    "a better question",
    "what we call taste",
    "the habits of a lifetime",
    "the cost of being wrong",
    "an argument about money",
    "the work nobody wants to do",
    "a kind of curiosity",
    "the way large groups decide",
    "the things one learns by accident",
    "a plan on a single sheet of paper",
    "the difference between speed and hurry",
    "the opinion of strangers",
    "a problem worth having",
    "the pleasure of finishing",
    "whatever was there before",
    "the rules of the old game",
    "a more interesting mistake",
    "the advice given to beginners",
    "the next ten years",
    "an unfinished conversation",
    "the shape of a good day",
    "a reason to keep going",
    "the part that cannot be taught",
    "some very ordinary material",
    "the distance between cities",
    "an audience that is not there yet",
    "the patience of everyone involved",
)
_OPENERS = (
    "In practice",
    "Looking back",
    "For most of us",
    "Oddly enough",
    "At the beginning",
    "Over a long enough time",
    "When nobody is watching",
    "As a rule",
    "In a strange way",
    "If you pay attention",
    "After the first year",
    "On a good day",
    "To an outsider",
    "More often than not",
    "Once the excitement fades",
    "Seen from the inside",
)
_TAILS = (
    "which is why so few people try",
    "and that is rarely an accident",
    "even if nobody says so aloud",
    "though it takes years to notice",
    "and the reverse is true as well",
    "at least until something breaks",
    "because the alternative is worse",
    "as anyone who has tried will tell you",
    "and it should not surprise us",
    "but only for those who stay",
    "so the details matter more than the plan",
    "and yet we keep looking elsewhere",
    "unless the question itself is wrong",
    "which turns out to be enough",
    "and there is no shortcut around it",
    "long before anyone writes it down",
)
_SHORT = (
    "This is harder than it sounds.",
    "It was not always so.",
    "That is the interesting part.",
    "We should be suspicious of this.",
    "I have seen it happen more than once.",
    "There is a simple test for it.",
    "The answer is not what you expect.",
    "Nothing about it is automatic.",
    "It helps to start small.",
    "Most people stop there.",
    "You can tell by what they leave out.",
    "The rest is repetition.",
)


def sentences(rng: random.Random) -> Iterator[str]:
    """Yield sentences without end; the same stream gives the same text."""
    while True:
        kind = rng.random()
        if kind < 0.12:
            yield rng.choice(_SHORT)
            continue
        core = f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)}"
        if kind < 0.45:
            text = f"{rng.choice(_OPENERS)}, {core}"
        else:
            text = core[0].upper() + core[1:]
        if kind > 0.70 or 0.30 < kind < 0.45:
            text = f"{text}, {rng.choice(_TAILS)}"
        yield text + "."


def take(rng: random.Random, count: int) -> list[str]:
    """Return the first `count` sentences of the stream."""
    source = sentences(rng)
    return [next(source) for _ in range(count)]


def phrases() -> tuple[str, ...]:
    """Return every phrase of the grammar, for those who need the vocabulary."""
    return _SUBJECTS + _VERBS + _OBJECTS + _OPENERS + _TAILS + _SHORT
