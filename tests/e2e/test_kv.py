"""The field `kv` and its account: what is asked for is what runs, and what it took is told."""

from __future__ import annotations

import pytest
from harness import ROOT, Server, command

PROMPT = [300 + i * 7 % 3000 for i in range(1200)]


def account(server: Server, **kv: object) -> dict:
    fields = {"max_tokens": 20, "ignore_eos": True, "cache_salt": repr(kv)}
    document = server.complete(PROMPT, kv=kv | {"report": True}, **fields)
    return document["usage"]["kvahead"]


def test_device_bytes_by_policy(server: Server):
    full = account(server, policy="full")["device_bytes"]
    bits = [account(server, policy="kivi", bits=b)["device_bytes"] for b in (4, 2, 1)]
    assert full > 2 * bits[0] > 2 * bits[1] > 2 * bits[2]
    rows = [account(server, policy="specache", topk=k)["device_bytes"] for k in (0, 16, 64)]
    assert rows[0] == bits[1] < rows[1] < rows[2] < full
    assert account(server, policy="specache", min_tokens=4096)["device_bytes"] == full


def test_speculation_is_told(server: Server):
    told = account(server, policy="specache", topk=16, predictor="spec-token")
    assert told["policy"] == "specache"
    # The first token comes from the prefill, and the last one is not run.
    assert told["speculative_tokens"] == 18
    assert 0 <= told["speculative_tokens_matched"] <= 18
    assert told["prefetch_rows_missed"] > 0
    assert told["fetched_bytes"] >= told["prefetch_rows_missed"] * 4 * 64
    assert account(server, policy="specache", predictor="sync")["speculative_tokens"] == 0
    assert account(server, policy="specache")["speculative_tokens"] == 0  # auto, on a CPU


def test_rows_by_layer(server: Server):
    few, more, all_more = (
        account(server, policy="specache", topk=k)["device_bytes"] for k in ("16", "16+64@0-1", 64)
    )
    assert few < more < all_more
    assert few == account(server, policy="specache", topk=16)["device_bytes"]
    same = {"max_tokens": 20, "ignore_eos": True, "cache_salt": "same"}
    want = server.tokens(PROMPT, kv={"policy": "specache", "topk": 64}, **same)
    got = server.tokens(PROMPT, kv={"policy": "specache", "topk": "16+64@0-3"}, **same)
    assert got == want


def test_fetching_the_difference_fetches_less(server: Server):
    every = account(server, policy="specache", topk=32, fetch="all")
    delta = account(server, policy="specache", topk=32, fetch="delta")
    assert every["prefetch_rows_hit"] == 0
    assert delta["prefetch_rows_hit"] + delta["prefetch_rows_missed"] == every["prefetch_rows_missed"]
    assert delta["prefetch_rows_hit"] > 0


def test_exact_is_exact(servers, server: Server):
    lossy = servers.start("--kv", "kivi:1:min_tokens=0")
    want = server.tokens(PROMPT, max_tokens=30, ignore_eos=True)
    got = lossy.complete(
        PROMPT, max_tokens=30, ignore_eos=True, return_token_ids=True, kv={"exact": True, "report": True}
    )
    assert got["choices"][0]["token_ids"] == want
    assert got["usage"]["kvahead"]["policy"] == "offload"
    assert lossy.complete(PROMPT, max_tokens=2, kv={"report": True})["usage"]["kvahead"]["policy"] == "kivi"


@pytest.mark.parametrize(
    ("kv", "param"),
    [
        ({"policy": "kivi", "exact": True}, "kv.exact"),
        ({"policy": "kivi", "bits": 3}, "kv.bits"),
        ({"policy": "kivi", "topk": 8}, "kv.topk"),
        ({"policy": "full", "window": 64}, "kv.window"),
        ({"policy": "kivi", "plain": 0}, "kv.plain"),
        ({"policy": "specache", "topk": 5000}, "kv.topk"),
        ({"policy": "specache", "topk": "16+5000@0"}, "kv.topk"),
        ({"policy": "specache", "topk": "16+16@9"}, "topk"),
        ({"policy": "specache", "topk": [16, 16]}, "kv.topk"),
        ({"policy": "specache", "window": 100}, "kv.window"),
    ],
)
def test_contradictions_are_named(server: Server, kv: dict, param: str):
    reply = server.post("/v1/completions", {"prompt": "x", "kv": kv})
    assert reply.status == 400
    assert reply.error()["param"] == param


def test_rows_of_the_paper_are_bounded_too(servers):
    own = servers.start("--kv-topk-max", "16")

    def reply(**kv):
        return own.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "kv": {"policy": "specache"} | kv})

    refused = reply(paper=True)
    assert refused.status == 400 and refused.error()["param"] == "kv.paper"
    assert reply(paper=True, topk=17).error()["param"] == "kv.topk"
    # The operator's own may be more.
    assert reply(paper=True, topk=8).status == reply().status == reply(paper=False).status == 200


