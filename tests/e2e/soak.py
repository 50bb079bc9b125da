#!/usr/bin/env python3
"""A long mixed load on one server, with everything checked: python tests/e2e/soak.py --minutes 10

Completions and chats, streamed or not, of many lengths, under all KV policies, with several
choices, stop strings, seeds, shared prefixes, clients that leave at any moment, and bad requests.
The device budget is small on purpose, so that choices are preempted all the time. With --hostile the server
has a key, and strangers attack it all the while (hostile.py).

Checked: every answer whose request was asked before equals the first one; every refusal is the
expected one; streams have their framing; at every pause (all clients wait) no memory is held but
the prefix cache's, and resident memory, descriptors and the server's counters are noted. In the
end the counters equal the clients' tally and nothing has drifted.

Exit code 0: all of it holds. Environment: KVAHEAD_BINARY as in harness.py.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field

from harness import SANITIZER, Server
from hostile import Hostile

CONTEXT = 4096
OPTIONS = (
    *("--device-memory", "24M", "--host-memory", "512M", "--context", str(CONTEXT)),
    *("--sequences", "24", "--keepalive", "200ms", "--log-level", "info"),
)
KEY = "key-of-the-clients"
ROUTES = ("/v1/completions", "/v1/chat/completions")
POLICIES = (
    {"policy": "full"},
    {"policy": "offload"},
    {"policy": "kivi", "bits": 1, "min_tokens": 0},
    {"policy": "specache", "min_tokens": 128},
    {"policy": "specache", "bits": 1, "topk": 32, "min_tokens": 0, "predictor": "spec-token"},
    {"policy": "specache", "bits": 1, "topk": 16, "min_tokens": 0, "predictor": "prev-query"},
    {"policy": "infinigen", "skew": "none", "alpha": 2, "min_tokens": 0},
)
BAD = (
    (400, {"prompt": 5}),
    (400, {"prompt": "x", "temperature": 9}),
    (400, {"prompt": [1] * (CONTEXT + 5)}),
    (400, b'{"prompt":'),
    (400, b'{"prompt":"x","seed":1e999}'),
    (404, {"prompt": "x", "model": "nobody"}),
    (400, {"prompt": "x", "response_format": {"type": "xml"}}),
)


@dataclass
class Tally:
    """What the clients have seen. Guarded by `lock`."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: collections.Counter = field(default_factory=collections.Counter)
    problems: list[str] = field(default_factory=list)
    references: dict[str, list] = field(default_factory=dict)

    def add(self, **counts: int) -> None:
        with self.lock:
            self.counts.update(counts)

    def problem(self, text: str) -> None:
        with self.lock:
            self.problems.append(text)


def numbers(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(300, 3500) for _ in range(count)]


def make_body(kind: int) -> tuple[str, dict]:
    """Request number `kind` of a fixed catalogue: always the same for the same number."""
    rng = random.Random(kind)
    body: dict = {"max_tokens": rng.choice([1, 3, 16, 60, 200, 500]), "return_token_ids": True}
    body["kv"] = rng.choice(POLICIES)
    body["ignore_eos"] = rng.random() < 0.7
    body["n"] = rng.choice([1, 1, 1, 2, 4])
    body["seed"], body["temperature"] = kind, rng.choice([0, 0, 0.8])
    if rng.random() < 0.3:
        body["stop"] = rng.choice(["the", [". ", "and a"], "\n"])
    if rng.random() < 0.2:
        body["logprobs"] = 2
    if rng.random() < 0.3:
        body["priority"] = rng.choice([-2, 3])
    route = ROUTES[kind % 3 == 0]
    if route == ROUTES[1]:
        if "logprobs" in body:
            body["logprobs"], body["top_logprobs"] = True, 2
        body["messages"] = [{"role": "user", "content": "Tell me about " + "it " * (kind % 200)}]
        return route, body
    # One in three shares a long beginning with others: the prefix cache.
    shared = numbers(random.Random(kind % 5), 700) if rng.random() < 0.35 else []
    length = rng.choice([1, 5, 40, 64, 65, 300, 300, 1500, 3000])
    length = min(length, CONTEXT - body["max_tokens"] - len(shared) - 1)
    body["prompt"] = shared + numbers(rng, length)
    if rng.random() < 0.15:
        body["prompt"] = [body["prompt"][-50:], numbers(rng, 30)]
    return route, body


