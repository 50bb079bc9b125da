"""What is typed into the page's forms - settings, keys - and what is refused of it; and a server that changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import browser as web
import pytest
from harness import SOON_S, wait_until
from page import LAST, answers, ask, retype, visit, wait_done
from scripted import Out, Scripted

if not web.find():
    pytest.skip("chromium and chromedriver are not installed: the page is not tested", allow_module_level=True)

MODELS, POLICIES = "/v1/models", "/v1/kvahead/policies"


def is_marked(tab: web.Browser, field: str) -> bool:
    return tab.js("return document.querySelector(arguments[0]).ariaInvalid", field) == "true"


def wait_asked(tab: web.Browser, done: Callable[[], None]) -> None:
    """Do what has the page ask what is served, until it has been told."""
    tab.js("performance.clearResourceTimings()")
    done()
    asked = "return performance.getEntriesByType('resource').some(({name}) => name.endsWith('/policies'))"
    wait_until("it was asked", lambda: tab.js(asked) and tab.is_shown(".dot.ready"))


def refused(message: str, param: str):
    return lambda out: out.error(400, message, param)


# --- settings


def test_what_is_not_valid_is_not_sent(chat: web.Browser, scripted: Scripted) -> None:
    answers(scripted, "One.", "Two.")
    chat.click("#tune")
    chat.type("#f-temperature", "25")
    assert chat.text("#f-temperature-hint") == "0 to 2" and "temperature" not in chat.text("#summary")
    chat.type("#f-kv-policy", "specache")
    chat.click("#policy-settings summary")
    chat.type("#f-kv-topk", "16+32@")
    assert is_marked(chat, "#f-kv-topk") and chat.text("#summary") == "KV specache"
    ask(chat, "a")
    wait_done(chat, 1)
    assert "temperature" not in scripted.bodies[0]
    assert scripted.bodies[0]["kv"] == {"policy": "specache", "report": True}
    retype(chat, "#f-temperature", "2")
    chat.type("#f-kv-topk", "0-1")
    assert not is_marked(chat, "#f-temperature") and not is_marked(chat, "#f-kv-topk")
    ask(chat, "b")
    wait_done(chat, 2)
    assert scripted.bodies[1]["temperature"] == 2 and scripted.bodies[1]["kv"]["topk"] == "16+32@0-1"


@pytest.mark.parametrize("param, field, value", [
    ("kv.bits", "#f-kv-bits", "2"),
    ("kv.policy", "#f-kv-policy", "offload"),
    ("kv.paper", "#f-kv-paper", None),
    ("stop", "#f-stop", "end"),
    ("min_p", "#f-min_p", "0.1"),
])  # fmt: skip
def test_a_refused_field_has_the_focus_and_its_mark_goes_with_its_value(
    chat: web.Browser, scripted: Scripted, param: str, field: str, value: str | None
) -> None:
    chat.refusals = "status of 400"
    scripted.answers = [refused("This is wrong.", param)]
    chat.click("#tune")
    chat.type("#f-kv-policy", "specache")
    chat.click("#panel-close")
    help_before = chat.text(f"{field}-hint")
    ask(chat, "a")
    wait_done(chat, 1)
    assert chat.text(f"{LAST} .failure p") == "This is wrong."
    chat.wait(field)
    assert chat.focused() == field[1:]
    assert chat.text(f"{field}-hint") == "This is wrong." and is_marked(chat, field)
    if value is None:
        chat.click(field)
    else:
        chat.type(field, value)
    assert not is_marked(chat, field)
    assert chat.text(f"{field}-hint") == help_before or param == "kv.policy"
    assert "problem" not in chat.js("return document.querySelector(arguments[0]).className", f"{field}-hint")


def test_a_refusal_leaves_the_focus_where_somebody_types(chat: web.Browser, scripted: Scripted) -> None:
    chat.refusals = "status of 400"
    more = threading.Event()

    def late(out: Out) -> None:
        more.wait(SOON_S)
        out.error(400, "This is wrong.", "temperature")

    scripted.answers = [late]
    ask(chat, "a")
    chat.type("#prompt", "next")
    more.set()
    wait_done(chat, 1)
    wait_until("it is marked", lambda: is_marked(chat, "#f-temperature"))
    assert chat.is_shown("#f-temperature") and chat.focused() == "prompt"
    chat.press("5")
    assert chat.js("return document.querySelector('#prompt').value") == "next5"


def test_a_refused_system_prompt_is_marked_until_it_is_changed(chat: web.Browser, scripted: Scripted) -> None:
    chat.refusals = "status of 400"
    scripted.answers = [refused("Too long.", "system")]
    ask(chat, "a")
    wait_done(chat, 1)
    assert chat.focused() == "f-system" and is_marked(chat, "#f-system")
    chat.type("#f-system", "x")
    assert not is_marked(chat, "#f-system") and chat.text("#f-system-hint") == "sent before the messages"


def test_the_settings_of_a_paper_that_the_server_refuses(tab: web.Browser, servers) -> None:
    server = servers.start("--kv-topk-max", "8")
    tab.refusals = "status of 400"
    visit(tab, f"{server.url}/")
    tab.click("#tune")
    tab.type("#f-kv-policy", "specache")
    tab.click("#policy-settings summary")
    tab.click("#f-kv-paper")
    ask(tab, "Tell me a story.")
    wait_done(tab, 1)
    assert tab.focused() == "f-kv-paper" and is_marked(tab, "#f-kv-paper")
    assert tab.text("#f-kv-paper-hint") == tab.text(f"{LAST} .failure p") != ""


# --- keys


@pytest.mark.parametrize("key", ["sk-abc…", "sk-\u200babc", "sk abc", "schlüssel"])
def test_what_cannot_be_a_key_is_said(chat: web.Browser, key: str) -> None:
    chat.click("#key")
    chat.js("document.querySelector('#key-field').value = arguments[0]", key)
    chat.click("#key-form .primary")
    assert "ASCII" in chat.text("#key-problem") and chat.is_shown("#key-problem")
    assert chat.focused() == "key-field" and chat.count("#key-dialog[open]") == 1
    assert chat.js("return sessionStorage.getItem('kvahead.key')") is None
    wait_asked(chat, lambda: retype(chat, "#key-field", "sk-abc" + web.ENTER))
    assert not chat.count("#key-dialog[open]") and not chat.is_shown("#key-problem")


NO_STORAGE = """for (const name of ['sessionStorage', 'localStorage'])
    Object.defineProperty(window, name, {get() { throw new DOMException('no', 'SecurityError'); }});"""


def test_a_key_and_a_theme_serve_where_nothing_can_be_stored(driver: web.Driver, servers) -> None:
    server = servers.start(env={"KVAHEAD_API_KEY": "the-right-key"}, key="the-right-key")
    tab = driver.open()
    try:
        tab.cdp("Page.addScriptToEvaluateOnNewDocument", source=NO_STORAGE)
        tab.go(f"{server.url}/")
        tab.wait("#key-dialog[open]")
        tab.type("#key-field", "the-right-key" + web.ENTER)
        tab.wait(".dot.ready")
        ask(tab, "Tell me a story.")
        wait_done(tab, 1)
        assert not tab.count(".failure") and not tab.count("#key-dialog[open]")
        themes = []
        for _ in range(4):
            tab.click("#theme")
            themes.append(tab.js("return document.documentElement.dataset.theme ?? ''"))
        assert themes == ["light", "dark", "", "light"]
    finally:
        tab.close()


# --- a server that changes


def models(name: str) -> tuple[int, str, dict[str, str]]:
    model = {"id": name, "object": "model", "kv_policy": "full", "max_model_len": 1234, "kv_policies": ["full"]}
    return 200, json.dumps({"object": "list", "data": [model]}), {"Content-Type": "application/json"}


def test_another_model_is_noticed_when_the_one_before_is_refused(chat: web.Browser, scripted: Scripted) -> None:
    chat.refusals = "status of 404"
    missing = "The model 'demo' does not exist here; served is 'other'."
    scripted.answers = [lambda out: out.error(404, missing, "model"), lambda out: out.whole("One.")]
    scripted.places[MODELS] = lambda: models("other")
    ask(chat, "a")
    wait_done(chat, 1)
    wait_until("it is told", lambda: chat.text("#state") == "1,234 tokens")
    assert chat.text("#model") == "other" and chat.text(f"{LAST} .failure p") == missing
    chat.click(f"{LAST} .failure button")
    wait_done(chat, 1)
    assert [body["model"] for body in scripted.bodies] == ["demo", "other"]
    assert not chat.count(".failure")


def test_a_server_that_goes_and_comes_back_is_noticed(chat: web.Browser, scripted: Scripted) -> None:
    chat.refusals = "ERR_EMPTY_RESPONSE"
    scripted.answers = [lambda out: None, lambda out: out.whole("One.")]
    scripted.places[MODELS] = lambda: None
    ask(chat, "a")
    wait_done(chat, 1)
    wait_until("it is said", lambda: chat.text("#state") == "Not reachable")
    assert chat.is_shown(".dot.bad")
    scripted.places[MODELS] = lambda: models("again")
    chat.wait(".dot.ready")
    assert chat.text("#model") == "again"


def test_policies_are_asked_for_again(chat: web.Browser, scripted: Scripted) -> None:
    def braked() -> tuple[int, str, dict[str, str]]:
        asked.set()
        del scripted.places[POLICIES]
        return 429, '{"error": {"message": "Too many wrong API keys from here."}}', {"Retry-After": "1"}

    asked = threading.Event()
    chat.refusals = "status of 429"
    scripted.places[POLICIES] = braked
    chat.reload()
    wait_until("it is refused", lambda: chat.text("#state") == "Too many wrong keys")
    assert asked.is_set() and chat.count("#f-kv-policy option") == 1
    chat.wait(".dot.ready")
    assert chat.count("#f-kv-policy option") > 1


@pytest.mark.parametrize("model", ["demo", "other"])
def test_a_form_that_is_filled_in_is_left_alone_when_a_server_is_asked_again(
    chat: web.Browser, scripted: Scripted, model: str
) -> None:
    def cut(out: Out) -> None:
        out.begin()
        out.text("Half")
        more.wait(30)

    more = threading.Event()
    scripted.answers = [cut]
    ask(chat, "a")
    wait_until("half is shown", lambda: chat.text(f"{LAST} .body") == "Half")
    chat.click("#tune")
    chat.type("#f-temperature", "9")
    chat.type("#f-system", "Be")
    if model == "other":
        scripted.places[MODELS] = lambda: models("other")
    wait_asked(chat, more.set)
    wait_done(chat, 1)
    wait_until("its name is shown", lambda: chat.text("#model") == model)
    assert chat.focused() == "f-system" and chat.text("#f-temperature-hint") == "0 to 2"
    chat.press("!")
    values = "return [...document.querySelectorAll('#f-temperature, #f-system')].map(({value}) => value)"
    assert chat.js(values) == ["9", "Be!"]
