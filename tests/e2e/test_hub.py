"""Models of a hub: kvahead beside huggingface_hub, both against a hub on a loopback port."""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import threading

import huggingface_hub
import pytest
from harness import BINARY, EXIT_S, MODEL, clean_environment, command, wait_until
from hub import COMMIT, OTHER_COMMIT, Handler, Hub, Repository, running

FOREIGN = ("HF_", "HUGGING", "TRANSFORMERS_", "XDG_", "SSL_CERT", "http_proxy", "HTTP_PROXY")
NAME = "org/demo"
BIG = random.Random(1).randbytes(3_000_000)
CHECKPOINT = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "model.safetensors": BIG,
    "README.md": b"not wanted",
    "pytorch_model.bin": b"not wanted either",
    "onnx/model.safetensors": b"nor this",
}


class Place:
    """A home of its own, a hub, and the program in it."""

    def __init__(self, folder: pathlib.Path, hub: Hub) -> None:
        self.folder, self.hub = folder, hub
        self.cache = folder / "hub"
        kept = {k: v for k, v in clean_environment().items() if not k.startswith(FOREIGN)}
        self.env = kept | {
            "HOME": str(folder), "HF_HOME": str(folder / "home"), "HF_HUB_CACHE": str(self.cache),
            "HF_ENDPOINT": hub.url,
        }

    def add(self, files: dict[str, bytes], name: str = NAME, **fields) -> Repository:
        self.hub.repositories[name] = Repository(dict(files), **fields)
        return self.hub.repositories[name]

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return command(*arguments, env=self.env | env)

    def pull(self, model: str = NAME, *options: str, **env: str) -> pathlib.Path:
        done = self.run("pull", model, *options, **env)
        assert done.returncode == 0, done
        return pathlib.Path(done.stdout.removesuffix("\n"))

    def fails(self, words: str, model: str = NAME, *options: str, **env: str) -> None:
        done = self.run("pull", model, *options, **env)
        assert (done.returncode, done.stdout) == (1, ""), done
        assert words in done.stderr.splitlines()[-1], done.stderr
        assert "Sanitizer" not in done.stderr, done.stderr

    @property
    def repository_folder(self) -> pathlib.Path:
        return self.cache / "models--org--demo"

    def blobs(self) -> list[str]:
        return sorted(p.name for p in self.repository_folder.glob("blobs/*"))

    def library(self, function: str, *arguments: str, **fields: object) -> str:
        """The same question to huggingface_hub, in a process of its own: it reads the environment once."""
        script = (
            "import huggingface_hub, json, sys\n"
            "name, arguments, fields = json.loads(sys.argv[1])\n"
            "print(getattr(huggingface_hub, name)(*arguments, **fields))\n"
        )
        env = self.env | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        done = subprocess.run(
            [os.sys.executable, "-c", script, json.dumps([function, arguments, fields])],
            env=env, capture_output=True, text=True, check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]


@pytest.fixture
def place(tmp_path: pathlib.Path):
    with running() as hub:
        yield Place(tmp_path, hub)


# --- what is fetched


def test_checkpoint__what_a_model_is_made_of_and_no_more(place):
    repository = place.add(CHECKPOINT)
    path = place.pull()
    assert path == place.repository_folder / "snapshots" / COMMIT
    wanted = set(CHECKPOINT) - {"README.md", "pytorch_model.bin", "onnx/model.safetensors"}
    assert {p.name for p in path.iterdir()} == wanted
    for name in wanted:
        assert (path / name).read_bytes() == CHECKPOINT[name]
        assert os.readlink(path / name) == f"../../blobs/{repository.etag(name)}"
    assert (place.repository_folder / "refs" / "main").read_text() == COMMIT
    assert not [name for name in place.blobs() if "." in name]


def test_checkpoint__of_vectors_with_what_pools_them(place):
    pooling = {"modules.json": b"[]", "1_Pooling/config.json": b"{}"}
    others = {"2_Dense/config.json": b"{}", "x/1_Pooling/config.json": b"{}", "1_Pooling/README.md": b"not wanted"}
    place.add(CHECKPOINT | pooling | others)
    path = place.pull()
    for name, data in pooling.items():
        assert (path / name).read_bytes() == data
    assert not [name for name in others if (path / name).exists()]


