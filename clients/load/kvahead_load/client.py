"""Sends one request and notes when each piece of its answer arrived.

Times are seconds of `clock` (monotonic). A *piece* is a streamed chunk with text; servers send one
a token, or several tokens in one when they are ahead of the socket. The number of tokens is the
server's own (usage) where it tells, else the number of pieces.

Thread rule: one event loop.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from .errors import UsageError
from .workload import Request

LINE_BYTES_MAX = 4 * 1024 * 1024

# Readings of /metrics are seldom late; where a server has stopped, nothing waits long for one.
METRICS_TIMEOUT_S = 5.0

# A client that leaves before the first token does so after this time: while its request waits, or
# is prefilled.
CANCEL_SOON_S = 0.05


@dataclass(frozen=True)
class ServerParams:
    """Where and how to ask."""

    base_url: str
    api_key: str | None = None
    model: str = ""
    api: str = "completions"
    timeout_s: float = 600.0
    extra: dict[str, Any] = field(default_factory=dict)  # fields of every body
    max_tokens_field: str = "max_tokens"


@dataclass
class Record:
    """What became of one request. Times in seconds; None: it did not come to that."""

    index: int
    planned_s: float  # when it should have been sent
    sent_s: float
    first_s: float | None = None  # first piece
    last_s: float | None = None  # last piece
    end_s: float | None = None  # the answer, or the request, was over
    gaps_s: list[float] = field(default_factory=list)  # between pieces
    pieces: int = 0
    output_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    status: int | None = None  # HTTP
    error: str | None = None
    cancelled: bool = False  # the client left, as it was told to
    warm_up: bool = False

    @property
    def ok(self) -> bool:
        """Whether the whole answer came."""
        return self.error is None and not self.cancelled and self.first_s is not None


def normal_base_url(url: str) -> str:
    """Return the URL with its API path: a bare host gets `/v1`."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--base-url: {url!r} is not an http(s) URL")
    path = parts.path.rstrip("/") or "/v1"
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def one_line(error: object, limit: int = 300) -> str:
    """Write an error as one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


async def events(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Data of the server-sent events, as they arrive; comments and other fields are passed over.

    Fails with ValueError where a line is over LINE_BYTES_MAX.
    """
    rest = bytearray()
    async for chunk in stream.iter_any():
        rest += chunk
        *lines, last = bytes(rest).split(b"\n")
        rest = bytearray(last)
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError("an event is too long")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()


def _text_of(choice: dict[str, Any]) -> str:
    delta = choice.get("delta")
    if isinstance(delta, dict):
        return (delta.get("content") or "") + (delta.get("reasoning_content") or "")
    return choice.get("text") or ""


