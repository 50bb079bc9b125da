"""The client against a real HTTP server: what is sent, what is retried, what is given up."""

from __future__ import annotations

import threading

import pytest

from kvahead_quality.client import Client, RequestFailed, ServerParams, normal_base_url
from kvahead_quality.errors import UsageError

PROMPT = "a\nOne of the special magic numbers for red-cat is: 1234567.\nWhat is the special magic "
PROMPT += "number for red-cat mentioned in the provided text?"


def test_completions__sends_prompt_prefix_and_kv(serve, connect) -> None:
    server = serve()
    kv = {"policy": "specache", "bits": 1, "topk": 64, "report": True}
    reply = connect(server).generate(PROMPT, " It is", 128, kv)
    path, headers, body = server.requests[0]
    assert path == "/v1/completions"
    assert body == {
        "model": "stub-model",
        "prompt": PROMPT + " It is",
        "max_tokens": 128,
        "temperature": 0,
        "kv": kv,
    }
    assert headers["authorization"] == "Bearer none"
    assert reply.text == " 1234567." and reply.finish_reason == "stop" and reply.attempts == 1
    assert reply.usage["kvahead"]["policy"] == "specache"
    assert reply.usage["kvahead"]["device_kv_bytes"] > 0


def test_completions__no_kv_field_without_a_policy(serve, connect) -> None:
    server = serve(kv_usage=False)
    reply = connect(server).generate(PROMPT, "", 8, None)
    assert "kv" not in server.requests[0][2]
    assert "kvahead" not in reply.usage


def test_chat__one_user_message(serve, connect) -> None:
    server = serve()
    reply = connect(server, api="chat", api_key="secret").generate(
        PROMPT, " It is", 128, {"policy": "full"}
    )
    path, headers, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": PROMPT + " It is"}]
    assert body["kv"] == {"policy": "full"} and "prompt" not in body
    assert headers["authorization"] == "Bearer secret"
    assert reply.text == " 1234567."


def test_generate__answer_prefix_can_be_left_out(serve, connect) -> None:
    server = serve()
    connect(server, answer_prefix=False).generate(PROMPT, " It is", 8, None)
    assert server.requests[0][2]["prompt"] == PROMPT


def test_generate__passing_failures_are_retried_with_growing_pauses(
    serve, connect, waits, monkeypatch
) -> None:
    monkeypatch.setattr("kvahead_quality.client.BACKOFF_FIRST_S", 1.0)
    server = serve(fail=[500, 503, 429, 408])
    reply = connect(server).generate(PROMPT, "", 8, None)
    assert reply.attempts == 5 and len(server.requests) == 5
    assert len(waits) == 4
    for wait, base in zip(waits, (1, 2, 4, 8), strict=True):
        assert 0.75 * base <= wait <= 1.25 * base


def test_generate__retry_after_is_honoured_within_bounds(serve, connect, waits) -> None:
    connect(serve(fail=[503], retry_after="7")).generate(PROMPT, "", 8, None)
    connect(serve(fail=[503], retry_after="99999")).generate(PROMPT, "", 8, None)
    connect(serve(fail=[503], retry_after="Wed, 21 Oct")).generate(PROMPT, "", 8, None)
    assert waits[:2] == [7.0, 120.0] and waits[2] < 1


def test_generate__permanent_failure_says_what_and_how_often(serve, connect) -> None:
    server = serve(fail_always=500)
    with pytest.raises(RequestFailed) as caught:
        connect(server, retries=3).generate(PROMPT, "", 8, None)
    assert str(caught.value) == "HTTP 500: made to fail with 500 (4 attempts)"
    assert (caught.value.attempts, caught.value.status) == (4, 500)
    assert len(server.requests) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_generate__refusals_are_not_retried(serve, connect, status: int) -> None:
    server = serve(fail_always=status)
    with pytest.raises(RequestFailed, match=f"HTTP {status}: made to fail"):
        connect(server).generate(PROMPT, "", 8, None)
    assert len(server.requests) == 1


def test_generate__no_server_and_time_out(connect, serve) -> None:
    gone = Client(ServerParams(base_url="http://127.0.0.1:1", retries=1), lambda _: False)
    gone.model = "m"
    with pytest.raises(RequestFailed, match=r"refused.*\(2 attempts\)"):
        gone.generate("x", "", 1, None)
    hold = threading.Event()
    slow = connect(serve(hold=hold), timeout_s=0.1, retries=0)
    with pytest.raises(RequestFailed, match="no answer within the time limit"):
        slow.generate("x", "", 2, None)
    hold.set()


def test_generate__a_stopped_client_does_not_retry(serve) -> None:
    server = serve(fail_always=503)
    client = Client(ServerParams(base_url=server.url))
    client.model = "stub-model"
    client.stop.set()
    with pytest.raises(RequestFailed, match="stopped"):
        client.generate(PROMPT, "", 8, None)
    assert len(server.requests) == 1


def test_discover__first_model_and_limit(serve, connect) -> None:
    client = Client(ServerParams(base_url=serve(models=["a", "b"]).url), lambda _: False)
    facts = client.discover()
    assert (facts.model, facts.length_max, facts.version) == ("a", 32768, {"version": "stub-1"})
    assert connect(serve(models=["a", "b"]), model="b").discover().model == "b"


def test_discover__a_broken_list_is_no_matter_if_the_model_is_named(serve, connect) -> None:
    facts = connect(serve(models=None), model="b").discover()
    assert (facts.model, facts.models, facts.length_max) == ("b", [], 32768)
    with pytest.raises(UsageError, match=r"cannot use .*HTTP 500"):
        Client(ServerParams(base_url=serve(models=None).url), lambda _: False).discover()


def test_discover__no_model_at_all(serve, connect) -> None:
    with pytest.raises(UsageError, match="lists no model"):
        Client(ServerParams(base_url=serve(models=[]).url), lambda _: False).discover()


def test_token_counter__asks_the_server_or_says_there_is_none(serve, connect) -> None:
    counter = connect(serve()).token_counter()
    assert counter is not None and counter.exact
    assert counter.count("one two three") == 4
    assert connect(serve(tokenize=False)).token_counter() is None


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://h:1", "http://h:1/v1"),
        ("http://h:1/", "http://h:1/v1"),
        ("http://h:1/v1/", "http://h:1/v1"),
        ("https://h/api/v1", "https://h/api/v1"),
    ],
)
def test_normal_base_url__adds_v1_to_a_bare_host(given: str, used: str) -> None:
    assert normal_base_url(given) == used


@pytest.mark.parametrize("url", ["", "h:1", "ftp://h", "http://", "http://h:port", "file:///etc"])
def test_normal_base_url__refuses(url: str) -> None:
    with pytest.raises(UsageError, match="--base-url"):
        normal_base_url(url)
