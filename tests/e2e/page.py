"""The page at /, as tests use it: how it is opened and asked, and what it has kept."""

from __future__ import annotations

import json

import browser as web
from harness import ANSWER_S, wait_until
from scripted import Scripted

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


def retype(tab: web.Browser, css: str, text: str) -> None:
    tab.clear(css)
    tab.type(css, text)


def answers(scripted: Scripted, *texts: str) -> None:
    """The next answers, each complete at once."""
    scripted.answers = [lambda out, text=text: out.whole(text) for text in texts]


def wait_done(tab: web.Browser, answers: int) -> None:
    def done() -> bool:
        return tab.count(".message.assistant") == answers and not tab.count(".streaming")

    wait_until(f"{answers} answers are complete", done, ANSWER_S)


def stored(tab: web.Browser) -> dict:
    """The newest conversation, as it is kept."""
    return all_stored(tab)[0]


def all_stored(tab: web.Browser) -> list[dict]:
    """All that are kept, as they are listed."""
    texts = tab.js("return JSON.parse(localStorage.getItem('kvahead.index') || '[]')"
                   ".map(({id}) => localStorage.getItem('kvahead.' + id))")  # fmt: skip
    return [json.loads(text) for text in texts]


def said(conversation: dict) -> list[str]:
    return [message["content"] for message in conversation["messages"]]