class Client:
    """See the module. Use as an async context manager."""

    def __init__(
        self,
        params: ServerParams,
        clock: Callable[[], float] = time.monotonic,
        on_piece: Callable[[Record], None] | None = None,
    ) -> None:
        self.params = params
        self.base_url = normal_base_url(params.base_url)
        self.model = params.model
        self.clock = clock
        self._on_piece = on_piece or (lambda record: None)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        headers = {"Authorization": f"Bearer {self.params.api_key}"} if self.params.api_key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            # No queue in front of the server: requests wait there, where it counts.
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self.params.timeout_s),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        """The open session."""
        assert self._session, "not entered"
        return self._session

    # ---- what the server is -------------------------------------------------------------------

    async def _get_json(self, url: str, body: object = None) -> tuple[Any, str]:
        """GET or POST; returns (JSON or None, what went wrong or "")."""
        try:
            method = "GET" if body is None else "POST"
            async with self.session.request(method, url, json=body) as reply:
                if reply.status != 200:
                    return None, f"HTTP {reply.status}"
                return await reply.json(content_type=None), ""
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return None, one_line(error)

    async def discover(self) -> dict[str, Any]:
        """Find the model, if none is named. Fails with UsageError if the server is no use."""
        listed, problem = await self._get_json(f"{self.base_url}/models")
        data = listed.get("data") if isinstance(listed, dict) else None
        names = [entry.get("id") for entry in data or () if isinstance(entry, dict)]
        if not self.model:
            if not names:
                raise UsageError(
                    f"{self.base_url} lists no model ({problem or 'empty list'}); "
                    "name one with --model"
                )
            self.model = names[0]
        version, _ = await self._get_json(f"{self.base_url.removesuffix('/v1')}/version")
        return {"model": self.model, "models": names, "version": version}

    async def count_tokens(self, text: str) -> int | None:
        """Count with the server's /tokenize; None: it has none. vLLM and kvahead take a `prompt`
        and count, llama.cpp takes `content` and lists."""
        url = f"{self.base_url.removesuffix('/v1')}/tokenize"
        body = {"model": self.model, "prompt": text, "content": text}
        answer, _ = await self._get_json(url, body)
        if not isinstance(answer, dict):
            return None
        tokens = answer.get("tokens")
        count = answer.get("count", len(tokens) if isinstance(tokens, list) else None)
        return count if isinstance(count, int) and count > 0 else None

    async def read_metrics(self) -> str | None:
        """Read the server's /metrics; None: it has none, or is late with it."""
        try:
            url = f"{self.base_url.removesuffix('/v1')}/metrics"
            limit = aiohttp.ClientTimeout(total=METRICS_TIMEOUT_S)
            async with self.session.get(url, timeout=limit) as reply:
                return await reply.text() if reply.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None

    # ---- asking -------------------------------------------------------------------------------

    def body(self, request: Request) -> dict[str, Any]:
        """Return the request's body."""
        body: dict[str, Any] = {
            "model": self.model,
            self.params.max_tokens_field: request.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.params.api == "chat":
            body["messages"] = [{"role": "user", "content": request.prompt}]
        else:
            body["prompt"] = request.prompt
        return body | self.params.extra

    async def send(self, request: Request, planned_s: float | None = None) -> Record:
        """Send one request and read its answer to the end, or to where its client leaves.

        Never fails: what goes wrong is in the record. Cancelling this coroutine closes the
        connection.
        """
        now = self.clock()
        record = Record(request.index, now if planned_s is None else planned_s, now)
        leaves_at_once = request.cancel_after == 0
        try:
            async with asyncio.timeout(CANCEL_SOON_S if leaves_at_once else None):
                await self._ask(request, record)
        except TimeoutError:
            record.cancelled = leaves_at_once
            if not leaves_at_once:
                record.error = "no answer within the time limit"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            record.error = one_line(f"{type(error).__name__}: {error}")
        record.end_s = self.clock()
        if record.error is None and not record.cancelled and record.first_s is None:
            record.error = "the stream has no answer"
        if not record.output_tokens:
            record.output_tokens = record.pieces
        return record

    async def _ask(self, request: Request, record: Record) -> None:
        path = "chat/completions" if self.params.api == "chat" else "completions"
        url = f"{self.base_url}/{path}"
        async with self.session.post(url, json=self.body(request)) as reply:
            record.status = reply.status
            if reply.status != 200:
                record.error = f"HTTP {reply.status}: {await self._refusal(reply)}"
            else:
                await self._read(request, reply, record)

    async def _refusal(self, reply: aiohttp.ClientResponse) -> str:
        text = (await reply.content.read(65536)).decode("utf-8", "replace")
        try:
            error = json.loads(text)["error"]
            return one_line(error["message"] if isinstance(error, dict) else error)
        except (ValueError, KeyError, TypeError):
            return one_line(text)

    async def _read(self, request: Request, reply: aiohttp.ClientResponse, record: Record) -> None:
        async for data in events(reply.content):
            if data == b"[DONE]":
                return
            self._take(json.loads(data), record)
            if request.cancel_after is not None and record.pieces >= max(request.cancel_after, 1):
                record.cancelled = True
                reply.close()
                return
        record.error = "the stream ended without [DONE]"

    def _take(self, event: dict[str, Any], record: Record) -> None:
        if not isinstance(event, dict):
            raise ValueError("an event is no JSON object")
        if event.get("error"):
            error = event["error"]
            raise ValueError(one_line(error.get("message") if isinstance(error, dict) else error))
        usage = event.get("usage")
        if isinstance(usage, dict):
            record.prompt_tokens = usage.get("prompt_tokens")
            record.output_tokens = usage.get("completion_tokens") or 0
            details = usage.get("prompt_tokens_details")
            record.cached_tokens = details.get("cached_tokens") if details else None
        for choice in event.get("choices") or ():
            record.finish_reason = choice.get("finish_reason") or record.finish_reason
            now = self.clock()
            if not _text_of(choice):
                # An answer may have no text at all: special tokens have none.
                if choice.get("finish_reason") and record.first_s is None:
                    record.first_s = record.last_s = now
                continue
            if record.last_s is None:
                record.first_s = now
            else:
                record.gaps_s.append(now - record.last_s)
            record.last_s = now
            record.pieces += 1
            self._on_piece(record)


async def wait_until(clock: Callable[[], float], at_s: float) -> None:
    """Sleep until `clock` shows `at_s`."""
    while (left := at_s - clock()) > 0:
        await asyncio.sleep(left)