def test_checkpoint__with_its_templates_for_more_than_chats(place):
    templates = {f"additional_chat_templates/{name}.jinja": name.encode() for name in ("tool_use", "rag")}
    others = dict.fromkeys(("additional_chat_templates/README.md", "additional_chat_templates/x/tool_use.jinja",
                            "x/additional_chat_templates/tool_use.jinja", "tool_use.jinja"), b"not wanted")
    place.add(CHECKPOINT | templates | others)
    path = place.pull()
    for name, data in templates.items():
        assert (path / name).read_bytes() == data
    assert not [name for name in others if (path / name).exists()]


@pytest.mark.parametrize("tokenizer", [["tokenizer.model"], ["vocab.json", "merges.txt"]])
def test_checkpoint__of_an_older_tokenizer(place, tokenizer):
    old = {name: b"x" for name in [*tokenizer, "added_tokens.json"]}
    place.add({k: v for k, v in (CHECKPOINT | old).items() if k != "tokenizer.json"})
    assert set(old) <= {path.name for path in place.pull().iterdir()}


def test_checkpoint__with_tokenizer_json_needs_no_older_one(place):
    place.add(CHECKPOINT | {"tokenizer.model": b"x"})
    assert not (place.pull() / "tokenizer.model").exists()


def test_checkpoint__sharded_as_its_index_says(place):
    shards = {f"model-{i:05}-of-00003.safetensors": BIG[i : i + 1000] for i in (1, 2, 3)}
    index = {"metadata": {}, "weight_map": {f"t{n}.{i}": name for i, name in enumerate(shards) for n in range(3)}}
    files = {k: v for k, v in CHECKPOINT.items() if k != "model.safetensors"}
    files |= shards | {"model.safetensors.index.json": json.dumps(index).encode(), "extra.safetensors": b"no"}
    place.add(files)
    path = place.pull()
    assert {name: (path / name).read_bytes() for name in shards} == shards
    assert not (path / "extra.safetensors").exists()
    # One that has got lost is fetched again, though nothing else is.
    (path / "model-00002-of-00003.safetensors").unlink()
    place.hub.requests.clear()
    done = place.run("tokenize", "--model", NAME, "x")
    assert "has been" not in done.stderr and (path / "model-00002-of-00003.safetensors").exists(), done
    assert not place.hub.asked("GET", "/storage/")


def test_checkpoint__is_served_under_its_name(place, servers):
    place.add({p.name: p.read_bytes() for p in MODEL.iterdir() if p.is_file()})
    own = servers.start(model=NAME, env={k: v for k, v in place.env.items() if k.startswith("HF_")})
    assert [model["id"] for model in own.request("GET", "/v1/models").json()["data"]] == [NAME]
    assert own.complete("Once upon a time", max_tokens=4)["choices"][0]["text"]


GGUF = {
    "README.md": b"", "demo-Q4_K_M.gguf": b"GGUF4", "demo-Q8_0.gguf": b"GGUF8", "mmproj-demo-Q8_0.gguf": b"eyes",
    "big/demo-F16-00001-of-00002.gguf": b"one", "big/demo-F16-00002-of-00002.gguf": b"two",
    "big/demo-BF16-00001-of-00002.gguf": b"half", "demo_Q6_K.gguf": b"GGUF6",
}


@pytest.mark.parametrize(
    "wanted, fetched",
    [
        (":Q4_K_M", ["demo-Q4_K_M.gguf"]),
        (":q8_0", ["demo-Q8_0.gguf"]),
        (":Q6_K", ["demo_Q6_K.gguf"]),
        (":demo-Q8_0.gguf", ["demo-Q8_0.gguf"]),
        (":F16", ["big/demo-F16-00001-of-00002.gguf", "big/demo-F16-00002-of-00002.gguf"]),
        (":mmproj-demo-Q8_0.gguf", ["mmproj-demo-Q8_0.gguf"]),
    ],
)
def test_gguf__one_is_chosen(place, wanted, fetched):
    place.add(GGUF)
    path = place.pull(NAME + wanted)
    snapshot = place.repository_folder / "snapshots" / COMMIT
    assert path == snapshot / fetched[0]
    assert sorted(str(p.relative_to(snapshot)) for p in snapshot.rglob("*") if p.is_file()) == fetched
    assert path.read_bytes() == GGUF[fetched[0]]
    # And found again without a question.
    place.hub.requests.clear()
    assert place.pull(NAME + wanted, "--offline") == path
    assert not place.hub.requests


