"""An answer depends on its request alone: not on company, order, policy, memory, cache or framing."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import ROOT, Server

# Far more than fits: a page of the bundled model is 256 KiB, so this is 32 pages.
TINY = ("--device-memory", "8M", "--context", "1024")
SUBJECTS = [("a boy", 12), ("the old house by the river", 60), ("seven small stones", 130)]


def words(count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300, 3500) for _ in range(count)]


def subjects(server: Server) -> list[list[int]]:
    """Prompts of a few and of many tokens, ending inside of a page and at its end."""
    texts = [server.encode(f"Once upon a time there was {text}") for text, _ in SUBJECTS]
    long = [words(63, 1) + texts[0], words(64 * 5 - len(texts[1]), 2) + texts[1]]
    return [*texts, *long]


def crowd(count: int, seed: int) -> list[dict]:
    """Other people's requests: all kinds of lengths and parameters."""
    rng = random.Random(seed)
    requests = []
    for i in range(count):
        request = {"prompt": words(rng.choice([1, 7, 40, 64, 200, 400]), seed * 1000 + i)}
        request["max_tokens"] = rng.choice([1, 5, 40, 120])
        request["temperature"] = rng.choice([0, 0.7, 1.5])
        request["ignore_eos"] = True
        request["n"] = rng.choice([1, 1, 1, 2])
        request["priority"] = rng.choice([0, 0, -1, 1])
        requests.append(request)
    return requests


@pytest.fixture(scope="module")
def references(server: Server) -> list[list[int]]:
    """What each subject gets from a server that has nothing else to do."""
    server.wait_idle()
    return [
        server.tokens(ids, max_tokens=most, ignore_eos=True, cache_salt="reference")
        for ids, most in asked(server)
    ]


def asked(server: Server) -> list[tuple[list[int], int]]:
    lengths = [most for _, most in SUBJECTS] + [90, 150]
    return list(zip(subjects(server), lengths, strict=True))


def growing_crowd(count: int, seed: int) -> list[dict]:
    """Short prompts with long answers: admitted with little memory, then all of them want more."""
    prompts = [words(20, seed * 1000 + i) for i in range(count)]
    return [{"prompt": p, "max_tokens": 250, "ignore_eos": True} for p in prompts]


def ask_in_company(server: Server, seed: int, others: list[dict], **fields) -> list[list[int]]:
    """All subjects and the others at once, in an order of arrival that the seed decides."""
    requests: list[tuple[int, dict]] = [(-1, request) for request in others]
    for i, (ids, most) in enumerate(asked(server)):
        requests.append((i, {"prompt": ids, "max_tokens": most, "ignore_eos": True} | fields))
    random.Random(seed).shuffle(requests)
    answers: dict[int, list[int]] = {}

    def ask(item: tuple[int, dict]) -> None:
        index, request = item
        document = server.complete(**request)
        if index >= 0:
            answers[index] = document["choices"][0]["token_ids"]

    with ThreadPoolExecutor(len(requests)) as pool:
        list(pool.map(ask, requests))
    server.wait_idle()
    return [answers[i] for i in range(len(answers))]


