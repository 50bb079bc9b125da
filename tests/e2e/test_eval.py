"""`kvahead eval`: what it prints and writes, that it repeats itself, and how it refuses."""

from __future__ import annotations

import json
import os
import pathlib
import xml.etree.ElementTree as ET

import pytest
from harness import MODEL, ROOT, command

TEXT = ROOT / "LICENSE"
WINDOW = ("--from", "1088", "--tokens", "24")
CONFIG = json.loads((MODEL / "config.json").read_text())
LAYERS, HEADS = CONFIG["num_hidden_layers"], CONFIG["num_key_value_heads"]
DATA = pathlib.Path(os.environ.get("KVAHEAD_TEST_DATA") or ROOT.parent / "shared" / "data")


def evaluate(*arguments, **fields):
    return command("eval", "--model", MODEL, *arguments, **fields)


def measure(folder: pathlib.Path, *arguments) -> dict:
    """Run with --json; the parsed result, with the text under its name."""
    path = folder / "result.json"
    done = evaluate("--json", path, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no bar where there is no terminal
    return json.loads(path.read_text())


def by_name(result: dict) -> dict[str, dict]:
    return {policy["policy"]: policy for policy in result["policies"]}


def flat(matrix: list[list[float]]) -> list[float]:
    return [value for row in matrix for value in row]


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> dict:
    specs = (
        "full,offload,kivi:1,kivi:2,kivi:4,specache:2:32:predictor=spec-token,"
        "specache:2:32:predictor=prev-query:reselect_below=0,specache:2:32:predictor=sync"
    )
    folder = tmp_path_factory.mktemp("eval")
    return measure(folder, "--text", TEXT, *WINDOW, "--windows", "2", "--policies", specs)


def test_eval__exact_policies_are_exact(result):
    for name in ("full", "offload"):
        policy = by_name(result)[name]
        assert policy["kl_mean"] == policy["kl_max"] == 0
        assert policy["top1_agreement"] == 1
        assert policy["perplexity"] == policy["perplexity_full"] > 1
        assert set(flat(policy["mass_covered"])) == {1}


def test_eval__what_is_true_by_definition(result):
    policies = by_name(result)
    sync = policies["specache:2:32:predictor=sync"]
    assert set(flat(sync["hit_rate"])) == {1}
    assert set(flat(sync["waited"])) == {1}
    previous = policies["specache:2:32:predictor=prev-query:reselect_below=0"]
    assert set(flat(previous["waited"])) == {0}
    assert previous["spec_tokens"] == 0
    spec = policies["specache:2:32:predictor=spec-token"]
    assert spec["spec_tokens"] == spec["steps"] == result["steps"] == 48
    for policy in policies.values():
        covered, best = flat(policy["mass_covered"]), flat(policy["mass_best"])
        assert all(0 <= value <= 1.0001 for value in covered + best)
        assert 0 <= policy["kl_mean"] <= policy["kl_p99"] <= policy["kl_max"]
        assert len(policy["kl"]) == policy["steps"] and max(policy["kl"]) == policy["kl_max"]
        assert policy["device_bytes_full"] == policies["full"]["device_bytes"]


def test_eval__order_of_policies(result):
    policies = by_name(result)
    one, two, four = (policies[f"kivi:{bits}"] for bits in (1, 2, 4))
    assert one["kl_mean"] > four["kl_mean"] and two["kl_mean"] > four["kl_mean"] > 0
    assert one["device_bytes"] < two["device_bytes"] < four["device_bytes"]
    assert four["device_bytes"] < four["device_bytes_full"]
    sync = policies["specache:2:32:predictor=sync"]
    assert sync["kl_mean"] < two["kl_mean"]
    for layer, (with_rows, without) in enumerate(
        zip(sync["mass_covered"], two["mass_covered"], strict=True)
    ):
        assert sum(with_rows) > sum(without) - 0.02, layer


def test_eval__json_says_how_to_repeat_it(result):
    assert result["format"] == 1
    assert result["kvahead"]
    arguments = result["arguments"]
    assert arguments["from"] == 1088 and arguments["tokens"] == 24 and arguments["windows"] == 2
    assert result["prompt_tokens"] == [1088, 1088]
    model, settings = result["model"], by_name(result)["specache:2:32:predictor=spec-token"]["settings"]
    assert (model["layers"], model["kv_heads"], model["kv_dtype"]) == (LAYERS, HEADS, "bf16")
    assert settings["bits"] == 2 and settings["topk"] == 32
    assert {"group", "levels", "window", "sinks", "min_tokens", "predictor", "fetch"} <= set(settings)
    assert len(result["input"]["sha256"]) == 64
    for policy in result["policies"]:
        for name in ("mass_covered", "mass_best", "hit_rate", "best_hit_rate", "waited"):
            assert [len(row) for row in policy[name]] == [HEADS] * LAYERS


def test_eval__repeats_to_the_byte(tmp_path):
    outputs = []
    for run in ("--threads=1", "--threads=2", "--no-prefix-cache"):
        files = [tmp_path / "out.json", tmp_path / "out.svg"]
        done = evaluate(
            *("--text", TEXT, *WINDOW, "--policies", "kivi:1,specache:1:16", run),
            *("--json", files[0], "--svg", files[1]),
        )
        assert done.returncode == 0, done.stderr
        outputs.append([done.stdout, *(file.read_bytes() for file in files)])
    assert outputs[0] == outputs[1] == outputs[2]


def test_eval__a_document_instead_of_the_table(tmp_path):
    arguments = ("--text", TEXT, *WINDOW, "--policies", "kivi:1")
    json_there, svg_there = evaluate(*arguments, "--json", "-"), evaluate(*arguments, "--svg", "-")
    assert json_there.returncode == svg_there.returncode == 0
    assert json.loads(json_there.stdout) == measure(tmp_path, *arguments)
    assert ET.fromstring(svg_there.stdout).tag.endswith("svg")


def test_eval__table_and_pictures(tmp_path):
    svg = tmp_path / "heads.svg"
    done = evaluate(
        *("--text", TEXT, *WINDOW, "--policies", "full,specache:2:16:levels=mse", "--svg", svg)
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    row = next(line.split() for line in lines if line.startswith("full "))
    assert row[1:4] == ["0.00000", "0.00000", "100.0%"]
    assert any(line.startswith("hit by layer") for line in lines)
    picture = ET.parse(svg).getroot()
    words = [node.text for node in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert "specache:2:16:levels=mse" in words and "full" not in words
    # Layers times heads cells in three panels, every one with its number.
    assert (
        sum(word.replace(".", "").isdigit() and "." in word for word in words) == 3 * LAYERS * HEADS
    )


def test_eval__prompts(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        {"prompt": TEXT.read_text()[:6000], "completion": " and the terms of the License apply"},
        {"prompt": [7] * 1200},
        {"prompt": [9, 10] * 600, "completion": [11, 12, 13]},
    ]
    prompts.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    found = measure(
        tmp_path, "--prompts", prompts, "--tokens", "5", "--policies", "full,kivi:4:min_tokens=0"
    )
    assert found["prompt_tokens"][1:] == [1200, 1200]
    # The second follows full KV's own choice; the third has two steps.
    assert 2 + 2 < found["steps"] <= 2 + 5 + 20
    assert by_name(found)["full"]["kl_max"] == 0


REFUSALS = [
    (["--from", "1088", "--tokens", "24"], "give one of --text FILE, --prompts FILE and --stream FILE"),
    (["--text", "no-such-file", *WINDOW], "'no-such-file': No such file"),
    (["--text", "{folder}", *WINDOW], "Is a directory"),
    (["--text", "{empty}", *WINDOW], "is empty"),
    (["--text", "{binary}", *WINDOW], "is no UTF-8 text"),
    (["--text", "{short}", *WINDOW], "too few for 1 windows of 1088"),
    (["--text", "{text}", "--from", "8192"], "exceed the context of"),
    (["--text", "{text}", *WINDOW, "--windows", "900"], "too few for 900 windows"),
    (["--text", "{text}", *WINDOW, "--policies", "fast"], "'fast': there is no such policy"),
    (["--text", "{text}", *WINDOW, "--policies", "full,"], "'': there is no such policy"),
    (["--text", "{text}", *WINDOW, "--policies", "full,full"], "'full' is given twice"),
    (["--text", "{text}", *WINDOW, "--policies", "kivi:3"], "must be one of: 1, 2, 4"),
    (["--text", "{text}", *WINDOW, "--policies", "specache:2:9000"], "topk is 9000"),
    (["--text", "{text}", *WINDOW, "--json", "{folder}/no/where"], "No such file"),
    (["--text", "{text}", *WINDOW, "--device-memory", "1M"], "full KV"),
    (["--prompts", "{text}"], ": no JSON"),
    (["--text", "{text}", "--stream", "{text}"], "give one of --text FILE, --prompts FILE and --stream FILE"),
    (["--stream", "{short}"], "too few for 1 windows of 64"),
    (["--stream", "{text}", "--svg", "{folder}/x.svg"], "--svg draws no --stream"),
    (["--prompts", "{list}"], "line 2: expected an object with 'prompt'"),
    (["--prompts", "{ids}"], "line 1: 'prompt' may have token ids from 0 to"),
    (["--prompts", "{one}"], "line 1: 'completion' has one token"),
    (["--prompts", "{nul}"], "line 1: no JSON that a prompt could be"),
]


@pytest.mark.parametrize(("arguments", "says"), REFUSALS)
def test_eval__refuses(tmp_path, arguments, says):
    contents = {
        "empty": b"",
        "binary": b"text \xff\x00 text",
        "short": b"A few words.",
        "list": b'{"prompt": "fine"}\n["prompt"]\n',
        "ids": b'{"prompt": [1, 999999]}\n',
        "one": b'{"prompt": [1, 2], "completion": [3]}\n',
        "nul": b'{"prompt": "half\\u0000of it"}\n',
    }
    paths = {"text": str(TEXT), "folder": str(tmp_path)}
    for name, content in contents.items():
        paths[name] = str(tmp_path / name)
        (tmp_path / name).write_bytes(content)
    done = evaluate(*(argument.format(**paths) for argument in arguments))
    assert done.returncode == 1
    assert says in done.stderr, done.stderr
    assert done.stderr.startswith("kvahead: ") and done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_eval__a_real_model_without_tokenizer(tmp_path):
    model = DATA / "models" / "stories260K"
    if not model.exists():
        pytest.skip(f"there is no {model}")
    ids = json.loads((model / "ref" / "ref.json").read_text())["ids"]
    prompts = tmp_path / "story.jsonl"
    prompts.write_text(json.dumps({"prompt": ids[:384], "completion": ids[384:]}))
    specs = "full,kivi:1:min_tokens=0,kivi:4:min_tokens=0,specache:1:32:min_tokens=0:predictor=sync"
    path = tmp_path / "result.json"
    done = command(
        *("eval", "--model", model / "derived-hf", "--prompts", prompts),
        *("--policies", specs, "--json", path),
    )
    assert done.returncode == 0, done.stderr
    full, one, four, sync = json.loads(path.read_text())["policies"]
    assert full["kl_max"] == 0 and 1 < full["perplexity"] < 10
    assert one["kl_mean"] > sync["kl_mean"] > 0 and one["kl_mean"] > four["kl_mean"] > 0
    text = tmp_path / "text"
    text.write_text("words")
    done = command("eval", "--model", model / "derived-hf", "--text", text)
    assert done.returncode == 1 and "no tokenizer.json" in done.stderr


def test_eval__a_stream_past_the_context(tmp_path):
    fields = ("--stream", TEXT, "--context", "256", "--tokens", "100", "--windows", "6")
    policies = ("--policies", "full,streaming:window=64,streaming:window=64:sinks=0")
    told = by_name(measure(tmp_path, *fields, *policies))
    full, kept, alone = (policy["windows"] for policy in told.values())
    assert [window is None for window in full] == 2 * [False] + 4 * [True]
    # Up to 100 tokens all is there; sinks make the difference later, and memory none.
    assert full[0]["perplexity"] == kept[0]["perplexity"] == alone[0]["perplexity"]
    assert kept[5]["perplexity"] != alone[5]["perplexity"]
    assert len({window["device_bytes"] for window in kept[2:]}) == 1
    assert kept[5]["kept_tokens"] == 600 - 8 * 64 + 4
    assert full[1]["device_bytes"] > full[0]["device_bytes"]
    done = evaluate(*fields, *policies)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.count("perplexity") == 3 and done.stdout.count(" -\n") == 4


def test_eval__percents_of_a_stream_are_of_its_tokens(tmp_path):
    fields = ("--stream", TEXT, "--tokens", "100", "--windows", "4", "--policies")
    percents = measure(tmp_path, *fields, "h2o:heavy=50%:recent=50%")
    numbers = measure(tmp_path, *fields, "h2o:heavy=200:recent=200")
    kept = [[window["kept_tokens"] for window in of["policies"][0]["windows"]] for of in (percents, numbers)]
    assert kept[0] == kept[1] and kept[0][3] > 300


def test_eval__how_few_tokens_attention_needs(tmp_path):
    fields = ("--stream", TEXT, "--tokens", "100", "--windows", "2", "--policies", "full")
    percents = ("--sparsity", "1,10,50,100")
    shares = measure(tmp_path, *fields, *percents)["sparsity"]
    assert [share["tokens"] for share in shares] == [2, 20, 100, 200]
    assert all(share["greedy"] <= share["best"] for share in shares)
    best = [share["best"] for share in shares]
    assert best == sorted(best) and shares[3]["best"] == shares[3]["greedy"] == 1
    done = evaluate(*fields, *percents)
    assert done.returncode == 0 and done.stderr == ""
    assert "100.0%" in done.stdout and "greedy" in done.stdout
    for wrong, why in (("0", "'0' is no percentage"), ("5,,1", "'' is no percentage"),
                       ("5%", "'5%' is no percentage"), ("101", "'101' is no percentage"),
                       (",".join(["1"] * 33), "more than 32")):
        done = evaluate(*fields, "--sparsity", wrong)
        assert done.returncode == 1 and why in done.stderr, done.stderr
    done = evaluate(*fields[:-1], "kivi:2", *percents)
    assert done.returncode == 1 and "--policies full" in done.stderr
    done = evaluate(*fields, "--context", "128", *percents)
    assert done.returncode == 1 and "exceed the context of 128" in done.stderr
    done = evaluate("--stream", TEXT, "--tokens", "1", "--policies", "full", *percents)
    assert done.returncode == 1 and "second half" in done.stderr
