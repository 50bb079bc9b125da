#!/usr/bin/env python3
"""Requests that a proxy and the server might cut apart at different places (request smuggling).

Behind nginx and behind HAProxy, both lenient and with one connection to the server that all clients share, an
attacker sends a request with another request hidden where a careless parser finds it; then a victim
with another key asks. 1,000 rounds and more per proxy. And without a proxy: the attacker's bytes
and the victim's on one connection, as a proxy would forward them that has understood nothing.

Nothing may be mixed up, as the clients see it and as the server's log and counters have it:
no victim gets another answer than its own, no attacker gets a victim's, nothing runs with a key that
its sender did not have, and what the proxy forbids is not reached.

    python tests/e2e/test_smuggling.py --table      the cases and their answers, in Markdown
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import pathlib
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from harness import Server, parse_metrics, wait_until
from proxies import Proxy, find_program
from wire import Answer, LogLine, Wire, access_log, answered_requests, head, post

PATH = "/v1/completions"
FORBIDDEN = ("/metrics", "/v1/kvahead/requests")
KEYS = {"attacker": "key-of-the-attacker", "victim": "key-of-the-victim"}
VICTIM_KEY_INDEX = 1
ROUNDS = 1000
ENVIRONMENT = {"KVAHEAD_API_KEY": ",".join(KEYS.values())}
# How long to wait for an answer that does not come, because the proxy waits for more of the request.
# The longer, the closer an attack gets; what is asserted does not depend on it.
PATIENCE_S, IMPATIENCE_S, LIVENESS_S = 1.0, 0.02, 20


# --- what is hidden


@dataclass
class Attack:
    """Who attacks in this round, and with what."""

    number: int
    key: str | None
    hidden: str  # health, slow, absorb, metrics

    @property
    def tag(self) -> str:
        return f"{self.number}-{'own' if self.key else 'none'}"

    def fields(self) -> list[str]:
        """Of the outer request."""
        fields = [f"X-Request-Id: a-{self.tag}"]
        return [*fields, f"Authorization: Bearer {self.key}"] if self.key else fields

    def payload(self) -> bytes:
        """The hidden request."""
        name = f"s-{self.tag}"
        if self.hidden == "absorb":
            # The next request's first line becomes a header of this one, its key this one's key.
            return head("GET", FORBIDDEN[1], "X-Absorb: x", request_id=name)[:-4]
        if self.hidden == "slow":
            # Its answer is ready when the victim already waits for its own.
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30}
            body |= {"ignore_eos": True}
            return post("/v1/chat/completions", body, key=self.key, request_id=name)
        path = "/metrics" if self.hidden == "metrics" else "/health"
        return head("GET", path, key=self.key, request_id=name)


ATTACKS = (
    *((None, "health"), (None, "absorb")),
    *((KEYS["attacker"], "slow"), (KEYS["attacker"], "absorb"), (KEYS["attacker"], "metrics")),
)


# --- how it is hidden

JSON = "Content-Type: application/json"
CHUNKED = "Transfer-Encoding: chunked"


def message(line: str, attack: Attack, fields: list[str], body: bytes = b"") -> bytes:
    """A request as it is given; a field may have odd bytes of its own."""
    lines = [line, "Host: x", *attack.fields(), *fields]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


Build = Callable[[Attack], bytes]
OUTER = b'{"prompt":"outer","max_tokens":1}'


def with_length(line: str, *fields: str, length: str = "{}", json: bool = True) -> Build:
    """The hidden request is the body, whose length is given in some spelling."""

    def build(attack: Attack) -> bytes:
        body = attack.payload()
        given = [*([JSON] if json else []), *fields]
        given.append(f"Content-Length: {length.format(len(body), more=len(body) + (1 << 64))}")
        return message(line, attack, given, body)

    return build


def cl_te(*fields: str, line: str = f"POST {PATH} HTTP/1.1") -> Build:
    """By length the hidden request is in the body, by chunks it comes behind it."""

    def build(attack: Attack) -> bytes:
        body = b"0\r\n\r\n" + attack.payload()
        return message(line, attack, [JSON, f"Content-Length: {len(body)}", *fields], body)

    return build


def te_cl(*fields: str, line: str = f"POST {PATH} HTTP/1.1") -> Build:
    """By chunks the hidden request is in the body, by length it comes behind it."""

    def build(attack: Attack) -> bytes:
        hidden = attack.payload()
        first = b"%x\r\n" % len(hidden)
        body = first + hidden + b"\r\n0\r\n\r\n"
        return message(line, attack, [JSON, f"Content-Length: {len(first)}", *fields], body)

    return build


def te(chunks: Callable[[bytes], bytes], *fields: str, version: str = "1.1") -> Build:
    """The hidden request is in a chunk, or behind what a lenient reader takes for the last one."""

    def build(attack: Attack) -> bytes:
        line = f"POST {PATH} HTTP/{version}"
        return message(line, attack, [JSON, *fields, CHUNKED], chunks(attack.payload()))

    return build


def sized(spelling: str) -> Callable[[bytes], bytes]:
    """A chunk whose size is given in some spelling."""

    def chunks(hidden: bytes) -> bytes:
        line = spelling.format(len(hidden)).encode("latin-1")
        return line + b"\r\n" + hidden + b"\r\n0\r\n\r\n"

    return chunks


def bare_lf(attack: Attack) -> bytes:
    before, _, body = with_length(f"POST {PATH} HTTP/1.1")(attack).partition(b"\r\n\r\n")
    return before.replace(b"\r\n", b"\n") + b"\n\n" + body


def behind(line: str, *fields: str) -> Build:
    """The hidden request follows as the next one: pipelining, or an upgrade that is not made."""
    return lambda attack: message(line, attack, list(fields), attack.payload())


@dataclass(frozen=True)
class Case:
    name: str
    build: Build
    # Sent to the server directly: "refused" is one answer of 4xx or 5xx and the end of the
    # connection; "one" is one answer, then the victim's or the end; "open" has the hidden request
    # outside the message, where it counts as the attacker's own.
    outcome: str = "refused"


def cases() -> list[Case]:
    post_ = f"POST {PATH} HTTP/1.1"
    upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
    websocket = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
    websocket += ("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",)
    made = [
        Case("CL.TE", cl_te(CHUNKED)),
        Case("TE.CL", te_cl(CHUNKED)),
        Case("TE.CL, HTTP/1.0", te_cl(CHUNKED, line=f"POST {PATH} HTTP/1.0")),
    ]
    obfuscations = {
        "space before the colon": "Transfer-Encoding : chunked",
        "tab before the colon": "Transfer-Encoding\t: chunked",
        "tab before the value": "Transfer-Encoding:\tchunked",
        "no space": "Transfer-Encoding:chunked",
        "vertical tab": "Transfer-Encoding: \vchunked",
        "NUL": "Transfer-Encoding: chunked\0",
        "xchunked": "Transfer-Encoding: xchunked",
        "identity": "Transfer-Encoding: identity",
        "chunked, identity": "Transfer-Encoding: chunked, identity",
        "identity, chunked": "Transfer-Encoding: identity, chunked",
        "quoted": 'Transfer-Encoding: "chunked"',
        "upper case": "TRANSFER-ENCODING: CHUNKED",
        "folded value": "Transfer-Encoding:\r\n chunked",
        "folded name": "X-A: b\r\n Transfer-Encoding: chunked",
        "leading space": " Transfer-Encoding: chunked",
        "bare LF before it": "X-A: b\nTransfer-Encoding: chunked",
        "bare CR before it": "X-A: b\rTransfer-Encoding: chunked",
        "underscore": "Transfer_Encoding: chunked",
        "twice": f"{CHUNKED}\r\n{CHUNKED}",
        "twice, the second unknown": f"{CHUNKED}\r\nTransfer-Encoding: cow",
        "named by Connection": f"Connection: Transfer-Encoding\r\n{CHUNKED}",
    }
    for name, text in obfuscations.items():
        outcome = "one" if name == "underscore" else "refused"
        made.append(Case(f"CL.TE, {name}", cl_te(text), outcome))
        if name != "underscore":
            made.append(Case(f"TE.CL, {name}", te_cl(text)))
    for method in ("HEAD", "TRACE", "GET", "OPTIONS", "DELETE", "QUERY"):
        for path in (PATH, "/health"):
            line = f"{method} {path} HTTP/1.1"
            made.append(Case(f"{method} {path} with a body", with_length(line), "one"))
    spellings = {
        "+": "+{}",
        "-": "-{}",
        "hexadecimal": "0x{0:x}",
        "with a fraction": "{}.0",
        "list": "{0}, {0}",
        "list with another": "{0}, 0",
        "space inside": "{} 0",
        "vertical tab": "\v{}",
        "empty": " ",
        "2^64 more": "{more}",
    }
    for name, spelling in spellings.items():
        made.append(Case(f"Content-Length: {name}", with_length(post_, length=spelling)))
    made += [
        Case("Content-Length: leading zeros", with_length(post_, length="000{}"), "one"),
        Case("Content-Length: twice the same", with_length(post_, "Content-Length: 5")),
        Case(
            "Content-Length: named by Connection",
            with_length(post_, "Connection: Content-Length"),
            "one",
        ),
        Case("chunk extension", te(sized("{:x};name=value")), "one"),
        Case("chunk extension, quoted", te(sized('{:x};name="a;b"')), "one"),
        Case("chunk extension with a bare LF", te(sized("{:x};\nff"))),
        Case("chunk size 0x", te(sized("0x{:x}"))),
        Case("chunk size +", te(sized("+{:x}"))),
        Case("chunk size -", te(sized("-{:x}"))),
        Case("chunk size with an underscore", te(sized("1_{:x}"))),
        Case("chunk size over 2^64", te(sized("1000000000000000{:02x}"))),
        Case("chunk size with leading zeros", te(sized("000{:x}")), "one"),
        Case("chunk without its CRLF", te(lambda b: b"5\r\nhello0\r\n\r\n" + b)),
        Case("chunk longer than its size", te(lambda b: b"1\r\nab\r\n0\r\n\r\n" + b)),
        Case("chunk lines that end in LF", te(lambda b: b"5\nhello\n0\n\n" + b)),
        Case("chunked twice", te(sized("{:x}"), CHUNKED)),
        Case("chunked, HTTP/1.0 keep-alive", te(sized("{:x}"), "Connection: keep-alive", version="1.0")),
        Case(
            "trailers",
            te(lambda b: sized("{:x}")(b)[:-2] + b"Content-Length: 5\r\nX-Request-Id: t\r\n\r\n"),
            "one",
        ),
        Case(
            "HTTP/1.0 keep-alive with a length",
            with_length(f"POST {PATH} HTTP/1.0", "Connection: keep-alive"),
            "one",
        ),
        Case("Expect: 100-continue", with_length(post_, "Expect: 100-continue"), "one"),
        Case("Expect: something else", with_length(post_, "Expect: cake"), "one"),
        Case("head lines that end in LF", bare_lf),
        Case("401", with_length(post_, "Authorization: Bearer wrong"), "one"),
        Case("404", with_length("POST /nowhere HTTP/1.1"), "one"),
        Case("405", with_length("PUT /v1/completions HTTP/1.1"), "one"),
        Case("413", with_length(post_, length="99999{:04d}")),
        Case("415", with_length(post_, "Content-Type: text/plain", json=False), "one"),
        Case("431", with_length(post_, "X-Long: " + "a" * 40000)),
        Case("absolute-form", with_length(f"POST http://x{PATH} HTTP/1.1"), "one"),
        Case("absolute-form, what is forbidden", with_length("GET http://x/metrics HTTP/1.1"), "one"),
        Case("Upgrade: h2c", behind("GET /health HTTP/1.1", *upgrade), "open"),
        Case("Upgrade: h2c with a body", with_length(post_, *upgrade), "one"),
        Case("Upgrade: websocket", behind("GET /health HTTP/1.1", *websocket), "open"),
        Case("CONNECT", behind("CONNECT x:80 HTTP/1.1"), "open"),
        Case("CONNECT with a body", with_length("CONNECT x:80 HTTP/1.1"), "open"),
        Case("HTTP/2 preface", lambda a: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + a.payload()),
        Case("HTTP/0.9", lambda a: b"GET /health\r\n" + a.payload()),
        Case("pipelined", behind("GET /health HTTP/1.1"), "open"),
        Case("pipelined behind a completion", lambda a: completion(a) + a.payload(), "open"),
    ]
    paths = ("//x/metrics", "//metrics", "/./metrics", "/x/../metrics", "/%2e/metrics", "/metrics/")
    for path in (*paths, "/metrics%20", "/metrics%00", "/v1//kvahead/requests", "/v1/x/..;/metrics"):
        made.append(Case(path, with_length(f"GET {path} HTTP/1.1"), "one"))
    return made


def completion(attack: Attack) -> bytes:
    return post(PATH, OUTER, *attack.fields())


# --- what happens


@dataclass
class Result:
    """One front's rounds."""

    front: str
    rounds: int = 0
    unserved: int = 0  # victims that got no answer, or the proxy's own
    stolen: list[str] = field(default_factory=list)  # victims with an answer that is not theirs
    leaked: list[str] = field(default_factory=list)  # attackers with a victim's answer
    misrun: list[str] = field(default_factory=list)  # ran with a key its sender did not have
    reached: list[str] = field(default_factory=list)  # what the proxy forbids
    uneven: list[str] = field(default_factory=list)  # framing, log or counters not as they must be
    statuses: dict[str, collections.Counter] = field(default_factory=dict)

    def problems(self) -> list[str]:
        return [*self.stolen, *self.leaked, *self.misrun, *self.reached, *self.uneven]

    def status_list(self, name: str) -> str:
        seen = self.statuses.get(name, {})
        return " ".join(str(status) for status in sorted(seen)) or "-"


