"""tests/gpu/run: what did not run has failed. The programs are stand-ins here."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import pytest
from harness import ROOT, clean_environment

FINE = "#!/bin/sh\n"
CHECKASM = '#!/bin/sh\n[ "$1" != --list ] || { echo $LISTED; exit $CODE; }\n'


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "tests/gpu").mkdir(parents=True)
    shutil.copy(ROOT / "tests/gpu/run", tmp_path / "tests/gpu")
    for path, text in {"cuda/check_cuda": FINE, "cuda/bench_cuda": FINE, "kernels/checkasm": CHECKASM}.items():
        file = tmp_path / "build/tests" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    return tmp_path


def run(tree: pathlib.Path, **env: str) -> tuple[int, list[str]]:
    done = subprocess.run([tree / "tests/gpu/run"], capture_output=True, text=True, check=False,
                          env=clean_environment(OUT=str(tree / "out"), KERNELS_ONLY="1", BUILD="build", **env))
    return done.returncode, (tree / "out/summary.txt").read_text().splitlines()


def test_gpu_run__passes(tree):
    code, lines = run(tree, DRY="1", LISTED="linear", CODE="0")
    assert code == 0 and not [line for line in lines if line.startswith("FAIL")], lines
    assert any(line.startswith("PASS check_linear ") for line in lines)


@pytest.mark.parametrize(("listed", "code"), [("linear", "1"), ("", "0")])
def test_gpu_run__no_list_of_operators(tree, listed, code):
    ended, lines = run(tree, DRY="1", LISTED=listed, CODE=code)
    assert ended != 0 and "FAIL operators: checkasm does not say which there are" in lines, lines


def test_gpu_run__a_build_that_cannot_be_unpacked(tree):
    (tree / ".gpu").mkdir()
    (tree / ".gpu/build.tar.xz").write_text("none")
    ended, lines = run(tree)
    assert ended != 0 and "FAIL build: .gpu/build.tar.xz cannot be unpacked" in lines, lines
