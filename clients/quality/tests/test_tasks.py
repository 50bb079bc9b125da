"""Task generators: fixed by seed, true to RULER's wording, solvable from their own text."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from stub import answer_to

from kvahead_quality.tasks import DEFAULT_TASKS, TASKS, NeedleGridTask, TaskError, words
from kvahead_quality.tasks.counting import zeta
from kvahead_quality.tasks.filler import phrases
from kvahead_quality.tasks.niah import DEPTHS

SIZES = {"cwe": 60, "fwe": 300, "facts": 60}
# sha256 of the text with seed 7, index 3, length 4096 and 40 units (SIZES). A change here is a
# change of the benchmark: raise GENERATOR_VERSION with it.
GOLDEN: dict[str, str] = {
    "niah_single_1": "48bfed6c0bef2290",
    "niah_single_2": "9b031adacaddd099",
    "niah_single_3": "16b2a23ae47b5c63",
    "niah_multikey_1": "866b0c25a9e85183",
    "niah_multikey_2": "1cc235391df11bc0",
    "niah_multikey_3": "db8970b197d8ceb4",
    "niah_multivalue": "e12846717b23542d",
    "niah_multiquery": "83e5a028635d9359",
    "vt": "beae4c0311cf7583",
    "cwe": "e77a8865598d812a",
    "fwe": "68fa3f5aaadf81cb",
    "facts": "d761cc9e854cfec3",
}


def build(name: str, size: int | None = None, length: int = 4096, seed: int = 7, index: int = 3):
    return TASKS[name].build(size or SIZES.get(name, 40), length, seed, index)


@pytest.mark.parametrize("name", TASKS)
def test_build__golden_by_seed(name: str) -> None:
    text = build(name).text
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == GOLDEN[name]


@pytest.mark.parametrize("name", TASKS)
def test_build__seed_index_and_length_change_the_sample(name: str) -> None:
    base = build(name)
    assert build(name) == base
    for other in (build(name, seed=8), build(name, index=4), build(name, length=8192)):
        assert other.text != base.text
        assert other.references != base.references


@pytest.mark.parametrize("name", TASKS)
def test_build__references_follow_from_the_text(name: str) -> None:
    for index in range(5):
        sample = build(name, index=index)
        assert set(answer_to(sample.text)) == set(sample.references)
        assert len(set(sample.references)) == len(sample.references)
        assert not any(ref in sample.answer_prefix for ref in sample.references)


@pytest.mark.parametrize("name", TASKS)
def test_build__questions_share_their_context(name: str) -> None:
    task = TASKS[name]
    size = SIZES.get(name, 40)
    samples = [task.build(size, 4096, 7, 3, q) for q in range(min(task.questions_max, 12))]
    assert len({sample.references for sample in samples}) == len(samples)
    for sample in samples:
        assert set(answer_to(sample.text)) == set(sample.references)
        context, question = sample.prompt.rsplit("\n", 1)
        assert len(samples) == 1 or context == samples[0].prompt.rsplit("\n", 1)[0]
        assert len(samples) == 1 or question.startswith("What is")


def test_build__which_tasks_have_several_questions() -> None:
    assert {name: task.questions_max for name, task in TASKS.items() if task.questions_max > 1} == {
        "niah_multikey_1": 4,
        "niah_multikey_2": 30,
        "niah_multikey_3": 30,
        "facts": 30,
    }


def test_facts__keys_and_codes_are_all_different() -> None:
    sample = TASKS["facts"].build(200, 8192, 7, 3)
    found = re.findall(r"code of the (\w+) (\w+) locker is ([0-9a-f]{8})\.", sample.prompt)
    assert [len(set(column)) for column in zip(*found, strict=True)] == [60, 60, 60]
    assert len(re.findall("The access code", TASKS["facts"].build(60, 2048, 7, 3).prompt)) == 16


def test_build__reference_counts_are_rulers() -> None:
    counts = {name: len(build(name).references) for name in DEFAULT_TASKS}
    assert counts == {
        "niah_single_1": 1,
        "niah_multikey_2": 1,
        "niah_multikey_3": 1,
        "niah_multivalue": 4,
        "niah_multiquery": 4,
        "vt": 5,
        "cwe": 10,
        "fwe": 3,
    }
    assert {n: TASKS[n].max_tokens for n in ("niah_single_1", "vt", "cwe", "fwe")} == {
        "niah_single_1": 128,
        "vt": 30,
        "cwe": 120,
        "fwe": 50,
    }


def test_niah_single_1__wording() -> None:
    sample = build("niah_single_1", size=3)
    lines = sample.prompt.split("\n")
    assert lines[0] == (
        "A special magic number is hidden within the following text. Make sure to memorize it. "
        "I will quiz you about the number afterwards."
    )
    noise = (
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    )
    body = lines[1:-1]
    assert body.count(noise) == 3 and len(body) == 4
    (needle,) = (line for line in body if line != noise)
    match = re.fullmatch(r"One of the special magic numbers for (\w+-\w+) is: (\d{7})\.", needle)
    assert match and match[2] == sample.references[0]
    assert lines[-1] == (
        f"What is the special magic number for {match[1]} mentioned in the provided text?"
    )
    assert sample.answer_prefix == (
        f" The special magic number for {match[1]} mentioned in the provided text is"
    )


def test_niah_multiquery__asks_for_four_keys() -> None:
    sample = build("niah_multiquery")
    a, b, c, d = sample.meta["asked"]
    assert sample.prompt.endswith(
        f"What are all the special magic numbers for {a}, {b}, {c}, and {d} mentioned in the "
        "provided text?"
    )
    assert sample.prompt.startswith("Some special magic numbers are hidden within")


def test_niah_multivalue__one_key_has_all_values() -> None:
    sample = build("niah_multivalue")
    (key,) = sample.meta["asked"]
    for value in sample.references:
        assert f"One of the special magic numbers for {key} is: {value}." in sample.prompt


@pytest.mark.parametrize("name", ["niah_multikey_2", "niah_multikey_3"])
def test_niah_multikey__every_line_is_a_needle_and_keys_are_unique(name: str) -> None:
    sample = build(name, size=500)
    found = re.findall(r"^One of the special magic \w+ for (\S+) is: (\S+)\.$", sample.prompt, re.M)
    assert len(found) == 501
    assert len({key for key, _ in found}) == 501
    assert len({value for _, value in found}) == 501


def test_vt__one_example_then_one_chain_in_order() -> None:
    sample = build("vt")
    example, question = sample.prompt.split("\n\n\n\n")
    assert example.count("VAR ") == question.count("VAR ") == 9
    chain = re.findall(r"VAR (\w+) = (?:VAR )?(\w+)", question)
    assert [name for name, _ in chain] == list(sample.references)
    assert [source for _, source in chain[1:]] == list(sample.references[:-1])
    assert all(re.fullmatch(r"[A-Z]{5}", name) for name in sample.references)
    assert re.search(r"they are: ([A-Z]{3} ){4}[A-Z]{3}$", example)


@pytest.mark.parametrize(("length", "often", "rarely"), [(2048, 6, 1), (4096, 30, 3)])
def test_cwe__frequencies_are_rulers(length: int, often: int, rarely: int) -> None:
    sample = build("cwe", size=50, length=length)
    section = sample.prompt[sample.prompt.rfind("Below is") :]
    items = re.findall(r"(\d+)\. (\w+)", section.split("\nQuestion")[0])
    assert [int(number) for number, _ in items] == list(range(1, len(items) + 1))
    counts = Counter(word for _, word in items)
    assert {counts[ref] for ref in sample.references} == {often}
    assert {n for word, n in counts.items() if word not in sample.references} == {rarely}
    assert len(counts) == 50


def test_cwe__no_rare_word_contains_a_common_one_even_beyond_the_list() -> None:
    sample = build("cwe", size=3000)
    section = sample.prompt[sample.prompt.rfind("Below is") :].split("\nQuestion")[0]
    items = set(re.findall(r"\d+\. (\w+)", section))
    assert len(items) == 3000 > len(words.ALL_WORDS)
    rare = items - set(sample.references)
    assert not [w for w in rare for ref in sample.references if ref in w or w in ref]


@pytest.mark.parametrize("size", [80, 81, 97, 150, 1000, 9999])
def test_fwe__ranks_two_to_five_differ(size: int) -> None:
    sample = build("fwe", size=size)
    section = sample.prompt.split("coded words. ")[1].split("\nQuestion")[0]
    counts = Counter(section.split())
    ranked = counts.most_common(5)
    assert ranked[0][0] == "..."
    assert [word for word, _ in ranked[1:4]] == list(sample.references)
    assert ranked[1][1] > ranked[2][1] > ranked[3][1] > ranked[4][1]


def test_zeta__known_values() -> None:
    assert zeta(2.0) == pytest.approx(1.6449340668482264, abs=1e-12)
    assert zeta(3.0) == pytest.approx(1.2020569031595942, abs=1e-12)
    assert zeta(1.5) == pytest.approx(2.612375348685488, abs=1e-10)


def test_depths__are_rulers_forty() -> None:
    assert len(DEPTHS) == 40 and DEPTHS[0] == 0 and DEPTHS[-1] == 100 and DEPTHS[1] == 3


@pytest.mark.parametrize("haystack", ["essay", "noise"])
@pytest.mark.parametrize("depth", [0, 25, 50, 100])
def test_needle_grid__needle_is_at_its_depth(haystack: str, depth: float) -> None:
    sample = NeedleGridTask(depth, haystack).build(200, 4096, 1, 0)
    context = sample.prompt.split("\n")[1]
    start = context.index("One of the special magic")
    before = context[:start].count(". ")
    assert before == 2 * depth
    assert len(context.split(". ")) == 201
    assert answer_to(sample.text) == list(sample.references)


def test_needle_grid__depth_and_haystack_are_checked() -> None:
    with pytest.raises(TaskError, match="depth 101"):
        NeedleGridTask(101)
    with pytest.raises(TaskError, match="unknown haystack 'sand'"):
        NeedleGridTask(50, "sand")


def test_words__lists_are_clean() -> None:
    for group in (words.ADJECTIVES, words.NOUNS, words.VERBS):
        assert len(set(group)) == len(group)
        assert all(re.fullmatch(r"[a-z]{3,12}", word) for word in group)
    assert len(words.ADJECTIVES) * len(words.NOUNS) > 100_000


def test_filler__has_no_digits_and_no_magic() -> None:
    text = " ".join(phrases())
    assert not re.search(r"\d", text) and "magic" not in text


def test_tasks__need_only_the_standard_library() -> None:
    code = (
        "import sys, kvahead_quality.tasks\n"
        "bad = {'openai', 'rich', 'numpy', 'matplotlib', 'tokenizers'} & set(sys.modules)\n"
        "sys.exit(', '.join(bad) or 0)"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