@pytest.mark.parametrize(
    "wanted, words",
    [
        ("", "several GGUF files: name one, as in org/demo:FILE: demo-Q4_K_M.gguf, demo-Q8_0.gguf"),
        (":Q4_K", "no GGUF file 'Q4_K'"),
        (":Q5_0", "no GGUF file 'Q5_0'"),
        (":README.md", "is no GGUF file"),
        (":BF16", "has 1 of the 2 parts"),
        (":big/demo-F16-00002-of-00002.gguf", "is part 2 of 2: name the first"),
    ],
)
def test_gguf__that_cannot_be_chosen(place, wanted, words):
    place.add(GGUF)
    place.fails(words, NAME + wanted)
    assert not place.blobs()


def test_gguf__the_only_one_needs_no_name(place):
    place.add({"README.md": b"", "sub/demo.gguf": b"GGUF"})
    assert place.pull() == place.repository_folder / "snapshots" / COMMIT / "sub" / "demo.gguf"


@pytest.mark.parametrize(
    "files, words",
    [
        ({"pytorch_model.bin": b"x", "config.json": b"{}"}, "neither a GGUF file nor config.json with"),
        ({"config.json": b"{}", "model.safetensors": b"x"}, "neither tokenizer.json"),
        ({}, "neither a GGUF file"),
    ],
)
def test_repository__without_a_model(place, files, words):
    place.add(files)
    place.fails(words)


# --- revisions and caches


def test_revision__branch_tag_and_commit(place):
    place.add(CHECKPOINT, revisions={"v1.0": OTHER_COMMIT, "refs/pr/1": OTHER_COMMIT, OTHER_COMMIT: OTHER_COMMIT})
    for revision in ("v1.0", "refs/pr/1", OTHER_COMMIT):
        assert place.pull(f"{NAME}@{revision}").name == OTHER_COMMIT
    refs = place.repository_folder / "refs"
    assert (refs / "v1.0").read_text() == (refs / "refs" / "pr" / "1").read_text() == OTHER_COMMIT
    assert not (refs / OTHER_COMMIT).exists()
    place.fails("has no revision 'v2'", f"{NAME}@v2")


def test_cache__is_used_without_a_question_until_a_pull(place):
    repository = place.add(CHECKPOINT)
    place.pull()
    place.hub.requests.clear()
    place.run("tokenize", "--model", NAME, "x")
    assert not place.hub.requests
    repository.commit = OTHER_COMMIT
    repository.files["config.json"] = b'{"model_type": "mistral"}'
    path = place.pull()
    assert path.name == OTHER_COMMIT and b"mistral" in (path / "config.json").read_bytes()
    # Only what is new has been fetched.
    assert [p for p, _ in place.hub.asked("GET", "/resolve/")] == [f"/{NAME}/resolve/{OTHER_COMMIT}/config.json"]


def test_cache__serving_fetches_no_newer_commit(place):
    repository = place.add({k: v for k, v in CHECKPOINT.items() if k != "generation_config.json"}, revisions={COMMIT: COMMIT})
    place.pull()
    repository.commit = OTHER_COMMIT
    place.run("tokenize", "--model", NAME, "x")
    assert (place.repository_folder / "refs" / "main").read_text() == COMMIT
    assert not (place.repository_folder / "snapshots" / OTHER_COMMIT).exists()
    # Unless that commit is there no longer.
    repository.revisions = {}
    place.run("tokenize", "--model", NAME, "x")
    assert (place.repository_folder / "refs" / "main").read_text() == OTHER_COMMIT


def test_cache__another_model_is_of_the_same_commit(place):
    repository = place.add(GGUF, revisions={COMMIT: COMMIT})
    place.pull(f"{NAME}:Q4_K_M")
    repository.commit = OTHER_COMMIT
    place.run("tokenize", "--model", f"{NAME}:Q8_0", "x")
    assert (place.repository_folder / "refs" / "main").read_text() == COMMIT
    snapshot = place.repository_folder / "snapshots" / COMMIT
    assert {path.name for path in snapshot.iterdir()} >= {"demo-Q4_K_M.gguf", "demo-Q8_0.gguf"}
    # What the commit does not have is the newest's.
    repository.files["demo-Q2_K.gguf"] = b"GGUF2"
    repository.revisions = {}
    place.run("tokenize", "--model", f"{NAME}:Q2_K", "x")
    assert (place.repository_folder / "snapshots" / OTHER_COMMIT / "demo-Q2_K.gguf").exists()


