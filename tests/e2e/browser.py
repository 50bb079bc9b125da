"""A headless Chromium, driven over WebDriver: what a person sees and does, and what the browser says about it.

`chromium` and `chromedriver` are Debian's; without them `find()` gives None and tests skip.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from harness import SOON_S, clean_environment, wait_until

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER, ESCAPE, TAB, UP, SHIFT, ALT = "\ue007", "\ue00c", "\ue004", "\ue013", "\ue008", "\ue00a"


def find() -> tuple[str, str] | None:
    """(chromium, chromedriver), if both are here."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    return (chromium, driver) if chromium and driver else None


class BrowserError(Exception):
    """The driver's refusal: its code and what it says."""


class Driver:
    """A chromedriver process, which starts browsers."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.chromium, driver = find()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = open(folder / "chromedriver.log", "wb")
        # Chromium keeps what it shares in a home of its own.
        self.process = subprocess.Popen(
            [driver, f"--port={self.port}", "--log-level=WARNING"],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            env=clean_environment(HOME=str(folder), TMPDIR=str(folder)),
        )
        wait_until("chromedriver answers", self._answers)

    def _answers(self) -> bool:
        try:
            return self.call("GET", "/status")["ready"]
        except OSError:
            assert self.process.poll() is None, "chromedriver ended"
            return False

    def call(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            text = None if method == "GET" else json.dumps(body or {})
            connection.request(method, path, text, {"Content-Type": "application/json"})
            value = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(value, dict) and "error" in value:
            raise BrowserError(f"{value['error']}: {value['message'].splitlines()[0]}")
        return value

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()

    def open(self, width: int = 1280, height: int = 860) -> Browser:
        """A browser with an empty profile."""
        arguments = ["--headless=new", f"--window-size={width},{height}", "--no-first-run", "--disable-gpu",
                     "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
                     "--force-prefers-reduced-motion", "--lang=en"]  # fmt: skip
        if os.geteuid() == 0:  # Chromium's sandbox does not start as root
            arguments.append("--no-sandbox")
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": self.chromium, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        return Browser(self, f"/session/{session['sessionId']}")


class Browser:
    """One browser, and the tab of it that is looked at."""

    def __init__(self, driver: Driver, path: str) -> None:
        self.driver, self.path = driver, path
        self.said: list[str] = []
        self.asked: list[str] = []

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return self.driver.call(method, self.path + path, body)

    def close(self) -> None:
        self.call("DELETE", "")

    # --- pages

    def go(self, url: str) -> None:
        self.call("POST", "/url", {"url": url})

    def reload(self) -> None:
        self.call("POST", "/refresh")

    @contextlib.contextmanager
    def two_tabs(self, url: str) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
        """Functions that look at this tab, and at a second one, which is looked at first and closed in the end."""

        def look(handle: str) -> None:
            self.call("POST", "/window", {"handle": handle})

        first = self.call("GET", "/window")
        second = self.call("POST", "/window/new", {"type": "tab"})["handle"]
        try:
            look(second)
            self.go(url)
            yield lambda: look(first), lambda: look(second)
        finally:
            look(second)
            self.call("DELETE", "/window")
            look(first)

    def cdp(self, command: str, **params: Any) -> Any:
        """Chromium's own protocol."""
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """What the page takes for its screen."""
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def theme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.cdp("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: str | os.PathLike[str]) -> None:
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    # --- elements

    def js(self, script: str, *arguments: Any) -> Any:
        """The body of a function, run in the page."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def js_later(self, script: str, *arguments: Any) -> Any:
        """The same; its last argument is a function that takes the result."""
        return self.call("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def element(self, css: str) -> str:
        found = self.call("POST", "/element", {"using": "css selector", "value": css})
        return found[ELEMENT]

    def count(self, css: str) -> int:
        return self.js("return document.querySelectorAll(arguments[0]).length", css)

    def text(self, css: str) -> str:
        """Of the last that matches; "" if there is none."""
        return self.js("return [...document.querySelectorAll(arguments[0])].at(-1)?.textContent ?? ''", css)

    def is_shown(self, css: str) -> bool:
        return self.js("return Boolean(document.querySelector(arguments[0])?.checkVisibility({visibilityProperty: true}))", css)

    def wait(self, css: str, seconds: float = SOON_S) -> None:
        wait_until(f"{css} is shown", lambda: self.is_shown(css), seconds)

    def click(self, css: str) -> None:
        self.wait(css)
        self.call("POST", f"/element/{self.element(css)}/click")

    def type(self, css: str, text: str) -> None:
        self.call("POST", f"/element/{self.element(css)}/value", {"text": text})

    def clear(self, css: str) -> None:
        self.call("POST", f"/element/{self.element(css)}/clear")

    def press(self, *keys: str) -> None:
        """Keys held down together, where the focus is."""
        steps = [{"type": "keyDown", "value": key} for key in keys]
        steps += [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": steps}]})

    def focused(self) -> str:
        """Its id, or its label."""
        return self.js(
            "const at = document.activeElement; return at.id || at.getAttribute('aria-label') || at.textContent"
        )

    # --- what the browser says

    def logs(self) -> list[str]:
        """Errors and warnings of the console so far, violations of the policy among them."""
        for entry in self.call("POST", "/se/log", {"type": "browser"}):
            if entry["level"] in ("SEVERE", "WARNING"):
                self.said.append(entry["message"])
        return self.said

    def requests(self) -> list[str]:
        """Addresses that were asked for so far."""
        for entry in self.call("POST", "/se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.asked.append(message["params"]["request"]["url"])
        return self.asked

    def foreign_requests(self, origin: str) -> Iterator[str]:
        """Those that left the origin; the pages a browser starts with are its own."""
        for url in self.requests():
            if not url.startswith(f"{origin}/") and not re.match(r"(data|blob|about|chrome):", url):
                yield url
