"""A scripted server in the test's own event loop, and a clock that it moves.

A script is a list of steps for one request: text to stream, `Advance` to move the clock, `Refuse`,
`Cut`, `Hang`. The server waits after each piece until the client has noted it, so that the times
that a test checks do not depend on the machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from kvahead_load.client import Client, ServerParams


@dataclass(frozen=True)
class Advance:
    """Move the clock."""

    seconds: float


@dataclass(frozen=True)
class Refuse:
    """Answer with an error."""

    status: int
    message: str = "refused"


@dataclass(frozen=True)
class Raw:
    """Bytes as they are."""

    data: bytes


class Cut:
    """End the stream without [DONE]."""


class Hang:
    """Say nothing until the client leaves."""


Step = str | Advance | Refuse | Raw | Cut | Hang
Script = Callable[[int, dict[str, Any]], list[Step]]


def words(count: int) -> list[Step]:
    """Make a script of some pieces."""
    return [f" w{i}" for i in range(count)]


@dataclass
class Scripted:
    """Use as an async context manager. `script(number, body)` says what request `number` gets."""

    script: Script = lambda number, body: words(3)
    usage: bool = True
    tokenize: bool = True
    tokenize_lists: bool = False  # as llama.cpp, without a count
    in_step: bool = True  # wait for a client of `client` after each piece
    metrics: Callable[[Scripted], str] | None = None  # what /metrics says; None: there is none
    models: list[str] = field(default_factory=lambda: ["scripted"])
    now: float = 100.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0  # requests whose client went away
    flying: int = 0
    flying_max: int = 0
    url: str = ""

    def clock(self) -> float:
        """Return the clock that `Advance` moves."""
        return self.now

    def client(self, **fields: Any) -> Client:
        """Return a client on the scripted clock."""
        params = ServerParams(**({"base_url": self.url, "model": "scripted"} | fields))
        return Client(params, self.clock, lambda record: self._seen.release())

    async def __aenter__(self) -> Scripted:
        self._seen = asyncio.Semaphore(0)
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in self.models]})

    async def _metrics(self, _request: web.Request) -> web.Response:
        if not self.metrics:
            raise web.HTTPNotFound
        return web.Response(text=self.metrics(self))

    async def _tokenize(self, request: web.Request) -> web.Response:
        if not self.tokenize:
            raise web.HTTPNotFound
        body = await request.json()
        count = 2 * len(body["prompt"].split())
        if self.tokenize_lists:
            return web.json_response({"tokens": [7] * count})
        return web.json_response({"count": count})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.bodies)
        self.bodies.append(body)
        self.flying += 1
        self.flying_max = max(self.flying_max, self.flying)
        try:
            return await self._play(request, body, self.script(number, body))
        except (asyncio.CancelledError, ConnectionError):
            self.left += 1
            raise
        finally:
            self.flying -= 1

    async def _play(
        self, request: web.Request, body: dict[str, Any], script: list[Step]
    ) -> web.StreamResponse:
        if script and isinstance(script[0], Refuse):
            refuse = script[0]
            return web.json_response({"error": {"message": refuse.message}}, status=refuse.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chat = "messages" in body
        pieces = 0
        for step in script:
            if isinstance(step, Advance):
                self.now += step.seconds
            elif isinstance(step, Raw):
                await response.write(step.data)
                await asyncio.sleep(0)
            elif isinstance(step, Cut):
                return response
            elif isinstance(step, Hang):
                await asyncio.Event().wait()
            else:
                choice = {"delta": {"content": step}} if chat else {"text": step}
                await self._event(response, {"choices": [choice]})
                pieces += 1
                if self.in_step:
                    await self._seen.acquire()
        choice = {"delta": {}} if chat else {"text": ""}
        await self._event(response, {"choices": [choice | {"finish_reason": "length"}]})
        if self.usage and body.get("stream_options", {}).get("include_usage"):
            usage = {
                "prompt_tokens": 7,
                "completion_tokens": 2 * pieces,
                "prompt_tokens_details": {"cached_tokens": 3},
            }
            await self._event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _event(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await response.write(b": comment\n\ndata: " + json.dumps(event).encode() + b"\n\n")
