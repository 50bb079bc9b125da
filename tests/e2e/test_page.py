"""The page at /, in a real browser: what a person does with it, and what must never happen to them."""

from __future__ import annotations

import pathlib
import re
import threading
from collections.abc import Callable

import browser as web
import pytest
from harness import SOON_S, Server, wait_until
from page import LAST, ask, stored, visit, wait_done
from scripted import Out, Scripted

if not web.find():
    pytest.skip("chromium and chromedriver are not installed: the page is not tested", allow_module_level=True)

STORY = "Tell me a story."
BUSY = "#send.busy"
HIT = {"kvahead": {"policy": "specache", "device_bytes": 3 << 20, "host_bytes": 1 << 30, "kept_tokens": 5,
                   "prefetch_hit_rate": 0.75, "preemptions": 0}}  # fmt: skip


# --- with the real server


def test_a_chat_streams_and_says_what_it_cost(tab: web.Browser, server: Server) -> None:
    visit(tab, f"{server.url}/")
    assert tab.text("#model") == "demo"
    assert tab.focused() == "prompt"
    assert "Today" not in tab.text("#conversations")
    ask(tab, STORY)
    wait_done(tab, 1)
    said = tab.text(f"{LAST} .body")
    assert len(said) > 20
    assert re.fullmatch(r"full · \S+ KiB device · \d+ tokens · \S+/s · first after .*", tab.text(f"{LAST} .stats"))
    tab.click(f"{LAST} .cost summary")
    assert "Host memory" in tab.text(f"{LAST} .cost dl")
    assert tab.text("#conversations .current") == STORY
    assert said[:50] in tab.text("#status")
    kept = stored(tab)
    assert [m["content"] for m in kept["messages"]] == [STORY, said]

    tab.reload()
    tab.wait(f"{LAST} .body")
    assert tab.text(f"{LAST} .body") == said
    assert tab.text("#title") == STORY

    tab.click(f"{LAST} button[aria-label='Answer again']")
    wait_done(tab, 1)
    tab.js("document.querySelector('.user .tools').style.opacity = 1")
    tab.click(".user button[aria-label^='Edit']")
    tab.clear(".editor textarea")
    tab.type(".editor textarea", "Once upon a time" + web.ENTER)
    wait_done(tab, 1)
    assert [m["role"] for m in stored(tab)["messages"]] == ["user", "assistant"]
    assert stored(tab)["messages"][0]["content"] == "Once upon a time"


def test_a_conversation_has_its_policy(tab: web.Browser, server: Server) -> None:
    visit(tab, f"{server.url}/")
    tab.click("#tune")
    assert tab.focused() == "f-kv-policy"
    offered = tab.js("return [...document.querySelectorAll('#f-kv-policy option')].map((o) => o.value)")
    assert offered[1:] == server.request("GET", "/v1/models").json()["data"][0]["kv_policies"]
    tab.type("#f-kv-policy", "specache")
    tab.click("#policy-settings summary")
    tab.type("#f-kv-bits", "1")
    tab.type("#f-kv-min_tokens", "0")
    tab.type("#f-kv-topk", "16+32@0-1")
    assert tab.text("#summary") == "KV specache · bits 1 · min_tokens 0 · topk 16+32@0-1"
    tab.type("#f-temperature", "0")
    tab.type("#f-max_tokens", "5")
    ask(tab, STORY)
    wait_done(tab, 1)
    settings = stored(tab)["settings"]
    assert settings["kv"] == {"policy": "specache", "bits": 1, "min_tokens": 0, "topk": "16+32@0-1"}
    assert settings["temperature"] == 0 and settings["max_tokens"] == 5
    assert tab.text(f"{LAST} .stats").startswith("specache · ")
    assert "5 tokens" in tab.text(f"{LAST} .stats") and "token limit reached" in tab.text(f"{LAST} .stats")

    # Another policy does not keep what is not its own.
    tab.type("#f-kv-policy", "offload")
    assert tab.text("#summary").startswith("KV offload · temperature 0")
    ask(tab, STORY)
    wait_done(tab, 2)
    rows = tab.js("return [...document.querySelectorAll('#costs tbody th')].map((cell) => cell.textContent)")
    assert rows == ["offload", "specache"]

    # What is out of range is said at its field, and not sent.
    tab.clear("#f-temperature")
    tab.type("#f-temperature", "3")
    assert tab.text("#f-temperature-hint") == "0 to 2"
    assert tab.js("return document.querySelector('#f-temperature').ariaInvalid") == "true"


