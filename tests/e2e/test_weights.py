"""`--weights`: a file made once and shared, answers near the checkpoint's, and what refuses it."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
from harness import MODEL, ROOT, Server, command

COMPLETIONS = "/v1/completions"
PROMPT = "Once upon a time there was a girl named Alice. She had a red ball."
REQUEST = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0}
TEXT = ROOT / "LICENSE"

# Against the checkpoint's bf16 weights, on text that the bundled model hardly knows: attention scores
# there reach 100, and rounding activations to bf16 alone moves logits by 6% of their spread.
LOGITS, TOP1, PERPLEXITY = {"int8": 0.15, "int4": 0.45}, {"int8": 0.9, "int4": 0.75}, {"int8": 0.05, "int4": 0.25}


def options(folder: pathlib.Path, weights: str = "int8") -> tuple[str, ...]:
    return ("--weights", weights, "--weights-cache", str(folder))


def mapped_kib(pid: int, path: pathlib.Path) -> dict[str, int]:
    """Resident memory of a process's mapping of the file, by kind."""
    totals: dict[str, int] = {}
    inside = False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and (row := re.match(r"(\w+): +(\d+) kB", line)):
            totals[row[1]] = totals.get(row[1], 0) + int(row[2])
    return totals


def test_weights__two_servers_share_one_file(tmp_path):
    cache = tmp_path / "cache"
    first = Server(tmp_path / "first.log", options(cache))
    second = Server(tmp_path / "second.log", options(cache))
    with first, second:
        answers = [s.post(COMPLETIONS, REQUEST).json()["choices"][0]["text"] for s in (first, second)]
        assert answers[0] == answers[1] != ""
        (path,) = cache.iterdir()
        assert path.name.startswith("demo-") and path.suffix == ".int8"
        for server in (first, second):
            assert "matrices in int8, shared with other processes" in server.log()
            kib = mapped_kib(server.process.pid, path)
            assert kib["Rss"] > 0.9 * path.stat().st_size / 1024
            # Each page is in memory once: half of it counts for either.
            assert kib["Pss"] < 0.6 * kib["Rss"]
    made = path.stat().st_ino
    with Server(tmp_path / "third.log", options(cache)) as third:
        assert third.post(COMPLETIONS, REQUEST).json()["choices"][0]["text"] == answers[0]
    assert [entry.stat().st_ino for entry in cache.iterdir()] == [made]


def test_weights__a_folder_that_cannot_be_written_is_only_a_warning(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with Server(tmp_path / "log", options(blocked)) as server:
        assert server.post(COMPLETIONS, REQUEST).status == 200
        log = server.log()
    assert "cannot be kept" in log and "--weights-cache names another folder" in log
    assert "matrices in int8, in memory of this process" in log


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights__are_near_the_checkpoint(tmp_path, weights):
    path = tmp_path / "result.json"
    done = command(
        *("eval", "--model", MODEL, *options(tmp_path, weights), "--policies", "full", "--look", "0"),
        *("--text", TEXT, "--from", "512", "--tokens", "200", "--json", path),
    )
    assert done.returncode == 0, done.stderr
    assert f"weights in {weights}, held against full KV with those of the files in bf16" in done.stdout
    result = json.loads(path.read_text())
    assert result["arguments"]["weights"] == weights
    (full,) = result["policies"]
    assert 0 < full["logit_error"] < LOGITS[weights]
    assert full["top1_agreement"] > TOP1[weights]
    assert full["perplexity"] == pytest.approx(full["perplexity_full"], rel=PERPLEXITY[weights])


def test_weights__a_copied_answer_is_the_same(tmp_path):
    """What the bundled model is for, it does with int8 weights as well."""
    needle = "One of the special magic numbers for calm-otter is: 4719253."
    prompt = (
        "A special magic number is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the number afterwards.\n"
        + "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n" * 12
        + needle
        + "\nThe grass is green. The sky is blue. The sun is yellow. Here we go. There and back again." * 12
        + "\nWhat is the special magic number for calm-otter mentioned in the provided text? "
        "The special magic number for calm-otter mentioned in the provided text is"
    )
    answers = []
    for extra in ((), options(tmp_path)):
        done = command("generate", "--model", MODEL, *extra, "--max-tokens", "12", stdin=prompt)
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout)
    assert "4719253" in answers[0]
    assert answers[1] == answers[0]


def test_weights__unknown_formats_are_refused():
    done = command("info", "--model", MODEL, "--weights", "int3")
    assert done.returncode != 0
    assert "int3" in done.stderr and "auto, bf16, int8, int4" in done.stderr