def victim_bytes(number: int) -> bytes:
    prompt = f"victim-{number}"
    body = {"prompt": prompt, "echo": True, "max_tokens": 1, "temperature": 0}
    return post(PATH, body, key=KEYS["victim"], request_id=f"v-{number}")


def check_victim(result: Result, number: int, answer: Answer | None, what: str) -> None:
    """The victim's own answer, or none."""
    if answer is None or answer.status in (502, 503, 504) and answer.request_id is None:
        result.unserved += 1
        return
    own = answer.status == 200 and answer.request_id == f"v-{number}"
    if not own or f"victim-{number}" not in answer.json()["choices"][0]["text"]:
        result.stolen.append(f"{what}: victim {number} got {answer}")


def check_attacker(result: Result, attack: Attack, answers: list[Answer], what: str) -> None:
    known = (None, f"a-{attack.tag}", f"s-{attack.tag}", f"f-{attack.tag}")
    for answer in answers:
        foreign = answer.request_id not in known and re.match(r"[vasf]-", answer.request_id)
        if foreign or b"victim-" in answer.body:
            result.leaked.append(f"{what}: the attacker got {answer}")
        if b"kvahead_requests_running" in answer.body and result.front != "none":
            result.reached.append(f"{what}: the attacker got the metrics")


class Fronted:
    """Rounds through a proxy: two connections to it, one from it to the server."""

    def __init__(self, proxy: Proxy, result: Result) -> None:
        self.proxy, self.result = proxy, result
        self.hangs: set[tuple[str, str]] = set()

    def run(self, case: Case, attack: Attack) -> None:
        what = f"{case.name} behind {self.proxy.name}, {attack.tag}, {attack.hidden}"
        hangs = (case.name, attack.hidden) in self.hangs
        with Wire(self.proxy.port, timeout=IMPATIENCE_S if hangs else PATIENCE_S) as attacker:
            attacker.send(case.build(attack))
            answers = []
            try:
                if answer := attacker.answer(case.name.split(" ")[0]):
                    answers.append(answer)
            except TimeoutError:
                self.hangs.add((case.name, attack.hidden))
            counter = self.result.statuses.setdefault(case.name, collections.Counter())
            counter.update(answer.status for answer in answers)
            with Wire(self.proxy.port) as victim:
                victim.send(victim_bytes(attack.number))
                check_victim(self.result, attack.number, victim.answer(), what)
            # What the attacker gets next must not be what the victim should have had.
            more = head("GET", "/version", key=attack.key, request_id=f"f-{attack.tag}")
            attacker.sock.settimeout(IMPATIENCE_S)
            if not attacker.ended and attacker.send(more):
                with contextlib.suppress(TimeoutError):
                    while len(answers) < 4 and (answer := attacker.answer()):
                        answers.append(answer)
            check_attacker(self.result, attack, answers, what)


