"""The whole command: results, pictures, exit codes; on a scripted server and on kvahead."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from scripted import Hang, Refuse, Scripted, words

from kvahead_load import arrivals as arrivals_module
from kvahead_load import client, gauges
from kvahead_load.cli import build_parser, main
from kvahead_load.plan import Plan
from kvahead_load.walk import Walk

ROOT = pathlib.Path(__file__).resolve().parents[3]
BINARY = pathlib.Path(os.environ.get("KVAHEAD_BINARY") or ROOT / "build" / "kvahead")


@contextlib.contextmanager
def serving(server: Scripted) -> Iterator[Scripted]:
    """A scripted server on a thread of its own."""
    server.in_step = False
    started, loop = threading.Event(), asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        async with server:
            started.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    started.wait(30)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


@contextlib.contextmanager
def interrupting(when: Callable[[], bool]) -> Iterator[None]:
    """Ctrl-C once `when` is true."""
    over = threading.Event()

    def watch() -> None:
        while not when():
            if over.wait(0.005):
                return
        os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def test_cli__a_sweep_gives_results_and_pictures(tmp_path, capsys):
    with serving(Scripted(script=lambda number, body: words(4))) as server:
        code = main(
            ["--base-url", server.url, "--concurrency", "1,4", "--requests", "12", "--warm-up", "2",
             "--prompt-tokens", "20-40", "--output-tokens", "8", "--limit-ttft", "60000",
             "--extra", '{"kv": {"policy": "full"}}', "--out", str(tmp_path / "out")]
        )  # fmt: skip
    assert code == 0
    assert len(server.bodies) == 1 + 2 * 14
    assert all(body["kv"] == {"policy": "full"} for body in server.bodies)
    # /tokenize says 2 tokens a word: prompts are of 10 to 20 words.
    assert all(9 <= len(body["prompt"].split()) <= 21 for body in server.bodies[1:])
    # No load repeats a prompt of another: a prefix cache would have it.
    assert len({body["prompt"] for body in server.bodies}) == len(server.bodies)
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [point["load"] for point in results["points"]] == ["1 at a time", "4 at a time"]
    for point in results["points"]:
        assert (point["complete"], point["failed"], point["good"]) == (12, 0, 12)
        assert point["ttft_s"]["count"] == 12
        assert point["output_tokens"]["mean"] == 8
        assert point["tokens_per_piece"] == 2
    assert results["tokens_per_word"] == 2.0
    lines = (tmp_path / "out" / "requests.jsonl").read_text().splitlines()
    assert len(lines) == 28
    assert sum(json.loads(line)["warm_up"] for line in lines) == 4
    for name in ("load", "latency", "timeline_1", "timeline_2"):
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 5000
        assert (tmp_path / "out" / f"{name}.svg").read_text().startswith("<?xml")
    out = capsys.readouterr().out
    assert "4 at a time" in out and "TTFT" in out


@pytest.fixture
def often(monkeypatch):
    """Loads of a moment have readings of the server's figures too."""
    monkeypatch.setattr(gauges, "Sampler", functools.partial(gauges.Sampler, interval_s=0.01))


def test_cli__a_walk_ends_at_the_saturation_point(tmp_path, capsys, often):
    """The server refuses more than 30 requests a second, so to speak: by the rate in the body."""
    rate = [0.0]

    def script(number, body):
        if body["max_tokens"] == 1 or len(server.rates) == 0:
            return words(1)  # the greeting
        return words(2) if rate[0] <= 30 else [Refuse(503, "full")]

    server = Scripted(script=script)
    server.rates = []
    said = (
        '# HELP kvahead_requests_running x\nkvahead_requests_running{{model="m"}} {}\n'
        "kvahead_steps_total 7\n"
    )
    server.metrics = lambda server: said.format(len(server.bodies))

    def arrivals(text, value, rng):
        rate[0] = value
        server.rates.append(value)
        return arrivals_process(text, value, rng)

    arrivals_process = arrivals_module.process
    with serving(server), pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrivals_module, "process", arrivals)
        code = main(["--base-url", server.url, "--rate", "auto:20", "--requests", "10",
                     "--prompt-tokens", "9", "--output-tokens", "4",
                     "--out", str(tmp_path)])  # fmt: skip
    assert code == 0  # refusals are what was looked for
    assert server.rates == [20, 40, 28, 33]
    results = json.loads((tmp_path / "results.json").read_text())
    assert [point["rate"] for point in results["points"]] == [20, 28, 33, 40]
    assert [point["good_share"] for point in results["points"]] == [1, 1, 0, 0]
    found = results["saturation"]
    assert (found["rate_kept"], found["rate_lost"]) == (28, 33)
    assert results["limits"]["ttft_s"] == 2.0
    running = [point["server"]["running"] for point in results["points"]]
    assert running[0]["mean"] >= 1 and running[0]["max"] < running[2]["max"]
    assert results["points"][0]["server"]["steps"] == 0
    out = capsys.readouterr().out
    assert "saturated above 28/s (90% within TTFT 2000 ms, TPOT 100 ms), at 33/s it is less" in out
    assert "running" in out
    assert "limit" in (tmp_path / "load.svg").read_text()


