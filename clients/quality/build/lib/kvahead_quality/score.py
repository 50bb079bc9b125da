"""Scoring as in RULER (section 4, "recall-based accuracy")."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x1f]")


def clean(output: str) -> str:
    """Prepare an output for scoring: control characters become newlines, ends are stripped."""
    return _CONTROL.sub("\n", output.strip()).strip()


def string_match_all(output: str, references: Sequence[str]) -> float:
    """Return the share of references contained in the output, case ignored: 0..1.

    An empty reference would be contained in everything and is an error of the caller.
    """
    if not references or not all(references):
        raise ValueError("references must be a non-empty list of non-empty strings")
    text = clean(output).lower()
    return sum(reference.lower() in text for reference in references) / len(references)
