"""HTTP/1.1 to the letter: what is malformed is refused, and what RFC 9112 allows is understood.

A refusal is the same whether it is of the first request of a connection or of a later one: a status, the
error object, the end of the connection, one line in the log, one count.
"""

from __future__ import annotations

import contextlib
import json

import pytest
from harness import Server, parse_metrics, wait_until
from wire import Answer, Wire, access_log, answered_requests, chunked, head, post

PATH = "/v1/completions"
KEY = "the-key"
SMALL = {"prompt": "Once", "max_tokens": 1, "temperature": 0}
BODY = json.dumps(SMALL).encode()
HEADER_LIMIT, BODY_LIMIT = 32 << 10, 1 << 20
OPTIONS = ("--log-level", "debug", "--body-limit", str(BODY_LIMIT))
ENVIRONMENT = {"KVAHEAD_API_KEY": KEY}


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A server with a key, whose log has every request."""
    log = tmp_path_factory.mktemp("strict") / "server.log"
    with Server(log, OPTIONS, ENVIRONMENT, KEY) as server:
        yield server


class Books:
    """What log and counters say of the requests made since this was made."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.before = self._read()

    def _read(self) -> tuple[float, float, int]:
        """Requests and malformed ones counted, lines in the log; this look itself left out."""
        end = f"books-{id(self)}-{len(self.server.log())}"
        reply = self.server.request("GET", "/metrics", None, {"X-Request-Id": end})
        assert reply.status == 200, reply
        metrics = parse_metrics(reply.body.decode())

        def lines() -> list[str]:
            return [line.request_id for line in access_log(self.server.log())]

        wait_until("the log is written", lambda: end in lines())
        malformed = metrics["kvahead_http_malformed_total"]
        return answered_requests(metrics), malformed, lines().index(end)

    def check(self, requests: int, malformed: int) -> None:
        now = self._read()
        # The look before is a request itself.
        counted, refused, logged = (a - b for a, b in zip(now, self.before))
        assert (counted - 1, logged - 1) == (requests, requests), "requests counted, and logged"
        assert refused == malformed, "malformed requests counted"


def lines(*text: str) -> bytes:
    return ("\r\n".join(text) + "\r\n\r\n").encode("latin-1")


def get(*fields: str, line: str = "GET /health HTTP/1.1") -> bytes:
    return lines(line, "Host: localhost", *fields)


def body_of(*fields: str, data: bytes = BODY, line: str = f"POST {PATH} HTTP/1.1") -> bytes:
    given = ("Content-Type: application/json", f"Authorization: Bearer {KEY}", *fields)
    return get(*given, line=line) + data


def chunks(data: bytes, *fields: str) -> bytes:
    return body_of("Transfer-Encoding: chunked", *fields, data=data)


ONE = b"%x\r\n%b\r\n" % (len(BODY), BODY)  # the body as one chunk
LENGTH = f"Content-Length: {len(BODY)}"

