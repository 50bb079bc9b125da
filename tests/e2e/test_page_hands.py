"""The page under people's hands: the keyboard, where the focus goes, Back and forward, and what must not be lost by a
slip."""

from __future__ import annotations

import threading

import browser as web
import pytest
from harness import SOON_S, wait_until
from page import LAST, answers, ask, said, stored, wait_done
from scripted import Out, Scripted

if not web.find():
    pytest.skip("chromium and chromedriver are not installed: the page is not tested", allow_module_level=True)

KEY = """const event = new KeyboardEvent('keydown', {...arguments[1], bubbles: true, cancelable: true});
    document.querySelector(arguments[0]).dispatchEvent(event);
    return event.defaultPrevented"""
AGAIN = "document.querySelectorAll('[aria-label=\"Answer again\"]')[arguments[0]].click()"


def focus(tab: web.Browser, css: str, place: int = 0) -> None:
    tab.js("document.querySelectorAll(arguments[0])[arguments[1]].focus()", css, place)


def rows(tab: web.Browser) -> list[str]:
    return tab.js("return [...document.querySelectorAll('.row-item .open')].map((row) => row.textContent)")


def three_conversations(tab: web.Browser, scripted: Scripted) -> None:
    """The newest is shown, and the first in the list."""
    answers(scripted, "One.", "Two.", "Three.")
    for text in ("first", "second", "third"):
        tab.click("#new")
        ask(tab, text)
        wait_done(tab, 1)


# --- what must not be lost


def test_the_link_that_skips_to_the_message_field_stays_in_the_conversation(
    chat: web.Browser, scripted: Scripted
) -> None:
    answers(scripted, "One.")
    chat.click("#tune")
    chat.type("#f-temperature", "1")
    for count in (0, 2):
        before = chat.js("return location.href")
        focus(chat, ".skip")
        chat.press(web.ENTER)
        assert chat.focused() == "prompt"
        assert chat.js("return location.href") == before and chat.count(".message") == count
        assert "temperature 1" in chat.text("#summary")
        if count == 0:
            ask(chat, "first")
            wait_done(chat, 1)
    # Nor does an address that names no conversation leave it.
    chat.js("location.hash = '#prompt'")
    wait_until("the address is its own again", lambda: chat.js("return location.href") == before)
    assert chat.count(".message") == 2 and chat.text("#title") == "first"


def test_answering_an_early_question_again_asks_before_it_deletes(chat: web.Browser, scripted: Scripted) -> None:
    answers(scripted, "One.", "Two.", "Anew.", "Anew too.")
    for i, text in enumerate("ab"):
        ask(chat, text)
        wait_done(chat, i + 1)
    chat.js(AGAIN, 1)
    wait_until("nothing was to be lost", lambda: chat.text(f"{LAST} .body") == "Anew.")
    wait_done(chat, 2)
    chat.js(AGAIN, 0)
    chat.wait("#ask-dialog[open]")
    assert chat.text("#ask-text") == "The 2 messages after it will be lost."
    chat.click("#ask-no")
    assert said(stored(chat)) == ["a", "One.", "b", "Anew."]
    focus(chat, "[aria-label='Answer again']")
    chat.press(web.ENTER)
    chat.click("#ask-yes")
    wait_done(chat, 1)
    wait_until("it is answered", lambda: said(stored(chat)) == ["a", "Anew too."])
    assert chat.focused() == "scroll", "its button is gone"


def test_a_double_click_does_not_stop_what_it_sends(chat: web.Browser, scripted: Scripted) -> None:
    def slow(out: Out) -> None:
        out.begin()
        out.text("An ")
        more.wait(SOON_S)
        out.text("answer.")
        out.end()

    more = threading.Event()
    scripted.answers = [slow]
    chat.type("#prompt", "first")
    click = [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
    move = {"type": "pointerMove", "x": 0, "y": 0, "origin": {web.ELEMENT: chat.element("#send")}}
    mouse = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}}
    chat.call("POST", "/actions", {"actions": [mouse | {"actions": [move, *click, *click]}]})
    wait_until("it begins", lambda: chat.text(f"{LAST} .body").strip() == "An")
    more.set()
    wait_done(chat, 1)
    assert chat.text(f"{LAST} .body") == "An answer." and "stopped" not in chat.text(f"{LAST} .stats")