def summarize(choices: dict[int, list]) -> list:
    return [choices[index] for index in sorted(choices)]


class Client(threading.Thread):
    """Asks one request after another until told to stop."""

    def __init__(self, soak: Soak, number: int) -> None:
        super().__init__(daemon=True)
        self.soak, self.rng = soak, random.Random(number)

    def run(self) -> None:
        while self.soak.gate():
            try:
                self.ask()
            except Exception as error:  # noqa: BLE001  whatever it is, the run has failed
                self.soak.tally.problem(f"{type(error).__name__}: {error}")
            finally:
                self.soak.leave_gate()

    def ask(self) -> None:
        draw = self.rng.random()
        if draw < 0.06:
            self.ask_badly()
            return
        kind = self.rng.randrange(self.soak.kinds)
        route, body = make_body(kind)
        streamed = self.rng.random() < 0.6
        if draw < 0.18:
            self.ask_and_leave(route, body, streamed)
        elif streamed:
            self.check(kind, *self.read_stream(route, body))
        else:
            self.check(kind, *self.read_document(route, body))

    def ask_badly(self) -> None:
        status, body = self.rng.choice(BAD)
        reply = self.soak.server.post(ROUTES[0], body)
        assert reply.status == status, (reply.status, reply.body[:200], str(body)[:80])
        reply.error()
        self.soak.tally.add(refused=1)

    def read_document(self, route: str, body: dict) -> tuple[list, dict]:
        reply = self.soak.server.post(route, body)
        assert reply.status == 200, (reply.status, reply.body[:300])
        document = reply.json()
        choices = {c["index"]: [c["token_ids"], c["finish_reason"]] for c in document["choices"]}
        for c in document["choices"]:
            choices[c["index"]].append(c["text"] if "text" in c else c["message"]["content"])
        return summarize(choices), document["usage"]

    def read_stream(self, route: str, body: dict) -> tuple[list, dict]:
        choices: dict[int, list] = {}
        usage = None
        options = {"stream_options": {"include_usage": True}}
        with self.soak.server.stream(route, **body, **options) as stream:
            for frame in stream.frames():
                assert "error" not in frame, frame
                usage = frame.get("usage") or usage
                for c in frame["choices"]:
                    seen = choices.setdefault(c["index"], [[], None, ""])
                    seen[0] += c.get("token_ids", [])
                    seen[1] = c["finish_reason"] or seen[1]
                    seen[2] += c["text"] if "text" in c else c["delta"].get("content", "")
        return summarize(choices), usage

    def check(self, kind: int, answer: list, usage: dict) -> None:
        tally = self.soak.tally
        tally.add(
            answered=1,
            prompt=usage["prompt_tokens"],
            output=usage["completion_tokens"],
            **{reason: sum(c[1] == reason for c in answer) for reason in ("stop", "length")},
        )
        with tally.lock:
            known = tally.references.setdefault(str(kind), answer)
        assert known == answer, f"request {kind} got another answer than the first time"

    def ask_and_leave(self, route: str, body: dict, streamed: bool) -> None:
        """Hang up after a random time or a random number of bytes."""
        data = json.dumps({**body, "stream": streamed}).encode()
        head = f"POST {route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        if self.soak.server.key:
            head += f"Authorization: Bearer {self.soak.server.key}\r\n"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        data = head.encode() + data
        with contextlib.closing(self.soak.server.connect()) as sock:
            if self.rng.random() < 0.2:
                sock.sendall(data[: self.rng.randrange(1, len(data))])
                return
            sock.sendall(data)
            sock.settimeout(self.rng.choice([0.001, 0.02, 0.1, 0.5]))
            left = self.rng.choice([1, 500, 5000, 50000])
            with contextlib.suppress(TimeoutError, ConnectionError):
                while left > 0 and (chunk := sock.recv(min(left, 4096))):
                    left -= len(chunk)
        self.soak.tally.add(left=1)