# Name: the bytes, and what they may be answered with if not 400.
MALFORMED: dict[str, tuple[bytes, tuple[int, ...]]] = {
    # The request line.
    "TLS on a plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500, ()),
    "NULs": (b"\x00" * 1000, ()),
    "only a method": (lines("GET"), ()),
    "no version": (lines("GET /health"), ()),
    "HTTP/0.5": (get(line="GET /health HTTP/0.5"), (505,)),
    "HTTP/1.2": (get(line="GET /health HTTP/1.2"), (505,)),
    "HTTP/2.0": (get(line="GET /health HTTP/2.0"), (505,)),
    "HTTP/1.10": (get(line="GET /health HTTP/1.10"), (505,)),
    "HTTP/11": (get(line="GET /health HTTP/11"), (505,)),
    "http/1.1": (get(line="GET /health http/1.1"), ()),
    "HTTPS/1.1": (get(line="GET /health HTTPS/1.1"), ()),
    "ICE/1.0": (get(line="GET /health ICE/1.0"), ()),
    "RTSP": (get(line="DESCRIBE rtsp://x/y RTSP/1.0"), (405, 501)),
    "two spaces before the target": (get(line="GET  /health HTTP/1.1"), ()),
    "two spaces behind the target": (get(line="GET /health  HTTP/1.1"), ()),
    "tab behind the method": (get(line="GET\t/health HTTP/1.1"), ()),
    "space before the method": (get(line=" GET /health HTTP/1.1"), ()),
    "space behind the version": (get(line="GET /health HTTP/1.1 "), ()),
    "space in the target": (get(line="GET /hea lth HTTP/1.1"), ()),
    "NUL in the target": (get(line="GET /hea\0lth HTTP/1.1"), ()),
    "control character in the target": (get(line="GET /hea\x01lth HTTP/1.1"), ()),
    "DEL in the target": (get(line="GET /hea\x7flth HTTP/1.1"), ()),
    "byte over 127 in the target": (get(line="GET /hea\xfflth HTTP/1.1"), ()),
    "fragment in the target": (get(line="GET /health#a HTTP/1.1"), ()),
    "target without a slash": (get(line="GET health HTTP/1.1"), ()),
    "GET *": (get(line="GET * HTTP/1.1"), ()),
    "authority as the target": (get(line="GET localhost:80 HTTP/1.1"), ()),
    "absolute target of another scheme": (get(line="GET ftp://localhost/health HTTP/1.1"), ()),
    "absolute target without a host": (get(line="GET http:///health HTTP/1.1"), ()),
    "absolute target with user": (get(line="GET http://a@localhost/health HTTP/1.1"), ()),
    "absolute target, Host another": (get(line="GET http://other/health HTTP/1.1"), (421,)),
    "method in lower case": (get(line="get /health HTTP/1.1"), (405, 501)),
    "method with @": (get(line="G@T /health HTTP/1.1"), (405, 501)),
    "method unknown": (get(line="BREW /health HTTP/1.1"), (405, 501)),
    "method of 10,000 letters": (get(line=f"{'A' * 10000} /health HTTP/1.1"), (405, 431, 501)),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 100, (405, 505)),
    "CONNECT": (get(line="CONNECT localhost:80 HTTP/1.1"), (405, 501)),
    # Lines.
    "LF behind the request line": (get().replace(b"\r\n", b"\n", 1), ()),
    "LF behind a field": (get("X-A: b\nX-C: d"), ()),
    "LF at the end of the head": (get("X-A: b").replace(b"\r\n\r\n", b"\r\n\n"), ()),
    "only LF": (get("X-A: b").replace(b"\r\n", b"\n"), ()),
    "CR in a line": (get("X-A: b\rX-C: d"), ()),
    "CR CR LF": (get("X-A: b\r"), ()),
    # Fields.
    "field without a colon": (get("X-A"), ()),
    "field without a name": (get(": b"), ()),
    "space before the colon": (get("X-A : b"), ()),
    "tab before the colon": (get("X-A\t: b"), ()),
    "space in a name": (get("X A: b"), ()),
    "parenthesis in a name": (get("X(A): b"), ()),
    "NUL in a name": (get("X\0A: b"), ()),
    "byte over 127 in a name": (get("X\xe4: b"), ()),
    "NUL in a value": (get("X-A: b\0c"), ()),
    "control character in a value": (get("X-A: b\x01c"), ()),
    "DEL in a value": (get("X-A: b\x7fc"), ()),
    "folded value": (get("X-A: b", " c"), ()),
    "folded with a tab": (get("X-A: b", "\tc"), ()),
    "folded before the first field": (lines("GET /health HTTP/1.1", " Host: localhost"), ()),
    "no Host": (lines("GET /health HTTP/1.1", "Accept: */*"), ()),
    "two Hosts": (get("Host: other"), ()),
    "Host twice the same": (get("Host: localhost"), ()),
    "Host with a path": (lines("GET /health HTTP/1.1", "Host: localhost/x"), (421,)),
    "Host with a user": (lines("GET /health HTTP/1.1", "Host: a@localhost"), (421,)),
    "Host with a space": (lines("GET /health HTTP/1.1", "Host: local host"), (421,)),
    # Content-Length.
    "length +": (body_of(f"Content-Length: +{len(BODY)}"), ()),
    "length -": (body_of(f"Content-Length: -{len(BODY)}"), ()),
    "length hexadecimal": (body_of("Content-Length: 0x10"), ()),
    "length with a vertical tab": (body_of(f"Content-Length: \v{len(BODY)}"), ()),
    "length with a NUL": (body_of(f"Content-Length: {len(BODY)}\0"), ()),
    "length with letters behind": (body_of(f"Content-Length: {len(BODY)}a"), ()),
    "length with a space inside": (body_of("Content-Length: 4 7"), ()),
    "length empty": (body_of("Content-Length:"), ()),
    "length as a list": (body_of(f"Content-Length: {len(BODY)}, {len(BODY)}"), ()),
    "length over 2^64": (body_of("Content-Length: 18446744073709551663"), (413,)),
    "length of 100 digits": (body_of("Content-Length: " + "9" * 100), (413,)),
    "two lengths": (body_of(LENGTH, "Content-Length: 5"), ()),
    "length twice the same": (body_of(LENGTH, LENGTH), ()),
    "length and coding": (chunks(ONE + b"0\r\n\r\n", LENGTH), ()),
    # Transfer-Encoding.
    "coding unknown": (body_of("Transfer-Encoding: cow"), (501,)),
    "coding gzip, chunked": (body_of("Transfer-Encoding: gzip, chunked"), (501,)),
    "coding identity": (body_of("Transfer-Encoding: identity"), (501,)),
    "coding empty": (body_of("Transfer-Encoding:"), (501,)),
    "coding xchunked": (body_of("Transfer-Encoding: xchunked"), (501,)),
    "coding chunked;q=1": (body_of("Transfer-Encoding: chunked;q=1"), (501,)),
    "coding with a vertical tab": (body_of("Transfer-Encoding: \vchunked"), (501,)),
    "coding with a NUL": (body_of("Transfer-Encoding: chunked\0"), (501,)),
    "coding with a space before the colon": (body_of("Transfer-Encoding : chunked"), ()),
    "coding twice": (chunks(ONE + b"0\r\n\r\n", "Transfer-Encoding: chunked"), (501,)),
    "coding chunked, chunked": (body_of("Transfer-Encoding: chunked, chunked"), (501,)),
    "coding in HTTP/1.0": (
        body_of("Transfer-Encoding: chunked", data=ONE, line=f"POST {PATH} HTTP/1.0"),
        (501,),
    ),
    # Chunks.
    "chunk size not a number": (chunks(b"zz\r\nhello\r\n"), ()),
    "chunk size missing": (chunks(b"\r\nhello\r\n0\r\n\r\n"), ()),
    "chunk size 0x": (chunks(b"0x" + ONE), ()),
    "chunk size +": (chunks(b"+" + ONE), ()),
    "chunk size -": (chunks(b"-" + ONE), ()),
    "chunk size with a space before it": (chunks(b" " + ONE), ()),
    "chunk size with garbage": (chunks(ONE.replace(b"\r\n", b" garbage\r\n", 1)), ()),
    "chunk size over 2^64": (chunks(b"1000000000000002f\r\n" + BODY), (413,)),
    "chunk size that ends in LF": (chunks(ONE.replace(b"\r\n", b"\n", 1)), ()),
    "chunk that ends in LF": (chunks(ONE[:-2] + b"\n0\r\n\r\n"), ()),
    "chunk without an end": (chunks(ONE[:-2] + b"0\r\n\r\n"), ()),
    "chunk longer than its size": (chunks(b"5\r\nhello, world\r\n0\r\n\r\n"), ()),
    "chunk extension with a LF": (chunks(ONE.replace(b"\r\n", b";a=\nb\r\n", 1)), ()),
    "chunk extension with a NUL": (chunks(ONE.replace(b"\r\n", b";a=\0b\r\n", 1)), ()),
    "trailer without a colon": (chunks(ONE + b"0\r\nhello\r\n\r\n"), ()),
    "trailer with a LF": (chunks(ONE + b"0\r\nX-A: b\nX-C: d\r\n\r\n"), ()),
    "trailer folded": (chunks(ONE + b"0\r\nX-A: b\r\n c\r\n\r\n"), ()),
}


