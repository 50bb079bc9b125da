"""HTTP as bytes: connections that may do what no client library does, and what a process uses.

A `Wire` sends bytes as they are given and reads answers one at a time, by the framing that RFC 9112
gives them; it can half-close, or reset as a killed client's kernel does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

LIVENESS_S = 60
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Answer:
    """One answer of a connection."""

    status: int
    version: str
    fields: list[tuple[str, str]]  # names in lower case, in order
    body: bytes
    complete: bool  # the body ended as its head says
    interim: list[int] = field(default_factory=list)  # 1xx before it

    def get(self, name: str) -> str | None:
        values = [value for key, value in self.fields if key == name]
        assert len(values) <= 1, f"{name} is there {len(values)} times: {self.fields}"
        return values[0] if values else None

    @property
    def request_id(self) -> str | None:
        return self.get("x-request-id")

    @property
    def closes(self) -> bool:
        return "close" in (self.get("connection") or "").lower()

    def json(self) -> Any:
        return json.loads(self.body)

    def error(self) -> dict[str, Any]:
        """The error object, which must have OpenAI's shape."""
        assert self.get("content-type") == "application/json", self
        document = self.json()
        assert set(document) == {"error"}, document
        assert set(document["error"]) == {"message", "type", "param", "code"}, document
        assert document["error"]["message"], document
        return document["error"]


class Wire:
    """A connection of raw bytes."""

    def __init__(self, port: int, *, source: str | None = None, timeout: float = LIVENESS_S) -> None:
        self.sock = socket.socket()
        self.sock.settimeout(timeout)
        if source:
            self.sock.bind((source, 0))
        self.sock.connect(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = b""
        self.ended = False

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        """End with RST: what was not read or sent is thrown away."""
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def half_close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def send(self, data: bytes) -> int:
        """How many bytes the peer's kernel took; a peer that has closed ends it early."""
        sent = 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            while sent < len(data):
                sent += self.sock.send(data[sent : sent + (1 << 20)])
        return sent

    def fill(self) -> bool:
        """Read what is there; False when there will be nothing more."""
        if self.ended:
            return False
        try:
            chunk = self.sock.recv(65536)
        except ConnectionError:
            chunk = b""
        self.data += chunk
        self.ended = not chunk
        return not self.ended

    def read_line(self) -> bytes | None:
        while b"\r\n" not in self.data:
            if not self.fill():
                return None
        line, _, self.data = self.data.partition(b"\r\n")
        return line

    def read_exactly(self, count: int) -> bytes:
        """`count` bytes, or less if the connection ended."""
        while len(self.data) < count and self.fill():
            pass
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def read_chunks(self) -> tuple[bytes, bool]:
        body = b""
        while (line := self.read_line()) is not None:
            size = int(line.split(b";")[0], 16)
            chunk = self.read_exactly(size)
            body += chunk
            if len(chunk) < size or self.read_line() is None:
                return body, False
            if size == 0:
                return body, True
        return body, False

    def read_head(self) -> Answer | None:
        """Status line and fields; None if the connection ended before a head was complete."""
        line = self.read_line()
        if line is None:
            return None
        match = re.fullmatch(rb"(HTTP/1\.[01]) (\d{3}) ?(.*)", line)
        assert match, f"not a status line: {line[:200]!r}"
        fields = []
        while True:
            line = self.read_line()
            if line is None:
                return None
            if line == b"":
                break
            name, colon, value = line.decode("latin-1").partition(":")
            assert colon, f"not a header field: {line[:200]!r}"
            fields.append((name.lower(), value.strip()))
        return Answer(int(match.group(2)), match.group(1).decode(), fields, b"", False)

    def answer(self, method: str = "GET") -> Answer | None:
        """The next answer, the final one; None if the connection ends before it.
        TimeoutError: it did not come in this connection's time."""
        interim = []
        while (answer := self.read_head()) and answer.status < 200 and answer.status != 101:
            interim.append(answer.status)
        if not answer:
            return None
        answer.interim = interim
        if method == "HEAD" or answer.status in (101, 204, 304):
            answer.complete = True
        elif answer.get("transfer-encoding"):
            answer.body, answer.complete = self.read_chunks()
        elif (length := answer.get("content-length")) is not None:
            answer.body = self.read_exactly(int(length))
            answer.complete = len(answer.body) == int(length)
        else:
            while self.fill():
                pass
            answer.body, answer.complete, self.data = self.data, True, b""
        return answer

    def answers(self, methods: Iterable[str] = ()) -> list[Answer]:
        """All answers until the peer closes."""
        got: list[Answer] = []
        names = iter(methods)
        while answer := self.answer(next(names, "GET")):
            got.append(answer)
        return got

    def is_closed(self) -> bool:
        """Wait until the peer closes; False: it sent something, or it did not in this time."""
        try:
            return not self.data and not self.fill()
        except TimeoutError:
            return False


def head(
    method: str,
    path: str,
    *fields: str,
    host: str | None = "localhost",
    key: str | None = None,
    request_id: str | None = None,
    version: str = "HTTP/1.1",
) -> bytes:
    """A request's head, blank line included."""
    lines = [f"{method} {path} {version}"]
    if host is not None:
        lines.append(f"Host: {host}")
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if request_id:
        lines.append(f"X-Request-Id: {request_id}")
    return ("\r\n".join([*lines, *fields]) + "\r\n\r\n").encode("latin-1")


def post(path: str, body: Any, *fields: str, **options: Any) -> bytes:
    """A complete POST of JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = ("Content-Type: application/json", f"Content-Length: {len(data)}", *fields)
    return head("POST", path, *given, **options) + data


def chunked(data: bytes, size: int = 1 << 16) -> bytes:
    """A chunked body."""
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


# --- what the server says about itself


@dataclass
class LogLine:
    """One line of the access log (--log-format text)."""

    method: str
    path: str
    status: int
    request_id: str
    key: int | None  # index of the key it was made with
    text: str


ACCESS = re.compile(r"\d (?:info |debug) (\S+) (\S*) (\d{3}) [\d.]+ms id=(\S*)(?: key=(\d+))?.*")


def access_log(text: str) -> list[LogLine]:
    lines = []
    for line in text.splitlines():
        match = ACCESS.search(line)
        if match:
            method, path, status, request_id, key = match.groups()
            index = int(key) if key is not None else None
            lines.append(LogLine(method, path, int(status), request_id, index, line))
    return lines


def answered_requests(metrics: dict[str, float]) -> float:
    """Requests that the server's counters know, of all routes and codes."""
    return sum(v for k, v in metrics.items() if k.startswith("kvahead_http_requests_total"))


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read()).group(1)) << 10


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, user and system."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def cpu_share(pid: int, seconds: float = 0.5) -> float:
    """The share of one processor that a process uses over this time."""
    used, started = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - used) / (time.monotonic() - started)


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
