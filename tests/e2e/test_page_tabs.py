"""Two tabs of the page that show one conversation: neither takes anything from the other."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import browser as web
import pytest
from harness import SOON_S, wait_until
from page import LAST, all_stored, answers, ask, retype, said, stored, wait_done
from scripted import Out, Scripted

if not web.find():
    pytest.skip("chromium and chromedriver are not installed: the page is not tested", allow_module_level=True)

EDITOR = ".editor textarea"


def slow(more: threading.Event, *, first: str = "Half", then: str = " an answer") -> Callable[[Out], None]:
    """An answer that pauses after its first piece. What is stored while it comes is stored by its second piece."""

    def answer(out: Out) -> None:
        out.begin()
        out.text(first)
        more.wait(SOON_S)
        out.text(then)
        out.end()

    return answer


def half_answered(chat: web.Browser, scripted: Scripted) -> threading.Event:
    """A first question, whose answer goes on once the event is set."""
    more = threading.Event()
    scripted.answers = [slow(more)]
    ask(chat, "first")
    wait_text(chat, "Half")
    return more


def store_temperature(chat: web.Browser) -> None:
    chat.click("#tune")
    retype(chat, "#f-temperature", "0.5")
    wait_until("it is stored", lambda: stored(chat)["settings"] == {"temperature": 0.5})


@contextlib.contextmanager
def two_tabs(tab: web.Browser, url: str) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    with tab.two_tabs(url) as looks:
        tab.wait(".dot.ready")
        yield looks


def address(tab: web.Browser) -> str:
    return tab.js("return location.href")


def wait_text(tab: web.Browser, text: str) -> None:
    wait_until(f"{text!r} is the last answer", lambda: tab.text(f"{LAST} .body") == text)


def shown(tab: web.Browser) -> list[str]:
    return tab.js("return [...document.querySelectorAll('.message .body')].map((body) => body.textContent)")


def test_a_tab_shows_what_another_has_asked_and_its_settings_erase_nothing(
    chat: web.Browser, scripted: Scripted
) -> None:
    answers(scripted, "One.", "Two.", "Three.")
    ask(chat, "first")
    wait_done(chat, 1)
    with two_tabs(chat, address(chat)) as (look_at_first, look_at_second):
        wait_text(chat, "One.")
        chat.js("document.querySelector('.message').mark = 1; document.querySelector('.message button').focus()")
        look_at_first()
        ask(chat, "second")
        wait_done(chat, 2)
        look_at_second()
        wait_text(chat, "Two.")
        assert shown(chat) == ["first", "One.", "second", "Two."]
        assert chat.js("return document.querySelector('.message').mark") == 1, "what is the same stays"
        assert chat.focused() == "Copy"
        chat.click("#tune")
        retype(chat, "#f-temperature", "1.5")
        wait_until("it is stored", lambda: stored(chat)["settings"] == {"temperature": 1.5})
        assert said(stored(chat)) == ["first", "One.", "second", "Two."]
        look_at_first()
        wait_until("the settings come, too", lambda: "temperature 1.5" in chat.text("#summary"))
        ask(chat, "third")
        wait_done(chat, 3)
        assert scripted.bodies[-1]["temperature"] == 1.5 and len(scripted.bodies[-1]["messages"]) == 5
        assert len(all_stored(chat)) == 1 and len(stored(chat)["messages"]) == 6


def value(tab: web.Browser, field: str) -> str:
    return tab.js("return document.querySelector(arguments[0]).value", field)


def test_a_form_that_somebody_fills_in_takes_what_another_tab_has_changed(
    chat: web.Browser, scripted: Scripted
) -> None:
    answers(scripted, "One.")
    ask(chat, "first")
    wait_done(chat, 1)
    chat.click("#tune")

    def change(field: str, text: str) -> None:
        look_at_first()
        retype(chat, field, text)
        wait_until("it is stored", lambda: stored(chat)["settings"].get(field[3:]) == float(text))
        look_at_second()
        wait_until("it is shown", lambda: value(chat, field) == text)

    with two_tabs(chat, address(chat)) as (look_at_first, look_at_second):
        wait_text(chat, "One.")
        chat.click("#tune")
        chat.type("#f-temperature", "9")
        change("#f-top_p", "0.5")
        assert chat.focused() == "f-temperature" and value(chat, "#f-temperature") == "9"
        assert chat.text("#f-temperature-hint") == "0 to 2"
        # What is typed on goes into the settings that came.
        retype(chat, "#f-temperature", "1.50")
        wait_until("it is stored", lambda: stored(chat)["settings"] == {"top_p": 0.5, "temperature": 1.5})
        change("#f-top_p", "0.6")
        assert chat.focused() == "f-temperature" and value(chat, "#f-temperature") == "1.50"
        change("#f-temperature", "1")
        assert chat.focused() == "f-temperature"
        chat.js("document.querySelector('#settings > button').focus()")
        change("#f-top_p", "0.7")
        assert chat.focused() == "Back to the server’s defaults"


# As another tab does, but that nobody is told: the event of what a tab writes goes to the others.
WRITE_ON = """const {id} = JSON.parse(localStorage.getItem('kvahead.index'))[0];
    const stored = JSON.parse(localStorage.getItem('kvahead.' + id));
    stored.revision = 'another';
    stored.messages.push({role: 'user', content: 'second'}, {role: 'assistant', content: 'Two.', state: 'done'});
    localStorage.setItem('kvahead.' + id, JSON.stringify(stored));"""


def test_what_another_tab_has_stored_is_looked_for_before_anything_is_stored(
    chat: web.Browser, scripted: Scripted
) -> None:
    answers(scripted, "One.", "Mine.")
    ask(chat, "first")
    wait_done(chat, 1)
    chat.js(WRITE_ON)
    chat.click("#tune")
    retype(chat, "#f-temperature", "1.5")
    wait_text(chat, "Two.")
    assert stored(chat)["settings"] == {"temperature": 1.5}
    assert said(stored(chat)) == ["first", "One.", "second", "Two."] == shown(chat)
    chat.js(WRITE_ON)
    ask(chat, "mine")
    wait_done(chat, 3)
    assert chat.count(".row-item") == 2
    mine, other = map(said, all_stored(chat))
    assert mine == ["first", "One.", "second", "Two.", "mine", "Mine."]
    assert other == ["first", "One.", "second", "Two.", "second", "Two."]


def test_an_older_page_that_names_no_writing_is_looked_for_too(chat: web.Browser, scripted: Scripted) -> None:
    answers(scripted, "One.", "Mine.")
    ask(chat, "first")
    wait_done(chat, 1)
    older = WRITE_ON.replace("stored.revision = 'another'", "delete stored.revision")
    for length in (4, 6):
        chat.js(older)
        chat.js("const key = 'kvahead.' + location.hash.slice(1);"
                "dispatchEvent(new StorageEvent('storage', {key, newValue: '{}'}))")  # fmt: skip
        assert len(shown(chat)) == length
    chat.js(older)
    ask(chat, "mine")
    wait_done(chat, 4)
    assert [len(conversation["messages"]) for conversation in all_stored(chat)] == [8, 8]


def test_answering_again_asks_about_what_another_tab_has_asked_meanwhile(
    chat: web.Browser, scripted: Scripted
) -> None:
    answers(scripted, "One.", "Two.", "Three.", "Anew.")
    for i, text in enumerate(["first", "second"]):
        ask(chat, text)
        wait_done(chat, i + 1)
    with two_tabs(chat, address(chat)) as (look_at_first, look_at_second):
        wait_text(chat, "Two.")
        chat.js("document.querySelector('[aria-label=\"Answer again\"]').click()")
        assert chat.text("#ask-text") == "The 2 messages after it will be lost."
        look_at_first()
        ask(chat, "third")
        wait_done(chat, 3)
        look_at_second()
        wait_text(chat, "Three.")
        chat.click("#ask-yes")
        wait_until("it asks again", lambda: chat.text("#ask-text") == "The 4 messages after it will be lost.")
        assert len(shown(chat)) == 6
        chat.click("#ask-yes")
        wait_text(chat, "Anew.")
        wait_done(chat, 1)
        assert said(stored(chat)) == ["first", "Anew."]


def test_a_tab_that_is_opened_while_another_is_answered_shows_the_end(chat: web.Browser, scripted: Scripted) -> None:
    more = half_answered(chat, scripted)
    with two_tabs(chat, address(chat)) as (look_at_first, look_at_second):
        chat.wait(LAST)
        assert "not complete" in chat.text(f"{LAST} .stats") and not chat.count("#send.busy")
        # Its settings reach the answer's tab, and do not end the answer.
        store_temperature(chat)
        more.set()
        wait_text(chat, "Half an answer")
        wait_until("it is complete", lambda: "not complete" not in chat.text(f"{LAST} .stats"))
        assert "first after" in chat.text(f"{LAST} .stats")
        look_at_first()
        wait_done(chat, 1)
        assert "temperature 0.5" in chat.text("#summary")
        assert len(all_stored(chat)) == 1 and said(stored(chat)) == ["first", "Half an answer"]
        assert stored(chat)["settings"] == {"temperature": 0.5}


def test_settings_of_two_tabs_meet_while_one_is_answered(chat: web.Browser, scripted: Scripted) -> None:
    more = half_answered(chat, scripted)
    with two_tabs(chat, address(chat)) as (look_at_first, look_at_second):
        chat.wait(LAST)
        store_temperature(chat)
        look_at_first()
        chat.click("#tune")
        retype(chat, "#f-max_tokens", "7")
        both = {"temperature": 0.5, "max_tokens": 7}
        wait_until("both are stored", lambda: stored(chat)["settings"] == both)
        more.set()
        wait_done(chat, 1)
        look_at_second()
        wait_text(chat, "Half an answer")
        assert stored(chat)["settings"] == both and len(all_stored(chat)) == 1


PIECES = ["First.\n\n```c\nint a", " = 1;", "\nint b;", "\n```\n\nLast."]


def test_an_answer_that_comes_elsewhere_grows_where_it_stands(chat: web.Browser, scripted: Scripted) -> None:
    more = threading.Semaphore(0)

    def pieces(out: Out) -> None:
        out.begin()
        for piece in PIECES:
            out.text(piece)
            more.acquire(timeout=SOON_S)
            time.sleep(1.1)  # what comes then is stored at once
        out.end()

    scripted.answers = [pieces]
    ask(chat, "first")
    wait_text(chat, "First.cint a")
    more.release()
    wait_text(chat, "First.cint a = 1;")
    with two_tabs(chat, address(chat)) as (look_at_first, look_at_second):
        wait_text(chat, "First.cint a = 1;")
        chat.js("""getSelection().selectAllChildren(document.querySelector('.message.assistant .body > p'));
            document.querySelector('.message.assistant [aria-label="Answer again"]').focus();
            Object.defineProperty(document, 'hidden', {value: true, configurable: true});""")
        more.release()
        wait_until("it is stored", lambda: said(stored(chat))[1] == "".join(PIECES[:3]))
        assert chat.text(f"{LAST} .body") == "First.cint a = 1;", "nobody looks at it"
        chat.js("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        assert chat.text(f"{LAST} .body") == "First.cint a = 1;\nint b;"
        for text in ("int b;", "int b;Last."):
            wait_text(chat, f"First.cint a = 1;\n{text}")
            assert chat.js("return String(getSelection())") == "First." and chat.focused() == "Answer again"
            assert "not complete" in chat.text(f"{LAST} .stats")
            more.release()
        wait_until("it is complete", lambda: "not complete" not in chat.text(f"{LAST} .stats"))
        assert chat.js("return String(getSelection())") == "First." and chat.focused() == "Answer again"
        markup = chat.js("return document.querySelector('.message.assistant').innerHTML")
        chat.reload()
        chat.wait(LAST)
        assert chat.js("return document.querySelector('.message.assistant').innerHTML") == markup
        look_at_first()
        wait_done(chat, 1)


# What a tab had stored before it saw the end of another's answer, with settings of its own; then the other is told.
OLDER = "window.older = localStorage.getItem('kvahead.' + location.hash.slice(1))"
WRITE_OLDER = """const stored = Object.assign(JSON.parse(older), {revision: 'older', settings: {temperature: 0.5}});
    stored.messages.at(-1).state = 'done';
    stored.messages.at(-1).meta.end = 'unfinished';
    localStorage.setItem('kvahead.' + stored.id, JSON.stringify(stored));
    const news = {key: 'kvahead.' + stored.id, newValue: JSON.stringify(stored)};
    dispatchEvent(new StorageEvent('storage', news));"""


@pytest.mark.parametrize("is_shown", [True, False])
def test_the_end_of_an_answer_survives_what_another_tab_stores_that_has_not_seen_it(
    chat: web.Browser, scripted: Scripted, is_shown: bool
) -> None:
    more = half_answered(chat, scripted)
    with two_tabs(chat, address(chat)) as (look_at_first, look_at_second):
        chat.wait(LAST)
        look_at_first()
        chat.js(OLDER)
        if not is_shown:
            chat.click("#new")
        more.set()
        wait_until("it is stored", lambda: stored(chat)["messages"][-1]["state"] == "done")
        chat.js(WRITE_OLDER)
        assert said(stored(chat)) == ["first", "Half an answer"] and stored(chat)["settings"] == {"temperature": 0.5}
        assert stored(chat)["messages"][-1]["meta"]["end"] == "stop" and len(all_stored(chat)) == 1
        assert not is_shown or "temperature 0.5" in chat.text("#summary")
        look_at_second()
        wait_until("it is complete", lambda: "not complete" not in chat.text(f"{LAST} .stats"))
        assert shown(chat) == ["first", "Half an answer"]


MANY = """const index = JSON.parse(localStorage.getItem('kvahead.index'));
    for (let i = 0; i < 199; i++) {
        const id = 'c' + i;
        const messages = [{role: 'user', content: 'x'}, {role: 'assistant', content: 'y'}];
        localStorage.setItem('kvahead.' + id, JSON.stringify({id, title: 'Chat', settings: {}, messages}));
        index.unshift({id, title: 'Chat', at: Date.now()});
    }
    localStorage.setItem('kvahead.index', JSON.stringify(index));"""


def is_stored(tab: web.Browser, url: str) -> bool:
    return tab.js("return localStorage.getItem('kvahead.' + arguments[0]) !== null", url.partition("#")[2])


def test_what_makes_room_for_another_stays_where_it_is_shown(chat: web.Browser, scripted: Scripted) -> None:
    answers(scripted, "One.", "New.", "Two.")
    ask(chat, "first")
    wait_done(chat, 1)
    chat.js(MANY)
    with two_tabs(chat, address(chat)) as (look_at_first, look_at_second):
        wait_text(chat, "One.")
        chat.press(web.UP)
        chat.type(EDITOR, " edited")
        look_at_first()
        here = address(chat)
        chat.click("#new")
        ask(chat, "new")
        wait_done(chat, 1)
        assert not is_stored(chat, here) and not chat.is_shown("#notice")
        look_at_second()
        wait_until("it is said", lambda: "others have taken its room" in chat.text("#notice"))
        assert chat.is_shown("#notice") and address(chat) == here and "deleted" not in chat.text("#status")
        assert chat.count(EDITOR) == 1 and chat.count(".message") == 2
        assert chat.text("#conversations .current .open") == "first"
        chat.type(EDITOR, web.ESCAPE)
        ask(chat, "second")
        wait_done(chat, 2)
        assert said(stored(chat)) == ["first", "One.", "second", "Two."] and len(all_stored(chat)) == 200
        assert not chat.is_shown("#notice")


def test_what_makes_room_for_another_is_answered_to_its_end(chat: web.Browser, scripted: Scripted) -> None:
    more = threading.Event()
    scripted.answers = [slow(more), lambda out: out.whole("New.")]
    ask(chat, "first")
    wait_text(chat, "Half")
    chat.js(MANY)
    here = address(chat)
    with two_tabs(chat, f"{scripted.url}/") as (look_at_first, _):
        ask(chat, "new")
        wait_done(chat, 1)
        assert not is_stored(chat, here)
        look_at_first()
        chat.wait("#notice")
        assert chat.count("#send.busy") and not scripted.left.is_set()
        more.set()
        wait_done(chat, 1)
        assert said(stored(chat)) == ["first", "Half an answer"] and not chat.is_shown("#notice")


def test_what_is_put_back_when_the_room_does_not_serve_is_not_deleted(chat: web.Browser, scripted: Scripted) -> None:
    answers(scripted, "One.", "Two.")
    ask(chat, "first")
    wait_done(chat, 1)
    here = address(chat)
    with two_tabs(chat, here) as (look_at_first, look_at_second):
        wait_text(chat, "One.")
        look_at_first()
        chat.click("#new")
        chat.js("""const put = Storage.prototype.setItem;
            Storage.prototype.setItem = function (name, text) {
                if (name !== 'kvahead.probe' && text.includes('much'))
                    throw new DOMException('full', 'QuotaExceededError');
                put.call(this, name, text);
            };""")
        ask(chat, "much")
        wait_done(chat, 1)
        assert chat.is_shown("#notice")
        look_at_second()
        # What another tab stores last is heard of last.
        chat.js("window.heard = 0; addEventListener('storage', ({key}) => { heard += key === 'kvahead.theme'; })")
        look_at_first()
        chat.click("#theme")
        look_at_second()
        wait_until("it has heard of all", lambda: chat.js("return heard") == 1)
        assert shown(chat) == ["first", "One."] and not chat.is_shown("#notice")
        assert is_stored(chat, here) and said(stored(chat)) == ["first", "One."]
        look_at_first()
        chat.js("localStorage.removeItem('kvahead.theme')")


def test_what_another_tab_has_not_listed_is_listed_again(chat: web.Browser, scripted: Scripted) -> None:
    answers(scripted, "One.")
    ask(chat, "first")
    wait_done(chat, 1)
    chat.js("localStorage.setItem('kvahead.index', '[]');"
            "dispatchEvent(new StorageEvent('storage', {key: 'kvahead.index', newValue: '[]'}))")  # fmt: skip
    wait_until("it is listed", lambda: chat.text("#conversations .current .open") == "first")
    assert said(stored(chat)) == ["first", "One."]


def test_what_two_tabs_ask_at_once_becomes_two_conversations(chat: web.Browser, scripted: Scripted) -> None:
    more = threading.Event()
    answers(scripted, "One.")
    ask(chat, "first")
    wait_done(chat, 1)
    scripted.answers = [slow(more), lambda out: out.whole("Other.")]
    before = address(chat)
    with two_tabs(chat, before) as (look_at_first, look_at_second):
        wait_text(chat, "One.")
        look_at_first()
        ask(chat, "here")
        wait_text(chat, "Half")
        look_at_second()
        wait_until("it is told", lambda: len(shown(chat)) == 4)
        ask(chat, "there")
        wait_done(chat, 3)
        more.set()
        look_at_first()
        wait_text(chat, "Half an answer")
        wait_done(chat, 2)
        assert shown(chat) == ["first", "One.", "here", "Half an answer"]
        assert chat.count(".row-item") == 2 and address(chat) != before
        kept = sorted(map(said, all_stored(chat)), key=len)
        assert kept[0] == ["first", "One.", "here", "Half an answer"]
        assert kept[1][:3] == ["first", "One.", "here"] and kept[1][4:] == ["there", "Other."]
        chat.reload()
        chat.wait(".dot.ready")
        assert chat.text(f"{LAST} .body") == "Half an answer"


@pytest.mark.parametrize("sends", [True, False])
def test_an_editor_is_left_alone_by_other_tabs(chat: web.Browser, scripted: Scripted, sends: bool) -> None:
    answers(scripted, "One.", "Two.", "Anew.")
    ask(chat, "first")
    wait_done(chat, 1)
    with two_tabs(chat, address(chat)) as (look_at_first, look_at_second):
        wait_text(chat, "One.")
        chat.press(web.UP)
        chat.type(EDITOR, " edited")
        look_at_first()
        ask(chat, "second")
        wait_done(chat, 2)
        look_at_second()
        wait_until("its list is told", lambda: chat.count(".row-item") == 1)
        assert chat.count(EDITOR) == 1 and chat.count(".message") == 2
        chat.type(EDITOR, web.ENTER if sends else web.ESCAPE)
        if sends:
            wait_text(chat, "Anew.")
            wait_done(chat, 1)
            kept = list(map(said, all_stored(chat)))
            assert kept == [["first edited", "Anew."], ["first", "One.", "second", "Two."]]
        else:
            wait_text(chat, "Two.")
            assert shown(chat) == ["first", "One.", "second", "Two."] and len(all_stored(chat)) == 1


def test_what_one_tab_deletes_while_another_answers_it_stays_deleted(chat: web.Browser, scripted: Scripted) -> None:
    def endless(out: Out) -> None:
        out.begin()
        for i in range(10000):
            out.text(f"{i} ")
            left.wait(0.05)
        raise AssertionError("nobody stopped it")

    left = threading.Event()
    scripted.answers = [lambda out: out.whole("Kept."), endless]
    ask(chat, "kept")
    wait_done(chat, 1)
    chat.click("#new")
    ask(chat, "doomed")
    wait_until("it begins", lambda: len(chat.text(f"{LAST} .body")) > 5)
    with two_tabs(chat, f"{scripted.url}/") as (look_at_first, _):
        wait_until("both are listed", lambda: chat.count(".row-item") == 2)
        chat.js("document.querySelector('.row-item .drop').click()")
        chat.click("#ask-yes")
        assert scripted.left.wait(SOON_S)
        look_at_first()
        wait_until("a new chat is shown", lambda: chat.is_shown("#welcome") and not chat.count("#send.busy"))
        assert chat.js("return location.hash") == "" and chat.text("#conversations .open") == "kept"
        assert [said(conversation) for conversation in all_stored(chat)] == [["kept", "Kept."]]
        assert chat.js("return Object.keys(localStorage).length") == 2