@contextlib.contextmanager
def connection(server: Server, later: bool):
    """A connection, on which there was a request before if `later`."""
    with Wire(server.port) as wire:
        if later:
            wire.send(get())
            assert wire.answer().status == 200
        yield wire


def check_refused(wire: Wire, statuses: tuple[int, ...], last: bool = True) -> Answer:
    answer = wire.answer()
    assert answer, "the connection ended without an answer"
    assert answer.status in statuses, answer
    assert answer.complete and not answer.interim, answer
    error = answer.error()
    assert not any(ord(c) < 32 for c in error["message"]), error
    if last:
        assert answer.closes, answer
        assert wire.is_closed(), "the connection goes on after what cannot be understood"
    return answer


@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("name", MALFORMED)
def test_malformed__is_refused_and_told(strict, name, later):
    data, others = MALFORMED[name]
    books = Books(strict)
    with connection(strict, later) as wire:
        wire.send(data)
        check_refused(wire, (400, *others))
    books.check(1 + later, 1)


def test_malformed__nothing_behind_it_is_read(strict):
    """Whatever follows on the connection might be a body that looks like a request."""
    books = Books(strict)
    for name in ("two lengths", "space before the colon", "chunk size +", "no Host"):
        with Wire(strict.port) as wire:
            wire.send(MALFORMED[name][0] + get() * 20)
            check_refused(wire, (400,))
    books.check(4, 4)