def test_options_are_checked():
    done = command("serve", "--model", ROOT / "models/demo", "--kv", "kivi:3")
    assert done.returncode == 2
    assert "weights" not in done.stderr  # before anything was loaded
    assert "--kv 'kivi:3': bits is '3', it must be one of: 1, 2, 4" in done.stderr


def test_a_default_that_the_model_cannot_do_is_told_at_the_start():
    done = command(
        "serve", "--model", ROOT / "models/demo", "--port", 0, "--kv", "specache:topk=8+16@9"
    )
    assert done.returncode == 1
    assert "--kv specache: topk names layer 9, the model's last one is 3" in done.stderr


def test_each_policy_has_its_own_settings(servers):
    """The first --kv is the default, further ones say what requests under their policy start from."""
    own = servers.start("--kv", "specache:1:8:min_tokens=0", "--kv", "kivi:4:min_tokens=0")
    rows = own.complete(PROMPT, max_tokens=2, kv={"report": True})["usage"]["kvahead"]
    assert rows["policy"] == "specache"
    four, two = (
        own.complete(PROMPT, max_tokens=2, kv={"policy": "kivi", "report": True} | kv)["usage"]["kvahead"]
        for kv in ({}, {"bits": 2})
    )
    assert four["policy"] == "kivi" and four["device_bytes"] > two["device_bytes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--kv-policy", "specache"), "--kv specache:bits=1:topk=64"),
        (("--kv", "specache:plain=0"), "'plain' is called 'min_tokens' now"),
        (("--kv", "full:bits=1"), "policies that have it: kivi, specache"),
        (("--kv", "kivi:1", "--kv", "kivi:2"), "policy kivi is given twice"),
    ],
)
def test_what_was_and_what_cannot_be_is_told(arguments: tuple, words: str):
    done = command("serve", "--model", ROOT / "models/demo", *arguments)
    assert done.returncode == 2 and words in done.stderr


STREAM = "streaming:window=128"


def test_what_drops_tokens_is_asked_for_by_the_operator(servers, server: Server):
    assert "streaming" not in server.request("GET", "/v1/models").json()["data"][0]["kv_policies"]
    kv = {"policy": "streaming", "window": 128, "report": True}
    refused = server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "kv": kv})
    assert refused.status == 400 and "specache" in refused.json()["error"]["message"]
    allows = servers.start("--kv-allow", "streaming")
    told = account(allows, **kv)
    assert told["policy"] == "streaming"
    # 1219 tokens have K and V: sinks, and the window's pages from number 17 on.
    assert told["evicted_tokens"] == 17 * 64 - 4
    assert told["kept_tokens"] == 1219 - told["evicted_tokens"]
    full = account(allows, policy="full")
    assert full["evicted_tokens"] == 0 and full["kept_tokens"] == 1219
    assert 4 * told["device_bytes"] < full["device_bytes"]
    assert 2 * told["host_bytes"] < full["host_bytes"]


def test_what_is_attended_to_most_is_kept(servers, server: Server):
    assert "h2o" not in server.request("GET", "/v1/models").json()["data"][0]["kv_policies"]
    allows = servers.start("--kv-allow", "h2o")
    kv = {"policy": "h2o", "heavy": "20%", "recent": 128, "sinks": 4, "report": True}
    told = account(allows, **kv)
    # Of a prompt of 1200 tokens 4 + 240 + 64 are 5 pages; of 18 that have left the window.
    assert told["evicted_tokens"] == (18 - 5) * 64
    assert told["kept_tokens"] == 1219 - told["evicted_tokens"]
    full = account(allows, policy="full")
    assert 2 * told["device_bytes"] < full["device_bytes"] and told["host_bytes"] < full["host_bytes"]
    prompt = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True}
    want = allows.complete(**prompt, kv=kv, cache_salt="a")["choices"][0]["token_ids"]
    again = allows.complete(**prompt, kv=kv, cache_salt="a")
    assert again["choices"][0]["token_ids"] == want
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == (1200 - 64) // 64 * 64
    crowd = allows.complete(**prompt, kv=kv, cache_salt="a", n=3)
    assert [choice["token_ids"] for choice in crowd["choices"]] == 3 * [want]
    for words, changes in (("from 0% to 100%", {"heavy": "101%"}), ("must be an integer", {"heavy": 1.5})):
        reply = allows.post("/v1/completions", prompt | {"kv": kv | changes})
        assert reply.status == 400 and words in reply.json()["error"]["message"], reply


