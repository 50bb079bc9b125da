#!/usr/bin/env python3
"""What a server does with more than it can serve: python tests/e2e/overload.py [--seconds 20]

First its capacity, by clients that each ask again when they are answered. Then two keys at fixed rates,
whatever comes back (open loop): a greedy one with several times the capacity, a modest one with a tenth.
One row of Markdown per factor: what was offered, served and refused, latencies of what was served, how
long the modest key waits for its first token, and memory. Nothing may be lost: every request is answered
or refused, and the server's counters equal the clients'.

Exit code 0: they do. Environment: KVAHEAD_BINARY as in harness.py; options behind -- are the server's.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import pathlib
import re
import sys
import tempfile
import time
from dataclasses import dataclass, field

from harness import Server
from wire import peak_bytes, post, resident_bytes

PATH = "/v1/completions"
KEYS = {"greedy": "key-of-the-greedy", "modest": "key-of-the-modest"}
ENVIRONMENT = {"KVAHEAD_API_KEY": ",".join(KEYS.values())}
MODEST_SHARE = 0.1
# An answer that has not begun to come after this time will not.
LIVENESS_S = 300


@dataclass
class Outcome:
    """One request as its client saw it."""

    who: str
    status: int = 0  # 0: the connection ended without an answer
    complete: bool = False
    retry_after: bool = False
    end: bytes = b""  # the last bytes of an answer that is not complete
    first_s: float = 0.0  # to its first token
    whole_s: float = 0.0


def make_request(who: str, number: int, tokens: int) -> bytes:
    """A stream of so many tokens, with a prompt of its own."""
    prompt = [300 + (number * 131 + i * 37) % 3200 for i in range(64)]
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return post(PATH, body | {"stream": True}, "Connection: close", key=KEYS[who])


async def ask(port: int, who: str, request: bytes) -> Outcome:
    outcome = Outcome(who)
    started = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return outcome
    try:
        writer.write(request)
        text = b""
        while chunk := await asyncio.wait_for(reader.read(65536), LIVENESS_S):
            text += chunk
            if not outcome.first_s and b"\ndata: " in text:
                outcome.first_s = time.monotonic() - started
        head, _, body = text.partition(b"\r\n\r\n")
        match = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
        outcome.status = int(match.group(1)) if match else 0
        outcome.retry_after = b"\r\nretry-after:" in head.lower()
        ended = b"data: [DONE]" in body if outcome.status == 200 else b'{"error":' in body
        outcome.complete, outcome.end = ended, b"" if ended else text[-300:]
    except (OSError, asyncio.TimeoutError):
        pass
    finally:
        writer.close()
    outcome.whole_s = time.monotonic() - started
    return outcome


async def closed_loop(port: int, clients: int, seconds: float, tokens: int) -> float:
    """Requests served per second."""
    end = time.monotonic() + seconds
    numbers = iter(range(1 << 30))
    served = 0

    async def client() -> None:
        nonlocal served
        while time.monotonic() < end:
            outcome = await ask(port, "greedy", make_request("greedy", next(numbers), tokens))
            served += outcome.status == 200 and outcome.complete and time.monotonic() < end

    await asyncio.gather(*(client() for _ in range(clients)))
    return served / seconds


async def open_loop(
    port: int, rates: dict[str, float], seconds: float, tokens: int
) -> list[Outcome]:
    """Requests at fixed rates, each key's evenly in time; waits for the last answer."""
    due = [(i / rate, who) for who, rate in rates.items() for i in range(int(rate * seconds))]
    started = time.monotonic()
    tasks = []
    for number, (at, who) in enumerate(sorted(due)):
        await asyncio.sleep(max(0.0, started + at - time.monotonic()))
        request = make_request(who, number, tokens)
        tasks.append(asyncio.create_task(ask(port, who, request)))
    return list(await asyncio.gather(*tasks))