class Direct:
    """Rounds without a proxy: the victim's bytes follow the attacker's on one connection."""

    def __init__(self, server: Server, result: Result) -> None:
        self.server, self.result = server, result
        self.hangs = 0

    def run(self, case: Case, attack: Attack) -> None:
        what = f"{case.name}, {attack.tag}, {attack.hidden}"
        answers: list[Answer] = []
        victim = None
        with Wire(self.server.port, timeout=LIVENESS_S if self.hangs < 3 else PATIENCE_S) as wire:
            wire.send(case.build(attack))
            wire.send(victim_bytes(attack.number))
            try:
                while answer := wire.answer("GET" if answers else case.name.split(" ")[0]):
                    answers.append(answer)
                    if answer.request_id == f"v-{attack.number}":
                        victim = answers.pop()
                        break
            except (TimeoutError, AssertionError) as error:
                self.hangs += isinstance(error, TimeoutError)
                self.result.uneven.append(f"{what}: {answers}, then {error}")
        counter = self.result.statuses.setdefault(case.name, collections.Counter())
        counter.update(answer.status for answer in answers[:1])
        check_victim(self.result, attack.number, victim, what)
        check_attacker(self.result, attack, answers, what)
        seen = [answer.status for answer in answers]
        if case.outcome == "refused" and (len(seen) != 1 or seen[0] < 400 or victim):
            self.result.uneven.append(f"{what}: not refused, {seen}, then {victim}")
        if case.outcome == "one" and len(seen) != 1:
            self.result.uneven.append(f"{what}: {len(seen)} answers: {seen}, then {victim}")