def test_cli__gauges_of_requests_that_are_all_sent_at_once(capsys, often):
    """No answer ends before three readings saw all of them."""
    full = 0

    def metrics(server: Scripted) -> str:
        nonlocal full
        full += server.flying == 4
        return f"kvahead_requests_running {server.flying}\n"

    class Patient(Scripted):
        async def _play(self, request, body, script):
            while body["max_tokens"] > 1 and full < 3:
                await asyncio.sleep(0.001)
            return await super()._play(request, body, script)

    with serving(Patient(metrics=metrics)) as server:
        code = main(["--base-url", server.url, "--concurrency", "4", "--requests", "4", "--json"])
    assert code == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert point["server"]["running"]["max"] == 4
    assert point["server"]["running"]["mean"] > 1


def test_cli__a_walk_asks_for_nothing_twice(capsys):
    """Nor for what the lone requests had that its first rate follows from."""
    script = lambda number, body: [Refuse(503, "full")] if number > 20 else words(1)  # noqa: E731
    with serving(Scripted(script=script)) as server:
        code = main(["--base-url", server.url, "--rate", "auto", "--requests", "4", "--json"])
    assert code == 0
    prompts = [body["prompt"] for body in server.bodies]
    assert len(prompts) > 1 + 3 + 4
    assert len(set(prompts)) == len(prompts)


@pytest.mark.parametrize(
    ("more", "held_s"),
    [([], [20, 100]), (["--duration", "7"], [7, 7]), (["--requests", "3"], [None] * 2)],
)
def test_cli__a_walk_holds_low_rates_longer(more, held_s):
    for rate, seconds in zip((1.0, 0.05), held_s, strict=True):
        given = ["--base-url", "http://x", "--rate", f"auto:{rate}", *more]
        plan = Plan(build_parser().parse_args(given))
        plan.walk = Walk(rate)
        assert (plan.next().rate, plan.next().duration_s) == (rate, seconds)


def test_cli__json_and_failures(capsys):
    script = lambda number, body: [Refuse(429, "slow down")] if number > 5 else words(1)  # noqa: E731
    with serving(Scripted(script=script)) as server:
        code = main(["--base-url", server.url, "--rate", "500", "--requests", "10", "--json"])
    assert code == 1
    printed = capsys.readouterr()
    (point,) = json.loads(printed.out)["points"]
    assert (point["complete"], point["failed"]) == (5, 5)
    assert point["errors"] == {"HTTP 429: slow down": 5}
    assert "5 x HTTP 429: slow down" in printed.err


def test_cli__a_trace(tmp_path, capsys):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        "".join(
            json.dumps({"at_s": i / 100, "prompt_tokens": 10 + i, "output_tokens": 1 + i}) + "\n"
            for i in range(5)
        )
    )
    with serving(Scripted()) as server:
        code = main(["--base-url", server.url, "--trace", str(trace), "--token-ids", "900",
                     "--speed", "2", "--json"])  # fmt: skip
    assert code == 0
    assert sorted(body["max_tokens"] for body in server.bodies[1:]) == [1, 2, 3, 4, 5]
    assert sorted(len(body["prompt"]) for body in server.bodies[1:]) == [10, 11, 12, 13, 14]
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert (point["load"], point["complete"]) == ("trace", 5)


def test_cli__an_interrupt_writes_what_there_is(tmp_path):
    script = lambda number, body: [Hang()] if number > 3 else words(2)  # noqa: E731
    with serving(Scripted(script=script)) as server, interrupting(lambda: server.flying == 2):
        code = main(["--base-url", server.url, "--concurrency", "2", "--requests", "50",
                     "--out", str(tmp_path), "--no-plots"])  # fmt: skip
    assert code == 130
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["interrupted"] is True
    assert results["points"][0]["complete"] == 3