def test_cache__a_hub_that_is_away_is_no_reason_not_to_serve(place, monkeypatch):
    files = {k: v for k, v in CHECKPOINT.items() if k != "generation_config.json"}
    place.add(files)
    place.pull()
    done = place.run("tokenize", "--model", NAME, "x", HF_ENDPOINT="http://127.0.0.1:1")
    assert "what is in the cache is used" in done.stderr, done
    place.fails("cannot be reached", NAME, HF_ENDPOINT="http://127.0.0.1:1")
    for code, later in ((503, "0"), (429, "0"), (429, "3600")):
        place.hub.api = lambda handler, code=code, later=later: handler.reply(code, {"Retry-After": later}) or True
        done = place.run("tokenize", "--model", NAME, "x")
        assert "what is in the cache is used" in done.stderr, done
    # It may be away for files alone.
    place.hub.api = None
    with monkeypatch.context() as away:
        away.setattr(Handler, "file", lambda handler, *_: handler.reply(503, {"Retry-After": "0"}))
        done = place.run("tokenize", "--model", NAME, "x")
        assert "what is in the cache is used" in done.stderr, done
        place.fails("503", NAME)
    # What refuses is not away.
    place.hub.api = lambda handler: handler.refuse(403, "GatedRepo") or True
    done = place.run("tokenize", "--model", NAME, "x")
    assert done.returncode == 1 and "is gated" in done.stderr, done


def test_cache__nothing_is_written_where_nothing_is_new(place):
    place.add(CHECKPOINT)
    path = place.pull()

    def times() -> dict[str, int]:
        return {str(p): p.lstat().st_ctime_ns for p in place.repository_folder.rglob("*")}

    before = times()
    assert place.pull() == path and times() == before


def test_cache__list_shows_both(place):
    place.add(CHECKPOINT)
    place.pull()
    done = place.run("list")
    assert done.stdout.split() == [NAME, "2.9", "MiB", str(place.repository_folder)], done


@pytest.mark.parametrize("env", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_offline__nothing_is_asked(place, env):
    place.add(CHECKPOINT)
    options = [] if env else ["--offline"]
    place.fails("offline: org/demo is not in the cache", NAME, *options, **env)
    assert not place.hub.requests
    place.pull()
    (place.repository_folder / "snapshots" / COMMIT / "model.safetensors").unlink()
    place.hub.requests.clear()
    place.fails("offline: ", NAME, *options, **env)
    assert not place.hub.requests


def test_offline__of_a_repository_only_the_cache_is_known(place):
    place.add(GGUF)
    place.pull(NAME + ":Q8_0")
    place.fails("offline: the cache", NAME + ":Q4_K_M", "--offline")


def test_path__a_folder_of_that_name_is_meant(place):
    place.add(CHECKPOINT)
    (place.folder / "org").mkdir()
    (place.folder / "org" / "demo").symlink_to(MODEL)

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BINARY, "tokenize", "--model", NAME, "--ids", "hello"], cwd=place.folder, env=place.env,
            capture_output=True, text=True, check=False,
        )

    done = run()
    assert done.returncode == 0 and not place.hub.requests and not done.stderr, done
    place.pull()
    done = run()
    assert done.returncode == 0 and "taken for that" in done.stderr, done


# --- the library


def test_library__finds_what_is_fetched_here(place):
    place.add(CHECKPOINT)
    path = place.pull()
    place.hub.requests.clear()
    wanted = ["*.json", "model.safetensors"]
    assert place.library("snapshot_download", NAME, allow_patterns=wanted) == str(path)
    assert not place.hub.asked("GET", "/resolve/") and not place.hub.asked("GET", "/storage/")
    found = place.library("hf_hub_download", NAME, "model.safetensors", local_files_only=True)
    assert found == str(path / "model.safetensors")
    assert place.library("try_to_load_from_cache", NAME, "config.json") == str(path / "config.json")


