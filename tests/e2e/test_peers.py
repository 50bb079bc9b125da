"""tests/peers: what is measured beside llama.cpp is the same model in GGUF."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from harness import MODEL, ROOT, command

TEXT = "Once upon a time 1234 bababa bogilo."


def made(folder: pathlib.Path) -> pathlib.Path:
    done = command("make-model", "--shape", MODEL / "config.json", "--seed", "1", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("model", ["demo", "made"])
def test_peers__to_gguf_keeps_tokens_and_answers(tmp_path, model):
    """The bundled model has merges, one of make-model only whole words, and another pre-tokenizer."""
    folder, out = MODEL if model == "demo" else made(tmp_path / "made"), tmp_path / "out.gguf"
    subprocess.run([sys.executable, ROOT / "tests/peers/to_gguf.py", folder, out], check=True)
    answers = []
    for path in (folder, out):
        ids = command("tokenize", "--model", path, "--ids", TEXT)
        text = command("generate", "--model", path, "--max-tokens", "12", "--temperature", "0", TEXT)
        assert ids.returncode == text.returncode == 0, ids.stderr + text.stderr
        answers.append((ids.stdout, text.stdout))
    assert answers[0] == answers[1]
    assert answers[0][0].split()[1:] and answers[0][1]
