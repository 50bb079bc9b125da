"""Starts what docker/compose.cluster.yaml says, in containers, and has servers of it stop, start and die under requests.

    podman build --format docker -f docker/Dockerfile -t kvahead .
    python3 tests/docker/cluster.py

Wants root, podman with runc, and a Debian mirror. Each container has a network namespace with the address that the file gives
it, on a bridge of its own: no firewall is needed, which Compose's networks are made with. etcd and HAProxy are Debian's, in
images that are built here. Everything is removed in the end. Where no registry can be reached, a base image comes from

    debootstrap --variant=minbase bookworm base && tar -C base -c . | podman import - docker.io/library/debian:bookworm-slim

and `podman build --isolation=chroot` does without a runtime.
"""

from __future__ import annotations

import json
import pathlib
import re
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.request

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker/compose.cluster.yaml").read_text())
BRIDGE, PREFIX, KEY = "kvahead-bridge", "kvahead-test-", "secret"
PACKAGES = {"etcd": "etcd-server", "front": "haproxy"}  # of those that are not kvahead
FRONT_PORT, SERVER_PORT, WAIT_S = 8000, 8000, 60
VALUES = {"KVAHEAD_API_KEY": KEY, "KVAHEAD_MODEL": "/models/demo", "HF_TOKEN": ""}


def run(*arguments: object, **options) -> str:
    done = subprocess.run([str(a) for a in arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.stdout.strip()}")
    return done.stdout.strip()


def podman(*arguments: object, **options) -> str:
    return run("podman", "--runtime", "runc", *arguments, **options)


def filled_in(text: str) -> str:
    """${NAME}, ${NAME:-default} and $$, as Compose has them."""
    return re.sub(r"\$\{(\w+)(?::[-?]([^}]*))?\}", lambda m: VALUES.get(m[1]) or m[2] or "", text).replace("$$", "$")


def addresses() -> dict[str, str]:
    """Those of the file; who has none there gets one that it names nowhere."""
    given = {name: service["networks"]["cluster"]["ipv4_address"] for name, service in COMPOSE["services"].items()
             if isinstance(service["networks"], dict)}
    network = next(iter(given.values())).rsplit(".", 1)[0]
    free = iter(range(100, 200))
    return {name: given.get(name) or f"{network}.{next(free)}" for name in COMPOSE["services"]}


def build_images() -> None:
    for name, package in PACKAGES.items():
        steps = f"FROM debian:bookworm-slim\nRUN apt-get update && apt-get install -y --no-install-recommends {package}\n"
        podman("build", "-q", "--isolation=chroot", "--network=host", "-t", PREFIX + name, "-f", "-", ROOT / "docker/prometheus",
               input=steps)


def connect(at: dict[str, str]) -> None:
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "addr", "add", next(iter(at.values())).rsplit(".", 1)[0] + ".1/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for index, (name, address) in enumerate(at.items()):
        space = PREFIX + name
        run("ip", "netns", "add", space)
        run("ip", "link", "add", f"kvahead-veth{index}", "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "link", "set", f"kvahead-veth{index}", "master", BRIDGE, "up")
        run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", space, "link", "set", device, "up")


def start(name: str, at: dict[str, str], secret: pathlib.Path) -> None:
    service = COMPOSE["services"][name]
    options = ["--name", PREFIX + name, "--network", f"ns:/run/netns/{PREFIX}{name}", "--ulimit", "nproc=4000:4000",
               "--ulimit", "nofile=18000:18000"]
    options += [f"--add-host={other}:{address}" for other, address in at.items()]
    options += [f"--env={key}={filled_in(value)}" for key, value in service.get("environment", {}).items()]
    options += [f"--volume={secret}:/run/secrets/{item}:ro" for item in service.get("secrets", [])]
    for volume in service.get("volumes", []):
        source, rest = volume.split(":", 1)
        options.append(f"--volume={ROOT / 'docker' / source if source.startswith('.') else PREFIX + source}:{rest}")
    options += ["--read-only"] if service.get("read_only") else []
    options += [f"--cap-drop={item}" for item in service.get("cap_drop", [])]
    options += [f"--security-opt={item.removesuffix(':true')}" for item in service.get("security_opt", [])]
    options += [f"--shm-size={service['shm_size']}"] if "shm_size" in service else []
    entry, *command = [*service.get("entrypoint", [""]), *map(filled_in, service.get("command", []))]
    options += ["--entrypoint", entry] if entry else []
    podman("run", "-d", *options, PREFIX + name if name in PACKAGES else "localhost/kvahead", *command)


def ask(url: str, body: dict | None = None) -> str:
    request = urllib.request.Request(url, json.dumps(body).encode() if body else None, {
        "Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read().decode()


def wait_until(what: str, holds) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if holds():
                return
        except (OSError, AttributeError):
            pass
        if time.monotonic() > deadline:
            raise SystemExit(f"not so after {WAIT_S} s: {what}")
        time.sleep(0.3)


def check(at: dict[str, str]) -> None:
    one, two = (name for name in at if name not in PACKAGES)

    def metric(server: str, name: str) -> float:
        return float(re.search(rf"^kvahead_cluster_{name}(?:{{.*}})? (\S+)", ask(f"http://{at[server]}:{SERVER_PORT}/metrics"),
                               re.M)[1])

    def answers(count: int) -> None:
        for _ in range(count):
            said = json.loads(ask(f"http://{at['front']}:{FRONT_PORT}/v1/completions", {"prompt": "The", "max_tokens": 8}))
            assert said["usage"]["completion_tokens"] > 0

    wait_until("both are members, with a link", lambda: metric(one, "members") == 2 and metric(two, "links") == 1)
    wait_until("the front has a server", lambda: answers(1) is None)
    answers(8)
    print("two servers, one front: answers")
    podman("stop", "-t", 40, PREFIX + two)
    assert podman("inspect", PREFIX + two, "--format", "{{.State.ExitCode}}") == "0"
    wait_until("the other is alone", lambda: metric(one, "members") == 1)
    answers(4)
    print("one was stopped, in order: answers")
    podman("start", PREFIX + two)
    wait_until("it is there again", lambda: metric(one, "members") == 2 and metric(two, "links") == 1)
    podman("kill", PREFIX + one)
    answers(4)
    wait_until("the other leads, alone", lambda: metric(two, "members") == 1 and metric(two, "leads") == 1)
    answers(4)
    print("the other was killed: answers")


def remove() -> None:
    """What is there of it, also of a run that was cut off."""
    for name in COMPOSE["services"]:
        subprocess.run(["podman", "rm", "-f", "-v", PREFIX + name], capture_output=True)
        subprocess.run(["ip", "netns", "del", PREFIX + name], capture_output=True)
    subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)
    for volume in COMPOSE["volumes"]:
        subprocess.run(["podman", "volume", "rm", PREFIX + volume], capture_output=True)


def main() -> None:
    at = addresses()
    remove()
    with tempfile.TemporaryDirectory() as folder:
        secret = pathlib.Path(folder) / "cluster-secret"
        secret.write_text(secrets.token_hex(32) + "\n")
        pathlib.Path(folder).chmod(0o755)
        secret.chmod(0o644)
        try:
            build_images()
            connect(at)
            for name in at:
                start(name, at, secret)
            check(at)
        finally:
            remove()
    print("passed")


if __name__ == "__main__":
    sys.exit(main())
