"""The bundled model's numbers as transformers computes them (tests/golden/make_demo.py), through
the API: log-probabilities of prompts and of greedy continuations, and the continuations themselves.

The reference is float32 throughout; the server keeps keys and values in 16 bits. Greedy decoding is
compared up to the first token that the reference itself all but tied.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib

import pytest
from harness import CONTEXT, MODEL, ROOT, Server

GOLDEN = pathlib.Path(
    os.environ.get("KVAHEAD_TEST_GOLDEN") or ROOT / "tests" / "golden" / "demo" / "expected.json"
)
MAKE = "run tests/golden/make_demo.py (needs torch and transformers)"
# Differences of a log-probability. bf16 keys, values and, where the processor multiplies in bf16,
# queries have 8 significant bits, and the bundled model's scores reach 100: they move by tenths. What
# the model hardly expects (below FLOOR) moves more and matters less.
MEAN, MOST, WORST, FLOOR = 0.1, 0.6, 3.0, -12.0
# Among uuids scores of about 100 compete that differ by less than one: rounding decides between
# places here and there, so that only most differences are bounded, and by this much more.
UUIDS = 5.0
# By this much a logit must lead for the token to be certain.
MARGIN = 1.5
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


def certain(case: dict) -> int:
    """How many greedy tokens are certain."""
    for i, margin in enumerate(case["greedy_margins"]):
        if margin < MARGIN:
            return i
    return len(case["greedy"])


def hold_against(got: dict[int, float], ids: list[int], logprobs: list[float]) -> list[float]:
    """Differences of the tokens that both list."""
    both = [(got[i], value) for i, value in zip(ids, logprobs, strict=True) if i in got]
    return [abs(ours - value) for ours, value in both if value > FLOOR]


@pytest.mark.parametrize("policy", ["full", "offload"])
def test_golden__greedy_tokens(golden, server: Server, policy):
    compared = 0
    for case in golden["cases"]:
        count = len(case["greedy"])
        if count == 0:
            continue
        sure = certain(case)
        fields = {"kv": {"policy": policy}, "logprobs": 0, "cache_salt": f"golden {policy}"}
        choice = server.complete(case["prompt"], max_tokens=count, **fields)["choices"][0]
        assert choice["token_ids"][:sure] == case["greedy"][:sure], case["name"]
        ours = choice["logprobs"]["token_logprobs"][:sure]
        for mine, theirs in zip(ours, case["greedy_logprobs"][:sure], strict=True):
            assert abs(mine - theirs) < WORST, case["name"]
        compared += sure
    assert compared >= len(golden["cases"]), "hardly a token was certain"


def test_golden__prompt_log_probabilities(golden, server: Server):
    for case in golden["cases"]:
        prompt = case["prompt"][: CONTEXT - 1]
        top = 20 if len(prompt) <= SHORT else 5
        fields = {"prompt_logprobs": top, "max_tokens": 1, "cache_salt": "golden"}
        entries = server.complete(prompt, **fields)["choices"][0]["prompt_logprobs"]
        differences = []
        uuids = "uuids" in case["name"]
        slack = UUIDS if uuids else 1.0
        for position, ids, logprobs in zip(
            case["positions"], case["top_ids"], case["top_logprobs"], strict=True
        ):
            if position + 1 >= len(prompt):
                continue
            entry = {int(i): e["logprob"] for i, e in entries[position + 1].items()}
            if not uuids and logprobs[0] - logprobs[1] > MARGIN:
                best = max(entry, key=entry.get)
                assert best == ids[0], (case["name"], position)
            found = hold_against(entry, ids, logprobs)
            # Where the model is all but certain, only the first one is above FLOOR.
            assert found, (case["name"], position)
            differences += found
        if differences:
            differences.sort()
            assert uuids or differences[-1] < WORST, case["name"]
            assert differences[len(differences) * 98 // 100] < slack * MOST, case["name"]
            assert sum(differences) / len(differences) < slack * MEAN, case["name"]