def test_library__what_it_has_fetched_is_found_here(place):
    place.add(CHECKPOINT)
    folder = place.library("snapshot_download", NAME)
    place.hub.requests.clear()
    done = place.run("pull", NAME, "--offline")
    assert (done.returncode, done.stdout) == (0, f"{folder}\n"), done
    assert not place.hub.requests
    # One file of it is not a model: the others are fetched.
    shutil.rmtree(place.cache)
    place.library("hf_hub_download", NAME, "model.safetensors")
    place.hub.requests.clear()
    assert str(place.pull()) == folder
    assert not place.hub.asked("GET", "/storage/")


def test_library__reads_the_cache_as_it_is_left(place):
    place.add(CHECKPOINT)
    place.pull()
    info = huggingface_hub.scan_cache_dir(place.cache)
    assert not info.warnings
    (repository,) = info.repos
    assert repository.repo_id == NAME and set(repository.refs) == {"main"}
    assert repository.size_on_disk > len(BIG)


# --- tokens


def test_token__goes_to_the_hub_and_nowhere_else(place):
    place.add(CHECKPOINT, token="hf_secret")
    place.fails("private and wants a token in HF_TOKEN")
    place.fails("or the token does not open it", HF_TOKEN="hf_wrong")
    place.pull(HF_TOKEN="hf_secret")
    storage = place.hub.asked("GET", "/storage/")
    assert storage and not any("Authorization" in headers for _, headers in storage)
    assert all("Authorization" in headers for _, headers in place.hub.asked("HEAD", "/resolve/")[-3:])
    done = place.run("pull", NAME, HF_TOKEN="hf_secret")
    assert "hf_secret" not in done.stderr


def test_token__of_the_library_s_file(place):
    place.add(CHECKPOINT, token="hf_secret")
    (place.folder / "home").mkdir()
    (place.folder / "home" / "token").write_text("hf_secret\n")
    place.pull()


def test_gated__says_where_to_ask(place):
    place.add(CHECKPOINT, gated=True)
    place.fails(f"org/demo is gated: ask for access at {place.hub.url}/org/demo, then give a token")
    place.fails("the token that was sent has none yet", HF_TOKEN="hf_stranger")
    place.pull(HF_TOKEN="hf_granted")


# --- breaks


def cut_after(count: int):
    return lambda handler, data: handler.cut(data, count)


def answer(code: int, **headers: str):
    return lambda handler, data: handler.reply(code, headers) or True


def test_break__goes_on_where_it_was(place):
    place.add(CHECKPOINT)
    place.hub.faults["model.safetensors"] = [cut_after(1_000_000), cut_after(500_000), cut_after(1)]
    assert (place.pull() / "model.safetensors").read_bytes() == BIG
    ranges = [headers.get("Range") for _, headers in place.hub.asked("GET", "/storage/")]
    assert ranges == [None, "bytes=1000000-", "bytes=1500000-", "bytes=1500001-"]


def test_break__a_later_process_goes_on(place):
    repository = place.add(CHECKPOINT)
    folder = place.repository_folder / "blobs"
    folder.mkdir(parents=True)
    (folder / f"{repository.etag('model.safetensors')}.incomplete").write_bytes(BIG[:2_000_000])
    assert (place.pull() / "model.safetensors").read_bytes() == BIG
    ((_, headers),) = place.hub.asked("GET", "/storage/")
    assert headers["Range"] == "bytes=2000000-"


@pytest.mark.parametrize("left", [b"wrong" * 1000, BIG + b"more", BIG[:-1] + b"!"])
def test_break__what_is_left_is_of_something_else(place, left):
    repository = place.add(CHECKPOINT)
    folder = place.repository_folder / "blobs"
    folder.mkdir(parents=True)
    (folder / f"{repository.etag('model.safetensors')}.incomplete").write_bytes(left)
    done = place.run("pull", NAME)
    if done.returncode:
        assert "its checksum is" in done.stderr and "removed" in done.stderr, done
    assert (place.pull() / "model.safetensors").read_bytes() == BIG


def test_break__a_host_that_knows_no_ranges_starts_over(place):
    def whole(handler: Handler, data: bytes) -> bool:
        handler.reply(200, {}, data)
        return True

    place.add(CHECKPOINT)
    place.hub.faults["model.safetensors"] = [cut_after(1_000_000), whole]
    assert (place.pull() / "model.safetensors").read_bytes() == BIG


