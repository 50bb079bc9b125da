"""What the page keeps of conversations in the browser: how many, in how little room, and what nobody else may break."""

from __future__ import annotations

import browser as web
import pytest
from harness import wait_until
from page import LAST, answers, ask, stored, wait_done
from scripted import Scripted

if not web.find():
    pytest.skip("chromium and chromedriver are not installed: the page is not tested", allow_module_level=True)


def test_two_hundred_conversations(chat: web.Browser, scripted: Scripted) -> None:
    chat.js("""const index = [];
        for (let i = 0; i < 205; i++) {
            const id = 'c' + i;
            const messages = [];
            for (let j = 0; j < 10; j++)
                messages.push({role: 'user', content: `question ${i}`}, {role: 'assistant', content: 'An *answer*. '.repeat(40)});
            localStorage.setItem('kvahead.' + id, JSON.stringify({id, title: `Chat ${i}`, settings: {}, messages}));
            index.push({id, title: `Chat ${i}`, at: Date.now() - i * 3600000});
        }
        localStorage.setItem('kvahead.index', JSON.stringify(index));""")
    chat.reload()
    chat.wait(".dot.ready")
    assert chat.count(".row-item") == 200
    assert {"Today", "Yesterday", "Last seven days", "Earlier"} >= set(
        chat.js("return [...document.querySelectorAll('.group')].map((group) => group.textContent)"))  # fmt: skip
    scripted.answers = [lambda out: out.whole("Newest.")]
    ask(chat, "One more")
    wait_done(chat, 1)
    assert chat.count(".row-item") == 200 and "200 newest" in chat.text("#side-foot")
    assert chat.js("return document.querySelector('.row-item .open').textContent") == "One more"
    kept = chat.js("return Object.keys(localStorage).filter((name) => /^kvahead[.]c\\d+$/.test(name)).length")
    assert chat.js("return localStorage.getItem('kvahead.c199')") is None and kept <= 204
    chat.type("#search", "Chat 17")
    assert chat.count(".row-item") == 11
    chat.click(".row-item .open")
    wait_until("it is shown", lambda: chat.text("#title") == "Chat 17" and chat.count(".message") == 20)
    chat.js("document.querySelector('.row-item .drop').click()")
    chat.click("#ask-yes")
    wait_until("it is gone", lambda: chat.count(".row-item") == 10)
    assert chat.js("return localStorage.getItem('kvahead.c17')") is None
    chat.js("history.back()")


def test_a_full_browser_lets_the_oldest_go(chat: web.Browser, scripted: Scripted) -> None:
    chat.js("""const index = [];
        for (let i = 0; i < 12; i++) {
            const messages = [{role: 'user', content: 'x'.repeat(400000)}];
            localStorage.setItem(`kvahead.c${i}`, JSON.stringify({id: `c${i}`, title: `Chat ${i}`, settings: {}, messages}));
            index.push({id: `c${i}`, title: `Chat ${i}`, at: Date.now()});
        }
        localStorage.setItem('kvahead.index', JSON.stringify(index));""")
    chat.reload()
    chat.wait(".dot.ready")
    scripted.answers = [lambda out: out.whole("y" * 900000, 65536)]
    ask(chat, "Much")
    wait_done(chat, 1)
    names = chat.js("return [...document.querySelectorAll('.row-item .open')].map((row) => row.textContent)")
    assert names[0] == "Much" and "Chat 0" in names and "Chat 11" not in names
    assert len(stored(chat)["messages"][1]["content"]) == 900000


# All of the browser's room but 240,000 characters is somebody else's; ten conversations take most of the rest.
LITTLE_ROOM = """localStorage.setItem('rest', 'x'.repeat(240000));
    for (let size = 1 << 23, length = 0; size >= 1; size /= 2) {
        try {
            localStorage.setItem('others', 'x'.repeat(length + size));
            length += size;
        } catch { /* too much */ }
    }
    localStorage.removeItem('rest');
    const index = [];
    for (let i = 0; i < 10; i++) {
        const messages = [{role: 'user', content: 'x'.repeat(22000)}];
        localStorage.setItem(`kvahead.c${i}`, JSON.stringify({id: `c${i}`, title: `Chat ${i}`, settings: {}, messages}));
        index.push({id: `c${i}`, title: `Chat ${i}`, at: Date.now()});
    }
    localStorage.setItem('kvahead.index', JSON.stringify(index));"""


def test_what_is_too_long_for_all_of_the_room_takes_nobodys_place(chat: web.Browser, scripted: Scripted) -> None:
    def kept() -> list[list[str]]:
        return chat.js("return Object.entries(localStorage).sort().map(([name, text]) => [name, text.length, text.slice(-20000)])")

    def ask_much(characters: int) -> None:
        chat.js("document.querySelector('#prompt').value = 'x'.repeat(arguments[0])", characters)
        ask(chat, ".")

    chat.js(LITTLE_ROOM)
    chat.reload()
    chat.wait(".dot.ready")
    before = kept()
    assert len(before) == 12
    scripted.answers = [lambda out, text=text: out.whole(text) for text in ("Lost.", "Stored.", "Lost too.")]
    ask_much(300000)
    wait_done(chat, 1)
    assert chat.is_shown("#notice") and kept() == before
    # One that has room when nearly all others are gone is stored, and they go.
    chat.click("#new")
    ask_much(200000)
    wait_done(chat, 1)
    assert not chat.is_shown("#notice")
    assert [len(m["content"]) for m in stored(chat)["messages"]] == [200001, 7]
    assert [name for name, _, _ in kept() if name[:9] == "kvahead.c"] == ["kvahead.c0"]
    # What it was stays when it becomes too long.
    before = kept()
    ask_much(100000)
    wait_done(chat, 2)
    assert chat.is_shown("#notice") and kept() == before


