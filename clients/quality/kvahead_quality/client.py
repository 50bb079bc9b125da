"""Talks to one OpenAI-compatible server: completions or chat, with counted retries.

Thread rule: one client serves all worker threads (the SDK's connection pool is thread-safe).
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import openai

from .counter import TokenCounter
from .errors import UsageError

RETRY_STATUS = frozenset({408, 409, 425, 429})
BACKOFF_FIRST_S, BACKOFF_MAX_S, RETRY_AFTER_MAX_S = 0.5, 30.0, 120.0
REPLY_MAX_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True)
class ServerParams:
    """Where and how to ask. `timeout_s` is per attempt; `retries` come after the first attempt."""

    base_url: str
    api_key: str = "none"
    model: str | None = None
    api: str = "completions"
    answer_prefix: bool = True
    timeout_s: float = 600.0
    retries: int = 6


@dataclass(frozen=True)
class Reply:
    """One answer. `usage` is the server's, as sent (with `kvahead` when it has one)."""

    text: str
    finish_reason: str | None
    usage: dict[str, Any]
    attempts: int
    latency_s: float


@dataclass(frozen=True)
class ServerFacts:
    """What the server says about itself; None where it does not."""

    model: str
    models: list[str]
    length_max: int | None
    version: object = None
    extra: dict[str, object] = field(default_factory=dict)


class RequestFailed(Exception):
    """A request that got no answer; the message is one line, `attempts` counts the tries."""

    def __init__(self, message: str, attempts: int, status: int | None = None) -> None:
        super().__init__(message)
        self.attempts = attempts
        self.status = status


def normal_base_url(url: str) -> str:
    """Return the URL with its API path: a bare host gets `/v1`."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--base-url: {url!r} is not an http(s) URL")
    try:
        _ = parts.port
    except ValueError:
        raise UsageError(f"--base-url: {url!r} has a bad port") from None
    path = parts.path.rstrip("/") or "/v1"
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def one_line(error: object, limit: int = 300) -> str:
    """Write an error as one line of bounded length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _explain(error: openai.APIError) -> str:
    """Name what happened: the server's own message where there is one, else the cause."""
    if isinstance(error, openai.APIStatusError):
        body = error.body
        detail = body.get("message") if isinstance(body, dict) else None
        return one_line(f"HTTP {error.status_code}: {detail or error.message}")
    if isinstance(error, openai.APITimeoutError):
        return "no answer within the time limit"
    cause = error.__cause__
    return one_line(f"{error.message} {cause}" if cause else error.message)