# --- keys


@pytest.mark.parametrize("key, modifiers", [("@", {}), ("ñ", {}), ("l", {"ctrlKey": True}), ("Dead", {})])
def test_alt_with_a_key_that_makes_a_character_makes_it(chat: web.Browser, key: str, modifiers: dict) -> None:
    for code in ("KeyL", "KeyN", "KeyS"):
        assert not chat.js(KEY, "#prompt", {"key": key, "code": code, "altKey": True, **modifiers})
    assert not chat.is_shown("#live") and not chat.is_shown("#panel")
    assert chat.js(KEY, "#prompt", {"key": "L", "code": "KeyP", "altKey": True})
    assert chat.is_shown("#live")


@pytest.mark.parametrize("key, code", [("д", "KeyL"), ("Д", "KeyL"), ("λ", "KeyL"), ("ל", "KeyL"), ("l", "KeyP")])
def test_alt_with_a_letter_of_another_script_goes_by_the_place_of_the_key(
    chat: web.Browser, key: str, code: str
) -> None:
    assert not chat.js(KEY, "#prompt", {"key": key, "code": code, "altKey": False}) and not chat.is_shown("#live")
    assert chat.js(KEY, "#prompt", {"key": key, "code": code, "altKey": True})
    assert chat.is_shown("#live")


def test_what_ends_a_composition_does_not_send(chat: web.Browser, scripted: Scripted) -> None:
    answers(scripted, "One.")
    chat.js("document.querySelector('#prompt').value = 'にほん'")
    for how in ({"keyCode": 229}, {"isComposing": True}):
        chat.js(KEY, "#prompt", {"key": "Enter", **how})
    assert chat.count(".message") == 0
    chat.js(KEY, "#prompt", {"key": "Enter", "keyCode": 13})
    wait_done(chat, 1)
    chat.press(web.UP)
    chat.js(KEY, ".editor textarea", {"key": "Enter", "keyCode": 229})
    assert chat.count(".editor") == 1


def test_the_up_arrow_leads_to_an_editor_that_is_open(chat: web.Browser, scripted: Scripted) -> None:
    answers(scripted, "One.")
    ask(chat, "first")
    wait_done(chat, 1)
    chat.press(web.UP)
    chat.press("x")
    chat.click("#prompt")
    chat.press(web.UP)
    assert chat.focused() == "Edit the message" and chat.count(".editor") == 1
    assert chat.js("return document.activeElement.value") == "firstx"


# --- where the focus goes


def test_the_focus_stays_in_the_list(chat: web.Browser, scripted: Scripted) -> None:
    three_conversations(chat, scripted)
    focus(chat, ".row-item .open", 1)
    chat.press(web.ENTER)
    wait_until("it is shown", lambda: chat.text("#title") == "second")
    assert chat.js("return document.activeElement.dataset.id") and chat.focused() == "second"
    focus(chat, ".row-item .drop", 0)
    chat.press(web.ENTER)
    chat.click("#ask-yes")
    wait_until("it is gone", lambda: rows(chat) == ["second", "first"])
    assert chat.focused() == "second"
    focus(chat, ".row-item .drop", 1)
    chat.press(web.ENTER)
    chat.click("#ask-yes")
    wait_until("the last is gone", lambda: rows(chat) == ["second"])
    assert chat.focused() == "second"
    focus(chat, ".row-item .drop")
    chat.press(web.ENTER)
    chat.click("#ask-yes")
    wait_until("the one that is shown is gone", lambda: rows(chat) == [])
    assert chat.focused() == "prompt"


def test_the_focus_leaves_a_list_that_closes(chat: web.Browser, scripted: Scripted) -> None:
    answers(scripted, "One.")
    ask(chat, "first")
    wait_done(chat, 1)
    chat.resize(700, 860)
    for leave in (lambda: chat.press(web.ESCAPE), lambda: chat.click("#side-close")):
        chat.click("#menu")
        assert chat.focused() == "side-close"
        leave()
        assert chat.focused() == "menu"
    chat.click("#menu")
    focus(chat, ".row-item .open")
    chat.press(web.ENTER)
    assert chat.focused() == "menu" and not chat.is_shown("#side")


