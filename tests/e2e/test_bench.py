"""make-model and bench: a model out of nothing is served like any other, and measured."""

from __future__ import annotations

import itertools
import json

import pytest
from harness import command

SHORT = ("--repetitions", "3", "--log-level", "error", "--threads", "1")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """A synthetic model of 0.3 MiB."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    made = command("make-model", "--shape", "tiny", "--seed", "7", path)
    assert made.returncode == 0, made.stderr
    assert "1 file" in made.stdout
    return path


def bench(*arguments):
    done = command("bench", *arguments, "--json", "-", *SHORT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- make-model -----------------------------------------------------------------------------------


def test_make_model__is_served_and_answers(servers, tiny):
    server = servers.start(model=tiny)
    with server.client() as client:
        told = client.completions.create(
            model="tiny", prompt=" bababa bababe", max_tokens=20, extra_body={"ignore_eos": True}
        )
        assert told.usage.prompt_tokens == 3  # with the beginning-of-text token
        assert told.usage.completion_tokens == 20
        assert told.choices[0].text.strip()
        chat = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hello"}], max_tokens=5
        )
        assert chat.usage.completion_tokens <= 5
    generated = command(
        "generate", "--model", tiny, "--max-tokens", "20", "--log-level", "error", " bababa bababe"
    )
    assert generated.returncode == 0, generated.stderr
    assert generated.stdout.strip()


def test_make_model__overrides(tmp_path):
    shape = tmp_path / "shape.json"
    shape.write_text(
        json.dumps(
            {
                "architectures": ["OPTForCausalLM"],
                "vocab_size": 400,
                "hidden_size": 32,
                "ffn_dim": 64,
                "num_hidden_layers": 5,
                "num_attention_heads": 2,
            }
        )
    )
    made = command(
        "make-model", "--shape", shape, "--layers", "2", "--context", "300", "--shard-size", "20K",
        tmp_path / "opt",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    config = json.loads((tmp_path / "opt" / "config.json").read_text())
    assert config["num_hidden_layers"] == 2
    assert config["max_position_embeddings"] == 300
    assert config["torch_dtype"] == "bfloat16"
    index = json.loads((tmp_path / "opt" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    told = command("info", "--model", tmp_path / "opt", "--log-level", "error")
    assert told.returncode == 0, told.stderr


def test_make_model__refusals(tmp_path, tiny):
    for arguments, code, words in [
        ((), 2, "--shape NAME and one directory"),
        (("--shape", "tiny"), 2, "--shape NAME and one directory"),
        (("--shape", "tiny", tmp_path / "a", tmp_path / "b"), 2, "one directory"),
        (("--shape", "gpt-5", tmp_path / "a"), 1, "expected one of tiny, tinyllama-1.1b"),
        (("--shape", "tiny", tiny), 1, "has a model already"),
        (("--shape", "tiny", "--seed", "-1", tmp_path / "a"), 2, "--seed is '-1'"),
        (("--shape", "tiny", "--depth", "1", tmp_path / "a"), 2, "unknown option '--depth'"),
        (("--shape", tmp_path, tmp_path / "a"), 1, "cannot be read"),
    ]:
        done = command("make-model", *arguments)
        assert done.returncode == code, (arguments, done)
        assert words in done.stderr, (arguments, done.stderr)


# --- bench ----------------------------------------------------------------------------------------


def test_bench__compares_settings_of_one_policy(tiny):
    """By its settings: one low-bit copy is half of the other."""
    specs = ["kivi:1:group=32:min_tokens=0", "kivi:2:group=32:min_tokens=0"]
    compare = [word for spec in specs for word in ("--compare", spec)]
    report = bench(tiny, "--prefill", "0", "--batch", "2", "--depth", "1024", "--no-mixed", *compare)
    assert [row["policy"] for row in report["rows"]] == ["full", *specs]
    full, one, two = (row["used_bytes"]["device"] for row in report["rows"])
    assert one < two < full


def test_bench__json_has_all_rows_and_true_bytes(tiny):
    report = bench(
        tiny, "--prefill", "70,200", "--batch", "1,3", "--depth", "0,640", "--compare", "offload"
    )
    model = report["model"]
    assert "error" not in report
    assert report["threads"] == 1
    assert model["kv_bytes_per_token"] == 2 * 2 * 16 * 2 * 2  # layers, heads, dim, K and V, bytes
    assert report["roofs_before"]["read_bytes_per_s"] > 0
    assert report["roofs_after"]["f32_flops_per_s"] > 0
    assert report["roofs_after"]["int8_ops_per_s"] >= 0
    rows = report["rows"]
    want = []
    for policy in ("full", "offload"):
        want += [("prefill", policy, tokens, None, None) for tokens in (70, 200)]
        want += [("decode", policy, None, batch, 0) for batch in (1, 3)]
        want += [("decode", policy, None, batch, 640) for batch in (1, 3)]
        want += [("mixed", policy, 200, 3, 640)]
    keys = ("what", "policy", "prompt_tokens", "batch", "depth")
    assert [tuple(row.get(key) for key in keys) for row in rows] == want
    embedding = 512 * 64 * 2
    for row in rows:
        assert "skipped" not in row, row
        assert 1 <= len(row["samples_s"]) <= 3
        assert row["samples_s"] == sorted(row["samples_s"])
        assert row["samples_s"][0] <= row["median_s"] <= row["samples_s"][-1]
        assert sum(row["seconds_by_kind"].values()) == pytest.approx(
            sum(row["samples_s"]) / len(row["samples_s"]), rel=1e-3
        )
        assert row["flops"] > 0
        assert 0 < row["of_roof"]["read"]
        if row["what"] != "decode":
            assert row["prefill_tokens_per_s"] > 0
            continue
        batch, depth = row["batch"], row["depth"]
        # All matrices once, and a row of the embedding for each sequence.
        assert row["weight_bytes"] == model["weight_bytes"] - embedding + batch * 64 * 2
        assert row["decode_tokens_per_s"] == pytest.approx(batch / row["median_s"], rel=1e-4)
        # Steps before this row's: of the first sequence a row's 3 and 1 to warm up. A step reads
        # the token that it adds, and the middle of the measured ones is the third with the first.
        before = [4 if batch == 3 else 0, 0, 0]
        tokens = [max(depth, 1) + steps + 3 for steps in before[:batch]]
        assert row["kv_bytes"] == sum(tokens) * model["kv_bytes_per_token"]
        page = 64 * model["kv_bytes_per_token"]
        if row["policy"] == "full":
            assert row["fetched_bytes"] == 0
            ends = [max(depth, 1) + steps + 4 for steps in before[:batch]]
            ends += [max(depth, 1)] * (3 - batch)
            assert row["used_bytes"]["device"] == sum(-(-end // 64) for end in ends) * page
        elif depth == 640:
            # Every closed page of every sequence, in every step.
            assert row["fetched_bytes"] == batch * (640 // 64) * page


def test_bench__offload_costs_what_it_fetches(tiny):
    rows = bench(tiny, "--prefill", "0", "--batch", "2", "--depth", "6400", "--kv", "offload",
                 "--no-mixed")["rows"]  # fmt: skip
    assert [row["what"] for row in rows] == ["decode"]
    assert rows[0]["fetched_bytes"] == pytest.approx(rows[0]["kv_bytes"], rel=0.01)


def test_bench__shares_kv_where_memory_is_short(tiny):
    arguments = ("--prefill", "0", "--batch", "1,6", "--depth", "6400", "--no-mixed")
    (alone, six) = bench(tiny, *arguments)["rows"]
    assert (alone["distinct"], six["distinct"]) == (1, 6)
    # Of 100 pages of 16 KiB: room for two sequences, a prompt's residual stream and a few pages.
    (_, six) = bench(tiny, *arguments, "--host-memory", "5M", "--device-memory", "5M")["rows"]
    assert six["distinct"] == 2
    assert six["used_bytes"]["device"] <= 4 << 20
    # Every sequence reads all of its KV, shared or not.
    assert six["kv_bytes"] == pytest.approx(6 * alone["kv_bytes"], rel=0.01)
    (alone, six) = bench(tiny, *arguments, "--host-memory", "1M", "--device-memory", "1M")["rows"]
    for row in (alone, six):
        assert "fit" in row["skipped"]
        assert "median_s" not in row
    (row,) = bench(tiny, "--prefill", "0", "--batch", "1", "--depth", "65536", "--no-mixed")["rows"]
    assert "the context is 65536" in row["skipped"]


def test_bench__processor_time_adds_up(tiny):
    report = bench(tiny, "--prefill", "64", "--batch", "2", "--depth", "100", "--cpu-time")
    assert report["cpu_time"] is True
    for row in report["rows"]:
        assert row["median_s"] > 0
        assert sum(row["seconds_by_kind"].values()) == pytest.approx(
            sum(row["samples_s"]) / len(row["samples_s"]), rel=1e-3
        )


def test_bench__tables_and_a_file(tiny, tmp_path):
    path = tmp_path / "result.json"
    done = command("bench", tiny, "--prefill", "64", "--batch", "2", "--depth", "100", "--profile",
                   "--json", path, *SHORT)  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert [row["what"] for row in rows] == ["prefill", "decode", "mixed"]
    lines = done.stdout.splitlines()
    for word, count in [("prefill", 1), ("decode", 1), ("mixed", 1)]:
        rows = [line for line in lines if line.startswith(f"{word} ")]
        assert len(rows) == count, done.stdout
        assert rows[0].count("%") == 4
    assert sum("linear" in line and "other" in line for line in lines) == 3
    # Which quotient that is.
    assert "decode/s, prefill/s: tokens of the mean step or prompt, by the\nmedian time" in done.stdout
    assert [line.split(":")[0] for line in lines if line.startswith("roofs")] == [
        "roofs before",
        "roofs after",
    ]


def test_bench__what_was_measured_outlives_a_failure(tiny, tmp_path):
    path = tmp_path / "result.json"
    done = command("bench", tiny, "--prefill", "64", "--batch", "1", "--depth", "100", "--compare", "infinigen",
                   "--json", path, *SHORT)  # fmt: skip
    assert done.returncode == 1 and "needs the model's skew" in done.stderr
    report = json.loads(path.read_text())
    assert "needs the model's skew" in report["error"]
    *rows, failed = report["rows"]
    assert [(row["what"], row["policy"]) for row in rows] == [(what, "full") for what in ("prefill", "decode", "mixed")]
    assert all(row["median_s"] > 0 for row in rows)
    assert failed["policy"] == "infinigen" and failed["skipped"].startswith("failed: ") and "median_s" not in failed


def test_bench__refusals(tiny, tmp_path):
    for arguments, code, words in [
        ((), 1, "no model"),
        ((tmp_path / "none",), 1, "none"),
        ((tiny, tiny), 2, "one model's directory"),
        ((tiny, "--kv", "lru"), 2, "--kv 'lru': there is no such policy; there are full"),
        ((tiny, "--compare", "lru"), 2, "--compare: 'lru'"),
        ((tiny, "--compare", "specache:3"), 2, "--compare: 'specache:3': bits is '3'"),
        ((tiny, "--compare", "full"), 2, "each policy is measured once"),
        ((tiny, "--batch", "1,x"), 2, "--batch is '1,x'"),
        ((tiny, "--depth", ""), 2, "--depth is ''"),
        ((tiny, "--prefill", "99999999"), 2, "--prefill is '99999999'"),
        ((tiny, "--repetitions", "0"), 2, "--repetitions is '0'"),
        ((tiny, "--json", tmp_path / "no" / "where"), 1, "No such file"),
        ((tiny, "--cpu-time", "--threads", "2"), 2, "--cpu-time wants --threads 1"),
        ((tiny, "--port", "80"), 2, "unknown option '--port'"),
    ]:
        done = command("bench", *arguments)
        assert done.returncode == code, (arguments, done)
        assert words in done.stderr, (arguments, done.stderr)


def test_bench__seeds_make_the_same_files(tmp_path):
    for name, seed in [("a", "1"), ("b", "1"), ("c", "2")]:
        made = command("make-model", "--shape", "tiny", "--seed", seed, tmp_path / name)
        assert made.returncode == 0, made.stderr
    data = {
        name: [
            (tmp_path / name / file).read_bytes()
            for file in ("model.safetensors", "config.json", "tokenizer.json")
        ]
        for name in "abc"
    }
    assert data["a"] == data["b"]
    for left, right in itertools.combinations("ac", 2):
        assert data[left][0] != data[right][0]
        assert data[left][1:] == data[right][1:]
