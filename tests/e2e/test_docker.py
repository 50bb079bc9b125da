"""What docker/ promises of the image, held against the binary without building it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess

import pytest
from harness import BINARY, MODEL, ROOT, clean_environment, command

DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text().replace("\\\n", " ")


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.+)$", DOCKERFILE, re.M)


def image_environment() -> dict[str, str]:
    pairs = [word.split("=", 1) for line in instructions("ENV") for word in shlex.split(line)]
    return dict(pairs) | {"KVAHEAD_MODEL": str(MODEL)}


def test_image__without_a_key_it_does_not_start():
    assert instructions("ENTRYPOINT") == ['["/usr/local/bin/kvahead", "serve"]']
    done = command("serve", env=clean_environment(**image_environment()))
    assert done.returncode == 1, done
    assert "KVAHEAD_API_KEY" in done.stderr and "--public-without-key" in done.stderr


@pytest.mark.parametrize("key", ["secret", None])
def test_image__health_check_passes(servers, key):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    here = {"KVAHEAD_HOST": "127.0.0.1"} | ({"KVAHEAD_API_KEY": key} if key else {})
    assert image_environment()["KVAHEAD_HOST"] == "0.0.0.0", "which is set otherwise here"
    own = servers.start(env=image_environment() | here, key=key)
    (check,) = instructions("HEALTHCHECK")
    (probe,) = re.findall(r" CMD (.+)$", check)
    assert ":8000/" in probe
    done = subprocess.run(
        shlex.split(probe.replace(":8000/", f":{own.port}/")), capture_output=True, check=False
    )
    assert done.returncode == 0, done


def test_image__has_the_libraries_that_the_binary_needs():
    if not shutil.which("dpkg-query") or not shutil.which("ldd"):
        pytest.skip("this is not a Debian machine")
    listed = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
    if "libasan" in listed or "libtsan" in listed:
        pytest.skip("a sanitized binary needs more")
    own = set(re.findall(r"^\s*\S+ => (/\S+)", listed, re.M))
    needed = subprocess.run(
        ["readelf", "--dynamic", BINARY], capture_output=True, text=True, check=True
    ).stdout
    names = re.findall(r"NEEDED.*\[(.+)\]", needed)
    packages = set()
    for path in own:
        if path.rpartition("/")[2] in names:
            # Debian 12 lists some under /lib that lie under /usr/lib now.
            names_of_it = {path, path.removeprefix("/usr"), f"/usr{path}"}
            owner = subprocess.run(
                ["dpkg-query", "--search", *sorted(names_of_it)],
                capture_output=True, text=True, check=False,
            ).stdout
            packages |= {line.split(":")[0] for line in owner.splitlines()}
    installed = set(re.findall(r"[a-z0-9.+-]+", " ".join(instructions("RUN"))))
    assert packages - {"libc6"}, "nothing was found out"
    assert packages - {"libc6", "libgcc-s1"} <= installed, packages - installed