class Stranger(threading.Thread):
    """One attack after another until told to stop."""

    def __init__(self, soak: Soak, number: int) -> None:
        super().__init__(daemon=True)
        self.soak = soak
        self.hostile = Hostile(soak.server.port, random.Random(f"stranger {number}"))

    def run(self) -> None:
        while self.soak.gate():
            name = "?"
            try:
                name = self.hostile.act()
                self.soak.tally.add(attacks=1)
            except Exception as error:  # noqa: BLE001  whatever it is, the run has failed
                self.soak.tally.problem(f"after {name}: {type(error).__name__}: {error}")
            finally:
                self.soak.leave_gate()


class Soak:
    """The server, its clients, and the pauses at which everything must be at rest."""

    def __init__(self, server: Server, kinds: int) -> None:
        self.server, self.kinds = server, kinds
        self.tally = Tally()
        self.condition = threading.Condition()
        self.busy, self.paused, self.ended = 0, False, False
        self.samples: list[tuple[float, int, int]] = []  # seconds, resident bytes, descriptors

    def gate(self) -> bool:
        with self.condition:
            self.condition.wait_for(lambda: self.ended or not self.paused)
            self.busy += not self.ended
            return not self.ended

    def leave_gate(self) -> None:
        with self.condition:
            self.busy -= 1
            self.condition.notify_all()

    def resident(self) -> int:
        with open(f"/proc/{self.server.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def pause(self, started: float) -> None:
        """Let everybody finish; then no memory may be held but by the prefix cache."""
        with self.condition:
            self.paused = True
            assert self.condition.wait_for(lambda: self.busy == 0, 300), "a client does not come back"
        self.server.wait_idle()
        descriptors = len(os.listdir(f"/proc/{self.server.process.pid}/fd"))
        self.samples.append((time.monotonic() - started, self.resident(), descriptors))
        with self.condition:
            self.paused = False
            self.condition.notify_all()

    def check_counters(self) -> dict[str, float]:
        """The server's counters against the tally, clients that left aside: nobody knows how far
        those were served."""
        got, seen = self.server.metrics(), self.tally.counts
        finished = 'kvahead_requests_finished_total{reason="%s"}'
        rejected = sum(v for k, v in got.items() if k.startswith("kvahead_requests_rejected_total"))
        for name, exact, value in (
            ("prompt tokens", seen["prompt"], got["kvahead_prompt_tokens_total"]),
            ("generated tokens", seen["output"], got["kvahead_generation_tokens_total"]),
            ("stopped choices", seen["stop"], got[finished % "stop"]),
            ("full-length choices", seen["length"], got[finished % "length"]),
        ):
            if value < exact:
                self.tally.problem(f"{name}: clients saw {exact}, the server counts {value:.0f}")
        # Of the strangers' requests nobody knows which were read to their end.
        if rejected < seen["refused"] or (rejected > seen["refused"] and not seen["attacks"]):
            self.tally.problem(f"refusals: {seen['refused']} seen, {rejected:.0f} counted")
        if got[finished % "error"] != 0:
            self.tally.problem(f"{got[finished % 'error']:.0f} choices ended with an error")
        return got

    def check_drift(self) -> None:
        """After the first third, in which caches and pools fill, nothing grows any more."""
        settled = self.samples[len(self.samples) // 3 :]
        if len(settled) < 2:
            return
        if settled[-1][2] > settled[0][2] + 4:
            self.tally.problem(f"descriptors went from {settled[0][2]} to {settled[-1][2]}")
        if settled[-1][1] > settled[0][1] * 1.15 + (32 << 20):
            was, is_ = settled[0][1] >> 20, settled[-1][1] >> 20
            self.tally.problem(f"resident memory went from {was} to {is_} MiB")

    def run(self, minutes: float, clients: int, strangers: int) -> None:
        started = time.monotonic()
        end = started + minutes * 60
        threads: list[threading.Thread] = [Client(self, number) for number in range(clients)]
        threads += [Stranger(self, number) for number in range(strangers)]
        for thread in threads:
            thread.start()
        interval = max(10.0, minutes * 60 / 20)
        while time.monotonic() < end and not self.tally.problems:
            time.sleep(max(0.1, min(interval, end - time.monotonic())))
            if self.server.process.poll() is not None:
                self.tally.problem(f"the server ended with code {self.server.process.returncode}")
                break
            self.pause(started)
            self.progress()
        with self.condition:
            self.ended = True
            self.condition.notify_all()
        for thread in threads:
            thread.join(60)

    def progress(self) -> None:
        seconds, resident, descriptors = self.samples[-1]
        counts = self.tally.counts
        print(
            f"{seconds:6.0f} s  {counts['answered']:6d} answered  {counts['left']:5d} left  "
            f"{counts['refused']:4d} refused  {counts['attacks']:5d} attacks  "
            f"{counts['output']:8d} tokens  "
            f"{resident >> 20:5d} MiB  {descriptors:3d} descriptors  "
            f"{len(self.tally.problems)} problems",
            flush=True,
        )


def report(soak: Soak, got: dict[str, float], seconds: float) -> None:
    counts = soak.tally.counts
    rows = [
        ("duration", f"{seconds:.0f} s"),
        ("answered", f"{counts['answered']} ({counts['answered'] / seconds:.1f} a second)"),
        ("different requests", str(len(soak.tally.references))),
        ("left early", str(counts["left"])),
        ("refused", str(counts["refused"])),
        ("attacks", f"{counts['attacks']} ({got['kvahead_http_malformed_total']:.0f} malformed)"),
        ("generated tokens", f"{got['kvahead_generation_tokens_total']:.0f}"),
        ("prompt tokens", f"{got['kvahead_prompt_tokens_total']:.0f}"),
        ("found in the prefix cache", f"{got['kvahead_prefix_hit_tokens_total']:.0f}"),
        ("preemptions", f"{got['kvahead_preemptions_total']:.0f}"),
        ("resident memory", " ".join(f"{s[1] >> 20}" for s in soak.samples) + " MiB"),
        ("descriptors", " ".join(str(s[2]) for s in soak.samples)),
        ("problems", str(len(soak.tally.problems))),
    ]
    print()
    for name, value in rows:
        print(f"{name:<26} {value}")
    for problem in soak.tally.problems[:20]:
        print(f"  {problem[:400]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--kinds", type=int, default=150, help="different requests")
    parser.add_argument("--hostile", action="store_true", help="strangers attack meanwhile")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder) / "keys"
        keys.write_text(f"{KEY} priority=-100..100 waiting=1000\n")
        options = OPTIONS + (("--api-key-file", str(keys)) if args.hostile else ())
        log = pathlib.Path(folder) / "server.log"
        server = Server(log, options, key=KEY if args.hostile else None)
        server.start()
        soak = Soak(server, args.kinds)
        started = time.monotonic()
        got: dict[str, float] = collections.defaultdict(float)
        try:
            soak.run(args.minutes, args.clients, 6 if args.hostile else 0)
            server.wait_idle()
            got = soak.check_counters()
            soak.check_drift()
            server.stop()
        except (AssertionError, OSError, http.client.HTTPException) as error:
            soak.tally.problem(str(error))
            server.process.kill()
        finally:
            report(soak, got, time.monotonic() - started)
        if SANITIZER.search(server.log()):
            print(server.log())
    return 1 if soak.tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