def test_the_servers_refusal_of_a_setting_is_said_at_its_field(tab: web.Browser, server: Server) -> None:
    visit(tab, f"{server.url}/")
    tab.refusals = "status of 400"
    tab.click("#summary")
    tab.type("#f-max_tokens", "1000000")
    ask(tab, STORY)
    wait_done(tab, 1)
    assert "max_tokens" in tab.text(f"{LAST} .failure p")
    assert "max_tokens" in tab.text("#f-max_tokens-hint")
    tab.clear("#f-max_tokens")
    tab.type("#f-max_tokens", "4")
    tab.click(f"{LAST} .failure button")
    wait_done(tab, 1)
    assert tab.count(".failure") == 0 and "4 tokens" in tab.text(f"{LAST} .stats")


def test_a_key_is_asked_for_and_kept_for_the_tab(tab: web.Browser, servers) -> None:
    server = servers.start(env={"KVAHEAD_API_KEY": "the-right-key"}, key="the-right-key")
    tab.refusals = "status of 401"
    visit(tab, f"{server.url}/", ready=False)
    tab.wait("#key-dialog[open]")
    assert tab.focused() == "key-field" and not tab.is_shown("#key-problem")
    assert tab.text("#state") == "Needs a key"
    tab.type("#key-field", "a-wrong-key" + web.ENTER)
    wait_until("it says that the key is wrong", lambda: tab.is_shown("#key-problem"))
    assert "key" in tab.text("#key-problem").lower()
    tab.press(web.ESCAPE)
    ask(tab, STORY)
    tab.wait("#key-dialog[open]")
    tab.type("#key-field", "the-right-key" + web.ENTER)
    wait_until("it is asked again by itself", lambda: tab.count(".failure") == 0)
    wait_done(tab, 1)
    assert len(tab.text(f"{LAST} .body")) > 20
    tab.reload()
    tab.wait(".dot.ready")
    assert tab.js("return Object.values(localStorage).some((text) => text.includes('right-key'))") is False
    tab.click("#view-live")
    wait_until("it has a sample", lambda: tab.text("#tiles div:first-child dd") not in ("", "–"))
    tab.click("#key")
    tab.click("#key-forget")
    tab.wait("#key-dialog[open]")
    assert tab.js("return sessionStorage.getItem('kvahead.key')") is None


def test_the_live_view_shows_the_server(tab: web.Browser, server: Server) -> None:
    visit(tab, f"{server.url}/")
    tab.press(web.ALT, "l")
    tab.wait("#live")
    with server.stream("/v1/completions", prompt="Once", max_tokens=7000, ignore_eos=True) as stream:
        events = stream.events()
        next(events)
        wait_until("a request is listed", lambda: tab.count("#running tbody tr") >= 1)
        assert tab.text("#running tbody td:nth-child(5)") == "full"
        stream.abandon()
    wait_until("tokens are counted", lambda: tab.text(".chart:nth-child(2) .legend b") not in ("", "–"))
    assert tab.count(".chart") == 8 and tab.count("#tiles div") == 8
    for i in range(1, 9):
        label = tab.js("return document.querySelectorAll('.plot svg')[arguments[0] - 1].getAttribute('aria-label')", i)
        assert re.match(r".+: \w+.* \S+", label), label
    assert "GiB" in tab.text(".chart:nth-child(5) .note")
    tab.click("#view-chat")
    assert tab.is_shown("#prompt") and not tab.is_shown("#live")


