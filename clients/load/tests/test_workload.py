"""Numbers, arrivals, prompts and traces: all of it follows from the seed."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics

import pytest

from kvahead_load import arrivals, workload
from kvahead_load.errors import UsageError
from kvahead_load.numbers import parse_distribution, parse_numbers, parse_share


def shape(prompt: str = "100", output: str = "10", **fields) -> workload.Shape:
    return workload.Shape(
        parse_distribution(prompt, "p"), parse_distribution(output, "o"), **fields
    )


def take(requests, count: int) -> list[workload.Request]:
    return list(itertools.islice(requests, count))


# ---- numbers ------------------------------------------------------------------------------------


def test_numbers__distributions():
    rng = random.Random(1)
    assert {parse_distribution("7", "x").draw(rng) for _ in range(50)} == {7}
    assert {parse_distribution("1k", "x").draw(rng) for _ in range(3)} == {1024}
    assert {parse_distribution("3-5", "x").draw(rng) for _ in range(200)} == {3, 4, 5}
    lognormal = parse_distribution("lognormal:1000:0.5", "x")
    draws = [lognormal.draw(rng) for _ in range(4000)]
    assert 950 < statistics.median(draws) < 1050
    assert statistics.stdev(math.log(d) for d in draws) == pytest.approx(0.5, rel=0.1)
    assert min(draws) >= 1 and max(draws) <= 1000 * math.exp(1.5) + 1


@pytest.mark.parametrize(
    "bad", ["", "0", "-3", "5-3", "a", "1.5", "3-", "lognormal:5", "lognormal:5:0", "lognormal::1"]
)
def test_numbers__bad_distributions(bad):
    with pytest.raises(UsageError, match="--prompt-tokens"):
        parse_distribution(bad, "--prompt-tokens")


def test_numbers__lists_and_shares():
    assert parse_numbers("1,2.5", "--rate", False, 10) == [1, 2.5]
    assert parse_share("10%", "x") == parse_share("0.1", "x") == 0.1
    for bad in ("", "0", "1,", "1,1", "11", "x", "nan", "inf"):
        with pytest.raises(UsageError, match="--rate"):
            parse_numbers(bad, "--rate", False, 10)
    with pytest.raises(UsageError, match="whole"):
        parse_numbers("1.5", "--concurrency", True, 10)
    for bad in ("1.1", "-1%", "x"):
        with pytest.raises(UsageError, match="--cancel"):
            parse_share(bad, "--cancel")


# ---- arrivals -----------------------------------------------------------------------------------


def gaps(process: str, rate: float, count: int = 5000) -> list[float]:
    times = list(itertools.islice(arrivals.process(process, rate, random.Random(3)), count))
    assert times == sorted(times)
    return [b - a for a, b in itertools.pairwise([0.0, *times])]


@pytest.mark.parametrize(
    ("process", "variation"), [("poisson", 1), ("gamma:2", 2), ("gamma:0.5", 0.5), ("constant", 0)]
)
def test_arrivals__rate_and_variation(process, variation):
    found = gaps(process, 4.0)
    assert statistics.mean(found) == pytest.approx(0.25, rel=0.12)
    spread = statistics.stdev(found) / statistics.mean(found)
    assert spread == pytest.approx(variation, rel=0.12, abs=1e-9)


def test_arrivals__unknown_processes():
    for bad in ("", "uniform", "gamma", "gamma:", "gamma:0", "gamma:17", "poisson:2"):
        with pytest.raises(UsageError, match="--arrivals"):
            arrivals.parse_process(bad)


# ---- prompts ------------------------------------------------------------------------------------


def test_workload__the_seed_decides():
    a = take(workload.synthetic(shape("50-90", "1-20", cancel_share=0.5)), 30)
    assert a == take(workload.synthetic(shape("50-90", "1-20", cancel_share=0.5)), 30)
    b = take(workload.synthetic(shape("50-90", "1-20", cancel_share=0.5, seed=2)), 30)
    assert all(x.prompt != y.prompt for x, y in zip(a, b, strict=True))
    assert [request.index for request in a] == list(range(30))
    assert len({request.output_tokens for request in a}) > 5
    left = [request for request in a if request.cancel_after is not None]
    assert 5 < len(left) < 25
    assert all(0 <= request.cancel_after < request.output_tokens for request in left)


def test_workload__token_ids_have_the_exact_length():
    for request in take(workload.synthetic(shape("64-80", vocab=1000)), 20):
        assert 64 <= len(request.prompt) <= 80
        assert all(100 <= token < 900 for token in request.prompt)


def test_workload__words_follow_the_calibration():
    (one,) = take(workload.synthetic(shape("1000", tokens_per_word=2.0)), 1)
    assert len(one.prompt.split()) == 500


@pytest.mark.parametrize("vocab", [None, 5000])
def test_workload__prefixes_are_shared_by_groups(vocab):
    prefixes = workload.Prefixes(tokens=70, groups=3)
    requests = take(workload.synthetic(shape("100", prefixes=prefixes, vocab=vocab)), 40)
    unit = (lambda p: p) if vocab else str.split
    beginnings = {tuple(unit(r.prompt)[:49]) for r in requests}
    assert len(beginnings) == 3
    assert len({tuple(unit(r.prompt)) for r in requests}) == 40
    if vocab:
        assert {len(r.prompt) for r in requests} == {100}


def test_workload__a_prompt_shorter_than_its_prefix_keeps_a_token_of_its_own():
    prefixes = workload.Prefixes(tokens=70, groups=1)
    a, b = take(workload.synthetic(shape("10", prefixes=prefixes, vocab=5000)), 2)
    assert len(a.prompt) == 10
    assert a.prompt[:9] == b.prompt[:9]
    assert a.prompt[9:] != b.prompt[9:]


def test_workload__a_prefix_longer_than_the_prompt_is_cut_in_words():
    """Of words too: the prompt has its length, and its beginning is that of longer ones."""
    prefixes = workload.Prefixes(tokens=600, groups=1)
    (long,) = take(workload.synthetic(shape("900", prefixes=prefixes, tokens_per_word=2.0)), 1)
    (short,) = take(workload.synthetic(shape("200", prefixes=prefixes, tokens_per_word=2.0)), 1)
    assert len(long.prompt.split()) == 450
    assert short.prompt.split()[:100] == long.prompt.split()[:100]
    # 199 tokens are shared; the one left is a word, since there is no half of one.
    assert len(short.prompt.split()) == 101


# ---- traces -------------------------------------------------------------------------------------


def write(path, lines):
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n\n")
    return path


def test_traces__own_lines_are_sorted_and_start_at_zero(tmp_path):
    path = write(
        tmp_path / "t.jsonl",
        [
            {"at_s": 12.0, "prompt_tokens": 30, "output_tokens": 4},
            {"at_s": 10.0, "prompt_tokens": 20, "output_tokens": 3},
        ],
    )
    rows = workload.load_trace(path)
    assert [(row.at_s, row.prompt_tokens) for row in rows] == [(0.0, 20), (2.0, 30)]
    requests = list(workload.from_trace(rows, shape(vocab=5000), speed=4))
    assert [request.at_s for request in requests] == [0.0, 0.5]
    assert [len(request.prompt) for request in requests] == [20, 30]
    assert [request.output_tokens for request in requests] == [3, 4]


def test_traces__mooncakes_blocks_are_shared(tmp_path):
    path = write(
        tmp_path / "t.jsonl",
        [
            {"timestamp": 0, "input_length": 1300, "output_length": 4, "hash_ids": [7, 8, 9]},
            {"timestamp": 500, "input_length": 1100, "output_length": 4, "hash_ids": [7, 8, 10]},
        ],
    )
    a, b = workload.from_trace(workload.load_trace(path), shape(vocab=50000), 1.0)
    assert (len(a.prompt), len(b.prompt), b.at_s) == (1300, 1100, 0.5)
    assert a.prompt[:1024] == b.prompt[:1024]
    assert a.prompt[1024:1100] != b.prompt[1024:]


def test_traces__azures_csv(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.1805900,396,109\n"
    )
    rows = workload.load_trace(path)
    assert [(r.prompt_tokens, r.output_tokens) for r in rows] == [(374, 44), (396, 109)]
    assert rows[1].at_s == pytest.approx(3.5, abs=1e-6)


def test_traces__azures_csv_with_offsets_from_utc(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:01+02:00,2399,6\n"
        "2024-05-10T00:00:02.5Z,76,15\n2024-05-10 00:00:03,12,7\n"
    )
    times = [row.at_s for row in workload.load_trace(path)]
    assert times == pytest.approx([0, 0.99007, 2.49007, 2.99007], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("t.jsonl", "", "no requests"),
        ("t.jsonl", "{", "line 1"),
        ("t.jsonl", '{"at_s": 1}', "line 1"),
        ("t.jsonl", "[1]", "line 1"),
        ("t.jsonl", '{"at_s": 0, "prompt_tokens": 0, "output_tokens": 1}', "no tokens"),
        ("t.csv", "a,b\n1,2\n", "not TIMESTAMP"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,2\n", "not TIMESTAMP"),
    ],
)
def test_traces__faults_name_the_place(tmp_path, name, text, part):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UsageError, match=part):
        workload.load_trace(path)
    with pytest.raises(UsageError, match="cannot read"):
        workload.load_trace(tmp_path / "missing.jsonl")
