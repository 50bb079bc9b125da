"""./run: which model it serves, and docker/run-cluster: where, and how it ends. The build and the programs are stand-ins
here, that say what they were asked."""

from __future__ import annotations

import os
import pathlib
import re
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


class Cluster(Tree):
    """What is started writes its name into `calls`; a file of its name is what it says and ends with."""

    STARTED = """#!/bin/sh
echo "${0##*/} $KVAHEAD_FRONT" >>{folder}/calls
[ ! -e {folder}/"${0##*/}" ] || { cat {folder}/"${0##*/}"; exit 1; }
exec sleep 60
"""
    CURL = """#!/bin/sh
echo "curl $*" >>{folder}/asked
case "$*" in *"--noproxy *"*/$(cat {folder}/answered)) exit 0 ;; esac
exit 1
"""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder)
        (folder / "docker").mkdir(exist_ok=True)
        for name in ("run-cluster", "haproxy.cfg"):
            shutil.copy(ROOT / "docker" / name, folder / "docker")
        for path, text in {
            "bin/meson": "#!/bin/sh\n", "bin/etcd": self.STARTED, "bin/haproxy": self.STARTED, "bin/curl": self.CURL,
            "build/kvahead": self.STARTED, "answered": "ready",
        }.items():
            (folder / path).write_text(text.replace("{folder}", str(folder)))
            (folder / path).chmod(0o755)

    def serve(self, *arguments: str, until: str = "serving at", **env: str) -> tuple[str, str]:
        """What it has said when it says `until`, and is ended, or ends."""
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        process = subprocess.Popen([self.folder / "run", "--cluster", "2", "--model", "m", *arguments], text=True,
                                   env=clean_environment(PATH=path, TMPDIR=str(self.folder), **env),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out = ""
        while line := process.stdout.readline():
            out += line
            if until in line:
                process.terminate()
        said = process.stderr.read()
        assert process.wait() in (1, 143), said
        return out, said


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.parametrize("arguments", [("--port", "8123", "--host=0.0.0.0"), ()])
def test_run_cluster__serves_where_it_is_told(cluster, arguments):
    out, _ = cluster.serve(*arguments, KVAHEAD_HOST="0.0.0.0", KVAHEAD_PORT="9" if arguments else "8123")
    assert "haproxy 0.0.0.0:8123" in cluster.calls() and out.endswith("serving at http://0.0.0.0:8123\n")
    assert [call.split()[0] for call in sorted(cluster.calls())] == ["etcd", "haproxy", "kvahead", "kvahead"]


@pytest.mark.parametrize("name", ["etcd", "haproxy", "kvahead"])
def test_run_cluster__what_ends_ends_it_and_says_why(cluster, name):
    (cluster.folder / name).write_text("a reason\n")
    (cluster.folder / "answered").write_text("nothing")
    _, said = cluster.serve()
    assert re.match(rf"{name}1? has ended; see \S+/{name}1?\.log:\na reason\n", said.replace("kvahead2", "kvahead1")), said


def test_run_cluster__who_is_never_ready_is_named(cluster):
    (cluster.folder / "answered").write_text("health")
    _, said = cluster.serve(START_SECONDS_MAX="1")
    assert said.startswith("kvahead1 is not ready after 1 s (START_SECONDS_MAX); see "), said
