"""./run: which model it serves. The build and the program are stand-ins here, that say what they were asked."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import pytest
from harness import ROOT, clean_environment

KNOWN = "smollm2-135m-instruct"
PROGRAM = """#!/bin/sh
echo "$*" >>calls
[ "$1" = pull ] || exit 0
[ "$PULL" = signal ] && kill -INT $$
[ "$PULL" = 0 ] || echo "kvahead: no network" >&2
exit $PULL
"""


class Tree:
    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        shutil.copy(ROOT / "run", folder)
        for path, text in {
            "docker/install": "#!/bin/sh\n", "bin/ninja": "#!/bin/sh\n", "build/build.ninja": "", "build/kvahead": PROGRAM,
        }.items():
            file = folder / path
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            file.chmod(0o755)

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return subprocess.run(
            [self.folder / "run", *arguments], env=clean_environment(PATH=path, **{"PULL": "0"} | env),
            capture_output=True, text=True, check=False,
        )

    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> Tree:
    return Tree(tmp_path)


def test_run__serves_the_model_that_it_has_fetched(tree):
    done = tree.run("--port", "8123")
    assert done.returncode == 0, done
    assert tree.calls() == [f"pull {KNOWN} --log-format text", f"serve --model {KNOWN} --port 8123"]
    assert f'"model": "{KNOWN}"' in done.stdout and "http://127.0.0.1:8123/v1/chat" in done.stdout
    assert not done.stderr


def test_run__without_a_network_serves_the_bundled_one_and_says_why(tree):
    done = tree.run(PULL="1")
    assert tree.calls()[1:] == ["serve --model models/demo"]
    assert done.stderr == "kvahead: no network\n" and '"model": "demo"' in done.stdout
    assert "the bundled demo model is served instead" in done.stdout


def test_run__offline_is_told_to_both(tree):
    tree.run("--offline")
    assert tree.calls() == [f"pull {KNOWN} --log-format text --offline", f"serve --model {KNOWN} --offline"]


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_run__help_is_its_own_and_the_server_s(tree, option):
    done = tree.run(option)
    assert tree.calls() == [f"serve {option}"] and done.returncode == 0 and not done.stderr
    assert "./run --cluster N" in done.stdout and "#" not in done.stdout and "set -e" not in done.stdout


@pytest.mark.parametrize("option", ["--model=x", "--config=x"])
def test_run__a_model_of_one_s_own(tree, option):
    done = tree.run(option)
    assert tree.calls() == [f"serve {option}"] and not done.stdout


def test_run__a_model_of_the_environment(tree):
    tree.run(KVAHEAD_MODEL="x")
    assert tree.calls() == ["serve"]


def test_run__a_signal_serves_nothing(tree):
    done = tree.run(PULL="signal")
    assert done.returncode != 0 and len(tree.calls()) == 1, done
