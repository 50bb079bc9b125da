"""A client that means no good and knows no key, for soak.py: one act after another, at random."""

from __future__ import annotations

import contextlib
import random
import time

from test_http_strict import HEADS, MALFORMED
from test_smuggling import ATTACKS, Attack, cases
from wire import Wire, head, post

PATH = "/v1/completions"
SMALL = {"prompt": "Once", "max_tokens": 1}
# Answers to expect from a server that was asked for nothing it would give.
REFUSALS = {400, 401, 404, 405, 408, 413, 414, 415, 417, 421, 429, 431, 501, 505}


class Hostile:
    """Acts on the server at a port. Whatever it is answered, if anything, is a refusal or a probe's answer."""

    def __init__(self, port: int, rng: random.Random) -> None:
        self.port, self.rng = port, rng
        self.cases = cases()
        self.numbers = iter(range(1 << 30))
        self.acts = (
            *(self.malformed, self.smuggle, self.large_head, self.wrong_key, self.body),
            *(self.slow, self.handshake, self.burst, self.ahead, self.half),
        )

    def act(self) -> str:
        """One of them; its name."""
        chosen = self.rng.choice(self.acts)
        chosen()
        return chosen.__name__

    def end(self, wire: Wire) -> None:
        if self.rng.random() < 0.5:
            wire.reset()
        wire.close()

    def exchange(self, data: bytes, patience_s: float = 0.5) -> None:
        """Send it and read what comes, for a while; nothing but refusals and probes' answers may come."""
        wire = Wire(self.port)
        try:
            wire.send(data)
            wire.sock.settimeout(patience_s)
            with contextlib.suppress(TimeoutError):
                while answer := wire.answer():
                    probe = answer.status in (200, 204) and len(answer.body) < 200
                    assert probe or answer.status in REFUSALS, answer
        finally:
            self.end(wire)

    def malformed(self) -> None:
        self.exchange(self.rng.choice(list(MALFORMED.values()))[0].replace(b"the-key", b"no-key"))

    def smuggle(self) -> None:
        case = self.rng.choice([c for c in self.cases if not c.name.startswith(("HEAD", "pipelined"))])
        hidden = self.rng.choice([hidden for key, hidden in ATTACKS if key is None])
        self.exchange(case.build(Attack(next(self.numbers), None, hidden)), 0.05)

    def large_head(self) -> None:
        self.exchange(self.rng.choice(list(HEADS.values())))

    def wrong_key(self) -> None:
        for _ in range(20):
            self.exchange(post(PATH, SMALL, "Connection: close", key=f"k{self.rng.random()}"))

    def body(self) -> None:
        """15 MB that nobody has asked for."""
        wire = Wire(self.port)
        wire.send(head("POST", PATH, "Content-Type: application/json", f"Content-Length: {15 << 20}"))
        wire.sock.settimeout(0.02)
        wire.send(b"a" * (1 << 20))
        self.end(wire)

    def slow(self) -> None:
        """Slowloris: many heads, a byte at a time."""
        wires = [Wire(self.port) for _ in range(10)]
        for byte in head("GET", "/health", "X-A: " + "a" * 20):
            for wire in wires:
                wire.send(bytes([byte]))
            time.sleep(0.01)
            if self.rng.random() < 0.05:
                break
        for wire in wires:
            self.end(wire)

    def handshake(self) -> None:
        """TLS where none is spoken, in part."""
        data = b"\x16\x03\x01\x00\xee\x01\x00\x00\xea\x03\x03" + self.rng.randbytes(230)
        self.exchange(data[: self.rng.randrange(1, len(data))], 0.05)

    def burst(self) -> None:
        """Connections that say nothing."""
        wires = [Wire(self.port) for _ in range(100)]
        for wire in wires:
            self.end(wire)

    def ahead(self) -> None:
        """Thousands of requests without reading an answer."""
        wire = Wire(self.port)
        wire.sock.settimeout(0.2)
        wire.send(head("GET", "/health") * 20000)
        self.end(wire)

    def half(self) -> None:
        """Nothing more to say, in the middle of a request."""
        data = post(PATH, SMALL)
        wire = Wire(self.port)
        wire.send(data[: self.rng.randrange(1, len(data))])
        wire.half_close()
        self.end(wire)
