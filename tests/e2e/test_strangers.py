"""Clients that mean no good, or have died: what they leave behind, and what is held for them.

Who leaves is gone at once, by FIN or by RST, whatever the connection was doing; who has no key gets no
memory; who is slow is cut; and nobody keeps others from being served.
"""

from __future__ import annotations

import contextlib
import json
import resource
import ssl
import time

import pytest
from harness import CONTEXT, Server, wait_until
from test_operation import make_certificate
from wire import Wire, cpu_share, descriptors, head, post, resident_bytes

PATH = "/v1/completions"
SMALL = {"prompt": "Once", "max_tokens": 1, "temperature": 0}
LONG = {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True}
# A process that waits uses nothing; one that spins, all of a processor.
IDLE_SHARE = 0.4
KEY_A = {"KVAHEAD_API_KEY": "a"}
FINISHED = 'kvahead_requests_finished_total{reason="%s"}'
LEFT = 'kvahead_http_requests_total{route="/v1/completions",code="499"}'


@pytest.fixture(scope="module", autouse=True)
def many_descriptors():
    """This process opens more connections than shells usually allow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connections(server: Server) -> float:
    """Besides the one that asks."""
    return server.metrics()["kvahead_connections"] - 1


# --- leaving


def numbers(count: int, seed: int = 0) -> list[int]:
    return [(seed * 977 + i * 37) % 3200 + 300 for i in range(count)]


def shut(wire: Wire) -> None:
    """Only the sending side, as `nc -N` does; the answer is not read."""
    wire.half_close()


LEAVE = {"rst": Wire.reset, "fin": Wire.close, "half": shut}
STAGES = ("queued", "prefill", "document", "stream", "ahead")


def ask(server: Server, stage: str, number: int) -> Wire:
    """Send a request and wait until it is in the stage in which its client will leave."""
    body = dict(LONG, stream=stage in ("stream", "ahead"), cache_salt=f"{stage}-{number}")
    if stage == "prefill":
        body["prompt"], body["max_tokens"] = numbers(CONTEXT // 2, number), CONTEXT // 2
    wire = Wire(server.port)
    name = f"leaves-{number}"
    wire.send(post(PATH, body, request_id=name))
    if stage == "ahead":
        wire.send(post(PATH, SMALL, request_id="ahead") * 1000)

    def reached() -> bool:
        mine = [entry for entry in server.live() if entry["request_id"] == name]
        if stage == "queued":
            return any(entry["state"] == "waiting" for entry in mine)
        if stage == "prefill":
            return any(entry["state"] != "waiting" for entry in mine)
        return any(entry["output_tokens"] > 0 for entry in mine)

    wait_until(f"{name} is in stage {stage}", reached)
    return wire


@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize("stage", STAGES)
def test_leaving__ends_the_request(servers, stage, how):
    """None of them runs to its end: each is counted as left, and its memory is back."""
    own = servers.start("--sequences", "1" if stage == "queued" else "8", "--step-time", "5ms")
    count = 2 if stage == "prefill" else 4
    with contextlib.ExitStack() as stack:
        if stage == "queued":
            busy = stack.enter_context(own.stream(PATH, {"X-Request-Id": "stays"}, **LONG))
            next(busy.events())
        wires = [ask(own, stage, i) for i in range(count)]
        for wire in wires:
            LEAVE[how](wire)
        gone = lambda: all(e["request_id"] == "stays" for e in own.live())  # noqa: E731
        wait_until(f"gone after leaving in stage {stage} by {how}", gone)
        metrics = own.metrics()
        if stage == "queued":
            busy.abandon()
    own.wait_idle()
    for wire in wires:
        wire.close()
    assert metrics[LEFT] == count, "each is answered to nobody"
    assert metrics[FINISHED % "length"] == 0, "one ran to its end"
    wait_until("the connections are closed", lambda: connections(own) == 0)
    assert cpu_share(own.process.pid) < IDLE_SHARE, "the server spins"


def test_leaving__who_sends_far_ahead_is_cut(servers):
    """Nobody reads on for a peer that asks and asks; its request ends with it."""
    own = servers.start()
    wire = ask(own, "stream", 0)
    wire.send(post(PATH, SMALL, request_id="ahead") * 20000)
    wait_until("gone", lambda: not own.live())
    wait_until("the connection is closed", lambda: connections(own) == 0)
    metrics = own.metrics()
    assert metrics[LEFT] == 1 and metrics[FINISHED % "length"] == 0
    wire.close()


PARTS = {
    "nothing": b"",
    "one byte": b"G",
    "half a head": head("GET", "/health")[:-10],
    "half a body": post(PATH, SMALL)[:-10],
    "half a chunk": head("POST", PATH, "Content-Type: application/json", "Transfer-Encoding: chunked")
    + b"ff\r\nhello",
    "a refused request": head("GET", "/nowhere"),
    "a malformed request": b"GET /\x01 HTTP/1.1\r\n\r\n",
    "an announced body that is refused": head("POST", "/nowhere", "Content-Length: 9999") + b"hello",
    "an answer that is not read": head("GET", "/metrics") * 100,
}


@pytest.mark.parametrize("how", ["rst", "fin"])
def test_leaving__before_or_after_a_request(servers, how):
    own = servers.start()
    before = descriptors(own.process.pid)
    for part in PARTS.values():
        wires = [Wire(own.port) for _ in range(10)]
        for wire in wires:
            wire.send(part)
        wait_until("they are there", lambda: own.request("GET", "/health").status == 200)
        for wire in wires:
            LEAVE[how](wire)
    wait_until("the connections are closed", lambda: connections(own) == 0)
    wait_until("the descriptors are back", lambda: descriptors(own.process.pid) <= before)
    assert cpu_share(own.process.pid) < IDLE_SHARE, "the server spins"
    assert own.post(PATH, SMALL).status == 200


def test_leaving__in_a_tls_handshake_and_in_a_session(servers, tmp_path):
    cert, key = make_certificate(tmp_path, "one")
    own = servers.start("--tls-cert", cert, "--tls-key", key, ca_path=cert)
    before = descriptors(own.process.pid)
    hello = client_hello()
    for how in ("rst", "fin"):
        wires = [Wire(own.port) for _ in range(30)]
        for i, wire in enumerate(wires):
            wire.send(hello[: (0, 1, 5, 50, len(hello) // 2, len(hello))[i % 6]])
            if i % 6 == 5:
                assert wire.fill(), "the server's half of the handshake"
        for wire in wires:
            LEAVE[how](wire)
    for _ in range(5):
        sock = own.connect()
        sock.sendall(post(PATH, LONG, request_id="leaves"))
        wait_until("it runs", lambda: any(e["output_tokens"] for e in own.live()))
        Wire.reset(bare(sock))
        wait_until("gone", lambda: not own.live())
    metrics = own.metrics()
    assert metrics[LEFT] == 5 and metrics[FINISHED % "length"] == 0
    wait_until("the connections are closed", lambda: connections(own) == 0)
    wait_until("the descriptors are back", lambda: descriptors(own.process.pid) <= before)
    assert cpu_share(own.process.pid) < IDLE_SHARE, "the server spins"


@pytest.mark.parametrize("how", ["notify", "rst"])
def test_leaving__while_a_tls_answer_is_on_its_way(servers, tmp_path, how):
    """More is asked for than anybody reads: what is not sent goes with the connection."""
    cert, key = make_certificate(tmp_path, "one")
    own = servers.start("--tls-cert", cert, "--tls-key", key, ca_path=cert)
    page = 'kvahead_http_requests_total{route="/",code="200"}'
    socks = [own.connect() for _ in range(4)]
    for sock in socks:
        sock.sendall(head("GET", "/", "Accept: text/html") * 100)
    counts = [-1.0]

    def stands() -> bool:
        time.sleep(0.3)
        counts.append(own.metrics().get(page, 0))
        return counts[-1] > 0 and counts[-2] == counts[-1]

    wait_until("no more is sent", stands)
    assert counts[-1] < 400
    for sock in socks:
        if how == "rst":
            Wire.reset(bare(sock))
            continue
        sock.settimeout(0.2)
        with contextlib.suppress(OSError):
            sock.unwrap()  # says that it goes, and goes on reading nothing
    wait_until("the connections are closed", lambda: connections(own) == 0)
    assert cpu_share(own.process.pid) < IDLE_SHARE, "the server spins"


def bare(sock: ssl.SSLSocket) -> Wire:
    """The connection under a TLS session."""
    wire = object.__new__(Wire)
    wire.sock = sock
    return wire


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


def test_idle__connections_cost_no_processor_time(servers):
    """Of every kind that can be left open."""
    own = servers.start(env=KEY_A, key="a")
    with contextlib.ExitStack() as stack:
        for part in PARTS.values():
            for _ in range(20):
                wire = stack.enter_context(Wire(own.port))
                wire.send(part)
        for _ in range(20):
            wire = stack.enter_context(Wire(own.port))
            wire.send(head("GET", "/health"))
            assert wire.answer().status == 200
            wire.send(post(PATH, SMALL)[:-5])
            assert wire.answer().status == 401
            wire.half_close()
        assert own.request("GET", "/health").status == 200
        assert cpu_share(own.process.pid) < IDLE_SHARE, "the server spins"


# --- what is held for whom


BIG = 15 << 20
MEGABYTE = 1 << 20


@pytest.mark.parametrize("framing", ["length", "chunked", "expect"])
def test_strangers__their_bodies_are_not_taken(servers, framing):
    """150 connections without a key that announce 15 MB each."""
    own = servers.start(env=KEY_A, key="a")
    assert own.post(PATH, SMALL).status == 200
    fields = ["Content-Type: application/json"]
    fields += {
        "length": [f"Content-Length: {BIG}"],
        "chunked": ["Transfer-Encoding: chunked"],
        "expect": [f"Content-Length: {BIG}", "Expect: 100-continue"],
    }[framing]
    before = resident_bytes(own.process.pid)
    with contextlib.ExitStack() as stack:
        for _ in range(150):
            wire = stack.enter_context(Wire(own.port))
            wire.send(head("POST", PATH, *fields))
            answer = wire.answer()
            assert answer.status == 401 and not answer.interim, answer
            # What is sent all the same is thrown away.
            wire.sock.settimeout(0.05)
            wire.send((b"%x\r\n" % BIG if framing == "chunked" else b"") + b"a" * MEGABYTE)
        assert own.post(PATH, SMALL).status == 200
        grown = resident_bytes(own.process.pid) - before
        assert grown < 24 * MEGABYTE, f"{grown >> 20} MiB for strangers"


def test_strangers__what_a_key_may_hold_comes_back(servers):
    """With a key a body is taken; afterwards the memory is returned, also if one goes on."""
    own = servers.start(env=KEY_A, key="a")
    refused = json.dumps(SMALL | {"prompt": "a", "unknown": "b" * (14 << 20)}).encode()
    assert own.post(PATH, refused).status in (200, 400)
    before = resident_bytes(own.process.pid)
    wires = []
    for _ in range(10):
        wire = Wire(own.port)
        wire.send(post(PATH, refused, key="a")[: 14 << 20])
        wires.append(wire)
    assert own.post(PATH, SMALL).status == 200, "others are served meanwhile"
    for wire in wires:
        wire.reset()
    wait_until("the connections are closed", lambda: connections(own) == 0)

    def returned() -> bool:
        return resident_bytes(own.process.pid) < before + 48 * MEGABYTE

    wait_until("the memory is back", returned)


def test_strangers__slow_ones_are_cut(servers, tmp_path):
    """A byte now and then is no progress; nor is half a handshake."""
    cert, key = make_certificate(tmp_path, "one")
    hello = client_hello()
    plain = servers.start("--head-timeout", "500ms")
    secure = servers.start("--head-timeout", "500ms", "--tls-cert", cert, "--tls-key", key, ca_path=cert)
    for own, data in ((plain, head("GET", "/health", "X-A: " + "a" * 1000)), (secure, hello)):
        wires = [Wire(own.port) for _ in range(20)]
        # Longer than they have, although they are never silent for long.
        for i in range(40):
            for wire in wires:
                wire.send(data[i : i + 1])
            time.sleep(0.025)
        for wire in wires:
            if own is plain:
                answer = wire.answer()
                assert answer and answer.status == 408 and answer.closes, answer
            assert wire.is_closed()
            wire.close()
        wait_until("the connections are closed", lambda own=own: connections(own) == 0)
    silent = [Wire(secure.port) for _ in range(20)] + [Wire(plain.port) for _ in range(20)]
    for wire in silent[:20]:
        wire.send(hello[:40])
    for own in (plain, secure):
        wait_until("the silent ones are closed", lambda own=own: connections(own) == 0)
    for wire in silent:
        wire.close()


def test_strangers__one_address_does_not_keep_others_out(servers):
    """It has all places that there are, and more; another address is served as if it were not there."""
    own = servers.start("--connections", "64", env=KEY_A, key="a")
    with contextlib.ExitStack() as stack:
        for i in range(300):
            wire = stack.enter_context(Wire(own.port, source="127.0.0.1"))
            wire.send(list(PARTS.values())[i % 4])
        for _ in range(5):
            wire = stack.enter_context(Wire(own.port, source="127.0.0.2"))
            for data in (head("GET", "/health"), post(PATH, SMALL, key="a")):
                wire.send(data)
                answer = wire.answer()
                assert answer and answer.status == 200, answer
            # And its connection lasts, although more come from the first address.
            stack.enter_context(Wire(own.port, source="127.0.0.1"))
            wire.send(head("GET", "/health"))
            assert wire.answer().status == 200
    wait_until("the connections are closed", lambda: connections(own) == 0)


@pytest.mark.parametrize("limit", [64, 100, 1024])
def test_descriptors__the_process_has_too_few(servers, limit):
    """More connections than `ulimit -n`: nobody crashes, and probes are answered."""
    own = servers.start(env=KEY_A, key="a", descriptors_max=limit)
    for round_ in range(2):
        with contextlib.ExitStack() as stack:
            for i in range(limit + 300):
                wire = stack.enter_context(Wire(own.port))
                wire.send(b"G" if i % 2 else b"")
            assert own.process.poll() is None, own.log()
            with contextlib.closing(Wire(own.port, source="127.0.0.2")) as wire:
                wire.send(head("GET", "/health"))
                answer = wire.answer()
                assert answer and answer.status == 200, answer
            assert cpu_share(own.process.pid, 0.5) < IDLE_SHARE, "accepting spins"
        assert own.request("GET", "/health").status == 200
        assert own.post(PATH, SMALL).status == 200, f"after round {round_}"
    wait_until("the connections are closed", lambda: connections(own) == 0)