# --- what is refused, but was understood


def test_refused__by_route_and_method(strict):
    key = {"key": KEY}
    cases = (
        (head("GET", "/nowhere", **key), 404, None),
        (head("PUT", PATH, **key), 405, "POST"),
        (head("GET", PATH, **key), 405, "POST"),
        (head("TRACE", PATH, **key), 405, "POST"),
        (head("DELETE", "/v1/models", **key), 405, "GET"),
        (post(PATH, SMALL), 401, None),
        (post(PATH, SMALL, key="wrong"), 401, None),
        (post("/nowhere", SMALL), 401, None),
    )
    for later in (False, True):
        for data, status, allow in cases:
            books = Books(strict)
            with connection(strict, later) as wire:
                wire.send(data)
                answer = check_refused(wire, (status,), last=False)
                assert not allow or allow in answer.get("allow")
                assert status != 401 or answer.get("www-authenticate") == "Bearer"
            books.check(1 + later, 0)


@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("expect", [False, True], ids=["", "expect"])
@pytest.mark.parametrize("length", [BODY_LIMIT + 1, 99999999999, (1 << 63) - 1])
def test_too_large__an_announced_body_is_not_waited_for(strict, length, expect, later):
    """413 before any byte of it is sent, and without '100 Continue'."""
    books = Books(strict)
    with connection(strict, later) as wire:
        fields = ["Expect: 100-continue"] if expect else []
        wire.send(body_of(f"Content-Length: {length}", *fields, data=b""))
        answer = check_refused(wire, (413,))
        assert str(BODY_LIMIT) in answer.error()["message"]
    books.check(1 + later, 0)


@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
def test_too_large__a_body_that_turns_out_to_be(strict, later):
    books = Books(strict)
    with connection(strict, later) as wire:
        wire.send(chunks(chunked(b" " * (2 * BODY_LIMIT))))
        answer = check_refused(wire, (413,))
        assert str(BODY_LIMIT) in answer.error()["message"]
    books.check(1 + later, 1)


def test_too_large__a_body_of_the_limit_is_not(strict):
    data = BODY + b" " * (BODY_LIMIT - len(BODY))
    with Wire(strict.port) as wire:
        for _ in range(2):
            wire.send(body_of(f"Content-Length: {BODY_LIMIT}", data=data))
            assert wire.answer().status == 200
            wire.send(chunks(chunked(data)))
            assert wire.answer().status == 200


HEADS = {
    "one field": get("X-A: " + "a" * HEADER_LIMIT),
    "one field without an end": get("X-A: " + "a" * (4 * HEADER_LIMIT))[:-4],
    "many fields": get(*["X-A: bbbbbbbbbbbbbbbbbbbbbbbb"] * 2000),
    "a name": get("X" * HEADER_LIMIT + ": a"),
    "the target": get(line=f"GET /{'a' * HEADER_LIMIT} HTTP/1.1"),
    "the query": get(line=f"GET /health?{'a' * HEADER_LIMIT} HTTP/1.1"),
}


@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("name", HEADS)
def test_too_large__head(strict, name, later):
    books = Books(strict)
    with connection(strict, later) as wire:
        wire.send(HEADS[name])
        check_refused(wire, (414, 431))
    books.check(1 + later, 1)