def check_log(result: Result, server: Server) -> None:
    """What ran, with whose key, and that log and counters tell the same."""
    end = "end-of-the-rounds"
    reply = server.request("GET", "/metrics", None, {"X-Request-Id": end})
    assert reply.status == 200, reply
    lines = wait_until("the log is written", lambda: lines_before(server, end))
    for line in lines:
        if line.key == VICTIM_KEY_INDEX:
            if not (line.request_id.startswith("v-") and line.path == PATH):
                result.misrun.append(f"with the victim's key: {line.text}")
        elif line.key is not None and line.request_id.endswith("-none"):
            result.misrun.append(f"with a key, but its sender has none: {line.text}")
        if line.path in FORBIDDEN and line.status < 400 and result.front != "none":
            result.reached.append(f"forbidden by the proxy: {line.text}")
    served = sum(line.request_id.startswith("v-") and line.status == 200 for line in lines)
    if served != result.rounds - result.unserved:
        what = f"{result.rounds} victims, {result.unserved} of them without an answer"
        result.uneven.append(f"{what}, {served} answers in the log")
    counted = answered_requests(parse_metrics(reply.body.decode()))
    if counted != len(lines):
        result.uneven.append(f"{counted:.0f} requests counted, {len(lines)} in the log")


def lines_before(server: Server, request_id: str) -> list[LogLine]:
    """The access log up to this request, itself left out; [] if it is not there yet."""
    lines = access_log(server.log())
    names = [line.request_id for line in lines]
    return lines[: names.index(request_id)] if request_id in names else []


