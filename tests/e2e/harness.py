"""A kvahead process under test, and what the tests ask it.

Environment: KVAHEAD_BINARY, the binary (default: build/kvahead of the source root).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import openai

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("KVAHEAD_BINARY") or ROOT / "build" / "kvahead")
MODEL = ROOT / "models" / "demo"

# A model that has learned to call functions; None: it is not in the cache, and nothing is fetched for a test.
QWEN = next(iter(pathlib.Path("~/.cache/kvahead/models/qwen2.5-coder-1.5b-instruct").expanduser().glob("*.gguf")), None)

CONTEXT = 8192
PAGE_TOKENS = 64
# Liveness bounds, far above what a busy machine needs: nothing here measures speed.
START_S, ANSWER_S, SOON_S, EXIT_S = 120, 120, 30, 60

SANITIZER = re.compile(
    r"ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|: runtime error: |Assertion .* failed"
)


def clean_environment(**extra: str) -> dict[str, str]:
    """This process's environment without options of a kvahead that the user may have set."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KVAHEAD_")}
    return kept | extra


def command(*arguments: str | os.PathLike[str], stdin: str | None = None, env: dict | None = None):
    """Run the binary to its end."""
    return subprocess.run(
        [BINARY, *map(str, arguments)],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=START_S,
        env=env or clean_environment(),
        check=False,
    )


def wait_until(what: str, holds: Callable[[], Any], seconds: float = SOON_S) -> Any:
    """Ask until `holds` is true; the bound is for liveness only."""
    deadline = time.monotonic() + seconds
    while True:
        value = holds()
        if value:
            return value
        assert time.monotonic() < deadline, f"after {seconds} s still not: {what}"
        time.sleep(0.02)


@dataclass
class Reply:
    """One HTTP answer."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> dict[str, Any]:
        """The error object, which must have OpenAI's shape."""
        assert self.headers.get("content-type") == "application/json", self
        document = self.json()
        assert set(document) == {"error"}, document
        assert set(document["error"]) == {"message", "type", "param", "code"}, document
        message = document["error"]["message"]
        assert isinstance(message, str) and message, document
        assert not re.search(r"0x[0-9a-f]{6,}", message), f"a pointer: {message}"
        assert str(ROOT) not in message, f"a path: {message}"
        return document["error"]


def parse_metrics(text: str) -> dict[str, float]:
    """'name{label="x",...}' (the label 'model' left out) -> value."""
    values = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        match = re.fullmatch(r'([\w:]+)(?:\{(.*)\})? (\S+)', line)
        assert match, f"not a sample: {line!r}"
        name, labels, value = match.groups()
        kept = [
            f'{key}="{text}"'
            for key, text in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")
            if key not in ("model", "model_name")
        ]
        values[name + ("{" + ",".join(kept) + "}" if kept else "")] = float(value)
    return values


