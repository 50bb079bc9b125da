"""The page at /, as tests use it: how it is opened and asked, and what it has kept."""

from __future__ import annotations

import json

import browser as web
from harness import ANSWER_S, wait_until

LAST = ".message.assistant:last-child"


def visit(tab: web.Browser, url: str, *, ready: bool = True) -> None:
    tab.go(url)
    tab.js("localStorage.clear(); sessionStorage.clear(); history.replaceState(null, '', '/');")
    tab.reload()
    if ready:
        tab.wait(".dot.ready")


def ask(tab: web.Browser, text: str) -> None:
    tab.type("#prompt", text)
    tab.press(web.ENTER)


def wait_done(tab: web.Browser, answers: int) -> None:
    def done() -> bool:
        return tab.count(".message.assistant") == answers and not tab.count(".streaming")

    wait_until(f"{answers} answers are complete", done, ANSWER_S)


def stored(tab: web.Browser) -> dict:
    """The newest conversation, as it is kept."""
    return json.loads(tab.js(
        "return localStorage.getItem('kvahead.' + JSON.parse(localStorage.getItem('kvahead.index'))[0].id)"
    ))  # fmt: skip
