"""`kvahead skew`: the file that it makes, that it repeats itself, how it refuses, and what is left when it is stopped."""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest
from harness import BINARY, MODEL, ROOT, command, wait_until

TEXT = ROOT / "LICENSE"
WINDOWS = ("--text", TEXT, "--window", "256", "--tokens", "1024")


def copied(folder):
    """The bundled model in a folder of its own."""
    model = folder / "model"
    model.mkdir()
    for file in MODEL.iterdir():
        if file.is_file() and not file.name.startswith("kvahead."):
            shutil.copy(file, model)
    return model


def make(model, *arguments, **fields):
    return command("skew", "--model", model, *WINDOWS, *arguments, **fields)


@pytest.fixture(scope="module")
def lapack(tmp_path_factory):
    """Skips where the program was built without LAPACK, once it has said so."""
    done = command("skew", "--model", MODEL)
    if "without LAPACK" in done.stderr:
        assert done.returncode == 1 and "liblapacke-dev" in done.stderr
        pytest.skip("built without LAPACK")


@pytest.fixture(scope="module")
def made(lapack, tmp_path_factory):
    model = copied(tmp_path_factory.mktemp("skew"))
    done = make(model, "--threads", "1", "--report", "--json", model.parent / "result.json")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no bar where there is no terminal
    return model, done.stdout


def test_skew__a_file_is_made_beside_the_model(made):
    model, table = made
    assert (model / "kvahead.skew").is_file() and not (model / "kvahead.skew.new").exists()
    for part in ("Cosine of a layer's input", "Energy in the first columns", "Of the tokens that a query wants"):
        assert part in table
    result = json.loads((model.parent / "result.json").read_text())
    config = json.loads((model / "config.json").read_text())
    assert len(result["layers"]) == config["num_hidden_layers"]
    assert result["windows"] == 4 and result["windows_looked_at"] == 1 and result["window_tokens"] == 256
    for layer in result["layers"]:
        for share in layer["energy"]:
            assert 0 < share["queries"] <= 1.000001 and 0 < share["queries_skewed"] <= 1.000001
        for found in layer["found"]:
            assert 0 <= found["recall"] <= 1 and 0 <= found["mass"] <= 1.000001 and found["queries"] > 0
    assert "cosine_input" in result["layers"][1] and result["layers"][0]["cosine_input"] is None


def test_skew__wanted_tokens_are_counted_at_the_papers_contexts(lapack, tmp_path):
    out = tmp_path / "result.json"
    done = command(
        *("skew", "--model", MODEL, "--text", TEXT, "--window", "1536", "--tokens", "1536"),
        *("--out", tmp_path / "skew", "--report", "--json", out),
    )
    assert done.returncode == 0, done.stderr
    for layer in json.loads(out.read_text())["layers"]:
        assert [wanted["context"] for wanted in layer["wanted"]] == [512, 1024, 1536]
        assert all(1 <= wanted["tokens"] <= wanted["context"] for wanted in layer["wanted"])


def test_skew__the_same_bytes_again_and_with_other_threads(made):
    model, table = made
    first = (model / "kvahead.skew").read_bytes()
    out = model.parent / "again"
    done = make(model, "--threads", "2", "--report", "--out", out)
    assert done.returncode == 0, done.stderr
    assert out.read_bytes() == first
    assert done.stdout.partition("\n")[2] == table.partition("\n")[2]