def test_break__a_busy_hub_is_asked_again(place):
    place.add(CHECKPOINT)
    later = {"Retry-After": "0"}
    busy = iter([503, 429, 500])

    def api(handler: Handler) -> bool:
        code = next(busy, None)
        return code is not None and (handler.reply(code, later) or True)

    place.hub.api = api
    place.hub.faults["model.safetensors"] = [answer(502, **later), answer(429, **later)]
    place.hub.faults["config.json"] = [answer(503, **later)]
    place.pull()


def test_break__a_hub_that_stays_busy_is_left(place):
    place.add(CHECKPOINT)
    place.hub.faults["config.json"] = [answer(503, **{"Retry-After": "0"})] * 20
    place.fails("answered 503")
    assert len(place.hub.faults["config.json"]) == 15
    place.hub.faults["config.json"] = [answer(429, **{"Retry-After": "3600"})]
    place.fails("asks to come again in 3600 s")


def test_break__a_signal_ends_it_and_it_goes_on(place):
    place.add(CHECKPOINT)
    waiting, end = threading.Event(), threading.Event()

    def stall(handler: Handler, data: bytes) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:1_000_000])
        handler.wfile.flush()
        waiting.set()
        end.wait(EXIT_S)
        handler.close_connection = True
        return True

    place.hub.faults["model.safetensors"] = [stall]
    process = subprocess.Popen([BINARY, "pull", NAME], env=place.env, stderr=subprocess.PIPE, start_new_session=True)
    assert waiting.wait(EXIT_S)
    grown = place.repository_folder / "blobs"
    wait_until("what has come is on disk", lambda: any(p.stat().st_size == 1_000_000 for p in grown.glob("*.incomplete")))
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=EXIT_S)[1].decode()
    end.set()
    assert process.returncode == -signal.SIGINT, said
    assert "the same command goes on from here" in said
    assert (place.pull() / "model.safetensors").read_bytes() == BIG
    assert place.hub.asked("GET", "/storage/")[-1][1]["Range"] == "bytes=1000000-"


def test_break__a_server_that_fetches_ends_at_once(place):
    place.add(CHECKPOINT)
    waiting, end = threading.Event(), threading.Event()

    def stall(handler: Handler, data: bytes) -> bool:
        waiting.set()
        end.wait(EXIT_S)
        return handler.cut(data, 0)

    place.hub.faults["model.safetensors"] = [stall]
    process = subprocess.Popen(
        [BINARY, "serve", "--model", NAME, "--port", "0"], env=place.env, stderr=subprocess.PIPE
    )
    assert waiting.wait(EXIT_S)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=EXIT_S)[1].decode()
    end.set()
    assert process.returncode == 0 and "loading was stopped" in said, said


