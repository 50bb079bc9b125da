"""string_match_all on answers made by hand."""

from __future__ import annotations

import pytest

from kvahead_quality.score import clean, string_match_all


@pytest.mark.parametrize(
    ("output", "references", "score"),
    [
        (" 1234567.", ["1234567"], 1.0),
        ("", ["1234567"], 0.0),
        ("   \n", ["1234567"], 0.0),
        ("123456", ["1234567"], 0.0),
        ("12345678", ["1234567"], 1.0),  # containment, as in RULER: not equality
        ("The numbers are 1111111, 3333333", ["1111111", "2222222", "3333333", "4444444"], 0.5),
        ("abcde FGHIJ", ["ABCDE", "fghij"], 1.0),  # case ignored on both sides
        ("1. rabbit 2. lion", ["rabbit", "lion", "otter"], 2 / 3),
        ("one one one", ["one", "two"], 0.5),  # a repeated hit counts once
        ("12345\x0067", ["1234567"], 0.0),  # a control character splits, it does not vanish
        ("a\tb", ["a", "b"], 1.0),
        ("Ä-schön", ["ä-SCHÖN"], 1.0),
        ("1,234,567", ["1234567"], 0.0),
    ],
)
def test_string_match_all__hand_made(output: str, references: list[str], score: float) -> None:
    assert string_match_all(output, references) == pytest.approx(score)


@pytest.mark.parametrize("references", [[], [""], ["a", ""]])
def test_string_match_all__empty_references_are_an_error(references: list[str]) -> None:
    with pytest.raises(ValueError, match="non-empty"):
        string_match_all("a", references)


def test_clean__control_characters_become_newlines() -> None:
    assert clean(" a\x01b\r\nc \x1f") == "a\nb\n\nc"