@pytest.mark.parametrize("framing", ["extensions", "trailers", "one-byte chunks"])
def test_too_large__what_is_around_a_small_body(strict, framing):
    """Bytes that are not the body's are bounded like it."""
    endless = {
        "extensions": b"1;" + b"a" * (4 << 20),
        "trailers": ONE + b"0\r\n" + b"X-A: b\r\n" * (1 << 19),
        "one-byte chunks": b"1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n \r\n" * (1 << 17),
    }
    with Wire(strict.port) as wire:
        wire.send(chunks(endless[framing]))
        check_refused(wire, (400, 413, 431))


@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
def test_expect__what_is_not_known(strict, later):
    books = Books(strict)
    with connection(strict, later) as wire:
        wire.send(body_of(LENGTH, "Expect: cake", data=b""))
        check_refused(wire, (417,))
    books.check(1 + later, 1)


def test_expect__is_met_before_the_body_only_if_it_is_wanted(strict):
    with Wire(strict.port) as wire:
        for _ in range(3):
            wire.send(body_of(LENGTH, "Expect: 100-continue", data=b""))
            assert wire.read_line() == b"HTTP/1.1 100 Continue" and wire.read_line() == b""
            wire.send(BODY)
            assert wire.answer().status == 200
    for data, status in (
        (post(PATH, b"", "Expect: 100-continue").replace(b": 0", b": 47"), 401),
        (head("POST", "/x", "Expect: 100-continue", "Content-Length: 47", key=KEY), 404),
        (head("PUT", PATH, "Expect: 100-continue", "Content-Length: 47", key=KEY), 405),
        (head("POST", PATH, "Expect: 100-continue", "Content-Length: 47", key=KEY), 415),
    ):
        with Wire(strict.port) as wire:
            wire.send(data)
            check_refused(wire, (status,), last=False)


@pytest.mark.parametrize("later", [False, True], ids=["first", "later"])
def test_too_slow__head_and_body(servers, later):
    own = servers.start("--read-timeout", "300ms", "--head-timeout", "300ms", "--log-level", "debug")
    books = Books(own)
    pieces = (get()[:-2], b"G", body_of(LENGTH)[:-1], chunks(ONE), chunks(ONE[:9]), chunks(b"0" * 99))
    for data in pieces:
        with connection(own, later) as wire:
            wire.send(data)
            answer = check_refused(wire, (408,))
            assert answer.error()["code"] == "timeout"
    books.check(len(pieces) * (1 + later), 0)


# --- what is unusual, and allowed

