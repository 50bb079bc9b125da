"""HTTP as it comes over the wire, where the SDK would hide it: hostile input, limits, framing,
keep-alives, disconnects."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import time

import pytest
from harness import CONTEXT, Server, wait_until

COMPLETIONS = "/v1/completions"
SMALL = {"prompt": "Once", "max_tokens": 2, "temperature": 0}


def exchange(server: Server, data: bytes, timeout: float = 60) -> bytes:
    """Send raw bytes; everything that comes back until the server closes."""
    with contextlib.closing(server.connect(timeout)) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
        received = b""
        with contextlib.suppress(ConnectionError):
            while chunk := sock.recv(65536):
                received += chunk
        return received


def raw_post(body: bytes, headers: str = "", path: str = COMPLETIONS) -> bytes:
    """A request that asks for the connection to be closed."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    )
    return head.encode() + body


def status_of(answer: bytes) -> int:
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert match, answer[:200]
    return int(match.group(1))


def error_of(answer: bytes) -> dict:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), head
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.fixture(autouse=True)
def alive(server):
    """Whatever a test did, the server answers afterwards and holds nothing."""
    yield
    assert server.post(COMPLETIONS, SMALL).status == 200
    server.wait_idle()


# --- hostile bodies

HOSTILE = {
    "empty": b"",
    "not JSON": b"hello",
    "cut": b'{"prompt": "a',
    "array": b"[]",
    "string": b'"x"',
    "null": b"null",
    "trailing": b'{"prompt":"a"} x',
    "single quotes": b"{'prompt':'a'}",
    "comment": b'{"prompt":"a"/*x*/}',
    "comma": b'{"prompt":"a",}',
    "NaN": b'{"prompt":"a","temperature":NaN}',
    "Infinity": b'{"prompt":"a","temperature":Infinity}',
    "1e999": b'{"prompt":"a","temperature":1e999}',
    "-1e999": b'{"prompt":"a","seed":-1e999}',
    "negative": b'{"prompt":"a","max_tokens":-1}',
    "negative zero n": b'{"prompt":"a","n":-0}',
    "fraction": b'{"prompt":"a","max_tokens":1.5}',
    "2^31": b'{"prompt":"a","n":2147483648}',
    "2^32": b'{"prompt":"a","max_tokens":4294967296}',
    "2^63": b'{"prompt":"a","max_tokens":9223372036854775808}',
    "2^64": b'{"prompt":"a","top_k":18446744073709551616}',
    "huge number": b'{"prompt":"a","seed":' + b"9" * (10 << 20) + b"}",
    "huge exponent": b'{"prompt":"a","seed":1e' + b"9" * 100000 + b"}",
    "deep arrays": b'{"prompt":' + b"[" * 10000 + b"]" * 10000 + b"}",
    "deep objects": b'{"a":' * 10000 + b"1" + b"}" * 10000,
    "deep unknown field": b'{"prompt":"a","x":' + b"[" * 10000 + b"]" * 10000 + b"}",
    "lone high surrogate": b'{"prompt":"\\ud83d"}',
    "lone low surrogate": b'{"prompt":"\\ude00"}',
    "surrogates swapped": b'{"prompt":"\\ude00\\ud83d"}',
    "escaped NUL": b'{"prompt":"a\\u0000b"}',
    "raw NUL": b'{"prompt":"a\x00b"}',
    "control character": b'{"prompt":"a\nb"}',
    "bad escape": b'{"prompt":"\\x41"}',
    "bad UTF-8": b'{"prompt":"\xff\xfe"}',
    "overlong UTF-8": b'{"prompt":"\xc0\xaf"}',
    "UTF-8 surrogate": b'{"prompt":"\xed\xa0\x80"}',
    "cut UTF-8": b'{"prompt":"\xf0\x9f\x98"}',
    "UTF-16": '{"prompt":"a"}'.encode("utf-16"),
    "no prompt": b'{"model":"demo"}',
    "prompt of the wrong type": b'{"prompt":{"a":1}}',
    "mixed batch": b'{"prompt":["a",1]}',
    "token too large": b'{"prompt":[1e9]}',
    "token negative": b'{"prompt":[-1]}',
    "token fraction": b'{"prompt":[1.5]}',
    "too many prompts": json.dumps({"prompt": ["a"] * 5000}).encode(),
    "too many choices": json.dumps({"prompt": ["a"] * 256, "n": 128}).encode(),
    "too many stops": json.dumps({"prompt": "a", "stop": ["a"] * 100000}).encode(),
    "huge stop": json.dumps({"prompt": "a", "stop": "a" * 1000000}).encode(),
    "huge key": json.dumps({"a" * 1000000: 1, "prompt": "a"}).encode(),
    "many values": b'{"prompt":"a","x":[' + b"1," * 1500000 + b"1]}",
    "long prompt": json.dumps({"prompt": "word " * 1000000}).encode(),
    "model": b'{"prompt":"a","model":"../../etc/passwd"}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_body(server, name):
    reply = server.post(COMPLETIONS, HOSTILE[name])
    expected = 404 if name == "model" else 400
    assert reply.status == expected, reply
    assert len(reply.error()["message"]) < 1000


def test_hostile_chat_bodies(server):
    for body in (
        b'{"messages":null}',
        b'{"messages":{}}',
        b'{"messages":[1]}',
        b'{"messages":[{}]}',
        b'{"messages":[{"role":"user"}]}',
        b'{"messages":[{"role":"user","content":[{"type":"text"}]}]}',
        b'{"messages":[{"role":["user"],"content":"x"}]}',
        b'{"messages":[' + b'{"role":"user","content":"x"},' * 99999 + b"1]}",
    ):
        reply = server.post("/v1/chat/completions", body)
        assert reply.status == 400, (body[:80], reply)
        reply.error()


def test_hostile_bodies__memory_comes_back(server):
    """The worst of them again and again: the process does not grow with them."""

    def resident() -> int:
        with open(f"/proc/{server.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    names = ("huge number", "deep unknown field", "many values", "long prompt", "huge key")
    for _ in range(2):
        for name in names:
            server.post(COMPLETIONS, HOSTILE[name])
    before = resident()
    for _ in range(6):
        for name in names:
            assert server.post(COMPLETIONS, HOSTILE[name]).status == 400
    # A sanitizer keeps freed memory for a while; without one this is a tenth of the bound.
    assert resident() < before + (400 << 20)


def test_json__duplicate_keys_and_null(server):
    """Accepted and harmless: the last one wins or it is refused; null is as good as absent."""
    reply = server.post(COMPLETIONS, b'{"prompt":"a","max_tokens":1,"max_tokens":2}')
    assert reply.status == 400 or reply.json()["usage"]["completion_tokens"] <= 2
    nothing = {"stop": None, "logprobs": None, "seed": None, "n": None, "kv": None, "user": None}
    assert server.post(COMPLETIONS, SMALL | nothing).status == 200


def test_json__every_character_survives(server):
    text = 'quotes " \\ / controls \b\f\n\r\t and \u2028 \U0001f600 \u00e9'
    for escaped in (True, False):
        body = json.dumps({"prompt": text, "echo": True, "max_tokens": 0}, ensure_ascii=escaped)
        reply = server.post(COMPLETIONS, body.encode())
        assert reply.json()["choices"][0]["text"] == text


def test_json__a_frame_is_one_line_of_str_splitlines(server):
    """As httpx's iter_lines() and most homemade readers of streams have lines."""
    text = "one\x85two\u2028three\u2029four"
    body = {"prompt": text, "echo": True, "max_tokens": 1, "stream": True}
    events = server.post(COMPLETIONS, body).body.decode()
    lines = events.splitlines()
    assert lines == events.split("\n")[:-1]
    frame = json.loads(lines[0].removeprefix("data: "))
    assert frame["choices"][0]["text"] == text


# --- headers, bodies, methods


def test_content_type__must_be_json(server):
    body = json.dumps(SMALL).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        reply = server.post(COMPLETIONS, body, {"Content-Type": kind})
        assert reply.status == 415, (kind, reply)
        assert "application/json" in reply.error()["message"]
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/x+json"):
        assert server.post(COMPLETIONS, body, {"Content-Type": kind}).status == 200, kind
    reply = server.post(COMPLETIONS, body, {"Content-Encoding": "gzip"})
    assert reply.status == 415


def test_headers__too_large(server):
    answer = exchange(server, raw_post(b"{}", f"X-Filler: {'a' * (1 << 20)}\r\n"))
    assert status_of(answer) == 431 and "32768" in error_of(answer)["message"]
    answer = exchange(server, raw_post(b"{}", "X-A: b\r\n" * 100000))
    assert status_of(answer) == 431
    answer = exchange(server, b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n")
    assert status_of(answer) in (400, 414, 431)


def test_body__too_large(server):
    for headers in ("", "Expect: 100-continue\r\n"):
        body = b'{"prompt":"' + b"a" * (17 << 20) + b'"}'
        answer = exchange(server, raw_post(body, headers))
        answer = re.sub(rb"^HTTP/1.1 100 [^\r]*\r\n\r\n", b"", answer)
        assert status_of(answer) == 413, answer[:300]
        assert str(16 << 20) in error_of(answer)["message"]


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: -1",
        "Content-Length: abc",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
    ],
)
def test_framing__ambiguous_or_malformed(server, head):
    data = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    data += f"{head}\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    assert 400 <= status_of(exchange(server, data.encode())) < 500


@pytest.mark.parametrize(("length", "status"), [(99999999999, 413), (10**23, 400)])
def test_body__announced_far_too_large(servers, length, status):
    """Nobody waits for such a body at all."""
    own = servers.start("--read-timeout", "1s")
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answer = exchange(own, f"{head}Content-Length: {length}\r\n\r\n".encode() + b"a" * 1000)
    assert status_of(answer) == status
    assert own.request("GET", "/health").status == 200


@pytest.mark.parametrize(
    "chunks",
    [b"zz\r\nhello\r\n0\r\n\r\n", b"-5\r\nhello\r\n", b"ffffffffffffffff\r\nhello", b"5\r\nhelloX"],
)
def test_framing__malformed_chunks(server, chunks):
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    with contextlib.closing(server.connect(30)) as sock:
        sock.sendall(head.encode() + chunks)
        sock.shutdown(socket.SHUT_WR)
        answer = sock.recv(65536)
    assert not answer or 400 <= status_of(answer) < 500


def test_framing__a_chunked_body_is_a_body(server):
    body = json.dumps(SMALL).encode()
    chunks = b"".join(b"%x\r\n%b\r\n" % (1, body[i : i + 1]) for i in range(len(body)))
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    )
    assert status_of(exchange(server, head.encode() + chunks + b"0\r\n\r\n")) == 200


