"""Fixtures: a stub server, a client that does not really wait, and the command with its output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from stub import Behaviour, StubServer

import kvahead_quality.client as client_module
from kvahead_quality.client import Client, ServerParams


@pytest.fixture
def serve() -> Iterator[Callable[..., StubServer]]:
    """Start stub servers that end with the test: serve(tokenize=False, ...)."""
    with ExitStack() as stack:
        yield lambda **kwargs: stack.enter_context(StubServer(Behaviour(**kwargs)))


@pytest.fixture
def waits() -> list[float]:
    """The pauses, in seconds, that a client made by `connect` would have made."""
    return []


@pytest.fixture
def connect(waits: list[float]) -> Callable[..., Client]:
    def make(server: StubServer, **kwargs: object) -> Client:
        def pause(seconds: float) -> bool:
            waits.append(seconds)
            return False

        client = Client(ServerParams(base_url=server.url, **kwargs), pause)  # type: ignore[arg-type]
        client.model = client.model or "stub-model"
        return client

    return make


@pytest.fixture(autouse=True)
def no_real_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back-off within whole commands is kept, but a thousandth as long; no key from outside."""
    monkeypatch.setattr(client_module, "BACKOFF_FIRST_S", 0.0005)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