def test_skew__one_of_other_weights_is_refused_only_where_it_was_asked_for(made, tmp_path):
    model, _ = made
    other = copied(tmp_path)
    weights = bytearray((other / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (other / "model.safetensors").write_bytes(weights)
    shutil.copy(model / "kvahead.skew", other)
    arguments = ("--max-tokens", "2", "Hello")
    assert command("generate", "--model", other, *arguments).returncode == 0
    done = command("generate", "--model", other, "--skew", other / "kvahead.skew", *arguments)
    assert done.returncode == 1 and "made of other weights" in done.stderr and "kvahead skew --model" in done.stderr
    done = command("generate", "--model", other, "--skew", other / "nowhere", *arguments)
    assert done.returncode == 1 and "is not there" in done.stderr
    assert command("generate", "--model", model, "--skew", model / "kvahead.skew", *arguments).returncode == 0


def test_skew__planes_want_their_part_of_the_query_weights(made):
    model, _ = made
    arguments = ("--model", model, "--max-tokens", "4", "--kv", "infinigen:skew=planes:min_tokens=0", "Hello")
    done = command("generate", *arguments)
    assert done.returncode == 1 and "--skew-planes PERCENT" in done.stderr
    assert command("generate", "--skew-planes", "50", *arguments).returncode == 1
    done = command("generate", "--skew-planes", "30", *arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no text: --text FILE"),
        (("--text", "nowhere"), "'nowhere': No such file"),
        (("--text", TEXT, "--tokens", "1000000"), "too few for"),
        (("--text", TEXT, "--window", "8192"), "exceeds the model's context"),
        (("--text", TEXT, "--window", "100", "--tokens", "256"), "too few"),
        ((*WINDOWS, "--out", "/proc/self/nowhere"), "--out names another place"),
        (("--text", "nowhere", "--out", "/none/file.skew"), "/none/file.skew cannot be written"),
        ((*WINDOWS, "--out", "/dev/full"), "'/dev/full' is no regular file"),
        (("--text", "nowhere", "--fold", str(MODEL)), "is there already"),
        ((*WINDOWS, "--json", "/proc/self/nowhere"), "/proc/self/nowhere"),
        ((*WINDOWS, "--fold", "nowhere"), "RoPE"),
    ],
)
def test_skew__what_cannot_be_done_is_said(lapack, arguments, message):
    done = command("skew", "--model", MODEL, *arguments)
    assert done.returncode == 1 and message in done.stderr, done.stderr
    assert not (MODEL / "kvahead.skew").exists()


def test_skew__arguments_are_refused(lapack):
    done = command("skew", "--model", MODEL, "text")
    assert done.returncode == 2 and "takes options only, not 'text'" in done.stderr


def test_skew__stopped_it_leaves_nothing(lapack, tmp_path):
    model = copied(tmp_path)
    before = sorted(file.name for file in model.iterdir())
    text = tmp_path / "text"
    text.write_text(TEXT.read_text() * 40)
    process = subprocess.Popen(
        [BINARY, "skew", "--model", model, "--text", text, "--tokens", "50000", "--window", "256"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    # Before or while it works: neither leaves anything.
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert sorted(file.name for file in model.iterdir()) == before


# --- folding ----------------------------------------------------------------------------------

OPT = {"architectures": ["OPTForCausalLM"], "model_type": "opt", "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 3,
       "num_attention_heads": 4, "vocab_size": 600, "max_position_embeddings": 512, "word_embed_proj_dim": 64,
       "do_layer_norm_before": True, "activation_function": "relu", "torch_dtype": "float16", "tie_word_embeddings": True}


@pytest.fixture(scope="module")
def folded(lapack, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fold")
    (folder / "config.json").write_text(json.dumps(OPT))
    model, out = folder / "opt", folder / "folded"
    assert command("make-model", "--shape", folder / "config.json", "--seed", "3", model).returncode == 0
    done = make(model, "--fold", out)
    assert done.returncode == 0, done.stderr
    return model, out


def test_skew__a_folded_checkpoint_is_whole(folded):
    model, out = folded
    names = {file.name for file in model.iterdir()}
    assert {file.name for file in out.iterdir()} == names and "tokenizer.json" in names
    assert not (model / "kvahead.skew").exists() and not out.with_suffix(".new").exists()
    for name in names - {"model.safetensors"}:
        assert (out / name).read_bytes() == (model / name).read_bytes()
    was, now = ((folder / "model.safetensors").read_bytes() for folder in (model, out))
    assert len(was) == len(now) and was != now
    done = make(model, "--fold", out)
    assert done.returncode == 1 and "is there already" in done.stderr


def test_skew__a_folded_checkpoint_says_the_same(folded):
    texts = []
    for folder in folded:
        done = command("generate", "--model", folder, "--max-tokens", "48", "A text to go on with:")
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0] == texts[1]


def test_skew__stopped_after_folding_it_says_what_is_there(folded, tmp_path):
    model, _ = folded
    out, file = tmp_path / "out", tmp_path / "file.skew"
    # Whoever makes the file holds this one: so long others wait.
    with open(f"{file}.new", "wb") as new:
        fcntl.flock(new, fcntl.LOCK_EX)
        process = subprocess.Popen([BINARY, "skew", "--model", model, *WINDOWS, "--fold", out, "--out", file],
                                   stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        opened = pathlib.Path(f"/proc/{process.pid}/fd")
        wait_until("it waits", lambda: any(fd.is_symlink() and os.readlink(fd) == new.name for fd in opened.iterdir()))
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == -signal.SIGINT
    assert said.endswith(f"\nkvahead: stopped; '{out}' was written, '{file}' was not\n")
    assert (out / "model.safetensors").is_file() and not file.exists()