def test_garbage(server):
    for data in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\x00" * 1000, b"GET\r\n\r\n"):
        with contextlib.closing(server.connect(30)) as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            answer = sock.recv(65536)
        assert not answer or 400 <= status_of(answer) < 500


def test_slow_body__is_ended(servers):
    slow = servers.start("--read-timeout", "500ms", "--head-timeout", "500ms")
    answer = exchange(slow, raw_post(b"{}")[:-1])
    assert status_of(answer) == 408 and error_of(answer)["code"] == "timeout"
    with contextlib.closing(slow.connect(30)) as sock:
        started = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for byte in b"GET /health HTTP/1.1\r\n" + b"X-Slow: slow\r\n" * 1000:
                sock.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - started < 20, "a byte now and then is not progress"
    assert slow.request("GET", "/health").status == 200


def test_methods(server):
    for path in ("/health", "/ready", "/version", "/metrics", "/v1/models", "/v1/models/demo"):
        got, head = (server.request(method, path) for method in ("GET", "HEAD"))
        assert (got.status, head.status, head.body) == (200, 200, b""), path
        reply = server.post(path, {})
        assert reply.status == 405 and "GET" in reply.headers["allow"]
        reply.error()
    for method in ("GET", "PUT", "DELETE", "PATCH"):
        reply = server.request(method, COMPLETIONS)
        assert reply.status == 405 and "POST" in reply.headers["allow"], reply
    reply = server.request("OPTIONS", COMPLETIONS)
    assert reply.status == 204 and "POST" in reply.headers["allow"]
    reply = server.request("GET", "/nowhere")
    assert reply.status == 404 and "/nowhere" in reply.error()["message"]


