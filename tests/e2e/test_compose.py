"""docker/compose*.yaml, held against the Compose specification, Docker Compose, and what it is they start."""

from __future__ import annotations

import ipaddress
import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml
from harness import MODEL, ROOT, clean_environment, command
from proxies import find_program

FILES = ["compose.yaml", "compose.cluster.yaml"]
KEY = {"KVAHEAD_API_KEY": "secret"}


def path_of(name: str) -> pathlib.Path:
    return ROOT / "docker" / name


def read(name: str) -> dict:
    return yaml.safe_load(path_of(name).read_text())


def servers_of(name: str) -> dict[str, dict]:
    """The services that run this project's image."""
    return {key: service for key, service in read(name)["services"].items() if "build" in service}


def run(*arguments, **fields) -> subprocess.CompletedProcess:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, **fields)


def options() -> dict[str, str | None]:
    """Defaults by name."""
    return {option["name"]: option["default"] for option in json.loads(command("options", "--json").stdout)["options"]}


def docker_compose() -> tuple[list[str], int] | None:
    """The command, without a daemon, and its major version; None: there is none."""
    for tool in (["docker", "compose"], ["docker-compose"]):
        said = run(*tool, "version", "--short") if shutil.which(tool[0]) else None
        if said and said.returncode == 0:
            return tool, int(re.search(r"\d+", said.stdout)[0])
    return None


@pytest.mark.parametrize("name", FILES)
def test_compose__files_are_of_the_specification(name, tmp_path):
    def check(path) -> subprocess.CompletedProcess:
        return run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", path)

    assert check(path_of(name)).returncode == 0, check(path_of(name)).stdout
    broken = tmp_path / name
    broken.write_text(path_of(name).read_text().replace("read_only:", "read_mostly:"))
    assert "read_mostly" in check(broken).stdout


@pytest.mark.parametrize("name", FILES)
def test_compose__docker_compose_reads_them(name):
    found = docker_compose()
    if not found:
        pytest.skip("Docker Compose is not installed")
    tool, version = found
    if version < 2 and "environment" in str(read(name).get("secrets")):
        pytest.skip(f"Docker Compose {version} has no secrets from the environment")
    done = run(*tool, "-f", path_of(name), "config", env=clean_environment(**KEY))
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(read(name)["services"])
    done = run(*tool, "-f", path_of(name), "config", env=clean_environment())
    assert done.returncode != 0 and "choose the key" in done.stderr


@pytest.mark.parametrize("name", FILES)
def test_compose__what_services_name_is_there(name):
    """Which `config` of Docker Compose 1 does not look at."""
    document = read(name)
    for service in document["services"].values():
        for kind in ("networks", "secrets"):
            assert set(service.get(kind, [])) <= set(document.get(kind, []))
        assert set(service.get("depends_on", [])) <= set(document["services"])
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (path_of(name).parent / source).exists() if source[0] == "." else source in document["volumes"]


@pytest.mark.parametrize("name", FILES)
def test_compose__options_are_options(name):
    known = set(options())
    for service in servers_of(name).values():
        variables = {variable for variable in service["environment"] if variable.startswith("KVAHEAD_")}
        named = {variable.removeprefix("KVAHEAD_").lower().replace("_", "-") for variable in variables}
        given = {word.removeprefix("--") for word in service.get("command", []) if word.startswith("--")}
        assert named and named | given <= known, (named | given) - known


@pytest.mark.parametrize("name", FILES)
def test_compose__servers_have_what_they_need(name):
    """A time to drain, a cache to write to, since all else is read only, and secrets where they are looked for."""
    document, drain = read(name), options()["drain-timeout"]
    for service in servers_of(name).values():
        assert int(service["stop_grace_period"].rstrip("s")) > int(drain.rstrip("s"))
        assert service["read_only"] and "models:/cache" in service["volumes"]
        assert "XDG_CACHE_HOME=/cache" in path_of("Dockerfile").read_text()
        assert (path_of(name).parent / service["build"]["context"]).resolve() == ROOT
        assert (ROOT / service["build"]["dockerfile"]).exists()
        wanted = service["environment"].get("KVAHEAD_CLUSTER_SECRET_FILE")
        assert not wanted or wanted == f"/run/secrets/{service['secrets'][0]}"
    for secret in document["secrets"].values():
        if "file" in secret:
            kept = (path_of(name).parent / secret["file"]).resolve().relative_to(ROOT)
            assert f"{kept}" in (ROOT / ".dockerignore").read_text().split(), "it would be built into the image"


def test_compose__a_cluster_has_its_addresses():
    document = read("compose.cluster.yaml")
    (pool,) = document["networks"]["cluster"]["ipam"]["config"]
    (front,) = document["services"]["front"]["command"]
    for service in servers_of("compose.cluster.yaml").values():
        address = service["networks"]["cluster"]["ipv4_address"]
        assert ipaddress.ip_address(address) in ipaddress.ip_network(pool["subnet"])
        assert service["command"] == ["--cluster-listen", f"{address}:7000"]
        agent = service["environment"]["KVAHEAD_AGENT_LISTEN"].rpartition(":")[2]
        assert f"{address}:8000 agent-port {agent}" in front
    assert service["environment"]["KVAHEAD_CLUSTER_ETCD"] in " ".join(document["services"]["etcd"]["command"])


def test_compose__servers_start_with_what_they_are_given(servers, tmp_path):
    """The same options, with addresses, a model and sizes of this machine; without etcd they serve by themselves."""
    service = servers_of("compose.cluster.yaml")["one"]
    if "without clusters" in command("serve", "--model", "none", *service["command"]).stderr:
        pytest.skip("this build has no clusters")
    secret = tmp_path / "cluster-secret"
    secret.write_text("a secret of more than sixteen bytes\n")
    here = KEY | {"KVAHEAD_MODEL": str(MODEL), "KVAHEAD_AGENT_LISTEN": "127.0.0.1:0", "HF_TOKEN": "",
                  "KVAHEAD_CLUSTER_ETCD": "http://127.0.0.1:1", "KVAHEAD_CLUSTER_SECRET_FILE": str(secret)}
    assert set(here) == set(service["environment"])
    options = [re.sub(r"^10\..*:", "127.0.0.1:", word).replace(":7000", ":0") for word in service["command"]]
    server = servers.start(*options, env=here, key="secret")
    assert server.metrics()['kvahead_cluster_state{state="joining"}'] == 1


@pytest.mark.skipif(not find_program("haproxy"), reason="HAProxy is not installed")
def test_compose__the_front_is_a_configuration(tmp_path):
    """What the front's shell runs, but that HAProxy checks and ends; no server has to be there."""
    front = read("compose.cluster.yaml")["services"]["front"]
    assert front["entrypoint"] == ["sh", "-c"]
    (script,) = front["command"]
    made = str(tmp_path / "haproxy.cfg")
    script = script.replace("/tmp/haproxy.cfg", made).replace("{ cat /haproxy.cfg", f"{{ cat {path_of('haproxy.cfg')}")
    assert script.count(" -W -db -f ") == 1
    script = script.replace("exec haproxy -W -db -f", f"exec {find_program('haproxy')} -c -f")
    done = run("sh", "-c", script, env=clean_environment(**front["environment"]))
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"^ +server ", pathlib.Path(made).read_text(), re.M)
    assert len(lines) == len(servers_of("compose.cluster.yaml"))
