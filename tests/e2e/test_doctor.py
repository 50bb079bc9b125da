"""`kvahead doctor`: what `serve` with the same options would meet, all at once."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket

import pytest
from harness import MODEL, clean_environment, command


def ask(*options: str, env: dict | None = None) -> tuple[int, dict[str, list[dict]]]:
    """Its exit status, and its findings by subject."""
    done = command("doctor", "--port", "0", *options, "--json", "-", env=env)
    assert not done.stderr, done.stderr
    document = json.loads(done.stdout)
    findings: dict[str, list[dict]] = {}
    for finding in document["findings"]:
        assert set(finding) == {"verdict", "subject", "found", "advice"}
        findings.setdefault(finding["subject"], []).append(finding)
    order = ["ok", "note", "warn", "fail"]
    worst = max((f["verdict"] for f in document["findings"]), key=order.index)
    assert document["verdict"] == worst and done.returncode == (1 if worst == "fail" else 0)
    return done.returncode, findings


def verdict(findings: dict[str, list[dict]], subject: str) -> str:
    (finding,) = findings[subject]
    return finding["verdict"]


def test_doctor__this_machine_can_serve_the_bundled_model():
    code, findings = ask("--model", str(MODEL), "--device-memory", "64M", "--host-memory", "64M")
    assert code == 0
    for subject in ("program", "cores", "memory", "front end", "model", "device", "room"):
        assert verdict(findings, subject) in ("ok", "warn"), subject
    assert "sequences of 8192 tokens" in findings["room"][0]["found"]
    told = command("doctor", "--port", "0", "--model", MODEL)
    assert told.returncode == 0 and told.stdout.endswith(" to look at\n")


def test_doctor__without_a_model():
    code, findings = ask()
    assert code == 0
    assert verdict(findings, "model") == "note" and "room" not in findings


def test_doctor__all_that_is_wrong_is_said_at_once(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    keys.chmod(0o644)
    code, findings = ask(
        "--model", str(tmp_path / "nowhere"), "--device", "cuda:7", "--threads", "1000",
        "--tls-cert", str(tmp_path / "none.pem"), "--api-key-file", str(keys),
        "--connections", "1000000", "--device-memory", "60T",
    )  # fmt: skip
    assert code == 1
    for subject, word in {
        "GPU": "cuda:7", "front end": "none.pem", "model": "nowhere", "threads": "1000",
        "keys": str(keys), "descriptors": "1000000",
    }.items():  # fmt: skip
        (finding,) = findings[subject]
        assert finding["verdict"] in ("warn", "fail") and word in finding["found"], finding


def test_doctor__a_port_that_is_taken_and_an_open_door():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = command("doctor", "--port", port)
    assert done.returncode == 1 and f"127.0.0.1 port {port}" in done.stdout
    code, findings = ask("--host", "0.0.0.0")
    assert code == 1 and "API key" in findings["reach"][0]["found"]
    code, findings = ask("--host", "0.0.0.0", env=clean_environment(KVAHEAD_API_KEY="secret"))
    assert code == 0 and "reach" not in findings
    assert "to who has a key" in findings["front end"][0]["found"]


def test_doctor__memory_that_cannot_be_had():
    code, findings = ask("--host-memory", "60T")
    assert code == 1 and verdict(findings, "tiers") == "fail"
    code, findings = ask("--model", str(MODEL), "--device-memory", "4M", "--host-memory", "64M")
    assert code == 0 and verdict(findings, "room") == "warn"
    longest = int(findings["room"][0]["found"].split("one of ")[1].split()[0])
    assert 0 < longest < 8192 and longest % 64 == 0


def test_doctor__a_model_that_lacks_something(tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("training"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for template in folder.glob("chat_template*"):
        template.unlink()
    code, findings = ask("--model", str(folder))
    assert code == 0 and verdict(findings, "chat template") == "warn"
    (folder / "config.json").unlink()
    code, findings = ask("--model", str(folder))
    assert code == 1 and "config.json" in findings["model"][0]["found"]


def test_doctor__nothing_is_fetched():
    code, findings = ask("--model", "nobody/nothing")
    assert code == 1 and "nobody/nothing" in findings["model"][0]["found"]


def test_doctor__caches(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    place = tmp_path / "cache"
    place.mkdir(mode=0o500)
    _, findings = ask(env=clean_environment(XDG_CACHE_HOME=str(place)))
    assert verdict(findings, "models") == "warn"


def test_doctor__wrong_use():
    done = command("doctor", "me")
    assert done.returncode == 2 and "not 'me'" in done.stderr
    done = command("doctor", "--json", str(pathlib.Path("/proc/no/such/file")))
    assert done.returncode == 1 and "/proc/no/such/file" in done.stderr