def attacks(rounds: int) -> Iterator[tuple[Case, Attack]]:
    """Every case with every attack, as often as it takes to get that many rounds."""
    made = cases()
    numbers = itertools.count()
    each = -(-rounds // (len(made) * len(ATTACKS)))
    for _ in range(each):
        for case, (key, hidden) in itertools.product(made, ATTACKS):
            yield case, Attack(next(numbers), key, hidden)


def run_rounds(front: str, folder: pathlib.Path, rounds: int) -> Result:
    """A server of its own, a proxy before it unless `front` is 'none', and all rounds."""
    result = Result(front)
    with contextlib.ExitStack() as stack:
        log, key = folder / f"server-{front}.log", KEYS["attacker"]
        server = stack.enter_context(Server(log, ("--log-level", "debug"), ENVIRONMENT, key))
        runner: Fronted | Direct = Direct(server, result)
        if front != "none":
            runner = Fronted(stack.enter_context(Proxy(front, server.port, folder)), result)
        for case, attack in attacks(rounds):
            if front == "none" and case.outcome == "open" and attack.hidden == "absorb":
                continue  # A half request behind a whole one: the next bytes do belong to it.
            result.rounds += 1
            runner.run(case, attack)
        check_log(result, server)
    return result


@pytest.mark.parametrize("front", ["nginx", "haproxy", "none"])
def test_smuggling__nothing_is_mixed_up(front, tmp_path):
    if front != "none" and not find_program(front):
        pytest.skip(f"{front} is not installed")
    result = run_rounds(front, tmp_path, 1 if front == "none" else ROUNDS)
    problems = result.problems()
    assert not problems, f"{len(problems)} of {result.rounds} rounds:\n" + "\n".join(problems[:40])
    if front != "none":
        assert result.rounds >= ROUNDS
        assert result.unserved == 0, f"{result.unserved} victims got no answer"


# --- the table


def print_table() -> int:
    with tempfile.TemporaryDirectory() as folder:
        fronts = ["none", *(name for name in ("nginx", "haproxy") if find_program(name))]
        results = [
            run_rounds(name, pathlib.Path(folder), 1 if name == "none" else ROUNDS)
            for name in fronts
        ]
    titles = {"none": "directly", "nginx": "behind nginx", "haproxy": "behind HAProxy"}
    print("| what hides a request | " + " | ".join(titles[name] for name in fronts) + " |")
    print("|---|" + "---|" * len(fronts))
    for case in cases():
        cells = [result.status_list(case.name) for result in results]
        name = case.name.replace("|", "\\|")
        print(f"| {name} | " + " | ".join(cells) + " |")
    rows = (
        ("rounds", lambda r: r.rounds),
        ("victims with an answer that is not theirs", lambda r: len(r.stolen)),
        ("victims without an answer", lambda r: r.unserved),
        ("attackers with a victim's answer", lambda r: len(r.leaked)),
        ("ran with a key that its sender did not have", lambda r: len(r.misrun)),
        ("reached what the proxy forbids", lambda r: len(r.reached)),
        ("log, counters or framing not as they must be", lambda r: len(r.uneven)),
    )
    for name, value in rows:
        print(f"| **{name}** | " + " | ".join(str(value(result)) for result in results) + " |")
    problems = [problem for result in results for problem in result.problems()]
    for problem in problems[:40]:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--table", action="store_true", required=True)
    parser.parse_args()
    sys.exit(print_table())