def test_cli__an_interrupt_before_a_load_has_a_result_keeps_the_loads_before(tmp_path, capsys):
    script = lambda number, body: [Hang()] if number > 8 else words(2)  # noqa: E731
    with serving(Scripted(script=script)) as server, interrupting(lambda: server.flying == 3):
        code = main(["--base-url", server.url, "--concurrency", "1,3", "--requests", "8",
                     "--limit-ttft", "60000", "--out", str(tmp_path)])  # fmt: skip
    assert code == 130
    results = json.loads((tmp_path / "results.json").read_text())
    assert [point["complete"] for point in results["points"]] == [8, 0]
    assert results["points"][1]["requests_per_s"] is None
    assert (tmp_path / "load.png").stat().st_size > 5000
    assert "3 at a time: no request counts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("load", "hangs_at"),
    [
        (["--concurrency", "1"], 0),  # the first request, which shows that there is a server
        (["--rate", "auto"], 2),  # a lone one
        (["--concurrency", "1"], 1),  # the load's own first
    ],
)
def test_cli__an_interrupt_before_any_result_leaves_earlier_ones(tmp_path, capsys, load, hangs_at):
    before = {name: f"earlier {name}" for name in ("results.json", "requests.jsonl")}
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    script = lambda number, body: [Hang()] if number == hangs_at else words(2)  # noqa: E731
    there = lambda: len(server.bodies) > hangs_at  # noqa: E731
    with serving(Scripted(script=script)) as server, interrupting(there):
        code = main(["--base-url", server.url, *load, "--out", str(tmp_path), "--json"])
    assert code == 130
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "kvahead-load: interrupted\n")


def test_cli__requests_are_written_as_they_end(tmp_path):
    """Beside an earlier result, which stays until there is a new one."""
    (tmp_path / "requests.jsonl").write_text("earlier")
    seen: list[tuple[str, list[int]]] = []
    part = tmp_path / "requests.jsonl.part"

    def script(number, body):
        if number == 5:  # the load's fifth: four have ended
            indexes = [json.loads(line)["index"] for line in part.read_text().splitlines()]
            seen.append(((tmp_path / "requests.jsonl").read_text(), indexes))
        return words(2)

    with serving(Scripted(script=script)) as server:
        code = main(["--base-url", server.url, "--concurrency", "1", "--requests", "6",
                     "--out", str(tmp_path), "--no-plots"])  # fmt: skip
    assert code == 0
    assert seen == [("earlier", [0, 1, 2, 3])]
    lines = (tmp_path / "requests.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == list(range(6))
    assert not part.exists()


def test_cli__a_disk_that_is_full_does_not_end_a_load(tmp_path, capsys):
    (tmp_path / "requests.jsonl.part").symlink_to("/dev/full")
    with serving(Scripted()) as server:
        code = main(["--base-url", server.url, "--rate", "500", "--requests", "6",
                     "--out", str(tmp_path), "--no-plots"])  # fmt: skip
    assert code == 2
    assert "No space left" in capsys.readouterr().err
    assert json.loads((tmp_path / "results.json").read_text())["points"][0]["complete"] == 6
    assert not (tmp_path / "requests.jsonl").exists()


@pytest.mark.parametrize("hangs", [False, True])
def test_cli__an_interrupt_between_two_loads_is_one(tmp_path, monkeypatch, hangs):
    """While the server's figures are read a last time; also where it never answers."""
    monkeypatch.setattr(client, "METRICS_TIMEOUT_S", 0.5)
    asked = threading.Event()

    class Slow(Scripted):
        async def _metrics(self, request):
            if len(self.bodies) == 1 + 3 and not self.flying:
                asked.set()
                await asyncio.sleep(600 if hangs else 0.3)
            return await super()._metrics(request)

    server = Slow(metrics=lambda server: "kvahead_steps_total 7\n")
    with serving(server), interrupting(asked.is_set):
        code = main(["--base-url", server.url, "--concurrency", "1,2", "--requests", "3",
                     "--out", str(tmp_path), "--no-plots"])  # fmt: skip
    assert code == 130
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["interrupted"] is True
    assert [point["complete"] for point in results["points"]] == [3]


def test_cli__an_interrupt_after_the_last_load_is_none(tmp_path):
    class Slow(Scripted):
        async def _metrics(self, request):
            if len(self.bodies) == 1 + 3 and not self.flying:
                asked.set()
                await asyncio.sleep(0.3)
            return await super()._metrics(request)

    asked = threading.Event()
    server = Slow(metrics=lambda server: "kvahead_steps_total 7\n")
    with serving(server), interrupting(asked.is_set):
        code = main(["--base-url", server.url, "--concurrency", "1", "--requests", "3",
                     "--out", str(tmp_path), "--no-plots"])  # fmt: skip
    assert code == 0
    assert json.loads((tmp_path / "results.json").read_text())["interrupted"] is False


@pytest.mark.parametrize("load", [["--concurrency", "1,2"], ["--rate", "auto:200"]])
def test_cli__a_warm_up_that_is_all_there_is(tmp_path, capsys, load):
    with serving(Scripted(script=lambda number, body: words(1))) as server:
        code = main(["--base-url", server.url, *load, "--duration", "0.2", "--warm-up", "99999",
                     "--limit-ttft", "60000", "--out", str(tmp_path)])  # fmt: skip
    assert code == 0
    results = json.loads((tmp_path / "results.json").read_text())
    # A walk has nothing to go by.
    assert len(results["points"]) == (2 if load[0] == "--concurrency" else 1)
    assert all(point["requests"] == 0 for point in results["points"])
    assert len((tmp_path / "requests.jsonl").read_text().splitlines()) == len(server.bodies) - 1
    printed = capsys.readouterr()
    assert "no request counts: all were warm-up" in printed.err
    if results["saturation"]:
        assert "no rate was measured" in printed.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "--base-url"),
        (["--base-url", "x"], "one of --concurrency, --rate and --trace"),
        (["--base-url", "x", "--rate", "1", "--concurrency", "1"], "one of"),
        (["--base-url", "x", "--rate", "1"], "--base-url: 'x'"),
        (["--base-url", "http://x", "--rate", "0"], "--rate: '0'"),
        (["--base-url", "http://x", "--rate", "auto:0"], "--rate auto: '0'"),
        (["--base-url", "http://x", "--rate", "auto:1,2"], "more than one first rate"),
        (["--base-url", "http://x", "--rate", "automatic"], "--rate: 'automatic'"),
        (["--base-url", "http://x", "--rate", "1", "--arrivals", "y"], "--arrivals: 'y'"),
        (["--base-url", "http://x", "--rate", "1", "--extra", "{"], "--extra"),
        (["--base-url", "http://x", "--rate", "1", "--extra", "[]"], "not a JSON object"),
        (["--base-url", "http://x", "--rate", "1", "--cancel", "2"], "--cancel: '2'"),
        (["--base-url", "http://x", "--rate", "1", "--api", "chat", "--token-ids", "999"], "chat"),
        (["--base-url", "http://x", "--trace", "/no/such"], "--trace: cannot read"),
        (["--base-url", "http://127.0.0.1:1", "--rate", "1"], "lists no model"),
        (["--base-url", "http://127.0.0.1:1", "--rate", "1", "--model", "m"], "a first request"),
        (["--base-url", "http://x", "--requests", "0"], "'0' is not a whole number"),
        (["--base-url", "http://x", "--duration", "5d"], "is not a number"),
        (["--base-url", "http://x", "--frobnicate"], "--frobnicate"),
    ],
)
def test_cli__bad_arguments_are_one_line(arguments, part, capsys):
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert part in err
    assert err.count("\n") == 1