def test_no_page_leaves_404(servers) -> None:
    server = servers.start("--no-page")
    reply = server.request("GET", "/", headers={"Accept": "text/html"})
    assert reply.status == 404 and reply.error()["message"] == "There is no route '/'."


# --- with answers as the test says


def test_stop_keeps_what_has_come(chat: web.Browser, scripted: Scripted) -> None:
    def endless(out: Out) -> None:
        out.begin()
        out.comment("keep-alive prefill 4096/32768")
        shown.wait(30)
        out.text("Half", " an")
        out.until_gone()
        scripted.left.set()

    shown = threading.Event()
    scripted.answers = [endless, lambda out: out.whole("Anew."), lambda out: out.whole("More.")]
    ask(chat, STORY)
    wait_until("progress is shown", lambda: chat.text("#hint") == "Reading the prompt: 4,096 of 32,768 tokens")
    shown.set()
    wait_until("half is shown", lambda: chat.text(f"{LAST} .body") == "Half an")
    assert chat.is_shown(BUSY) and chat.js("return document.querySelector('#send').ariaLabel") == "Stop"
    ask(chat, "typed meanwhile")
    assert len(scripted.bodies) == 1
    chat.press(web.ESCAPE)
    wait_done(chat, 1)
    assert scripted.left.wait(30)
    assert "stopped" in chat.text(f"{LAST} .stats") and chat.text(f"{LAST} .body") == "Half an"
    assert chat.js("return document.querySelector('#prompt').value") == "typed meanwhile"
    chat.click(f"{LAST} button[aria-label='Answer again']")
    wait_done(chat, 1)
    assert chat.text(f"{LAST} .body") == "Anew."
    chat.click("#send")
    wait_done(chat, 2)
    assert [m["role"] for m in scripted.bodies[-1]["messages"]] == ["user", "assistant", "user"]
    assert scripted.bodies[-1]["stream_options"] == {"include_usage": True}
    assert scripted.bodies[-1]["kv"] == {"report": True}


def test_an_edit_that_is_sent_while_an_answer_comes_stops_that_answer(chat: web.Browser, scripted: Scripted) -> None:
    def endless(text: str, left: threading.Event) -> Callable[[Out], None]:
        def answer(out: Out) -> None:
            out.begin()
            out.text(text)
            out.until_gone()
            left.set()

        return answer

    old_left, new_left = threading.Event(), threading.Event()
    scripted.answers = [lambda out: out.whole("One."), endless("Old", old_left), endless("New", new_left)]
    ask(chat, "first")
    wait_done(chat, 1)
    chat.press(web.UP)
    chat.wait(".editor textarea")
    ask(chat, "second")
    wait_until("the old answer begins", lambda: chat.text(f"{LAST} .body") == "Old")
    chat.type(".editor textarea", " again")
    chat.click(".editor .primary")
    assert old_left.wait(30)
    wait_until("the new answer begins", lambda: chat.text(f"{LAST} .body") == "New")
    wait_until("the old one has ended", lambda: chat.text("#status") == "Stopped")
    assert chat.is_shown(BUSY) and chat.count(".message") == 2
    chat.click("#send")
    assert new_left.wait(30)
    wait_done(chat, 1)
    assert not chat.count(BUSY) and "stopped" in chat.text(f"{LAST} .stats")
    assert [m["content"] for m in stored(chat)["messages"]] == ["first again", "New"]
    assert scripted.bodies[-1]["messages"] == [{"role": "user", "content": "first again"}]