@pytest.mark.parametrize("policy", ["full", "offload"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_company_and_order_of_arrival(server, references, policy, seed):
    assert ask_in_company(server, seed, crowd(59, seed), kv={"policy": policy}) == references


@pytest.mark.parametrize("policy", ["full", "offload"])
def test_alone_under_each_policy(server, references, policy):
    for (ids, most), reference in zip(asked(server), references, strict=True):
        fields = {"max_tokens": most, "ignore_eos": True, "cache_salt": policy}
        assert server.tokens(ids, kv={"policy": policy}, **fields) == reference


@pytest.mark.parametrize(
    ("policy", "cache"),
    [("full", "--prefix-cache"), ("full", "--no-prefix-cache"), ("offload", "--prefix-cache")],
)
def test_preemptions(servers, references, policy, cache):
    """A device budget that holds a fraction of what is running: choices are thrown out and come
    back, and nobody can tell from the tokens."""
    tiny = servers.start(*TINY, cache, "--kv", policy)
    for seed in (4, 5):
        assert ask_in_company(tiny, seed, growing_crowd(40, seed)) == references
    metrics = tiny.metrics()
    assert metrics["kvahead_preemptions_total"] > 0
    assert metrics['kvahead_requests_finished_total{reason="error"}'] == 0
    device = metrics['kvahead_kv_bytes{tier="device"}']
    assert device <= metrics['kvahead_kv_budget_bytes{tier="device"}'] == 8 << 20


# Policies whose answers are their own: what must hold is that they too depend on the request alone.
APPROXIMATING = {
    "kivi": {"policy": "kivi", "bits": 1, "min_tokens": 0},
    "spec-token": {"policy": "specache", "bits": 1, "topk": 24, "min_tokens": 0, "predictor": "spec-token"},
    "paper": {"policy": "specache", "paper": True, "topk": 16},
    "prev-query": {"policy": "specache", "bits": 2, "predictor": "prev-query", "min_tokens": 128},
    "sync": {"policy": "specache", "bits": 1, "topk": 8, "predictor": "sync", "min_tokens": 0},
    "ahead": {"policy": "infinigen", "skew": "none", "alpha": 1, "skip_layers": 1, "min_tokens": 0},
    "own-columns": {"policy": "infinigen", "skew": "none", "columns": "prompt", "skip_layers": 1, "min_tokens": 0},
}


@pytest.fixture(scope="module")
def own_references(server: Server) -> dict[str, list[list[int]]]:
    """What each subject gets under each approximating policy from a server with nothing to do."""
    server.wait_idle()
    return {
        name: [
            server.tokens(ids, max_tokens=most, ignore_eos=True, cache_salt=name, kv=kv)
            for ids, most in asked(server)
        ]
        for name, kv in APPROXIMATING.items()
    }


@pytest.mark.parametrize("name", APPROXIMATING)
def test_approximating__company(server, own_references, name):
    others = [
        request | {"kv": kv}
        for request, kv in zip(
            crowd(40, 21), [*APPROXIMATING.values(), {"policy": "offload"}] * 7, strict=False
        )
    ]
    assert ask_in_company(server, 22, others, kv=APPROXIMATING[name]) == own_references[name]


@pytest.mark.parametrize("name", APPROXIMATING)
def test_approximating__preemptions(servers, own_references, name):
    """64 requests where a few fit at a time: all finish, nothing exceeds its budget, and the
    answers are those that the requests get alone."""
    kv = APPROXIMATING[name]
    tiny = servers.start("--device-memory", "3M", "--context", "1024", "--sequences", "32")
    others = [request | {"kv": kv} for request in growing_crowd(59, 23)]
    assert ask_in_company(tiny, 24, others, kv=kv) == own_references[name]
    metrics = tiny.metrics()
    assert metrics["kvahead_preemptions_total"] > 0
    assert metrics['kvahead_requests_finished_total{reason="error"}'] == 0
    device = metrics['kvahead_kv_bytes{tier="device"}']
    assert device <= metrics['kvahead_kv_budget_bytes{tier="device"}'] == 3 << 20
    if kv["policy"] == "specache":
        assert metrics["kvahead_fetch_rows_hit_total"] + metrics["kvahead_fetch_rows_missed_total"]
    if kv["policy"] == "infinigen":
        assert metrics["kvahead_rehearsed_rows_total"] > 0
    if kv.get("predictor") == "spec-token" or kv.get("paper"):
        assert metrics["kvahead_speculative_tokens_total"] > 0


def test_dropping__company_and_preemptions(servers):
    """Sequences that have dropped tokens give way and come back; prompts that they share stay whole."""
    spec = ("--kv", "streaming:window=64", "--context", "1024")
    alone = servers.start(*spec)
    want = [alone.tokens(ids, max_tokens=most, ignore_eos=True) for ids, most in asked(alone)]
    tiny = servers.start(*spec, "--device-memory", "2M", "--sequences", "32")
    assert ask_in_company(tiny, 24, growing_crowd(59, 23)) == want
    metrics = tiny.metrics()
    assert metrics["kvahead_preemptions_total"] > 0 and metrics["kvahead_evicted_tokens_total"] > 0
    assert metrics['kvahead_requests_finished_total{reason="error"}'] == 0


def test_approximating__prompts_are_exact_for_all(server, references):
    """What an approximating policy wrote into the prefix cache does not show in exact answers."""
    for (ids, most), reference in zip(asked(server), references, strict=True):
        fields = {"ignore_eos": True, "cache_salt": "mixed"}
        lossy = server.tokens(ids, max_tokens=most, kv=APPROXIMATING["kivi"], **fields)
        assert server.tokens(ids, max_tokens=most, **fields) == reference
        longer = ids + lossy[: most // 2]
        assert server.tokens(longer, max_tokens=8, **fields) == server.tokens(
            longer, max_tokens=8, ignore_eos=True, cache_salt="elsewhere"
        )


@pytest.mark.parametrize(
    "options",
    [("--no-prefix-cache",), ("--threads", "1"), ("--step-tokens", "65"), ("--cpu-level", "avx2")],
)
def test_settings_of_the_server(servers, server, references, options):
    """Prefix cache, threads and the size of a step decide about time only. (The instruction set
    decides about rounding, so a server of another level is only held against itself.)"""
    other = servers.start(*options)
    got = ask_in_company(other, 6, crowd(20, 6))
    if "--cpu-level" in options:
        assert got == ask_in_company(other, 7, crowd(20, 7))
    else:
        assert got == references
    if "--no-prefix-cache" in options:
        assert other.metrics()["kvahead_prefix_hit_tokens_total"] == 0


def test_prefix_cache__hit_or_not(server, references):
    """The same prompt cold, warm, and extended by its own answer."""
    for (ids, most), reference in zip(asked(server), references, strict=True):
        fields = {"ignore_eos": True, "cache_salt": "prefix"}
        for _ in range(3):
            assert server.tokens(ids, max_tokens=most, **fields) == reference
        longer = ids + reference[: most // 2]
        rest = server.tokens(longer, max_tokens=most - most // 2, **fields)
        assert rest == reference[most // 2 :]


def byte_ids() -> dict[int, int]:
    """Byte -> id of the token that is this byte alone, from the tokenizer's file."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable}
    names |= {byte: chr(256 + i) for i, byte in enumerate(others)}
    vocab = json.loads((ROOT / "models/demo/tokenizer.json").read_text())["model"]["vocab"]
    return {byte: vocab[name] for byte, name in names.items()}


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "sample", ["\U0001f600", "한글", "e\u0301\u00fc", "\U0001f468\u200d\U0001f469 x"]
)
def test_streamed_or_not__at_every_length(server, route, sample):
    """Single bytes of characters of several bytes, drawn at random: every way in which a character
    can be complete, incomplete or wrong at the end of a chunk or of the whole text."""
    ids = byte_ids()
    allowed = sorted({ids[byte] for byte in sample.encode()})
    fields = {"temperature": 1.0, "seed": 9, "allowed_token_ids": allowed, "ignore_eos": True}
    fields["return_token_ids"] = True
    if route == "/v1/completions":
        fields["prompt"] = sample
    else:
        fields["messages"] = [{"role": "user", "content": sample}]
    bytes_of = {token: byte for byte, token in ids.items()}
    for most in [*range(1, 14), 64]:
        fields["max_tokens"] = most
        choice = server.post(route, fields).json()["choices"][0]
        whole = choice["text"] if "text" in choice else choice["message"]["content"]
        said = bytes(bytes_of[token] for token in choice["token_ids"])
        assert whole == said.decode(errors="replace")
        text, tokens = "", []
        with server.stream(route, **fields) as stream:
            for frame in stream.frames():
                piece = frame["choices"][0]
                text += piece["text"] if "text" in piece else piece["delta"].get("content", "")
                tokens += piece.get("token_ids", [])
        assert (text, tokens) == (whole, choice["token_ids"])


def test_streamed_or_not__greedy(server, references):
    ids, _ = asked(server)[2]
    for most in (1, 2, 3, 10, 63, 64, 65, 129):
        with server.stream(
            "/v1/completions", prompt=ids, max_tokens=most, ignore_eos=True, return_token_ids=True
        ) as stream:
            got = [t for f in stream.frames() for t in f["choices"][0].get("token_ids", [])]
        assert got == references[2][:most]