# ---- kvahead itself ------------------------------------------------------------------------------


@contextlib.contextmanager
def kvahead(log: pathlib.Path) -> Iterator[str]:
    """The bundled model, served."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [BINARY, "serve", "--model", ROOT / "models" / "demo", "--port", "0", "--log-format",
             "text"], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not (found := re.search(r"at (http://\S+) after", log.read_text(errors="replace"))):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()


@pytest.mark.skipif(not BINARY.exists(), reason=f"there is no {BINARY}: build it with ninja")
@pytest.mark.parametrize("api", ["completions", "chat"])
def test_cli__kvahead_under_load(tmp_path, capsys, api):
    with kvahead(tmp_path / "server.log") as url:
        code = main(
            ["--base-url", url, "--api", api, "--rate", "40", "--requests", "24", "--cancel", "25%",
             "--prompt-tokens", "160-240", "--prefix-tokens", "140", "--output-tokens", "12",
             "--ignore-eos", "--extra", '{"kv": {"policy": "offload"}}', "--json"]
        )  # fmt: skip
        assert code == 0
        (point,) = json.loads(capsys.readouterr().out)["points"]
        assert point["failed"] == 0
        assert point["complete"] + point["cancelled"] == 24
        assert 1 <= point["cancelled"] < 24
        assert point["output_tokens"]["min"] == point["output_tokens"]["max"] == 12
        # Words were calibrated with the server's own tokenizer; chat adds its template.
        assert point["prompt_tokens"]["min"] >= 120
        assert point["prompt_tokens"]["max"] <= 300
        assert point["cached_tokens"] > 0
        assert point["ttft_s"]["min"] > 0
        # The server's own account of the same run; the first request came before it.
        assert point["server"]["output_tokens"] >= 12 * point["complete"]
        assert point["server"]["steps"] > 0
