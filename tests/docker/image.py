"""Follows docker/Dockerfile step by step in bare Debian trees, without Docker, and uses what it makes.

    python3 tests/docker/image.py [--work FOLDER] [--binary FILE]

Wants root and debootstrap, a Debian mirror and a Python package index, 3 GB and the time of a whole build: some
ten minutes on two cores. Each stage begins as what `debootstrap --variant=minbase` gives, gets the files of this
checkout that git knows, and runs its RUN lines in a chroot. The last stage's ENTRYPOINT is then started as its USER
with its ENV, its HEALTHCHECK run inside, and a completion asked for. --work keeps the bare tree for the next time;
--binary tests the last stage alone, in a minute or two, with a binary that was built on Debian 12.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MIRROR = "http://deb.debian.org/debian"
# What reaching a mirror or an index from here may take; Docker would be given the same.
PASSED = ("http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT")
CERTIFICATES = "/etc/kvahead-image.pem"  # of PIP_CERT; the image's own come later
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PORT = 8731
KEY = "secret"
START_S = 120


def skip(why: str) -> None:
    print(f"SKIPPED: {why}")
    sys.exit(77)


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [tuple(line.split(None, 1)) for line in lines]


class Stage:
    """A tree, and what the instructions so far say of it."""

    def __init__(self, base: pathlib.Path, tree: pathlib.Path) -> None:
        self.tree, self.folder, self.user, self.env = tree, "/", None, {}
        self.entrypoint: list[str] = []
        self.health: list[str] = []
        subprocess.run(["cp", "-a", base, tree], check=True)
        shutil.copy("/etc/resolv.conf", tree / "etc" / "resolv.conf")
        if "PIP_CERT" in os.environ:
            shutil.copy(os.environ["PIP_CERT"], self.inside(CERTIFICATES))
        # What is in /dev comes from debootstrap: none of this machine's is in a tree that is deleted.
        subprocess.run(["mount", "-t", "proc", "proc", tree / "proc"], check=True)

    def close(self) -> None:
        subprocess.run(["umount", self.tree / "proc"], check=True)

    def inside(self, path: str) -> pathlib.Path:
        return self.tree / os.path.join(self.folder, path).lstrip("/")

    def command(self, words: list[str]) -> list[str]:
        user = ["--userspec", self.user] if self.user else []
        go = f"cd {shlex.quote(self.folder)} && exec " + shlex.join(words)
        return ["chroot", *user, str(self.tree), "/bin/sh", "-c", go]

    def environment(self, **more: str) -> dict[str, str]:
        passed = {name: os.environ[name] for name in PASSED if name in os.environ}
        if "PIP_CERT" in os.environ:
            passed["PIP_CERT"] = CERTIFICATES
        return {"PATH": PATH, "HOME": "/root"} | passed | self.env | more

    def run(self, line: str) -> None:
        subprocess.run(self.command(["/bin/sh", "-c", line]), env=self.environment(), check=True)

    def copy(self, line: str, stages: dict[str, Stage], binary: pathlib.Path | None) -> None:
        *sources, target = shlex.split(line)
        if sources[0].startswith("--from="):
            stage = stages.get(sources.pop(0).partition("=")[2])
            for source in sources:
                shutil.copy(stage.inside(source) if stage else binary, self.inside(target))
            return
        known = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
        for source in sources:
            paths = [path for path in known.stdout.splitlines()
                     if source == "." or (fnmatch.fnmatch(path, source) and path.count("/") == source.count("/"))]
            assert paths, f"COPY {source}: there is no such file"
            for path in paths:
                name = path if source == "." else pathlib.PurePath(path).name
                to = self.inside(os.path.join(target, name) if source == "." or target.endswith("/") else target)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, to)


def build(base: pathlib.Path, work: pathlib.Path, binary: pathlib.Path | None, stages: dict[str, Stage]) -> Stage:
    """Every instruction, in order; the last stage."""
    stage: Stage
    steps = instructions()
    if binary:
        steps = steps[max(i for i, (name, _) in enumerate(steps) if name == "FROM"):]
    for name, line in steps:
        print(f"== {name} {line}"[:150], flush=True)
        if name == "FROM":
            image, _, alias = line.partition(" AS ")
            assert image == "debian:bookworm-slim", f"this test knows no {image}"
            stage = Stage(base, work / (alias or "last"))
            stages[alias] = stage
        elif name == "WORKDIR":
            stage.folder = line
            stage.inside("").mkdir(parents=True, exist_ok=True)
        elif name == "COPY":
            stage.copy(line, stages, binary)
        elif name == "RUN":
            stage.run(line)
        elif name == "ENV":
            stage.env |= dict(word.split("=", 1) for word in shlex.split(line))
        elif name == "USER":
            stage.user = line
        elif name == "ENTRYPOINT":
            stage.entrypoint = json.loads(line)
        elif name == "HEALTHCHECK":
            stage.health = ["/bin/sh", "-c", re.sub(r"^.* CMD ", "", line).replace(":8000/", f":{PORT}/")]
        else:
            assert name in ("EXPOSE", "STOPSIGNAL"), f"this test knows no {name}"
    return stage


def use(stage: Stage) -> None:
    """Start it, wait until it is healthy, ask it."""
    environment = stage.environment(KVAHEAD_API_KEY=KEY, KVAHEAD_PORT=str(PORT))
    server = subprocess.Popen(stage.command(stage.entrypoint), env=environment)
    try:
        deadline = time.monotonic() + START_S
        while subprocess.run(stage.command(stage.health), env=environment, capture_output=True, check=False).returncode:
            assert server.poll() is None, f"it ended with {server.returncode}"
            assert time.monotonic() < deadline, "it does not become healthy"
            time.sleep(0.2)
        body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
        answer = ask("/v1/completions", body, deadline)
        assert answer["usage"]["completion_tokens"] == 8, answer
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}}
        chat = {"messages": [{"role": "user", "content": "?"}], "max_tokens": 8, "response_format": schema}
        said = ask("/v1/chat/completions", chat, deadline)["choices"][0]["message"]["content"]
        assert said.strip() in ("true", "false"), f"without structured output: {said!r}"
        print(f"it says {answer['choices'][0]['text']!r}, and {said!r}")
    finally:
        server.terminate()
        server.wait(60)
    assert server.returncode == 0, server.returncode


def ask(path: str, body: dict, deadline: float) -> dict:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(), headers)
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            assert error.code == 503 and time.monotonic() < deadline, error.read()
            time.sleep(0.2)  # the model is still loading


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=pathlib.Path, help="folder for the trees; its bare one is kept")
    parser.add_argument("--binary", type=pathlib.Path, help="skip the stage that builds it")
    options = parser.parse_args()
    if os.geteuid() != 0:
        skip("chroot wants root")
    for tool in ("debootstrap", "unshare"):
        if not shutil.which(tool):
            skip(f"{tool} is not on this machine")
    if "KVAHEAD_TEST_UNSHARED" not in os.environ:
        # Mounts of this process end with it.
        os.environ["KVAHEAD_TEST_UNSHARED"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])
    with tempfile.TemporaryDirectory(prefix="kvahead-image-", dir=options.work) as work:
        base = (options.work or pathlib.Path(work)) / "base"
        if not (base / "bin" / "sh").exists():
            print(f"== debootstrap {MIRROR}", flush=True)
            subprocess.run(["debootstrap", "--variant=minbase", "bookworm", base, MIRROR], check=True,
                           stdout=subprocess.DEVNULL)
        begun = time.monotonic()
        stages: dict[str, Stage] = {}
        try:
            use(build(base, pathlib.Path(work), options.binary, stages))
        finally:
            for stage in stages.values():
                stage.close()
        print(f"the image's steps work: {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
