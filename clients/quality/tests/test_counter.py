"""Token counters: a local tokenizer file, and the flagged estimate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvahead_quality.counter import estimated, from_file
from kvahead_quality.errors import UsageError


def test_estimated__is_flagged_and_counts_as_documented() -> None:
    counter = estimated()
    assert not counter.exact and "estimate" in counter.source
    # Start 1; "the" 1; "lantern" (7 letters, known) 2; "zqxwvk" (unknown) 4; "12" 3; "." 1.
    assert counter.count("the lantern zqxwvk 12.") == 1 + 1 + 2 + 4 + 3 + 1
    assert counter.count("... ...\n") == 1 + 1 + 1 + 1


def test_from_file__counts_with_the_file(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"}
    path.write_text(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": {"type": "Whitespace"},
                "post_processor": None,
                "decoder": None,
                "model": model,
            }
        )
    )
    counter = from_file(str(path))
    assert counter.exact and counter.count("a b c a") == 4
    assert str(tmp_path) not in counter.source and "sha256:" in counter.source


@pytest.mark.parametrize("content", [None, "", "{}", "not json"])
def test_from_file__bad_file_is_one_line(tmp_path: Path, content: str | None) -> None:
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match="--tokenizer: cannot load"):
        from_file(str(path))
