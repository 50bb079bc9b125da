"""The page's live view, before a server whose numbers the test makes."""

from __future__ import annotations

import itertools
import json

import browser as web
import pytest
from harness import wait_until
from scripted import Scripted

if not web.find():
    pytest.skip("chromium and chromedriver are not installed: the page is not tested", allow_module_level=True)

AXIS = "return document.querySelector('.chart .axis').textContent"


def sample(running: float) -> tuple[int, str, dict[str, str]]:
    return 200, f"kvahead_requests_running {running}\n", {"Content-Type": "text/plain"}


@pytest.mark.parametrize("running, axis", [(99995, "100,000"), (9.9995, "10"), (7, "10"), (0, "1"), (100, "200")])
def test_the_axis_has_an_end(chat: web.Browser, scripted: Scripted, running: float, axis: str) -> None:
    scripted.places["/metrics"] = lambda: sample(running)
    chat.click("#view-live")
    chat.wait(".chart path.s1[d^=M]")
    assert chat.js(AXIS) == axis


def test_a_chart_shows_the_place_that_is_pointed_at_until_the_pointer_leaves(
    chat: web.Browser, scripted: Scripted
) -> None:
    numbers = itertools.count(1)
    scripted.places["/metrics"] = lambda: sample(next(numbers))
    chat.click("#view-live")

    def value() -> int:
        return int(chat.text(".chart:first-child .legend .key:first-child b").replace("–", "0") or 0)

    wait_until("there are samples", lambda: value() >= 3)
    chat.js("""const svg = document.querySelector('.plot svg');
        const {left, top} = svg.getBoundingClientRect();
        svg.dispatchEvent(new PointerEvent('pointermove', {clientX: left, clientY: top + 9}));""")
    mark = "return document.querySelector('.mark').style.display"
    assert value() == 1 and chat.js(mark) == ""
    # It stays where the pointer is: samples move below it.
    wait_until("the next samples come", lambda: value() >= 3)
    assert chat.js(mark) == "" and value() < next(numbers) - 2
    chat.js("document.querySelector('.plot svg').dispatchEvent(new PointerEvent('pointerleave'))")
    assert chat.js(mark) == "none" and value() >= 4


def test_requests_that_are_not_listed_are_counted(chat: web.Browser, scripted: Scripted) -> None:
    def requests(many: int):
        request = {"id": "chat-0123456789", "state": "decode", "prefilled_tokens": 1, "prompt_tokens": 1,
                   "output_tokens": 1, "policy": "full", "device_bytes": 1, "host_bytes": 1,
                   "prefetch_hit_rate": None, "age_s": 1}  # fmt: skip
        return lambda: (200, json.dumps({"data": [request] * many}), {"Content-Type": "application/json"})

    scripted.places["/v1/kvahead/requests"] = requests(1234)
    chat.click("#view-live")
    wait_until("they are listed", lambda: chat.count("#running tbody tr") == 100)
    assert chat.text("#running p") == "1,134 more are not shown."
    scripted.places["/v1/kvahead/requests"] = requests(100)
    wait_until("all are listed", lambda: chat.count("#running p") == 0)
    assert chat.count("#running tbody tr") == 100