@dataclass
class Row:
    """What one factor came to."""

    factor: float
    seconds: float
    outcomes: list[Outcome]
    peak: int
    final: int
    cache: int  # of it, what the prefix cache holds in the end
    counted: dict[int, int] = field(default_factory=dict)  # by the server: code -> requests

    def of(self, who: str, status: int | None = None) -> list[Outcome]:
        chosen = [o for o in self.outcomes if o.who == who]
        return [o for o in chosen if status is None or o.status == status]

    def problems(self) -> list[str]:
        seen = collections.Counter(o.status for o in self.outcomes)
        found = []
        if seen[0]:
            found.append(f"{seen[0]} requests got no answer")
        if cut := [o for o in self.outcomes if o.status and not o.complete]:
            found.append(f"{len(cut)} answers were not complete: {cut[0].status} {cut[0].end!r}")
        if strange := set(seen) - {200, 429, 503}:
            found.append(f"unexpected codes {strange}")
        if silent := sum(o.status in (429, 503) and not o.retry_after for o in self.outcomes):
            found.append(f"{silent} refusals without Retry-After")
        if dict(seen) != self.counted:
            found.append(f"clients saw {dict(seen)}, the server counts {self.counted}")
        return found


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def start(log: pathlib.Path, options: tuple[str, ...]) -> Server:
    return Server(log, options, ENVIRONMENT, KEYS["modest"])


def run_factor(
    folder: pathlib.Path, options: tuple[str, ...], factor: float, rates: dict[str, float],
    seconds: float, tokens: int,
) -> Row:  # fmt: skip
    """One factor, on a server of its own."""
    with start(folder / f"server-{factor}.log", options) as server:
        outcomes = asyncio.run(open_loop(server.port, rates, seconds, tokens))
        server.wait_idle()
        metrics, pid = server.metrics(), server.process.pid
        cache = sum(v for k, v in metrics.items() if k.startswith("kvahead_kv_cached_bytes"))
        row = Row(factor, seconds, outcomes, peak_bytes(pid), resident_bytes(pid), int(cache))
        for name, value in metrics.items():
            match = re.fullmatch(r'kvahead_http_requests_total\{route="(.*)",code="(\d+)"\}', name)
            if match and match.group(1) == PATH:
                row.counted[int(match.group(2))] = int(value)
        return row


def print_row(row: Row) -> None:
    served = [o for o in row.outcomes if o.status == 200]
    refused = collections.Counter(o.status for o in row.outcomes if o.status != 200)
    modest = row.of("modest", 200)
    whole = [o.whole_s for o in served]
    cells = (
        f"{row.factor:g}x",
        f"{len(row.outcomes) / row.seconds:.0f}/s",
        len(row.of("greedy", 200)),
        f"{len(modest)} of {len(row.of('modest'))}",
        ", ".join(f"{count} x {code}" for code, count in sorted(refused.items())) or "none",
        f"{percentile(whole, 50):.2f} / {percentile(whole, 99):.2f} s",
        f"{percentile([o.first_s for o in modest], 50):.2f} / "
        f"{percentile([o.first_s for o in modest], 99):.2f} s",
        f"{row.peak >> 20} / {row.final >> 20} / {row.cache >> 20} MiB",
    )
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--clients", type=int, default=64, help="that find the capacity")
    parser.add_argument("--factors", type=float, nargs="+", default=[2, 6, 10])
    parser.add_argument("options", nargs="*", help="of the server, behind --")
    args = parser.parse_args()
    options = tuple(args.options)
    problems = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with start(folder / "capacity.log", options) as server:
            loop = closed_loop(server.port, args.clients, args.seconds / 2, args.tokens)
            capacity = asyncio.run(loop)
            idle = resident_bytes(server.process.pid)
        print(f"Capacity {capacity:.0f} requests a second, {idle >> 20} MiB after it.\n")
        titles = ("greedy at", "offered", "greedy served", "modest served", "refused")
        titles += ("latency of served p50 / p99", "modest's first token p50 / p99")
        titles += ("memory peak / after / prefix cache in it",)
        print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
        for factor in args.factors:
            rates = {"greedy": capacity * factor, "modest": max(1, capacity * MODEST_SHARE)}
            row = run_factor(folder, options, factor, rates, args.seconds, args.tokens)
            print_row(row)
            problems += row.problems()
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