def test_what_cannot_be_stored_stays_until_the_page_goes(chat: web.Browser, scripted: Scripted) -> None:
    def rows() -> list[str]:
        return chat.js("return [...document.querySelectorAll('.row-item .open')].map((row) => row.textContent)")

    scripted.answers = [lambda out, text=text: out.whole(text) for text in ("Zero.", "One.", "Two.", "More.")]
    ask(chat, "stored")
    wait_done(chat, 1)
    # What is stored can be read, and not changed.
    chat.js("window.former = {setItem: Storage.prototype.setItem, removeItem: Storage.prototype.removeItem};"
            "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); };"
            "Storage.prototype.removeItem = () => {};")  # fmt: skip
    for text in ("first", "second"):
        chat.click("#new")
        assert not chat.is_shown("#notice")
        ask(chat, text)
        wait_done(chat, 1)
        assert "too long" in chat.text("#notice") and "not available" in chat.text("#notice")
        assert chat.is_shown("#notice")
    assert rows() == ["second", "first", "stored"]
    # The list and the address lead to it.
    chat.js("document.querySelectorAll('.row-item .open')[1].click()")
    wait_until("it is shown", lambda: chat.text("#title") == "first" and chat.text(f"{LAST} .body") == "One.")
    assert chat.is_shown("#notice") and len(rows()) == 3
    chat.js("history.back()")
    wait_until("the other is shown", lambda: chat.text("#title") == "second" and chat.text(f"{LAST} .body") == "Two.")
    chat.js("document.querySelector('.row-item .drop').click()")
    chat.click("#ask-yes")
    wait_until("it is gone", lambda: rows() == ["first", "stored"])
    assert not chat.is_shown("#notice")
    # With room again it is stored.
    chat.js("Object.assign(Storage.prototype, window.former)")
    chat.click(".row-item .open")
    ask(chat, "more")
    wait_done(chat, 2)
    assert not chat.is_shown("#notice")
    assert [m["content"] for m in stored(chat)["messages"]] == ["first", "One.", "more", "More."]
    chat.reload()
    chat.wait(LAST)
    assert chat.text("#title") == "first" and rows() == ["first", "stored"]


def test_a_system_prompt_is_stored_once_nothing_is_typed(chat: web.Browser, scripted: Scripted) -> None:
    answers(scripted, "One.", "Two.")
    ask(chat, "a")
    wait_done(chat, 1)
    chat.js("window.puts = 0; const put = Storage.prototype.setItem;"
            "Storage.prototype.setItem = function (...args) { puts++; return put.apply(this, args); }")  # fmt: skip
    chat.click("#tune")
    chat.js("""const field = document.querySelector('#f-system');
        for (const sign of 'Be brief.') {
            field.value += sign;
            field.dispatchEvent(new Event('input'));
        }""")
    assert chat.text("#summary") == "KV full · system prompt"
    wait_until("it is stored", lambda: stored(chat)["settings"].get("system") == "Be brief.")
    assert chat.js("return puts") == 2, "the index, and the conversation"
    # Nor is it lost where nobody waits for it.
    chat.type("#f-system", " Be kind.")
    chat.click("#new")
    assert stored(chat)["settings"]["system"] == "Be brief. Be kind."
    chat.click(".row-item .open")
    chat.type("#f-system", " Be.")
    chat.reload()
    chat.wait(".dot.ready")
    assert chat.js("return document.querySelector('#f-system').value") == "Be brief. Be kind. Be."
    chat.click("#tune")
    chat.type("#f-system", " Gone.")
    chat.js("document.querySelector('.row-item .drop').click()")
    chat.click("#ask-yes")
    wait_until("it is gone", lambda: chat.count(".row-item") == 0)
    chat.reload()
    chat.wait(".dot.ready")
    assert chat.count(".row-item") == 0


BROKEN = ["nonsense", "null", "{}", "[1, null, {}]", '[{"id": "x", "title": "T", "at": 1}, {"id": "y", "title": "U"}]']


def test_broken_storage_does_not_break_the_page(chat: web.Browser, scripted: Scripted) -> None:
    for text in BROKEN:
        chat.js("localStorage.setItem('kvahead.index', arguments[0]); localStorage.setItem('kvahead.x', '{\"messages\": [1]}');", text)
        chat.reload()
        chat.wait(".dot.ready")
    assert chat.count(".row-item") == 2
    chat.click(".row-item .open")
    chat.js("document.querySelectorAll('.row-item .open')[1].click()")
    wait_until("what is not there leaves the list", lambda: chat.count(".row-item") == 1)