def test_thoughts_are_apart_from_the_answer(chat: web.Browser, scripted: Scripted) -> None:
    def thinking(out: Out) -> None:
        out.begin()
        for piece in ("Hm, ", "<b>why</b>?"):
            delta = {"reasoning_content": piece}
            out.frame({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        seen.wait(30)
        out.text("Because.")
        out.end()

    seen = threading.Event()
    scripted.answers = [thinking, lambda out: out.whole("More.")]
    ask(chat, STORY)
    wait_until("thoughts are shown", lambda: chat.text(f"{LAST} .thoughts p") == "Hm, <b>why</b>?")
    assert chat.js(f"return document.querySelector('{LAST} .thoughts').open")
    seen.set()
    wait_done(chat, 1)
    assert chat.text(f"{LAST} .body") == "Because."
    assert not chat.js(f"return document.querySelector('{LAST} .thoughts').open")
    chat.reload()
    chat.wait(f"{LAST} .thoughts")
    chat.click(f"{LAST} .thoughts summary")
    assert chat.text(f"{LAST} .thoughts p") == "Hm, <b>why</b>?"
    ask(chat, "And?")
    wait_done(chat, 2)
    # What it thought is not said again.
    assert scripted.bodies[-1]["messages"][1] == {"role": "assistant", "content": "Because."}


def test_a_reload_keeps_what_has_come(chat: web.Browser, scripted: Scripted) -> None:
    def endless(out: Out) -> None:
        out.begin()
        out.text("Half")
        out.until_gone()
        scripted.left.set()

    scripted.answers = [endless]
    ask(chat, STORY)
    wait_until("half is shown", lambda: chat.text(f"{LAST} .body") == "Half")
    chat.type("#prompt", "a draft")
    chat.reload()
    assert scripted.left.wait(30)
    chat.wait(f"{LAST} .body")
    assert chat.text(f"{LAST} .body") == "Half" and "interrupted" in chat.text(f"{LAST} .stats")
    assert chat.js("return document.querySelector('#prompt').value") == "a draft"


def test_an_answer_goes_on_while_another_conversation_is_shown(chat: web.Browser, scripted: Scripted) -> None:
    more = threading.Event()

    def slow(out: Out) -> None:
        out.begin()
        out.text("First ")
        more.wait(30)
        out.text("then")
        out.end()

    scripted.answers = [slow, lambda out: out.whole("Other.")]
    ask(chat, "One")
    wait_until("it begins", lambda: chat.text(f"{LAST} .body").strip() == "First")
    chat.click("#new")
    ask(chat, "Two")
    wait_done(chat, 1)
    assert chat.text(f"{LAST} .body") == "Other."
    more.set()
    chat.js("[...document.querySelectorAll('.open')].find((row) => row.textContent === 'One').click()")
    wait_done(chat, 1)
    assert chat.text(f"{LAST} .body") == "First then"


def test_an_answer_that_ends_before_the_frame_that_was_asked_for_stays_ended(
    chat: web.Browser, scripted: Scripted
) -> None:
    more, ends = threading.Event(), threading.Event()

    def slow(out: Out) -> None:
        out.begin()
        out.text("First ")
        more.wait(SOON_S)
        out.text("then")
        ends.wait(SOON_S)
        out.end()

    scripted.answers = [slow]
    ask(chat, "One")
    wait_until("it begins", lambda: chat.text(f"{LAST} .body").strip() == "First")
    chat.click("#new")
    chat.js("window.frames_asked = new Map();"
            "window.requestAnimationFrame = (f) => { frames_asked.set(frames_asked.size + 1, f); return frames_asked.size; };"
            "window.cancelAnimationFrame = (id) => { if (frames_asked.has(id)) frames_asked.set(id, () => {}); };")
    more.set()
    wait_until("a frame is asked for", lambda: chat.js("return frames_asked.size") > 0)
    chat.js("[...document.querySelectorAll('.open')].find((row) => row.textContent === 'One').click()")
    ends.set()
    wait_done(chat, 1)
    chat.js("[...frames_asked.values()].forEach((frame) => frame(performance.now()))")
    assert chat.text(f"{LAST} .body") == "First then"
    assert not chat.count(".streaming")


def test_a_conversation_that_is_deleted_while_it_is_answered_stays_deleted(
    chat: web.Browser, scripted: Scripted
) -> None:
    def endless(out: Out) -> None:
        out.begin()
        out.text("Half")
        out.until_gone()
        scripted.left.set()

    scripted.answers = [lambda out: out.whole("Kept."), endless]
    ask(chat, "One")
    wait_done(chat, 1)
    chat.click("#new")
    ask(chat, "Two")
    wait_until("half is shown", lambda: chat.text(f"{LAST} .body") == "Half")
    chat.js("document.querySelector('.row-item .drop').click()")
    chat.click("#ask-yes")
    assert scripted.left.wait(30)
    wait_until("a new one is shown", lambda: chat.is_shown("#welcome"))
    wait_until("it is stopped", lambda: not chat.count(BUSY))
    assert chat.text("#conversations .open") == "One" and chat.count(".row-item") == 1
    assert chat.js("return Object.keys(localStorage).length") == 2
    # Back and forward go through what was shown.
    chat.click(".row-item .open")
    chat.wait(LAST)
    chat.js("history.back()")
    chat.wait("#welcome")
    chat.js("history.forward()")
    chat.wait(LAST)
    assert chat.text("#title") == "One"


FAILURES = {
    "busy": (lambda out: out.error(503, "The queue is full.", Retry_After="7"),
             "The queue is full. It asks to be tried again after 7 s."),
    "no words": (lambda out: out.error(500, ""), ""),
    "no JSON": (lambda out: (out.begin(502, Content_Type="text/html"), out.raw("<h1>Bad</h1>")), "The server answered 502."),
    "late": (lambda out: (out.begin(), out.text("Some"), out.frame({"error": {"message": "The device failed."}})),
             "The device failed."),
    "cut": (lambda out: (out.begin(), out.text("Some")), "The answer was cut off: the connection to the server ended."),
    "garbage": (lambda out: (out.begin(), out.raw("data: {nothing\n\n")), "The server sent something that is not JSON."),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_says_what_is_wrong_and_can_be_tried_again(chat: web.Browser, scripted: Scripted, name: str) -> None:
    fail, message = FAILURES[name]
    chat.refusals = "status of 50[0-9]"
    scripted.answers = [fail, lambda out: out.whole("Now it works.")]
    ask(chat, STORY)
    wait_done(chat, 1)
    assert chat.is_shown(f"{LAST} .failure") and chat.text(f"{LAST} .failure p") == message
    chat.reload()
    chat.wait(f"{LAST} .failure")
    chat.click(f"{LAST} .failure button")
    wait_done(chat, 1)
    assert chat.text(f"{LAST} .body") == "Now it works." and chat.count(".failure") == 0
    assert [m["role"] for m in scripted.bodies[-1]["messages"]] == ["user"]


def test_a_server_that_is_gone_is_told(chat: web.Browser, scripted: Scripted) -> None:
    chat.refusals = "ERR_CONNECTION"
    scripted.stop()
    ask(chat, STORY)
    wait_done(chat, 1)
    assert chat.text(f"{LAST} .failure p") == "The server cannot be reached."
    scripted.server.server_close = lambda: None
    scripted.server.shutdown = lambda: None


HOSTILE = """
<script>window.harm = 1</script><img src=x onerror="window.harm = 1"><iframe src="https://example.org"></iframe>

[click](javascript:window.harm=1) [data](data:text/html,x) [tab](java\tscript:x) ![pic](https://example.org/pixel.png)
[ok](https://example.org/a_(b)) <https://example.org/c> vbscript:x [rel](/v1/models) [file](file:///etc/passwd)
[x](https://example.org/" onmouseover="window.harm=1)

| a | <svg onload=window.harm=1> |
|---|---|
| `|` | **<b onclick=x>** |

# <style>*{display:none}</style>
> > > > > > > > > > > > > > > > > > > deep
</div></main><base href="https://example.org/"><meta http-equiv=refresh content="0;url=https://example.org">
```"><script>
</script><script>window.harm = 1</script>
```
&lt;b&gt; \\<i> \u202eright to left\u202c
"""


def test_hostile_output_is_text(chat: web.Browser, scripted: Scripted) -> None:
    scripted.answers = [lambda out: out.whole(HOSTILE, 7)]
    ask(chat, "<script>window.harm = 1</script>")
    wait_done(chat, 1)
    assert chat.js("return window.harm") is None
    body = f"{LAST} .body"
    bad = "script, iframe, img, object, embed, svg:not(button svg), style, base, meta, form, [onclick], [onload], [onerror]"
    assert chat.js(f"return document.querySelectorAll('.log :is({bad})').length") == 0
    links = chat.js("return [...document.querySelectorAll(arguments[0] + ' a')].map((a) => a.href)", body)
    assert links and all(link.startswith("https://example.org/") for link in links), links
    assert "https://example.org/a_(b)" in links and "https://example.org/pixel.png" in links
    rels = chat.js("return [...document.querySelectorAll(arguments[0] + ' a')].map((a) => a.rel + a.target)", body)
    assert set(rels) == {"noopener noreferrer nofollow_blank"}
    text = chat.text(body)
    assert "<script>window.harm = 1</script>" in text and "&lt;b&gt;" in text and "deep" in text
    assert chat.text(".user .body") == "<script>window.harm = 1</script>"
    chat.reload()
    chat.wait(body)
    assert chat.js("return window.harm") is None
    assert chat.text(body) == text


# Each would take a careless renderer minutes, or a depth it does not have. Paragraphs over 50,000 characters are plain.
LARGE = {
    "table": "|a|b|c|\n|-|-|-|\n" + "|1|2|3|\n" * 20000,
    "columns": "|a" * 5000 + "|\n" + "|-" * 5000 + "|\n" + "|1" * 5000,
    "quotes": ">" * 20000 + "x",
    "items": "\n".join("  " * i + "- x" for i in range(600)),
    "brackets": "[" * 49000 + "](x)" * 10,
    "links": "[a](" * 12000,
    "stars": "*a **b _c " * 4900,
    "ticks": "".join("`" * n + " " for n in range(1, 300)),
    "spaces": "` " + " " * 24000 + "x" + " " * 24000 + " x`",
    "line": "x" * 500000,
    "rules": ("-" * 4000 + "x\n") * 100,
    "fences": "```\n~~~\n" * 10000,
    "urls": "http://" * 7000,
}


def test_large_and_hostile_output_is_shown_in_linear_time(chat: web.Browser, scripted: Scripted) -> None:
    for name, text in LARGE.items():
        scripted.answers = [lambda out, text=text: out.whole(text, 65536)]
        chat.click("#new")
        ask(chat, name)
        wait_done(chat, 1)
        assert chat.count(f"{LAST} .body *") < 70000, name
        assert chat.js("return document.documentElement.scrollWidth <= innerWidth"), name
    chat.js("document.querySelectorAll('.row-item .open')[arguments[0]].click()", len(LARGE) - 1)
    wait_until("the first is shown", lambda: chat.count(f"{LAST} tbody tr") == 200 - 2 + 2)
    chat.click(f"{LAST} .more")
    assert chat.count(f"{LAST} tbody tr") == 400


MARKDOWN = """# One
Some **strong**, *em*, ***both***, ~~gone~~, `a < b`, snake_case_name and 2 * 3 * 4.
Second line, https://example.org/x?y=1. End

- one
  1. nested
  2. [x] second
- two

3. three

> quoted

| left | right |
|:--|--:|
| a \\| b | **2** |

```c
int main(void) { return 0; } // end
```
---
last"""


def test_markdown_is_rendered_alike_in_any_pieces(chat: web.Browser, scripted: Scripted) -> None:
    sizes = [1, 3, 17, 4000]
    scripted.answers = [lambda out, size=size: out.whole(MARKDOWN, size) for size in sizes]
    shapes = []
    for size in sizes:
        chat.click("#new")
        ask(chat, str(size))
        wait_done(chat, 1)
        shapes.append(chat.js("return document.querySelector(arguments[0]).innerHTML", f"{LAST} .body"))
    assert all(shape == shapes[0] for shape in shapes)
    shape = re.sub(r"<svg.*?</svg>", "", shapes[0])
    for part in (
        '<h2 class="level-1">One</h2>',
        "<strong>strong</strong>, <em>em</em>, <strong><em>both</em></strong>, <del>gone</del>, <code>a &lt; b</code>",
        "snake_case_name and 2 * 3 * 4.<br>Second line, ",
        '>https://example.org/x?y=1</a>. End</p>',
        "<ul><li>one<ol><li>nested</li><li>☑ second</li></ol></li><li>two</li></ul>",
        '<ol start="3"><li>three</li></ol>',
        "<blockquote><p>quoted</p></blockquote>",
        '<td>a | b</td><td class="end"><strong>2</strong></td>',
        '<span class="c-word">int</span> <span class="c-call">main</span>',
        '<span class="c-comment">// end</span>',
        "<hr><p>last</p>",
    ):
        assert part in shape, (part, shape)


# Where a list's first item is indented, or is of another kind than those below it.
ODD_LISTS = [
    " - d\n- a\n  - c\n    code",
    " 3) t\n  - c\n- a",
    "  - c\n   10. n\n- a",
    "   10. n\n1. x\n   10. n\n---",
    "* e\n - d\n  - c\n2. y",
]


def test_lists_with_odd_indents_are_the_same_when_they_stream_and_when_they_are_loaded(
    chat: web.Browser, scripted: Scripted
) -> None:
    def answer(out: Out) -> None:
        out.begin()
        for sign in text:
            out.text(sign)
            painted.acquire(timeout=SOON_S)
        out.end()

    shape = f"return document.querySelector('{LAST} .body').innerHTML"
    for text in ODD_LISTS:
        painted = threading.Semaphore(0)
        scripted.answers = [answer]
        chat.click("#new")
        ask(chat, "a list")
        for i in range(1, len(text) + 1):
            wait_until(f"{i} are painted", lambda i=i: chat.text("#hint").startswith(f"{i} token"))
            painted.release()
        wait_done(chat, 1)
        streamed = chat.js(shape)
        chat.reload()
        chat.wait(".dot.ready")
        assert chat.js(shape) == streamed, text


def test_nothing_shifts_while_an_answer_streams(chat: web.Browser, scripted: Scripted) -> None:
    def answer(out: Out) -> None:
        out.begin()
        for i in range(0, len(MARKDOWN) * 4, 9):
            out.text((MARKDOWN * 4)[i : i + 9])
            if i % 90 == 0:
                ticks.acquire(timeout=5)
        out.end(**HIT)

    ticks = threading.Semaphore(0)
    scripted.answers = [answer]
    ask(chat, STORY)
    wait_until("it begins", lambda: len(chat.text(f"{LAST} .body")) > 3)
    chat.js("""window.shifts = [];
        new PerformanceObserver((list) => window.shifts.push(...list.getEntries().map((entry) => entry.value)))
            .observe({type: 'layout-shift', buffered: false});""")
    at_end = "const s = document.querySelector('#scroll'); return s.scrollHeight - s.scrollTop - s.clientHeight"
    left = False
    for _ in range(len(MARKDOWN) * 4 // 90 + 2):
        ticks.release()
        chat.js_later("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(1)))")
        if not left and chat.js("const s = document.querySelector('#scroll'); return s.scrollHeight > s.clientHeight + 200"):
            assert chat.js(at_end) < 2, "it follows what comes"
            chat.js("document.querySelector('#scroll').scrollTop = 0")
            left = True
    wait_done(chat, 1)
    assert left
    assert chat.js("return document.querySelector('#scroll').scrollTop") == 0, "it does not run away from a reader"
    assert sum(chat.js("return window.shifts")) < 0.001
    assert chat.is_shown("#newest")
    chat.click("#newest")
    wait_until("the newest line is in sight", lambda: chat.js(at_end) < 2)
    assert chat.text(f"{LAST} .stats").startswith("specache · 3 MiB device · 2 tokens")
    assert "75 %" in chat.text(f"{LAST} .cost dl")


# --- for everybody


def test_a_phone_needs_no_sideways_scrolling(chat: web.Browser, scripted: Scripted) -> None:
    wide = "a" * 300 + "\n\n```\n" + "b " * 300 + "\n```\n\n" + "|" + "c|" * 40 + "\n|" + "-|" * 40 + "\n|" + "d|" * 40
    scripted.answers = [lambda out: out.whole(wide)]
    chat.resize(360, 740, phone=True)
    chat.reload()
    chat.wait(".dot.ready")
    ask(chat, "x" * 200)
    chat.click("#send")
    wait_done(chat, 1)
    fits = "return document.documentElement.scrollWidth <= 360 && [...document.querySelectorAll('body *')].every((node) => "
    fits += "node.closest('.code, .table-scroll, .side, .hidden, svg') || node.getBoundingClientRect().right <= 361)"
    assert chat.js(fits)
    assert not chat.is_shown("#side")
    chat.click("#menu")
    chat.wait("#new")
    assert chat.focused() == "side-close"
    chat.click("#new")
    chat.click("#tune")
    chat.wait("#f-kv-policy")
    assert chat.js(fits)
    chat.click("#panel-close")
    chat.click("#view-live")
    chat.wait(".chart")
    assert chat.js(fits)


def test_it_is_used_without_a_mouse(chat: web.Browser, scripted: Scripted) -> None:
    scripted.answers = [lambda out: out.whole("One."), lambda out: out.whole("Two.")]
    chat.js("document.querySelector('a, button, input').focus()")
    assert chat.focused() == "Skip to the message field"
    chat.press(web.ENTER)
    assert chat.focused() == "prompt"
    ask(chat, "first\ue008\ue007\ue000second")
    wait_done(chat, 1)
    assert scripted.bodies[0]["messages"][0]["content"] == "first\nsecond"
    chat.press(web.UP)
    assert chat.focused() == "Edit the message"
    chat.press(web.ESCAPE)
    assert chat.is_shown(".user .body") and chat.count(".message") == 2
    chat.press(web.ALT, "n")
    assert chat.focused() == "prompt" and chat.count(".message") == 0
    chat.press(web.ALT, "s")
    assert chat.focused() == "f-kv-policy"
    chat.press(web.ESCAPE)
    assert chat.focused() == "tune" and not chat.is_shown("#panel")
    chat.press("/")
    assert chat.focused() == "prompt"
    chat.js("history.back()")
    wait_until("back is the conversation before", lambda: chat.count(".message") == 2)


def axe_source() -> str:
    axe = pytest.importorskip("axe_playwright_python", reason="axe-core is not installed: accessibility is not checked")
    return (pathlib.Path(axe.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(chat: web.Browser, scripted: Scripted, theme: str) -> None:
    source = axe_source()
    scripted.answers = [
        lambda out: (out.begin(), out.text(MARKDOWN), out.end(**HIT)),
        lambda out: out.error(503, "The queue is full."),
    ]
    chat.refusals = "status of 503"
    chat.theme(theme)

    def check(what: str) -> None:
        chat.js(source)
        found = chat.js_later("const done = arguments[0]; axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', "
                              "'wcag21aa', 'wcag22aa', 'best-practice']}).then(done)")  # fmt: skip
        problems = [(rule["id"], [node["html"][:120] for node in rule["nodes"]]) for rule in found["violations"]]
        assert not problems and len(found["passes"]) > 15, (what, problems)

    check("empty")
    ask(chat, STORY)
    wait_done(chat, 1)
    ask(chat, STORY)
    wait_done(chat, 2)
    chat.click(".cost summary")
    check("chat")
    chat.click("#tune")
    chat.type("#f-kv-policy", "specache")
    chat.click("#policy-settings summary")
    check("settings")
    chat.click("#panel-close")
    chat.click("#key")
    check("key")
    chat.press(web.ESCAPE)
    chat.click("#view-live")
    wait_until("it has a sample", lambda: chat.text("#tiles div:first-child dd") not in ("", "–"))
    check("live")
    chat.resize(360, 740, phone=True)
    chat.click("#view-chat")
    chat.click("#menu")
    check("phone")
