"""Fixtures: servers that are started once per session or per test, and that must end well."""

from __future__ import annotations

import itertools
import pathlib
import re
import signal

import browser as web
import pytest
from harness import BINARY, Server
from page import visit
from scripted import Scripted


def pytest_configure(config: pytest.Config) -> None:
    # Programs that tests start inherit what is ignored: Ctrl-C is, in a shell's background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not BINARY.exists():
        raise pytest.UsageError(f"there is no {BINARY}: build it with ninja, or set KVAHEAD_BINARY")


class Servers:
    """Starts servers, and stops all of them in the end; one that ends badly fails its test."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.started: list[Server] = []
        self.numbers = itertools.count()

    def start(self, *options: str, **fields) -> Server:
        server = Server(self.folder / f"server{next(self.numbers)}.log", options, **fields)
        server.start()
        self.started.append(server)
        return server

    def stop_all(self) -> None:
        problems = []
        for server in self.started:
            try:
                server.stop()
            except AssertionError as error:
                problems.append(str(error))
        assert not problems, "\n".join(problems)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory):
    """The server that most tests share: defaults of the binary, the bundled model."""
    servers = Servers(tmp_path_factory.mktemp("server"))
    yield servers.start()
    servers.stop_all()


@pytest.fixture
def servers(tmp_path: pathlib.Path):
    """For tests that need servers of their own."""
    made = Servers(tmp_path)
    yield made
    made.stop_all()


@pytest.fixture(scope="session")
def client(server: Server):
    """The official SDK, talking to the shared server."""
    with server.client() as made:
        yield made


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory):
    made = web.Driver(tmp_path_factory.mktemp("browser"))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def shared(driver: web.Driver):
    made = driver.open()
    yield made
    made.close()


@pytest.fixture
def tab(shared: web.Browser):
    """The browser, on a desktop's screen, with nothing kept of earlier tests. In the end it must have nothing to say."""
    shared.refusals = ""
    shared.resize(1280, 860)
    shared.theme("light")
    yield shared
    said = [line for line in shared.logs() if not (shared.refusals and re.search(shared.refusals, line))]
    foreign = list(shared.foreign_requests(shared.js("return location.origin")))
    shared.said.clear()
    shared.asked.clear()
    shared.go("about:blank")
    assert not said and not foreign, (said, foreign)


@pytest.fixture
def scripted(server: Server):
    made = Scripted(server)
    yield made
    made.stop()


@pytest.fixture
def chat(tab: web.Browser, scripted: Scripted) -> web.Browser:
    """The page before a server that answers as the test says."""
    visit(tab, scripted.url)
    return tab