@dataclass
class Server:
    """`kvahead serve` as a process of its own. Use as a context manager, or start() and stop()."""

    log_path: pathlib.Path
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    key: str | None = None
    ca_path: str | None = None  # the server speaks TLS with this certificate
    model: str | os.PathLike[str] = MODEL
    descriptors_max: int | None = None  # as `ulimit -n` gives it
    process: subprocess.Popen | None = None
    port: int = 0
    stopped: bool = False

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Server:
        arguments = ["serve", "--model", str(self.model), "--port", "0", "--log-format", "text"]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [BINARY, *arguments, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=clean_environment(**self.env),
                preexec_fn=self._limit if self.descriptors_max else None,
            )
        try:
            line = wait_until("the server says where it serves", self._serving_line, START_S)
            self.port = int(line.group(1))
            wait_until("/ready", lambda: self.request("GET", "/ready").status == 200, START_S)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def _limit(self) -> None:
        limit = self.descriptors_max
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    def _serving_line(self) -> re.Match[str] | None:
        line = re.search(r"serving .* at https?://\S+:(\d+) after", self.log())
        if not line and self.process.poll() is not None:
            raise AssertionError(f"exit code {self.process.returncode}:\n{self.log()}")
        return line

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def stop(self, expected: int = 0) -> None:
        """SIGTERM; the process must end by itself, with this code and without complaints."""
        if self.stopped or not self.process:
            return
        self.stopped = True
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still running {EXIT_S} s after SIGTERM:\n{self.log()}") from None
        log = self.log()
        assert not SANITIZER.search(log), log
        assert code == expected, f"exit code {code}:\n{log}"

    # --- asking

    @property
    def url(self) -> str:
        return f"{'https' if self.ca_path else 'http'}://127.0.0.1:{self.port}"

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca_path)

    def connect(self, timeout: float = ANSWER_S) -> socket.socket:
        """A raw connection."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        if self.ca_path:
            return self._context().wrap_socket(sock, server_hostname="127.0.0.1")
        return sock

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout: float = ANSWER_S,
    ) -> Reply:
        """One request on a connection of its own. A body that is no bytes is sent as JSON."""
        with contextlib.closing(self.http(timeout)) as connection:
            self.send(connection, method, path, body, headers)
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, names, answer.read())

    def http(self, timeout: float = ANSWER_S) -> http.client.HTTPConnection:
        if self.ca_path:
            return http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=timeout, context=self._context()
            )
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        sent = {}
        if self.key:
            sent["Authorization"] = f"Bearer {self.key}"
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent["Content-Type"] = "application/json"
        connection.request(method, path, body, sent | (headers or {}))

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        return self.request("POST", path, body, headers)

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """A greedy completion with token ids; the document."""
        body = {"prompt": prompt, "temperature": 0, "return_token_ids": True} | fields
        reply = self.post("/v1/completions", body)
        assert reply.status == 200, reply
        return reply.json()

    def tokens(self, prompt: Any, **fields: Any) -> list[int]:
        """The ids of a greedy completion."""
        return self.complete(prompt, **fields)["choices"][0]["token_ids"]

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without a beginning-of-text token."""
        reply = self.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        assert reply.status == 200, reply
        return reply.json()["tokens"]

    @contextlib.contextmanager
    def stream(
        self, path: str, headers: dict[str, str] | None = None, **fields: Any
    ) -> Iterator[Stream]:
        """An open stream of frames."""
        body = {"temperature": 0, "stream": True} | fields
        with contextlib.closing(self.http()) as connection:
            self.send(connection, "POST", path, body, headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield Stream(answer, connection)

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**self.client_options(**options))

    def client_options(self, **options: Any) -> dict[str, Any]:
        """Of an SDK client that hides nothing: no retries."""
        defaults = {"base_url": f"{self.url}/v1", "api_key": self.key or "none", "max_retries": 0}
        return defaults | {"timeout": ANSWER_S} | options

    # --- looking inside

    def metrics(self) -> dict[str, float]:
        reply = self.request("GET", "/metrics")
        assert reply.status == 200, reply
        return parse_metrics(reply.body.decode())

    def live(self) -> list[dict[str, Any]]:
        """The live view: one entry per choice that waits or runs."""
        reply = self.request("GET", "/v1/kvahead/requests")
        assert reply.status == 200, reply
        return reply.json()["data"]

    def is_idle(self) -> bool:
        """Nothing runs or waits, and only the prefix cache holds memory."""
        now = self.metrics()
        busy = now["kvahead_requests_running"] + now["kvahead_requests_suspended"]
        busy += sum(v for k, v in now.items() if k.startswith("kvahead_requests_waiting"))
        tiers = ("device", "host")
        used = [now[f'kvahead_kv_bytes{{tier="{tier}"}}'] for tier in tiers]
        cached = [now[f'kvahead_kv_cached_bytes{{tier="{tier}"}}'] for tier in tiers]
        return busy == 0 and used == cached

    def wait_idle(self) -> None:
        def state() -> bool:
            return self.is_idle() and not self.live()

        wait_until("idle, with every page back or in the prefix cache", state)


@dataclass
class Stream:
    """Server-sent events as they come."""

    answer: http.client.HTTPResponse
    connection: http.client.HTTPConnection

    def lines(self) -> Iterator[str]:
        while line := self.answer.readline():
            yield line.decode("utf-8")

    def events(self) -> Iterator[str]:
        """Payloads of data frames and, with their colon, comments; framing is checked."""
        lines = self.lines()
        for line in lines:
            assert line.endswith("\n") and (line.startswith("data: ") or line.startswith(":")), line
            assert next(lines) == "\n", line
            yield line[:-1] if line.startswith(":") else line[6:-1]

    def frames(self) -> Iterator[dict[str, Any]]:
        """The JSON of data frames up to [DONE], which must be the last."""
        done = False
        for event in self.events():
            assert not done, f"after [DONE]: {event}"
            done = event == "[DONE]"
            if not done and not event.startswith(":"):
                yield json.loads(event)
        assert done, "the stream ended without [DONE]"

    def abandon(self) -> None:
        """Leave as a client does that was killed."""
        sock = self.connection.sock or self.answer.fp.raw._sock
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()
