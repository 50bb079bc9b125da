"""The weight that a load balancer asks for (--agent-listen), by hand and by HAProxy."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest
from cluster import free_port
from harness import EXIT_S, ROOT, Server, command, wait_until
from proxies import find_program

HAPROXY = find_program("haproxy")
CONFIG = (ROOT / "docker" / "haproxy.cfg").read_text()
LONG = {"prompt": "Once upon a time " * 300, "max_tokens": 3000, "ignore_eos": True}


def agent_port(server: Server) -> int:
    return int(re.search(r"agent-check +at 127\.0\.0\.1 port (\d+)", server.log())[1])


def line(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock, sock.makefile() as file:
        return file.read()


def weight(port: int) -> int:
    found = re.fullmatch(r"ready up (\d+)%\n", line(port))
    assert found
    return int(found[1])


def test_agent__says_what_is_free_and_that_it_drains(servers):
    own = servers.start("--agent-listen", "127.0.0.1:0", "--device-memory", "32M", "--no-prefix-cache",
                        "--drain-timeout", "2m")
    port = agent_port(own)
    assert weight(port) >= 99
    with own.stream("/v1/completions", **LONG) as stream:
        frames = stream.frames()
        next(frames)
        assert 1 <= weight(port) < 99
        own.process.send_signal(signal.SIGTERM)
        wait_until("it drains", lambda: line(port) == "drain\n")
        for _ in frames:
            pass
    assert own.process.wait(EXIT_S) == 0


def test_agent__peers_that_say_or_read_nothing(servers):
    own = servers.start("--agent-listen", "127.0.0.1:0")
    port = agent_port(own)
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    held[0].sendall(b"x" * 100000)
    assert weight(port) >= 99
    for sock in held:
        sock.close()
    own.wait_idle()


@pytest.mark.parametrize("where", ["127.0.0.1", "127.0.0.1:70000", "no such host:1"])
def test_agent__a_wrong_address_is_named(where):
    ended = command("serve", "--model", ROOT / "models" / "demo", "--port", "0", "--agent-listen", where)
    assert ended.returncode != 0 and "agent-listen" in ended.stderr


@contextlib.contextmanager
def front_of(folder: pathlib.Path, **servers: Server) -> Iterator[tuple[Server, pathlib.Path]]:
    """docker/haproxy.cfg with these servers: what asks it, and the socket of its statistics."""
    port, stats = free_port(), folder / "stats"
    config = CONFIG.replace("global\n", f"global\n    stats socket {stats}\n")
    for name, server in servers.items():
        config += f"    server {name} 127.0.0.1:{server.port} agent-port {agent_port(server)}\n"
    path = folder / "haproxy.cfg"
    path.write_text(config)
    process = subprocess.Popen([HAPROXY, "-db", "-f", path], env=os.environ | {"KVAHEAD_FRONT": f"127.0.0.1:{port}"},
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until("HAProxy listens", stats.exists)
        through = Server(folder / "none.log")
        through.port = port
        yield through, stats
    finally:
        process.terminate()
        process.wait()


@pytest.mark.skipif(not HAPROXY, reason="HAProxy is not installed")
def test_agent__haproxy_sends_where_memory_is(servers, tmp_path):
    small, large = (servers.start("--agent-listen", "127.0.0.1:0", "--device-memory", "32M", "--no-prefix-cache")
                    for _ in range(2))
    def weights(stats: pathlib.Path) -> dict[str, int]:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(str(stats))
            sock.sendall(b"show stat\n")
            table = sock.makefile().read()
        return {row.split(",")[1]: int(row.split(",")[18]) for row in table.splitlines()
                if row.startswith("servers,") and row.split(",")[1] in ("small", "large")}

    with front_of(tmp_path, small=small, large=large) as (through, stats):
        with small.stream("/v1/completions", **LONG) as stream:
            next(stream.frames())
            wait_until("weights are those of the servers", lambda: weights(stats)["small"] < weights(stats)["large"])
        assert through.tokens("One day", max_tokens=3) == large.tokens("One day", max_tokens=3)


@pytest.mark.skipif(not HAPROXY, reason="HAProxy is not installed")
def test_agent__a_client_that_leaves_ends_its_request_through_haproxy(servers, tmp_path):
    """An answer that is no stream, of which nothing has come: HAProxy has no other reason to end it."""
    own = servers.start("--agent-listen", "127.0.0.1:0")
    with front_of(tmp_path, own=own) as (through, _):
        with contextlib.closing(through.http()) as connection:
            through.send(connection, "POST", "/v1/completions", LONG)
            wait_until("it runs", lambda: own.metrics()["kvahead_requests_running"] == 1)
        own.wait_idle()
    assert own.metrics()['kvahead_requests_finished_total{reason="abort"}'] == 1


def test_agent__haproxy_waits_for_as_long_as_a_request_may_take():
    table = (ROOT / "docs" / "options.md").read_text()
    (longest_ms,) = re.findall(r"^\| `request-timeout` \| 0 \| 0 to (\d+) ms ", table, re.M)
    (hours,) = re.findall(r"^ +timeout server (\d+)h$", CONFIG, re.M)
    assert int(hours) * 3600 * 1000 >= int(longest_ms)