@pytest.mark.parametrize("copies", [True, False])
def test_a_copy_without_a_clipboard_leaves_the_focus_and_says_what_it_did(
    chat: web.Browser, scripted: Scripted, copies: bool
) -> None:
    answers(scripted, "One.")
    ask(chat, "first")
    wait_done(chat, 1)
    chat.js("""navigator.clipboard.writeText = () => Promise.reject(new Error('no'));
        document.execCommand = () => { window.copied = document.activeElement.value; return arguments[0]; };""", copies)
    focus(chat, f"{LAST} [aria-label=Copy]")
    chat.press(web.ENTER)
    wait_until("it is said", lambda: "opied" in chat.text("#status"))
    assert chat.text("#status") == ("Copied" if copies else "Not copied: the browser does not allow it")
    assert chat.js("return window.copied") == "One."
    assert chat.focused() == "Copy" and chat.count("body > textarea") == 0
    assert chat.count(f"{LAST} [href='#i-done']") == (1 if copies else 0)


def test_a_sample_that_is_asked_by_keyboard_leaves_the_focus_at_the_messages(
    chat: web.Browser, scripted: Scripted
) -> None:
    answers(scripted, "One.")
    focus(chat, "#welcome button")
    chat.press(web.ENTER)
    wait_done(chat, 1)
    assert chat.focused() == "scroll"


def test_an_answer_in_the_background_is_said_as_a_whole(chat: web.Browser, scripted: Scripted) -> None:
    def slow(out: Out) -> None:
        out.begin()
        out.text("partial ")
        more.wait(SOON_S)
        out.text("and the end.")
        out.end()

    more = threading.Event()
    scripted.answers = [slow]
    ask(chat, "first")
    wait_until("it begins", lambda: chat.text(f"{LAST} .body").strip() == "partial")
    chat.click("#new")
    more.set()
    wait_until("it is said", lambda: chat.text("#status") == "Answer: partial and the end.")


# --- back and forward


def test_new_chat_adds_one_place_to_go_back_from(chat: web.Browser, scripted: Scripted) -> None:
    answers(scripted, "One.")
    ask(chat, "first")
    wait_done(chat, 1)
    for _ in range(4):
        chat.click("#new")
    assert chat.is_shown("#welcome") and chat.js("return location.hash") == ""
    chat.click("#view-live")
    chat.js("history.back()")
    wait_until("what Back leads to is shown", lambda: chat.text("#title") == "first" and chat.is_shown("#chat"))
    assert not chat.is_shown("#live")


# --- times


def test_days_are_told_apart_across_the_change_to_summer_time(chat: web.Browser) -> None:
    chat.cdp("Emulation.setTimezoneOverride", timezoneId="Europe/Berlin")
    chat.js("""const at = (text) => new Date(text).getTime();
        Date.now = () => at('2025-03-31T12:00');
        const days = {a: '2025-03-31T01:00', b: '2025-03-30T12:00', c: '2025-03-29T12:00', d: '2025-03-24T12:00'};
        localStorage.setItem('kvahead.index', JSON.stringify(
            Object.entries(days).map(([id, day]) => ({id, title: id, at: at(day)}))));
        const search = document.querySelector('#search');
        search.dispatchEvent(new Event('input'));""")
    listed = chat.js("return [...document.querySelectorAll('#conversations li')].map((row) => row.textContent)")
    chat.cdp("Emulation.setTimezoneOverride", timezoneId="")
    assert listed == ["Today", "a", "Yesterday", "b", "Last seven days", "c", "Earlier", "d"]


def test_pieces_that_come_at_one_time_have_no_rate(chat: web.Browser, scripted: Scripted) -> None:
    def slow(out: Out) -> None:
        out.begin()
        out.text("a", "b", "c")
        more.wait(SOON_S)
        out.end()

    more = threading.Event()
    scripted.answers = [slow]
    chat.js("const now = performance.now(); performance.now = () => now")
    ask(chat, "first")
    wait_until("tokens are counted", lambda: chat.text("#hint") == "3 tokens")
    more.set()
    wait_done(chat, 1)