def test_cors__only_for_allowed_origins(servers, server):
    ask = {"Origin": "https://chat.example.org", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in server.request("GET", "/health", None, ask).headers
    open_one = servers.start("--cors-origin", "https://chat.example.org")
    reply = open_one.request("OPTIONS", COMPLETIONS, None, ask)
    assert reply.headers["access-control-allow-origin"] == "https://chat.example.org"
    assert "authorization" in reply.headers["access-control-allow-headers"].lower()
    other = {"Origin": "https://evil.example.org"}
    assert "access-control-allow-origin" not in open_one.post(COMPLETIONS, SMALL, other).headers
    reply = open_one.post(COMPLETIONS, SMALL, ask)
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == "https://chat.example.org"


def test_request_id__echoed_or_made(server):
    reply = server.post(COMPLETIONS, SMALL, {"X-Request-Id": "mine-42"})
    assert reply.headers["x-request-id"] == "mine-42"
    wait_until("the log has it", lambda: "id=mine-42" in server.log())
    made = {server.request("GET", "/health").headers["x-request-id"] for _ in range(5)}
    assert len(made) == 5
    for forged in ("a b", "x" * 5000, "\u00e9", ""):
        reply = server.post(COMPLETIONS, SMALL, {"X-Request-Id": forged.encode("latin-1")})
        assert reply.status == 200 and reply.headers["x-request-id"] != forged


def test_connections__are_kept_and_pipelining_works(server):
    with contextlib.closing(server.http()) as connection:
        for _ in range(5):
            server.send(connection, "POST", COMPLETIONS, SMALL)
            answer = connection.getresponse()
            assert answer.status == 200 and answer.read()
            sock = connection.sock
            assert sock, "the server closed the connection"
    one = raw_post(json.dumps(SMALL).encode()).replace(b"Connection: close\r\n", b"")
    answer = exchange(server, one + one + raw_post(json.dumps(SMALL).encode()))
    assert answer.count(b"HTTP/1.1 200 ") == 3


def test_curl(server):
    """As the README has it."""
    curl = shutil.which("curl")
    if not curl:
        pytest.skip("curl is not installed")
    command = [curl, "-sS", "--fail-with-body", "--no-buffer", f"{server.url}{COMPLETIONS}"]
    command += ["-H", "Content-Type: application/json"]
    body = json.dumps(SMALL | {"stream": True})
    done = subprocess.run([*command, "-d", body], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("data: [DONE]\n\n") and not done.stderr
    refused = subprocess.run([*command, "-d", "{}"], capture_output=True, text=True, check=False)
    assert refused.returncode == 22 and "prompt" in refused.stdout


# --- streams


def test_sse__framing(server):
    data = raw_post(json.dumps(SMALL | {"stream": True}).encode())
    head, _, _ = exchange(server, data).partition(b"\r\n\r\n")
    assert status_of(head) == 200
    names = head.decode().lower()
    assert "content-type: text/event-stream" in names and "cache-control: no-cache" in names
    with server.stream(COMPLETIONS, **SMALL) as stream:
        frames = list(stream.frames())
    assert frames[-1]["choices"][0]["finish_reason"] == "length"
    for frame in frames:
        assert set(frame) >= {"id", "object", "created", "model", "choices"}


def test_sse__http_1_0_is_ended_by_the_end_of_the_connection(server):
    body = json.dumps(SMALL | {"stream": True}).encode()
    data = raw_post(body).replace(b"HTTP/1.1", b"HTTP/1.0")
    head, _, frames = exchange(server, data).partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower() and frames.endswith(b"data: [DONE]\n\n")


def numbers(count: int, seed: int = 0) -> list[int]:
    return [(seed * 977 + i * 37) % 3200 + 300 for i in range(count)]


def test_keep_alives__during_queue_and_prefill(servers):
    """Whoever waits gets a sign of life: with progress in prefill, and while queued."""
    patient = servers.start("--keepalive", "100ms", "--sequences", "1")
    batch = [numbers(CONTEXT - 64, seed) for seed in range(2)]
    with patient.stream(COMPLETIONS, prompt=batch, max_tokens=1) as busy:
        wait_until("it runs", lambda: any(e["state"] != "waiting" for e in patient.live()))
        with patient.stream(COMPLETIONS, **SMALL) as queued:
            waited = [event for event in queued.events() if event.startswith(":")]
        comments = [event for event in busy.events() if event.startswith(":")]
    progress = [re.fullmatch(r": keep-alive prefill (\d+)/(\d+)", comment) for comment in comments]
    done = [(int(m.group(1)), int(m.group(2))) for m in progress if m]
    assert done, comments
    assert all(0 <= part <= total == CONTEXT - 64 for part, total in done)
    assert waited and all("queued" in comment or "keep-alive" in comment for comment in waited)
    assert patient.metrics()["kvahead_keep_alives_total"] >= len(done)


def test_keep_alives__none_when_tokens_flow(server):
    with server.stream(COMPLETIONS, prompt="Once", max_tokens=50, ignore_eos=True) as stream:
        assert not [event for event in stream.events() if event.startswith(":")]


# --- leaving


def leave(server: Server, stage: str) -> None:
    """Ask on a raw connection and hang up in the given stage; only 'stays' is left then."""
    prompt = numbers(CONTEXT - 256, 5) if stage == "prefill" else numbers(30, 6)
    fields = {"prompt": prompt, "max_tokens": 200, "ignore_eos": True, "stream": True}
    # No prefix cache between the attempts: a prefill is a prefill each time.
    fields["cache_salt"] = str(time.monotonic_ns())
    fields["priority"] = 100 if stage == "queue" else 0
    sock = server.connect()
    sock.sendall(raw_post(json.dumps(fields).encode(), "X-Request-Id: leaves\r\n"))

    def reached() -> bool:
        return any(
            entry["prefilled_tokens"] == 0
            if stage == "queue"
            else 0 < entry["prefilled_tokens"] and entry["output_tokens"] == 0
            for entry in server.live()
            if entry["request_id"] == "leaves"
        )

    if stage == "decode":
        got = b""
        while b"data: " not in got:
            piece = sock.recv(4096)
            assert piece, got
            got += piece
    else:
        wait_until(f"it is in {stage}", reached)
    sock.close()
    gone = lambda: all(entry["request_id"] == "stays" for entry in server.live())  # noqa: E731
    wait_until(f"gone after leaving in {stage}", gone)


@pytest.mark.parametrize("stage", ["queue", "prefill", "decode"])
def test_disconnect__frees_what_it_held_and_disturbs_nobody(servers, stage):
    own = servers.start("--sequences", "1" if stage == "queue" else "8")
    asked = {"prompt": numbers(50, 1), "max_tokens": 2000, "ignore_eos": True}
    got: dict[int, list[int]] = {0: [], 1: [], 2: [], 3: []}
    stays = {"X-Request-Id": "stays"}
    with own.stream(COMPLETIONS, stays, **asked, n=4, return_token_ids=True) as stream:
        frames = stream.frames()
        next(frames)
        for _ in range(3):
            leave(own, stage)
        for frame in frames:
            choice = frame["choices"][0]
            got[choice["index"]] += choice.get("token_ids", [])
    reference = own.tokens(**asked)
    assert all(ids == reference for ids in got.values())
    own.wait_idle()
    metrics = own.metrics()
    assert metrics['kvahead_requests_finished_total{reason="abort"}'] == 3
    assert metrics['kvahead_http_requests_total{route="/v1/completions",code="499"}'] == 3
    assert metrics["kvahead_connections"] <= 2


def test_disconnect__while_not_streaming(server):
    sock = server.connect()
    body = {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True}
    sock.sendall(raw_post(json.dumps(body).encode()))
    wait_until("it runs", lambda: any(entry["output_tokens"] for entry in server.live()))
    sock.close()
    wait_until("gone", lambda: not server.live())


def test_queue_full__is_503_with_retry_after(servers):
    small = servers.start("--sequences", "1", "--waiting", "2")
    long = {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True}
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(small.stream(COMPLETIONS, **long))]
        next(streams[0].events())
        socks = []
        for count in (1, 2):
            sock = stack.enter_context(contextlib.closing(small.connect()))
            sock.sendall(raw_post(json.dumps(SMALL).encode()))
            socks.append(sock)
            wait_until("queued", lambda count=count: len(small.live()) == 1 + count)
        reply = small.post(COMPLETIONS, SMALL)
        assert reply.status == 503 and int(reply.headers["retry-after"]) >= 1
        assert reply.error()["code"] == "overloaded"
        metrics = small.metrics()
        assert metrics['kvahead_requests_rejected_total{reason="queue_full"}'] == 1
        assert len(small.live()) == 3, "whoever waits is not touched"
        streams[0].abandon()
        for sock in socks:
            assert status_of(sock.recv(65536)) == 200
    small.wait_idle()


def test_slow_reader__is_paused_and_cut_while_others_go_on(servers):
    own = servers.start("--write-stall", "1s")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", own.port))
    fields = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    fields |= {"n": 8, "return_token_ids": True}
    sock.sendall(raw_post(json.dumps(fields).encode()))
    wait_until("it runs", own.live)
    for _ in range(3):
        assert own.post(COMPLETIONS, SMALL).status == 200
    wait_until("cut", lambda: own.metrics()["kvahead_slow_readers_cut_total"] == 1, 120)
    sock.close()
    own.wait_idle()