def test_rows_chosen_a_layer_ahead_are_told(server: Server):
    """Nothing is lost for good, so requests may choose it; without a skew they say how to go on."""
    assert "infinigen" in server.request("GET", "/v1/models").json()["data"][0]["kv_policies"]
    reply = server.post("/v1/completions", {"prompt": PROMPT, "kv": {"policy": "infinigen"}})
    assert reply.status == 400 and reply.error()["param"] == "skew"
    assert "kvahead skew --model" in reply.json()["error"]["message"]
    kv = {"policy": "infinigen", "skew": "none", "skip_layers": 1, "alpha": 2, "cap": "10%"}
    told = account(server, **kv)
    # 17 of 19 pages, then 18, are away in 19 steps; in three layers of four.
    assert told["rehearsed_layers"] % (19 * 3) == 0
    heads = told["rehearsed_layers"] // (19 * 3)
    assert 0 < told["rehearsed_rows"] <= told["rehearsed_layers"] * (116 + 4)
    assert told["rehearsed_share"] == pytest.approx(
        told["rehearsed_rows"] / (told["rehearsed_rows"] + told["rehearsed_rows_left"]), abs=1e-3
    )
    assert (told["rehearsed_rows"] + told["rehearsed_rows_left"]) % (64 * 3 * heads) == 0
    assert told["fetched_bytes"] >= told["rehearsed_rows"] * 4
    assert 2 * told["device_bytes"] < account(server, policy="full")["device_bytes"]
    assert told["device_bytes"] < account(server, **kv, partial_bits=16)["device_bytes"]
    prompt = {"prompt": PROMPT, "max_tokens": 20, "ignore_eos": True, "cache_salt": "a"}
    want = server.complete(**prompt, kv=kv)["choices"][0]["token_ids"]
    crowd = server.complete(**prompt, kv=kv, n=3)
    assert [choice["token_ids"] for choice in crowd["choices"]] == 3 * [want]


def test_a_limit_on_host_memory_is_the_operators(servers, server: Server):
    kv = {"policy": "infinigen", "skew": "none", "skip_layers": 1, "alpha": 2, "pool": 256}
    body = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "kv": kv | {"report": True}}
    reply = server.post("/v1/completions", body)
    assert reply.status == 400 and reply.error()["param"] == "kv.pool", reply
    limited = servers.start("--kv", "full", "--kv", "infinigen:pool=90%:skew=none")
    told = limited.complete(**body)["usage"]["kvahead"]
    assert told["pool_victims"] > 0 and told["evicted_tokens"] > 0
    body["kv"] = kv | {"report": True, "pool": 0}
    unlimited = limited.complete(**body)["usage"]["kvahead"]
    assert unlimited["pool_victims"] == 0 and told["host_bytes"] < unlimited["host_bytes"]


def test_a_default_without_its_skew_is_told_at_the_start():
    done = command("serve", "--model", ROOT / "models/demo", "--port", 0, "--kv", "infinigen")
    assert done.returncode != 0
    assert "--kv infinigen: " in done.stderr and "kvahead skew --model" in done.stderr


def test_a_stream_goes_on_past_the_context(servers):
    """Alone and among others: the same tokens."""
    own = servers.start("--kv", STREAM, "--context", "512")
    fields = {"max_tokens": 700, "ignore_eos": True, "kv": {"report": True}}
    want = own.complete(PROMPT[:400], **fields)
    assert len(want["choices"][0]["token_ids"]) == 700
    told = want["usage"]["kvahead"]
    assert told["kept_tokens"] + told["evicted_tokens"] == 1099 and told["kept_tokens"] < 256
    document = own.complete(PROMPT[:400], n=3, **fields)
    assert [c["token_ids"] for c in document["choices"]] == 3 * [want["choices"][0]["token_ids"]]
    assert b"kvahead_evicted_tokens_total" in own.request("GET", "/metrics").body
    for words, changes in (
        ("limit is 511", {"prompt": PROMPT[:600], "kv": {"positions": "original"}}),
        ("limit is 512", {"prompt": PROMPT[:400], "kv": {"positions": "original"}}),
        ("limit is 16777216", {"prompt": PROMPT[:400], "max_tokens": 1 << 24}),
    ):
        reply = own.post("/v1/completions", fields | changes)
        assert reply.status == 400 and words in reply.json()["error"]["message"], reply


def test_prompts_past_the_context(servers):
    """Fed in pieces, several at once where the device tier holds one: they give way to each other."""
    own = servers.start("--kv", STREAM, "--context", "512", "--device-memory", "1536KiB", "--step-tokens", "96")
    fields = {"max_tokens": 40, "ignore_eos": True, "cache_salt": "x", "kv": {"report": True}}
    prompts = [PROMPT[i:] + PROMPT for i in range(4)]
    want = []
    for prompt in prompts:
        document = own.complete(prompt, **fields)
        want.append(document["choices"][0]["token_ids"])
        told = document["usage"]["kvahead"]
        assert told["kept_tokens"] + told["evicted_tokens"] == len(prompt) + 39
        assert told["kept_tokens"] < 256
    document = own.complete(prompts, **fields)
    assert [choice["token_ids"] for choice in document["choices"]] == want