def test_processes__fetch_once(place):
    place.add(CHECKPOINT)
    started = [subprocess.Popen([BINARY, "pull", NAME], env=place.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
               for _ in range(3)]
    assert len({process.communicate(timeout=EXIT_S)[0] for process in started}) == 1
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len(place.hub.asked("GET", "/storage/")) == 1


# --- refusals of this side


def test_content__that_is_not_what_was_promised(place):
    def wrong(handler: Handler, data: bytes) -> bool:
        handler.send_content(data[:-1] + bytes([data[-1] ^ 1]))
        return True

    place.add(CHECKPOINT)
    place.hub.faults["model.safetensors"] = [wrong]
    place.fails("its checksum is")
    assert not [p for p in place.repository_folder.rglob("*") if "model.safetensors" in p.name or "incomplete" in p.name]
    assert not (place.repository_folder / "refs").exists()
    place.hub.faults["config.json"] = [wrong]
    shutil.rmtree(place.repository_folder)
    place.fails("its checksum is")
    place.pull()


def endless(handler: Handler, data: bytes) -> bool:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    try:
        while True:
            handler.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
    except OSError:
        handler.close_connection = True
    return True


def test_hostile__a_body_without_end(place):
    place.add(CHECKPOINT)
    place.hub.faults["model.safetensors"] = [endless]
    place.fails("more comes than the 3000000 bytes")
    place.hub.api = lambda handler: endless(handler, b"")
    place.fails("over 16 MiB")


@pytest.mark.parametrize(
    "headers, words",
    [
        ({"X-Linked-Size": 2**59}, "MiB free"),
        ({"X-Linked-Size": 10**17 * 9}, "MiB free"),
        ({"X-Linked-Size": 2_999_999}, "more comes than"),
        ({"X-Linked-Size": 3_000_001}, "it ends after 3000000 of 3000001"),
        ({"X-Linked-Size": "many", "Content-Length": "0"}, ""),
        ({"X-Linked-ETag": '"../../../../etc/passwd"'}, "gives no checksum"),
        ({"X-Linked-ETag": '"' + "A" * 64 + '"'}, "gives no checksum"),
        ({"X-Repo-Commit": OTHER_COMMIT}, "where commit"),
        ({"X-Repo-Commit": ""}, "answers with none"),
        ({"Location": "file:///etc/passwd"}, "no URL of HTTP"),
        ({"Location": "ftp://127.0.0.1/x"}, "no URL of HTTP"),
        ({"Location": "/org/demo/resolve/" + COMMIT + "/model.safetensors"}, "redirects without end"),
    ],
)
def test_hostile__headers(place, headers, words):
    place.add(CHECKPOINT)
    place.hub.head_headers["model.safetensors"] = headers
    place.hub.faults["model.safetensors"] = [
        lambda handler, data: handler.send_content(data) or True for _ in range(1)
    ]
    place.fails(words)
    assert not (place.repository_folder / "snapshots" / COMMIT / "model.safetensors").exists()


def listing(place: Place, document: object) -> None:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    place.hub.api = lambda handler: handler.reply(200, {}, body) or True


@pytest.mark.parametrize(
    "document, words",
    [
        (b"", "not that of a hub"),
        (b"[" * 100000, "not that of a hub"),
        ({"sha": "../..", "siblings": []}, "not that of a hub"),
        ({"sha": COMMIT, "siblings": {}}, "not that of a hub"),
        ({"sha": COMMIT, "siblings": [{"rfilename": "x" * 9}] * 30000}, "lists over 20000 files"),
        ({"sha": COMMIT, "siblings": [{"rfilename": "../../x.gguf"}]}, "no safe path"),
        ({"sha": COMMIT, "siblings": [{"rfilename": "/tmp/x.gguf"}]}, "no safe path"),
        ({"sha": COMMIT, "siblings": [{"rfilename": 7}, {}, "x.gguf"]}, "neither a GGUF file"),
    ],
)
def test_hostile__lists_of_files(place, document, words):
    place.add(CHECKPOINT)
    listing(place, document)
    place.fails(words)
    assert not list(place.folder.rglob("*.gguf"))


@pytest.mark.parametrize("file", ["../x.safetensors", "/tmp/x.safetensors", "a/../../x.safetensors", "config.json", 7])
def test_hostile__an_index(place, file):
    index = json.dumps({"weight_map": {"a": file}}).encode()
    files = {k: v for k, v in CHECKPOINT.items() if k != "model.safetensors"}
    place.add(files | {"model.safetensors.index.json": index})
    done = place.run("pull", NAME)
    assert done.returncode == 1 and ("no safe path" in done.stderr or "none of safetensors" in done.stderr), done
    assert not list(place.folder.rglob("x.safetensors"))


# --- what cannot be reached


@pytest.mark.parametrize(
    "endpoint, words",
    [
        ("http://127.0.0.1:1", "cannot be reached"),
        ("http://hub.invalid", "no network, or no such host"),
        ("mirror", "must be the base URL of a hub"),
    ],
)
def test_hub__that_is_not_there(place, endpoint, words):
    place.fails(words, HF_ENDPOINT=endpoint)


def test_hub__without_tls(place):
    place.fails("no secure connection to https://", HF_ENDPOINT=place.hub.url.replace("http:", "https:"))


def test_repository__that_is_not_there(place):
    place.fails("has no repository org/demo, or it is private and wants a token")
    place.fails("has no repository org/demo, or the token does not open it", HF_TOKEN="hf_any")


def test_cache__that_cannot_be_written(place):
    place.add(CHECKPOINT)
    (place.folder / "file").write_text("")
    place.fails("cannot be made: Not a directory", HF_HUB_CACHE=str(place.folder / "file" / "hub"))