class Client:
    """See the module. `pause` waits between attempts and returns True to give up (Ctrl-C)."""

    def __init__(self, params: ServerParams, pause: Callable[[float], bool] | None = None) -> None:
        self.params = params
        self.base_url = normal_base_url(params.base_url)
        self.model = params.model or ""
        self.stop = threading.Event()
        self._pause = pause or self.stop.wait
        self._jitter = random.Random(0)
        self._sdk = openai.OpenAI(
            base_url=self.base_url,
            api_key=params.api_key,
            timeout=params.timeout_s,
            max_retries=0,  # retries are counted and reported, so they are made here
        )

    @property
    def root_url(self) -> str:
        """The server's root, where /tokenize and /version are."""
        return self.base_url.removesuffix("/v1")

    # ---- what the server is -------------------------------------------------------------------

    def discover(self) -> ServerFacts:
        """Ask for the models and choose one. Fails with UsageError if the server is no use.

        A model that the server does not list is left to the first request: some servers load by
        name.
        """
        try:
            # One retry only: a server that is not there should be said so at once.
            listed = self._with_retries(lambda: self._sdk.models.list().data, retries=1)[0]
        except RequestFailed as error:
            # With a model named, a server without a working list can still be measured.
            if error.status is None or error.status in (401, 403) or not self.model:
                raise UsageError(f"cannot use {self.base_url}: {error}") from None
            listed = []
        names = [entry.id for entry in listed]
        if not self.model:
            if not names:
                raise UsageError(f"{self.base_url} lists no model; name one with --model")
            self.model = names[0]
        extra: dict[str, Any] = {}
        for entry in listed:
            if entry.id == self.model:
                extra = dict(entry.model_extra or {})
        limit = extra.get("max_model_len")
        if not isinstance(limit, int):
            limit = (self._tokenize("limit")[0] or {}).get("max_model_len")
        return ServerFacts(
            model=self.model,
            models=names,
            length_max=limit if isinstance(limit, int) and limit > 0 else None,
            version=self._get_json("/version")[0],
            extra=extra,
        )

    def _get_json(self, path: str, body: object = None) -> tuple[Any, str]:
        """GET or POST at the server's root. Returns (JSON or None, what went wrong or "")."""
        request = urllib.request.Request(
            self.root_url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self.params.api_key}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=self.params.timeout_s) as reply:
                return json.loads(reply.read(REPLY_MAX_BYTES)), ""
        except urllib.error.HTTPError as error:
            error.close()
            return None, f"HTTP {error.code}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            return None, one_line(error)

    def _tokenize(self, text: str) -> tuple[dict[str, Any] | None, str]:
        """POST /tokenize as vLLM and kvahead have it; None if that gives no count."""
        body = {"model": self.model, "prompt": text, "add_special_tokens": True}
        answer, problem = self._get_json("/tokenize", body)
        if problem:
            return None, problem
        count = answer.get("count") if isinstance(answer, dict) else None
        if not isinstance(count, int) or isinstance(count, bool) or count <= 0:
            return None, "no count in the answer"
        return answer, ""

    def token_counter(self) -> TokenCounter | None:
        """Return a counter that asks the server, or None if it has no usable /tokenize."""
        if self._tokenize("one two three")[0] is None:
            return None

        def count(text: str) -> int:
            attempt = 0
            while True:
                attempt += 1
                answer, problem = self._tokenize(text)
                if answer is not None:
                    return int(answer["count"])
                if attempt > self.params.retries or self._pause(self._delay(attempt - 1, None)):
                    raise RequestFailed(f"/tokenize: {problem} ({attempt} attempts)", attempt)

        return TokenCounter(count, "the server's /tokenize", True)

    # ---- asking -------------------------------------------------------------------------------

    def generate(
        self,
        prompt: str,
        prefix: str,
        max_tokens: int,
        kv: dict[str, object] | None,
        stop: str | None = None,
    ) -> Reply:
        """Ask greedily for `max_tokens` tokens, up to and with `stop`. No `kv`: no such field.

        Chat gets prompt and answer prefix as one user message, as RULER does with API models;
        with `answer_prefix` off only the question is sent. Fails with RequestFailed.
        """
        text = prompt + prefix if self.params.answer_prefix else prompt
        body: dict[str, object] = {"kv": kv} if kv is not None else {}
        if stop is not None:
            body |= {"stop": [stop], "include_stop_str_in_output": True}
        started = time.monotonic()
        if self.params.api == "chat":
            call: Callable[[], Any] = lambda: self._sdk.chat.completions.create(  # noqa: E731
                model=self.model,
                messages=[{"role": "user", "content": text}],
                max_tokens=max_tokens,
                temperature=0,
                extra_body=body,
            )
        else:
            call = lambda: self._sdk.completions.create(  # noqa: E731
                model=self.model,
                prompt=text,
                max_tokens=max_tokens,
                temperature=0,
                extra_body=body,
            )
        answer, attempts = self._with_retries(call)
        choices = getattr(answer, "choices", None)
        if not choices:
            raise RequestFailed("the response has no choices", attempts)
        choice = choices[0]
        said = choice.message.content if self.params.api == "chat" else choice.text
        return Reply(
            text=said or "",
            finish_reason=choice.finish_reason,
            usage=answer.usage.to_dict() if answer.usage else {},
            attempts=attempts,
            latency_s=time.monotonic() - started,
        )

    def _with_retries(self, call: Callable[[], Any], retries: int | None = None) -> tuple[Any, int]:
        """Return (result, attempts). Retries what may pass: connection, time-out, 408/409/425/429
        and 5xx; anything else, and the last failure, raises RequestFailed."""
        allowed = self.params.retries if retries is None else min(retries, self.params.retries)
        attempt = 0
        while True:
            attempt += 1
            try:
                return call(), attempt
            except openai.APIStatusError as error:
                passing = error.status_code in RETRY_STATUS or error.status_code >= 500
                failure, status = _explain(error), error.status_code
                after = error.response.headers.get("retry-after")
            except openai.APIConnectionError as error:
                passing, failure, status, after = True, _explain(error), None, None
            except openai.APIError as error:
                passing, failure, status, after = False, _explain(error), None, None
            except ValueError as error:  # a 200 whose body is not JSON
                passing, failure, status, after = True, one_line(f"bad reply: {error}"), None, None
            if not passing or attempt > allowed:
                tries = f" ({attempt} attempts)" if attempt > 1 else ""
                raise RequestFailed(failure + tries, attempt, status)
            if self._pause(self._delay(attempt - 1, after)):
                raise RequestFailed(f"{failure} (stopped)", attempt, status)

    def _delay(self, attempt: int, retry_after: str | None) -> float:
        """Seconds to wait: what the server asked for, else doubling with a quarter of jitter."""
        if retry_after is not None:
            try:
                return min(max(float(retry_after), 0.0), RETRY_AFTER_MAX_S)
            except ValueError:
                pass  # an HTTP date: servers of this kind send seconds, so back off instead
        base = min(BACKOFF_FIRST_S * 2.0**attempt, BACKOFF_MAX_S)
        return base * (0.75 + 0.5 * self._jitter.random())
