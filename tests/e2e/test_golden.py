"""The bundled model's numbers as transformers computes them (tests/golden/make_demo.py), through
the API: log-probabilities of prompts and of greedy continuations, and the continuations themselves.

The reference is float32 throughout; the server keeps keys and values in 16 bits. Greedy decoding is
compared up to the first token that the reference itself all but tied.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import platform

import pytest
from harness import CONTEXT, MODEL, ROOT, Server

GOLDEN = pathlib.Path(
    os.environ.get("KVAHEAD_TEST_GOLDEN") or ROOT / "tests" / "golden" / "demo" / "expected.json"
)
MAKE = "run tests/golden/make_demo.py (needs torch and transformers)"
# What the model hardly expects moves more and matters less.
FLOOR = -12.0


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Differences of a log-probability: of the mean, of 98 in 100, of any; `margin` is how far a
    logit must lead for the token to be certain. Among uuids, scores of about 100 compete that differ
    by less than one: all is then `uuids` times as much."""

    mean: float
    most: float
    worst: float
    margin: float
    uuids: float


# By the highest level that is used. At avx2 keys and values have 8 significant bits, all else is
# fp32: scores of size 10 move by some hundredths. The best level of a machine may round queries and
# weights of attention to bf16 too, and the bundled model's scores reach 100: they move by tenths.
LEVELS = {
    "avx2": Bounds(0.03, 0.2, 0.8, 0.25, 3.0),
    "auto": Bounds(0.1, 0.6, 3.0, 1.5, 5.0),
}
SHORT = 500


@pytest.fixture(scope="module")
def golden() -> dict:
    if not GOLDEN.exists():
        pytest.skip(f"there is no {GOLDEN.name} of the bundled model: {MAKE}")
    expected = json.loads(GOLDEN.read_text())
    assert expected["format"] == 1
    weights = hashlib.sha256((MODEL / "model.safetensors").read_bytes()).hexdigest()
    assert expected["model_sha256"] == weights, f"the golden file is of other weights: {MAKE}"
    return expected


@pytest.fixture(scope="module", params=LEVELS)
def leveled(request, tmp_path_factory: pytest.TempPathFactory):
    """A server of a level, and what may be expected of it."""
    level = request.param
    if level != "auto" and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip(f"this machine has no level {level}")
    log = tmp_path_factory.mktemp("golden") / "server.log"
    with Server(log, ("--cpu-level", level)) as started:
        yield started, LEVELS[level]


def certain(case: dict, bounds: Bounds) -> int:
    """How many greedy tokens are certain."""
    for i, margin in enumerate(case["greedy_margins"]):
        if margin < bounds.margin:
            return i
    return len(case["greedy"])


def hold_against(got: dict[int, float], ids: list[int], logprobs: list[float]) -> list[float]:
    """Differences of the tokens that both list."""
    both = [(got[i], value) for i, value in zip(ids, logprobs, strict=True) if i in got]
    return [abs(ours - value) for ours, value in both if value > FLOOR]


@pytest.mark.parametrize("policy", ["full", "offload"])
def test_golden__greedy_tokens(golden, leveled, policy):
    server, bounds = leveled
    compared = 0
    for case in golden["cases"]:
        count = len(case["greedy"])
        if count == 0:
            continue
        sure = certain(case, bounds)
        fields = {"kv": {"policy": policy}, "logprobs": 0, "cache_salt": f"golden {policy}"}
        choice = server.complete(case["prompt"], max_tokens=count, **fields)["choices"][0]
        assert choice["token_ids"][:sure] == case["greedy"][:sure], case["name"]
        ours = choice["logprobs"]["token_logprobs"][:sure]
        for mine, theirs in zip(ours, case["greedy_logprobs"][:sure], strict=True):
            assert abs(mine - theirs) < bounds.worst, case["name"]
        compared += sure
    assert compared >= len(golden["cases"]), "hardly a token was certain"


def test_golden__prompt_log_probabilities(golden, leveled):
    server, bounds = leveled
    for case in golden["cases"]:
        prompt = case["prompt"][: CONTEXT - 1]
        top = 20 if len(prompt) <= SHORT else 5
        fields = {"prompt_logprobs": top, "max_tokens": 1, "cache_salt": "golden"}
        entries = server.complete(prompt, **fields)["choices"][0]["prompt_logprobs"]
        differences = []
        uuids = "uuids" in case["name"]
        slack = bounds.uuids if uuids else 1.0
        for position, ids, logprobs in zip(
            case["positions"], case["top_ids"], case["top_logprobs"], strict=True
        ):
            if position + 1 >= len(prompt):
                continue
            entry = {int(i): e["logprob"] for i, e in entries[position + 1].items()}
            if not uuids and logprobs[0] - logprobs[1] > bounds.margin:
                best = max(entry, key=entry.get)
                assert best == ids[0], (case["name"], position)
            found = hold_against(entry, ids, logprobs)
            # Where the model is all but certain, only the first one is above FLOOR.
            assert found, (case["name"], position)
            differences += found
        if differences:
            differences.sort()
            assert differences[-1] < slack * bounds.worst, case["name"]
            assert differences[len(differences) * 98 // 100] < slack * bounds.most, case["name"]
            assert sum(differences) / len(differences) < slack * bounds.mean, case["name"]
