"""An etcd of its own and servers that are a cluster, as processes on one machine."""

from __future__ import annotations

import base64
import contextlib
import json
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import urllib.request

from harness import EXIT_S, Server, wait_until

ETCD = shutil.which("etcd")

# Names of metrics that tests ask for.
STATE = 'kvahead_cluster_state{state="%s"}'
LOANS = 'kvahead_cluster_loans_total{event="%s"}'
BORROWED = 'kvahead_cluster_loan_bytes{role="debtor"}'
LENT = 'kvahead_cluster_loan_bytes{role="creditor"}'


def free_port() -> int:
    with contextlib.closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Etcd:
    """One etcd with its data in a folder; it may be killed and started again."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.port, self.peer_port = free_port(), free_port()
        self.process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Etcd:
        peer = f"http://127.0.0.1:{self.peer_port}"
        with open(self.folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(
                [ETCD, "--data-dir", self.folder / "etcd", "--name", "one",
                 "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", f"one={peer}", "--unsafe-no-fsync"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until("etcd is healthy", self.is_healthy)
        return self

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return json.load(answer)["health"] == "true"
        except (OSError, ValueError):
            return False

    def ask(self, path: str, **fields) -> dict:
        request = urllib.request.Request(f"{self.url}/v3/kv/{path}", json.dumps(fields).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def change_records(self, **fields) -> int:
        """Of all nodes that are there; how many."""
        first, end = (base64.b64encode(key).decode() for key in (b"kvahead/", b"kvahead0"))
        changed = 0
        for pair in self.ask("range", key=first, range_end=end).get("kvs", []):
            if b"/nodes/" in base64.b64decode(pair["key"]):
                value = json.dumps({**json.loads(base64.b64decode(pair["value"])), **fields})
                self.ask("put", key=pair["key"], value=base64.b64encode(value.encode()).decode(),
                         ignore_lease=True)
                changed += 1
        return changed

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait()

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait(EXIT_S)


class Cluster:
    """Servers with the same options, in one cluster."""

    def __init__(self, servers, folder: pathlib.Path) -> None:
        self.servers = servers
        self.etcd = Etcd(folder).start()
        self.secret = folder / "secret"
        self.secret.write_text(secrets.token_hex(32) + "\n")
        self.members: list[Server] = []

    def options(self, *more: str) -> tuple[str, ...]:
        return ("--cluster-listen", "127.0.0.1:0", "--cluster-etcd", self.etcd.url,
                "--cluster-secret-file", str(self.secret), "--cluster-lease", "2s",
                "--cluster-loan", "2s", "--cluster-round", "100ms",
                # Not by what was measured: tests must not depend on time.
                "--cluster-plan", "waiting", *more)

    def start(self, *more: str, **fields) -> Server:
        server = self.servers.start(*self.options(*more), **fields)
        self.members.append(server)
        return server

    def forget(self, server: Server) -> None:
        """It was killed, and need not end well."""
        self.members.remove(server)
        self.servers.started.remove(server)

    def kill(self, server: Server) -> None:
        server.process.kill()
        server.process.wait()
        self.forget(server)

    def kill_all(self) -> None:
        for server in [*self.members]:
            self.kill(server)
        self.stop()

    def wait_complete(self) -> None:
        """All have joined, are connected with each other and know one leader."""
        count = len(self.members)

        def complete() -> bool:
            views = [server.metrics() for server in self.members]
            leaders = {view["kvahead_cluster_leader"] for view in views}
            return (all(view[STATE % "joined"] == 1 for view in views)
                    and all(view["kvahead_cluster_members"] == count for view in views)
                    and all(view["kvahead_cluster_links"] == count - 1 for view in views)
                    and len(leaders) == 1 and leaders != {0})

        wait_until(f"{count} servers are a cluster", complete)

    def leader(self) -> Server:
        return next(s for s in self.members if s.metrics()["kvahead_cluster_leads"] == 1)

    def wait_nothing_lent(self) -> None:
        def nothing() -> bool:
            return all(s.metrics()[name] == 0 for s in self.members for name in (BORROWED, LENT))

        wait_until("nobody has anything of anybody", nothing)

    def stop(self) -> None:
        for server in self.members:
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
        self.etcd.stop()
