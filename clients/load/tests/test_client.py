"""One request: what is sent, when its pieces came, and every way in which it can fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from scripted import Advance, Cut, Hang, Raw, Refuse, Scripted, Step, words

from kvahead_load import client as client_module
from kvahead_load.client import Client, Record, normal_base_url
from kvahead_load.errors import UsageError
from kvahead_load.workload import Request


def with_server(
    do: Callable[[Scripted, Client], Awaitable[Any]], server: Scripted | None = None, **fields: Any
) -> Any:
    """Run `do` against a scripted server."""

    async def run() -> Any:
        async with server or Scripted() as made, made.client(**fields) as client:
            return await asyncio.wait_for(do(made, client), 60)

    return asyncio.run(run())


def send_one(script: list[Step], request: Request | None = None, **fields: Any) -> Record:
    async def do(_server: Scripted, client: Client) -> Record:
        return await client.send(request or Request(0, "hello", 9))

    return with_server(do, Scripted(script=lambda number, body: script), **fields)


def test_client__times_are_those_of_the_pieces():
    record = send_one([Advance(1.0), " a", Advance(0.25), " b", Advance(0.5), " c", Advance(2.0)])
    assert record.ok
    assert (record.sent_s, record.first_s, record.last_s) == (100.0, 101.0, 101.75)
    assert record.gaps_s == [0.25, 0.5]
    assert record.end_s == 103.75
    assert (record.pieces, record.output_tokens) == (3, 6)
    assert (record.prompt_tokens, record.cached_tokens) == (7, 3)
    assert (record.status, record.finish_reason) == (200, "length")


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_client__body_is_what_the_api_wants(api):
    async def do(server: Scripted, client: Client) -> None:
        record = await client.send(Request(0, "hello", 9))
        assert record.ok
        (body,) = server.bodies
        assert body["stream"] is True
        assert body["max_tokens"] == 9
        assert body["model"] == "scripted"
        assert body["kv"] == {"policy": "offload"}
        if api == "chat":
            assert body["messages"] == [{"role": "user", "content": "hello"}]
        else:
            assert body["prompt"] == "hello"

    with_server(do, api=api, extra={"kv": {"policy": "offload"}})


def test_client__tokens_are_pieces_where_the_server_does_not_tell():
    async def do(_server: Scripted, client: Client) -> None:
        record = await client.send(Request(0, "hello", 9))
        assert (record.output_tokens, record.prompt_tokens) == (3, None)

    with_server(do, Scripted(usage=False))


def test_client__pieces_are_found_however_the_bytes_are_cut():
    event = b'data: {"choices":[{"text":"' + "é".encode() + b'"}]}\n\n'
    for cut in range(1, len(event)):
        record = send_one([Raw(event[:cut]), Raw(event[cut:] + event)])
        assert record.ok, record
        assert record.pieces == 2


@pytest.mark.parametrize(
    ("script", "part"),
    [
        ([Refuse(503, "the queue is full")], "HTTP 503: the queue is full"),
        ([" a", Cut()], "without [DONE]"),
        ([" a", Raw(b"data: {not json}\n\n")], "JSON"),
        ([" a", Raw(b"data: [1]\n\n")], "no JSON object"),
        ([" a", Raw(b'data: {"error": {"message": "out of memory"}}\n\n')], "out of memory"),
    ],
)
def test_client__failures_are_records(script, part):
    record = send_one(script)
    assert not record.ok
    assert part in record.error
    assert record.end_s is not None


def test_client__an_answer_without_text_is_one():
    record = send_one([Advance(1.5)])
    assert record.ok
    assert record.first_s == 101.5
    assert record.pieces == 0


def test_client__no_server():
    async def do(_server: Scripted, client: Client) -> Record:
        client.base_url = "http://127.0.0.1:1/v1"
        return await client.send(Request(0, "hello", 9))

    record = with_server(do)
    assert record.error
    assert record.status is None


def test_client__a_silent_server_is_given_up():
    record = send_one([Hang()], timeout_s=0.2)
    assert record.error == "no answer within the time limit"


def test_client__leaves_after_so_many_pieces():
    async def do(server: Scripted, client: Client) -> None:
        record = await client.send(Request(0, "hello", 9, cancel_after=2))
        assert (record.cancelled, record.error, record.pieces) == (True, None, 2)
        assert not record.ok
        while server.left == 0:
            await asyncio.sleep(0.01)

    with_server(do, Scripted(script=lambda number, body: [*words(2), Hang()]))


def test_client__leaves_before_the_first_piece(monkeypatch):
    monkeypatch.setattr(client_module, "CANCEL_SOON_S", 0.01)

    async def do(server: Scripted, client: Client) -> None:
        # The first one opens the connection, so that the second surely reaches the server.
        assert (await client.send(Request(0, "hello", 9))).ok
        record = Record(0, 0.0, 0.0)
        while server.left == 0:
            record = await client.send(Request(1, "hello", 9, cancel_after=0))
            await asyncio.sleep(0.01)
        assert (record.cancelled, record.error, record.pieces) == (True, None, 0)

    with_server(do, Scripted(script=lambda number, body: [Hang()] if number else words(1)))


def test_client__discovers_and_counts():
    async def do(_server: Scripted, client: Client) -> None:
        client.model = ""
        facts = await client.discover()
        assert facts["model"] == client.model == "scripted"
        assert await client.count_tokens("a b c") == 6

    with_server(do)


def test_client__a_server_that_is_no_use():
    async def do(server: Scripted, client: Client) -> None:
        client.model = ""
        server.models = []
        with pytest.raises(UsageError, match="lists no model"):
            await client.discover()
        assert await client.count_tokens("a b c") == 6
        server.tokenize_lists = True
        assert await client.count_tokens("a b c") == 6
        server.tokenize = False
        assert await client.count_tokens("a b c") is None

    with_server(do)


def test_client__urls():
    assert normal_base_url("http://host:1") == "http://host:1/v1"
    assert normal_base_url("https://host/api/v1/") == "https://host/api/v1"
    for bad in ("host:1", "ftp://host", "http://"):
        with pytest.raises(UsageError, match="--base-url"):
            normal_base_url(bad)


def test_client__records_are_json():
    record = send_one([" a"])
    assert json.loads(json.dumps(vars(record)))["pieces"] == 1
