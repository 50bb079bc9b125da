"""What the command line's lists mean, and one clear line for what they cannot mean."""

from __future__ import annotations

import pytest

from kvahead_quality import specs
from kvahead_quality.errors import UsageError


@pytest.mark.parametrize(
    ("spec", "kv"),
    [
        ("full", {"policy": "full"}),
        ("offload", {"policy": "offload"}),
        ("kivi:1", {"policy": "kivi", "bits": 1}),
        ("specache:1:64", {"policy": "specache", "bits": 1, "topk": 64}),
        ("specache:bits=2:topk=128", {"policy": "specache", "bits": 2, "topk": 128}),
        ("specache:2:topk=128", {"policy": "specache", "bits": 2, "topk": 128}),
        (
            "specache:1:0:levels=minmax:predictor=prev-query:paper=true:window=128",
            {
                "policy": "specache",
                "bits": 1,
                "topk": 0,
                "levels": "minmax",
                "predictor": "prev-query",
                "paper": True,
                "window": 128,
            },
        ),
        ("specache:1:64+256@0-1", {"policy": "specache", "bits": 1, "topk": "64+256@0-1"}),
        ("specache:topk=64+9@3:on_mispredict=chain", {"policy": "specache", "topk": "64+9@3", "on_mispredict": "chain"}),
        ("specache:2:exact=true", {"policy": "specache", "bits": 2, "exact": True}),
        ("q-hitter", {"policy": "q-hitter"}),
        ("h2o:heavy=15%:recent=64", {"policy": "h2o", "heavy": "15%", "recent": 64}),
        ("infinigen:cap=20%:skew=none", {"policy": "infinigen", "cap": "20%", "skew": "none"}),
        ("default", None),
    ],
)
def test_parse_policy__accepts(spec: str, kv: dict[str, object] | None) -> None:
    # A policy always asks for the report with the KV bytes.
    wanted = kv and kv | {"report": True}
    assert specs.parse_policy(spec) == specs.Policy(spec, wanted)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("", "expected NAME"),
        (":1", "expected NAME"),
        ("Full", "expected NAME"),
        ("kivi:", "bits must be a number or a word, not ''"),
        ("kivi:-1", "bits must be"),
        ("kivi:1.5", "bits must be"),
        ("kivi:٣", "bits must be"),
        ("specache:1:64 9", "topk must be"),
        ("specache:levels=", "levels must be a number or a word"),
        ("specache:=3", "'' is no name"),
        ("specache:Depth=3", "'Depth' is no name"),
        ("specache:1:64:9", "too many numbers"),
        ("specache:bits=1:bits=2", "'bits' is given twice"),
        ("specache:bits=1:64", "too many numbers"),
        ("specache:policy=full", "'policy' is given twice"),
        ("default:1", "takes no parameters"),
    ],
)
def test_parse_policy__refuses(spec: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        specs.parse_policy(spec)
    assert says in str(caught.value) and repr(spec) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parse_policies__none_means_no_kv_field() -> None:
    assert specs.parse_policies(None) == [specs.Policy("default", None)]
    with pytest.raises(UsageError, match="given twice"):
        specs.parse_policies("full,full")
    with pytest.raises(UsageError, match="empty entry"):
        specs.parse_policies("full,")


@pytest.mark.parametrize(
    ("text", "tokens"), [("4096", 4096), ("2k", 2048), ("128K", 131072), ("1m", 1048576)]
)
def test_parse_length__accepts(text: str, tokens: int) -> None:
    assert specs.parse_length(text) == tokens


@pytest.mark.parametrize(
    "text", ["", "k", "4kb", "-1", "1.5k", "100", "17m", "99999999999", "0x10"]
)
def test_parse_length__refuses(text: str) -> None:
    with pytest.raises(UsageError, match="--lengths"):
        specs.parse_length(text)


def test_parse_lengths__sorts_and_refuses_one_length_in_two_spellings() -> None:
    assert specs.parse_lengths("8k,2k") == [2048, 8192]
    with pytest.raises(UsageError, match="twice"):
        specs.parse_lengths("2k,2048")


def test_parse_tasks__names_and_all() -> None:
    assert specs.parse_tasks("vt,cwe") == ["vt", "cwe"]
    assert len(specs.parse_tasks("all")) == 12
    with pytest.raises(UsageError, match="unknown task 'qa_1'"):
        specs.parse_tasks("vt,qa_1")


def test_parse_depths__count_or_list() -> None:
    assert specs.parse_depths("5") == [0, 25, 50, 75, 100]
    assert specs.parse_depths("50,0") == [0, 50]
    for bad in ("1", "x", "0,101", "2.5", "0,,1", "nan", "-1,5", "5,5.0", "1e1,2"):
        with pytest.raises(UsageError, match="--depths"):
            specs.parse_depths(bad)


def test_length_label__is_what_people_write() -> None:
    assert [specs.length_label(n) for n in (2048, 3000, 131072, 1048576)] == [
        "2k",
        "3000",
        "128k",
        "1m",
    ]


def test_topk_families__policies_that_differ_in_rows_only() -> None:
    labels = ["full", "kivi:1", "kivi:2:levels=mse", "specache:1:64", "specache:1:16"]
    assert specs.topk_families(labels) == [
        specs.TopkFamily("specache:1", {64: "specache:1:64", 16: "specache:1:16", 0: "kivi:1"})
    ]
    # Two values are no sweep, rows by layer are not one number, other settings are another family.
    labels = ["kivi:2", "specache:2:64", "specache:2:1+2@0", "specache:2:16:on_mispredict=chain", "default"]
    assert specs.topk_families(labels) == []
    labels = [f"specache:{k}:levels=mse:bits=2".replace(":", ":topk=", 1) for k in (1, 2, 3)]
    assert specs.topk_families([*labels, "kivi:levels=mse:2".replace(":2", ":bits=2")]) == [
        specs.TopkFamily(
            "specache:2:levels=mse",
            {1: labels[0], 2: labels[1], 3: labels[2], 0: "kivi:levels=mse:bits=2"},
        )
    ]