ALLOWED: dict[str, bytes] = {
    "empty line before it": b"\r\n" + get(),
    "names in any case": get("hOsT-x: a").replace(b"Host", b"hOsT"),
    "no space behind the colon": get("X-A:b"),
    "white space around a value": get("X-A: \t b \t "),
    "empty value": get("X-A:", "X-B: "),
    "every character of a token": get("!#$%&'*+-.^_`|~09azAZ: b"),
    "bytes over 127 in a value": get("X-A: \xe4\xff\x80"),
    "tab in a value": get("X-A: b\tc"),
    "90 fields": get(*[f"X-{i}: {i}" for i in range(90)]),
    "a field of 30 KB": get("X-A: " + "a" * 30000),
    "the same field many times": get(*["Accept: */*"] * 20),
    "query": get(line="GET /health?a=b&c=%00?/ HTTP/1.1"),
    "absolute target": get(line="GET http://localhost/health HTTP/1.1"),
    "absolute target in upper case": get(line="GET HTTP://LOCALHOST/health HTTP/1.1"),
    "Host with a port": lines("GET /health HTTP/1.1", "Host: localhost:8000"),
    "Host of IPv6": lines("GET /health HTTP/1.1", "Host: [::1]:8000"),
    "length with leading zeros": body_of(f"Content-Length: 000{len(BODY)}"),
    "coding in upper case": body_of("Transfer-Encoding: CHUNKED", data=ONE + b"0\r\n\r\n"),
    "one chunk": chunks(ONE + b"0\r\n\r\n"),
    "chunks of one byte": chunks(chunked(BODY, 1)),
    "chunk size in upper case": chunks(ONE.upper()[:2] + ONE[2:] + b"0\r\n\r\n"),
    "chunk size with leading zeros": chunks(b"0000" + ONE + b"000\r\n\r\n"),
    "chunk extension": chunks(ONE.replace(b"\r\n", b";a=b;c\r\n", 1) + b"0;d=e\r\n\r\n"),
    "chunk extension, quoted": chunks(ONE.replace(b"\r\n", b';a="b;c"\r\n', 1) + b"0\r\n\r\n"),
    "trailers": chunks(ONE + b"0\r\nX-A: b\r\nX-Checksum: 17\r\n\r\n"),
    "trailers that look like headers": chunks(
        ONE + b"0\r\nHost: other\r\nAuthorization: Bearer wrong\r\nConnection: close\r\n\r\n"
    ),
    "an upgrade that is offered": get("Connection: Upgrade", "Upgrade: h2c"),
    "several connection options": get("Connection: keep-alive, TE", "TE: trailers"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed__and_the_connection_lasts(strict, name):
    data = ALLOWED[name]
    books = Books(strict)
    with Wire(strict.port) as wire:
        for _ in range(3):
            wire.send(data)
            answer = wire.answer()
            assert answer and answer.status == 200 and not answer.closes, answer
        # However it is cut into packets, and all three at once.
        for i in range(len(data) if len(data) < 400 else 0):
            wire.send(data[i : i + 1])
        wire.send(data * 3)
        statuses = [wire.answer().status for _ in range(3 + (len(data) < 400))]
        assert set(statuses) == {200}
    books.check(3 + len(statuses), 0)


def test_allowed__http_1_0(strict):
    old = get(line="GET /health HTTP/1.0")
    bare = lines("GET /health HTTP/1.0")
    for data in (old, bare):
        with Wire(strict.port) as wire:
            wire.send(data)
            answer = wire.answer()
            assert answer.status == 200 and answer.complete, answer
            assert not answer.get("transfer-encoding")
            assert wire.is_closed()
    with Wire(strict.port) as wire:
        for _ in range(3):
            wire.send(get("Connection: keep-alive", line="GET /health HTTP/1.0"))
            answer = wire.answer()
            assert answer.status == 200
            assert (answer.get("connection") or "").lower() == "keep-alive"


def test_allowed__options_of_everything(strict):
    with Wire(strict.port) as wire:
        for _ in range(2):
            wire.send(get(line="OPTIONS * HTTP/1.1"))
            answer = wire.answer("OPTIONS")
            assert answer.status in (200, 204) and "POST" in answer.get("allow")


def test_allowed__close(strict):
    for option in ("close", "Close", "TE, close"):
        with Wire(strict.port) as wire:
            wire.send(get(f"Connection: {option}") + get())
            assert [a.status for a in wire.answers()] == [200], "nothing is read behind it"


def test_head__has_the_fields_of_get_and_no_body(strict):
    with Wire(strict.port) as wire:
        for path in ("/health", "/metrics", "/v1/models", "/nowhere", PATH):
            for method in ("GET", "HEAD"):
                wire.send(head(method, path, key=KEY))
            got, bare = wire.answer(), wire.answer("HEAD")
            assert got.status == bare.status and got.get("content-type") == bare.get("content-type")
            assert bare.body == b"" and bare.get("content-length") is not None


def test_slashes__are_part_of_the_path(strict):
    """A proxy that forbids a path sees the same one as the server."""
    for path in ("//x/metrics", "//metrics", "/./metrics", "/a/../metrics", "/metrics/", "/%6detrics"):
        with Wire(strict.port) as wire:
            wire.send(head("GET", path, key=KEY))
            error = check_refused(wire, (404,), last=False).error()
            assert f"'{path}'" in error["message"]


def test_pipelined__answers_come_in_order(strict):
    """Slow ones before fast ones, refusals among them."""
    wanted = []
    data = b""
    for i in range(60):
        name = f"p-{i}"
        if i % 4 == 0:
            data += post(PATH, SMALL | {"max_tokens": 20}, key=KEY, request_id=name)
        elif i % 4 == 1:
            data += head("GET", "/health", request_id=name)
        else:
            data += post("/nowhere" if i % 4 == 2 else PATH, SMALL, request_id=name)
        wanted.append((name, (200, 200, 401, 401)[i % 4]))
    with Wire(strict.port) as wire:
        wire.send(data)
        assert [(a.request_id, a.status) for a in (wire.answer() for _ in wanted)] == wanted
