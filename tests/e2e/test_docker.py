"""What docker/ promises of the image, held against the binary without building it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import urllib.request

import kubernetes_validate
import pytest
import yaml
from harness import BINARY, MODEL, ROOT, SOON_S, clean_environment, command

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


def test_image__has_what_installing_reads():
    """The files that docker/install and what it calls name, wherever they are looked for."""
    words = {word for line in instructions("COPY") for word in line.split() if word.startswith("docker/")}
    copied = {word.removeprefix("docker/") for word in words} - {""}
    scripts = [ROOT / "docker" / name for name in copied if name == "install" or name.startswith("fetch-")]
    assert len(scripts) == 3
    text = "\n".join(line for script in scripts for line in script.read_text().splitlines() if not line.startswith("#"))
    for file in (ROOT / "docker").iterdir():
        if file.name != "packages-page" and re.search(rf"\b{re.escape(file.name)}\b", text) and file.is_file():
            assert file.name in copied, f"{file.name} is not in the image that builds"


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


# --- Kubernetes

MANIFESTS = list(yaml.safe_load_all((ROOT / "docker" / "kubernetes.yaml").read_text()))
UNITS = {"G": 1 << 30, "Gi": 1 << 30}


def amount(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * UNITS[unit]


def container() -> tuple[dict, dict]:
    """The pod's spec, and its one container's."""
    (deployment,) = [m for m in MANIFESTS if m["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (only,) = pod["containers"]
    return pod, only


def test_kubernetes__manifests_are_of_their_schemas():
    for manifest in MANIFESTS:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_kubernetes__arguments_probes_and_memory(servers):
    pod, only = container()
    options = dict(argument[2:].split("=", 1) for argument in only["args"])
    limit = amount(only["resources"]["limits"]["memory"])
    tiers = amount(options["device-memory"]) + amount(options["host-memory"])
    assert tiers + limit // 8 + 3 * (1 << 30) <= limit, "weights of 3 GiB and an eighth"
    assert pod["terminationGracePeriodSeconds"] > 30
    ports = {port["name"]: port["containerPort"] for port in only["ports"]}
    assert ports == {"http": 8000, "admin": int(options["admin-listen"].rpartition(":")[2])}
    # The same arguments, with a model and sizes of this machine.
    here = {"model": str(MODEL), "device-memory": "64M", "host-memory": "64M"}
    here |= {"admin-listen": "127.0.0.1:0", "api-key-file": None}
    arguments = [f"--{name}={here.get(name, value)}" for name, value in options.items()]
    arguments = [argument for argument in arguments if not argument.endswith("=None")]
    own = servers.start(*arguments)
    (admin,) = re.findall(r"probes and metrics at http://127.0.0.1 port (\d+)", own.log())
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert only[probe]["httpGet"]["port"] == "admin"
        url = f"http://127.0.0.1:{admin}{only[probe]['httpGet']['path']}"
        with urllib.request.urlopen(url, timeout=SOON_S) as answer:
            assert answer.status == 200, url
    # What the image caches is on the volume, since everything else can only be read.
    mounts = {mount["mountPath"] for mount in only["volumeMounts"]}
    assert image_environment()["XDG_CACHE_HOME"] in mounts
